//! Judges: which promises of `docs/promises.md` were kept, by what was done and seen.
//!
//! Each judge is a query over the evidence and knows nothing of how it came about. What it finds is told with the names of
//! what it is about, so that one can go and look.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use crate::evidence::{Answer, Change, Evidence, Hit, Moment, Outcome, Parity, Pause, Publish, RateLimit, Setting};
use crate::shape;

/// What measuring may be off by.
pub(crate) const SLACK: Moment = 250_000;
/// How long after an answer its record is certainly on disk, however busy this machine is. Only what was answered within
/// this time before a kill may come again.
const RECORDED_WITHIN: Moment = 3_000_000;
/// How long a change of an endpoint may take to be in force everywhere.
const IN_FORCE_WITHIN: Moment = 100_000;
/// How much longer than its timeout a request may last.
const TIMED_OUT_WITHIN: Moment = 1_000_000;
/// What signatures may be off by.
const CLOCK_OFF_SECONDS_MAX: u64 = 2;
/// How many findings are shown of each promise.
const SHOWN_MAX: usize = 5;

/// What is to be said of one promise.
#[derive(Clone, Debug)]
pub struct Verdict {
    pub promise: &'static str,
    pub claim: &'static str,
    /// How many cases were looked at.
    pub checked: u64,
    pub broken: Vec<String>,
    /// Why nothing could be looked at.
    pub not_checked: Option<String>,
}

impl Verdict {
    pub fn is_broken(&self) -> bool {
        !self.broken.is_empty()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict { promise, claim, checked, broken, not_checked } = self;
        if let Some(why) = not_checked {
            return write!(f, "{promise:>4}  not checked  {claim}: {why}");
        }
        let word = match (broken.is_empty(), checked) {
            (false, _) => "BROKEN",
            (true, 0) => "no case",
            (true, _) => "held",
        };
        write!(f, "{promise:>4}  {word:<11}  {claim} ({checked} checked")?;
        if broken.is_empty() { f.write_str(")") } else { write!(f, ", {} broken)", broken.len()) }?;
        broken.iter().take(SHOWN_MAX).try_for_each(|finding| write!(f, "\n      - {finding}"))
    }
}

/// Collects what one judge finds.
pub(crate) struct Finding(pub(crate) Verdict);

impl Finding {
    pub(crate) fn about(promise: &'static str, claim: &'static str) -> Finding {
        Finding(Verdict { promise, claim, checked: 0, broken: Vec::new(), not_checked: None })
    }

    /// Notes one case. `what` is asked only if it is broken.
    pub(crate) fn check(&mut self, is_kept: bool, what: impl FnOnce() -> String) {
        self.0.checked += 1;
        if !is_kept {
            self.0.broken.push(what());
        }
    }

    pub(crate) fn done(self) -> Verdict {
        self.0
    }
}

/// All judges, in the order of their numbers.
pub fn judge(evidence: &Evidence) -> Vec<Verdict> {
    let index = Index::new(evidence);
    vec![
        nothing_acknowledged_is_lost(&index),
        unknown_is_all_or_nothing(&index),
        no_phantom(&index),
        delivered_is_true(&index),
        nothing_is_stuck(&index),
        duplicates_only_from_kills(&index),
        attempt_budget(&index),
        outcome_table(&index),
        shape::back_off(&index),
        one_in_flight(&index),
        shape::later_and_cancelled(&index),
        same_id_and_bytes(&index),
        valid_signatures(&index),
        shape::replays(&index),
        idempotency(&index),
        shape::order_of_keys(&index),
        shape::oldest_first(&index),
        token_bucket(&index),
        shape::caps(&index),
        shape::quiet_hours(&index),
        changes(&index),
    ]
}

/// The evidence, arranged for asking.
pub(crate) struct Index<'a> {
    pub(crate) evidence: &'a Evidence,
    /// By serial number.
    pub(crate) publishes: BTreeMap<u64, Vec<&'a Publish>>,
    /// By serial number and endpoint, in the order of their starts.
    pub(crate) hits: HashMap<(u64, usize), Vec<&'a Hit>>,
    /// By delivery, in the order of their starts.
    pub(crate) deliveries: BTreeMap<&'a str, Vec<&'a Hit>>,
    /// Deliveries that a replay made.
    pub(crate) replayed: HashSet<&'a str>,
    /// Events that somebody wanted cancelled, granted or not.
    cancelled: HashSet<&'a str>,
}

impl<'a> Index<'a> {
    fn new(evidence: &'a Evidence) -> Index<'a> {
        let mut publishes: BTreeMap<u64, Vec<&Publish>> = BTreeMap::new();
        for publish in &evidence.publishes {
            publishes.entry(publish.serial).or_default().push(publish);
        }
        let mut in_order: Vec<&Hit> = evidence.hits.iter().collect();
        in_order.sort_by_key(|hit| hit.start);
        let mut hits: HashMap<(u64, usize), Vec<&Hit>> = HashMap::new();
        let mut deliveries: BTreeMap<&str, Vec<&Hit>> = BTreeMap::new();
        for hit in in_order {
            if let Some(serial) = hit.serial {
                hits.entry((serial, hit.endpoint)).or_default().push(hit);
            }
            deliveries.entry(&hit.delivery).or_default().push(hit);
        }
        let replayed = evidence.rows.iter().filter(|row| row.replay.is_some()).map(|row| &*row.id).collect();
        let cancelled = evidence.cancels.iter().map(|cancel| &*cancel.event).collect();
        Index { evidence, publishes, hits, deliveries, replayed, cancelled }
    }

    pub(crate) fn hits_of(&self, serial: u64, endpoint: usize) -> &[&'a Hit] {
        self.hits.get(&(serial, endpoint)).map_or(&[], Vec::as_slice)
    }

    /// To which endpoints something is owed if this publish took place.
    fn owed_to(&self, publish: &Publish) -> impl Iterator<Item = usize> {
        let is_cancelled = matches!(&publish.outcome, Outcome::Ok { event, .. } if self.cancelled.contains(&**event));
        let endpoints = self.evidence.endpoints.iter().enumerate();
        endpoints
            .filter(move |_| !is_cancelled)
            .filter(|(_, endpoint)| {
                let is_for_it = endpoint.tenant == publish.tenant && endpoint.wants(publish.event_type);
                is_for_it && !endpoint.is_doomed && endpoint.made < publish.sent
            })
            .map(|(at, _)| at)
    }

    fn has_ended(&self, serial: u64, endpoint: usize) -> bool {
        self.hits_of(serial, endpoint).iter().any(|hit| hit.answer.is_success() || hit.answer.is_permanent())
    }

    /// What a server has sent in its last moments may be read after it is gone.
    fn was_killed_between(&self, from: Moment, until: Moment) -> bool {
        self.evidence.kills.iter().any(|kill| (from.saturating_sub(SLACK)..=until).contains(kill))
    }

    /// Whether the server may have forgotten how this ended: it was killed before it can have written it down.
    fn may_be_forgotten(&self, hit: &Hit, before: Moment) -> bool {
        let mut recorded = hit.end + RECORDED_WITHIN;
        for (from, until) in &self.evidence.outages {
            if (hit.start..=recorded).contains(from) || (*from..=*until).contains(&hit.start) {
                recorded = recorded.max(until + RECORDED_WITHIN);
            }
        }
        self.was_killed_between(hit.start, before.min(recorded))
    }
}

fn nothing_acknowledged_is_lost(index: &Index<'_>) -> Verdict {
    let mut finding = Finding::about("I1", "no acknowledged event is lost; one delivery for each endpoint");
    for (serial, publishes) in &index.publishes {
        let Some(publish) = publishes.iter().find(|publish| matches!(publish.outcome, Outcome::Ok { .. })) else { continue };
        for endpoint in index.owed_to(publish) {
            finding.check(index.has_ended(*serial, endpoint), || {
                let tries = index.hits_of(*serial, endpoint).len();
                format!("{publish:?} was acknowledged; endpoint {endpoint} was hit {tries} times and never to an end")
            });
            let originals = index.hits_of(*serial, endpoint).iter().filter(|hit| !index.replayed.contains(&*hit.delivery));
            let deliveries: BTreeSet<&str> = originals.map(|hit| &*hit.delivery).collect();
            finding.check(deliveries.len() <= 1, || format!("event {serial} reached endpoint {endpoint} as {deliveries:?}"));
        }
        let Outcome::Ok { event, .. } = &publish.outcome else { continue };
        let Some(listed) = index.evidence.listed.get(event) else { continue };
        for endpoint in index.owed_to(publish) {
            let id = &index.evidence.endpoints[endpoint].id;
            let count = listed.get(&**id).copied().unwrap_or_default();
            finding.check(count == 1, || format!("the API lists {count} deliveries of {event} to {id}"));
        }
    }
    finding.done()
}

fn unknown_is_all_or_nothing(index: &Index<'_>) -> Verdict {
    let mut finding = Finding::about("I3", "a publish that nobody answered is all there or not at all");
    for (serial, publishes) in &index.publishes {
        if publishes.iter().any(|publish| publish.outcome != Outcome::Unknown) {
            continue;
        }
        let Some(first) = publishes.first() else { continue };
        let owed: Vec<usize> = index.owed_to(first).collect();
        let ended = owed.iter().filter(|endpoint| index.has_ended(*serial, **endpoint)).count();
        finding.check(ended == 0 || ended == owed.len(), || {
            format!("event {serial} was not answered and came to an end at {ended} of {} endpoints", owed.len())
        });
    }
    finding.done()
}

fn no_phantom(index: &Index<'_>) -> Verdict {
    let mut finding = Finding::about("I4", "every hit was published, for that tenant, of a type that the endpoint wants");
    for hit in &index.evidence.hits {
        let publishes = hit.serial.and_then(|serial| index.publishes.get(&serial));
        let was_possible = publishes.is_some_and(|publishes| publishes.iter().any(|publish| publish.outcome != Outcome::No));
        finding.check(was_possible, || format!("nobody published this, or it was refused: {hit:?}"));
        let Some(endpoint) = index.evidence.endpoints.get(hit.endpoint) else {
            finding.check(false, || format!("no such endpoint was made: {hit:?}"));
            continue;
        };
        let is_right = hit.tenant == Some(endpoint.tenant) && endpoint.wants(&hit.event_type);
        finding.check(is_right, || format!("not for this endpoint ({endpoint:?}): {hit:?}"));
    }
    finding.done()
}

fn delivered_is_true(index: &Index<'_>) -> Verdict {
    let mut finding = Finding::about("I5", "what is said to be delivered was answered with 2xx");
    for (delivery, state) in index.evidence.deliveries.iter().filter(|(_, state)| state.status == "delivered") {
        let hits = index.deliveries.get(&**delivery).map_or(&[][..], Vec::as_slice);
        finding.check(hits.iter().any(|hit| hit.answer.is_success()), || format!("{delivery}: {state:?}, hits {hits:?}"));
    }
    finding.done()
}

fn nothing_is_stuck(index: &Index<'_>) -> Verdict {
    let mut finding = Finding::about("I6", "when all is calm, every delivery has come to an end");
    for (delivery, state) in &index.evidence.deliveries {
        let is_doomed = index
            .deliveries
            .get(&**delivery)
            .and_then(|hits| hits.first())
            .is_some_and(|hit| index.evidence.endpoints.get(hit.endpoint).is_some_and(|endpoint| endpoint.is_doomed));
        finding.check(state.is_over() || is_doomed, || format!("{delivery} is {state:?}"));
    }
    finding.done()
}

fn duplicates_only_from_kills(index: &Index<'_>) -> Verdict {
    let mut finding = Finding::about("I9", "after a 2xx nothing comes again, unless a kill came before its record");
    for (delivery, hits) in &index.deliveries {
        for (hit, next) in hits.iter().zip(hits.iter().skip(1)).filter(|(hit, _)| hit.answer.is_success()) {
            finding.check(index.may_be_forgotten(hit, next.start), || {
                format!("{delivery} was answered {:?} at {} and came again at {}", hit.answer, hit.end, next.start)
            });
        }
        finding.0.checked += u64::from(hits.iter().any(|hit| hit.answer.is_success()));
    }
    finding.done()
}

fn attempt_budget(index: &Index<'_>) -> Verdict {
    let mut finding = Finding::about("I10", "attempts are counted on, repeat only after a kill, and are no more than allowed");
    for (delivery, hits) in &index.deliveries {
        for (hit, next) in hits.iter().zip(hits.iter().skip(1)) {
            let is_next = hit.attempt < next.attempt;
            let is_again = hit.attempt == next.attempt && index.was_killed_between(hit.start, next.start);
            finding.check(is_next || is_again, || {
                format!("{delivery}: attempt {} at {}, then {} at {}", hit.attempt, hit.start, next.attempt, next.start)
            });
        }
        let Some(state) = index.evidence.deliveries.get(*delivery) else { continue };
        let (first, last) = (hits[0].start.saturating_sub(SLACK), hits[hits.len() - 1].end + RECORDED_WITHIN);
        let kills = index.evidence.kills.iter().filter(|kill| (first..=last).contains(kill)).count();
        let is_within = hits.len() as u64 <= state.attempt_count + kills as u64
            && state.attempt_count <= u64::from(index.evidence.max_attempts);
        finding.check(is_within, || format!("{delivery}: {} hits and {kills} kills, but {state:?}", hits.len()));
    }
    finding.done()
}

fn outcome_table(index: &Index<'_>) -> Verdict {
    let mut finding = Finding::about("I11", "2xx is delivered, a permanent no is dead at once, 410 disables the endpoint");
    for (delivery, hits) in &index.deliveries {
        for (hit, next) in hits.iter().zip(hits.iter().skip(1)).filter(|(hit, _)| hit.answer.is_permanent()) {
            finding.check(index.may_be_forgotten(hit, next.start), || {
                format!("{delivery} was refused with {:?} at {} and came again at {}", hit.answer, hit.end, next.start)
            });
        }
        let Some(state) = index.evidence.deliveries.get(*delivery) else { continue };
        let reason = state.reason.as_deref();
        let statuses: Vec<Answer> = hits.iter().map(|hit| hit.answer).collect();
        let is_right = match state.status.as_str() {
            "delivered" => statuses.iter().any(|answer| answer.is_success()),
            "dead" if reason == Some("endpoint_gone") => statuses.contains(&Answer::Status(410)),
            "dead" if reason == Some("permanent_failure") => statuses.iter().any(|answer| answer.is_permanent()),
            "dead" => reason == Some("max_attempts_exceeded") && state.attempt_count == u64::from(index.evidence.max_attempts),
            // An answer too late for its time-out is none; whether it ever ends is the business of I6.
            _ => true,
        };
        finding.check(is_right, || format!("{delivery} is {state:?} after {statuses:?}"));
    }
    for hit in index.evidence.hits.iter().filter(|hit| hit.answer == Answer::Status(410)) {
        let Some(endpoint) = index.evidence.endpoints.get(hit.endpoint) else { continue };
        let status = index.evidence.endpoint_statuses.get(&endpoint.id).map(String::as_str);
        // The kill may have come before anybody knew, and the next try found it healed.
        let is_excused = index.may_be_forgotten(hit, Moment::MAX);
        finding.check(status == Some("disabled") || is_excused, || format!("an endpoint that answered 410 is {status:?}"));
    }
    finding.done()
}

fn one_in_flight(index: &Index<'_>) -> Verdict {
    let mut finding = Finding::about("I13", "a delivery is in flight once at a time, across a restart twice");
    for (delivery, hits) in &index.deliveries {
        for (hit, next) in hits.iter().zip(hits.iter().skip(1)) {
            let overlaps = next.start + SLACK < hit.end;
            finding.check(!overlaps || index.was_killed_between(hit.start, next.start), || {
                format!("{delivery}: from {} to {}, and again from {}", hit.start, hit.end, next.start)
            });
        }
        finding.0.checked += 1;
    }
    finding.done()
}

fn same_id_and_bytes(index: &Index<'_>) -> Verdict {
    let mut finding = Finding::about("I15", "the same id and the same bytes in every try; the payload as it was published");
    for ((serial, endpoint), hits) in &index.hits {
        let Some(publishes) = index.publishes.get(serial) else { continue };
        let (first, publish) = (hits[0], publishes[0]);
        for hit in hits {
            let is_same = hit.event == first.event && hit.body == first.body && hit.data == publish.data;
            finding.check(is_same, || format!("event {serial} at endpoint {endpoint}: {first:?} became {hit:?}"));
        }
        for publish in publishes {
            if let Outcome::Ok { event, .. } = &publish.outcome {
                finding.check(*event == first.event, || format!("{event} was delivered under the id {}", first.event));
            }
        }
    }
    finding.done()
}

fn valid_signatures(index: &Index<'_>) -> Verdict {
    let mut finding = Finding::about("I16", "every hit is signed, at its own time");
    for hit in &index.evidence.hits {
        let is_valid = hit.signature_problem.is_none() && hit.clock_off_seconds <= CLOCK_OFF_SECONDS_MAX;
        finding.check(is_valid, || format!("{}: {:?}, {} s off", hit.delivery, hit.signature_problem, hit.clock_off_seconds));
    }
    finding.done()
}

fn idempotency(index: &Index<'_>) -> Verdict {
    let mut finding = Finding::about("I18", "one key, one event, however often it is asked for");
    finding.0.not_checked = index.evidence.missing.get("I18").cloned();
    let mut by_key: BTreeMap<(u32, &str), Vec<&Publish>> = BTreeMap::new();
    for publish in &index.evidence.publishes {
        if let Some(key) = &publish.idempotency_key {
            by_key.entry((publish.tenant, key)).or_default().push(publish);
        }
    }
    for ((_, key), publishes) in by_key {
        let mut events = BTreeSet::new();
        let mut firsts = 0;
        for publish in &publishes {
            if let Outcome::Ok { event, is_duplicate } = &publish.outcome {
                events.insert(&**event);
                firsts += u32::from(!is_duplicate);
            }
        }
        for serial in publishes.iter().map(|publish| publish.serial).collect::<BTreeSet<_>>() {
            for endpoint in 0..index.evidence.endpoints.len() {
                events.extend(index.hits_of(serial, endpoint).iter().map(|hit| &*hit.event));
            }
        }
        finding.check(events.len() <= 1 && firsts <= 1, || format!("{key} made {events:?}, {firsts} times anew"));
    }
    finding.done()
}

/// With `x(k) = k − r·t(k)`, the most that was ever sent at once is the maximum over j of `x(j) − min over i ≤ j of x(i) + 1`.
fn token_bucket(index: &Index<'_>) -> Verdict {
    let mut finding = Finding::about("I23", "no more than the bucket allows, over any interval, across every restart");
    finding.0.not_checked = index.evidence.missing.get("I23").cloned();
    for (at, endpoint) in index.evidence.endpoints.iter().enumerate() {
        let Some(limit) = endpoint.rate_limit else { continue };
        let starts = index.evidence.hits.iter().filter(|hit| hit.endpoint == at).map(|hit| hit.start).collect();
        check_bucket(&mut finding, limit, starts, &format!("endpoint {at}"));
    }
    finding.done()
}

fn check_bucket(finding: &mut Finding, limit: RateLimit, mut starts: Vec<Moment>, whose: &str) {
    starts.sort_unstable();
    let per_moment = f64::from(limit.max_per_minute) / 60_000_000.0;
    let mut lowest = f64::INFINITY;
    for (count, start) in starts.iter().enumerate() {
        let line = count as f64 - per_moment * *start as f64;
        lowest = lowest.min(line);
        let most = line - lowest + 1.0;
        let allowed = f64::from(limit.burst_capacity) + per_moment * SLACK as f64;
        finding.check(most <= allowed, || format!("{whose}: {most:.1} where {allowed:.1} are allowed, at {start}"));
    }
}

fn changes(index: &Index<'_>) -> Verdict {
    let claim = "from the answer to a change on nothing goes by the old URL, headers, secret, timeout, filter, rate limit or status, across every restart";
    let mut finding = Finding::about("I28", claim);
    finding.0.not_checked = index.evidence.missing.get("I28").cloned();
    for Pause { endpoint, from, until } in &index.evidence.pauses {
        let in_force = from + IN_FORCE_WITHIN..*until;
        let hit = index.evidence.hits.iter().find(|hit| hit.endpoint == *endpoint && in_force.contains(&hit.start));
        finding.check(hit.is_none(), || format!("endpoint {endpoint} was paused from {from} to {until}: {hit:?}"));
    }
    for change in &index.evidence.changes {
        let in_force = change.from.saturating_add(IN_FORCE_WITHIN)..change.until;
        let is_in_force = |hit: &&Hit| hit.endpoint == change.endpoint && in_force.contains(&hit.start);
        let mut hits = index.evidence.hits.iter().filter(is_in_force);
        match change.setting {
            Setting::Mark(mark) => {
                let other = hits.find(|hit| hit.marks != [Some(mark); 2]);
                finding.check(other.is_none(), || format!("{change:?}: {other:?}"));
            }
            Setting::Secret(number) => {
                let other = hits.find(|hit| hit.secret.is_some_and(|secret| secret != number));
                finding.check(other.is_none(), || format!("{change:?}: {other:?}"));
            }
            Setting::Timeout(timeout) => {
                let lasts = timeout.saturating_sub(SLACK)..=timeout + TIMED_OUT_WITHIN + SLACK;
                let was_cut_off = |hit: &&Hit| index.was_killed_between(hit.start, hit.end + RECORDED_WITHIN);
                for hit in hits.filter(|hit| hit.answer == Answer::Cut && !was_cut_off(hit)) {
                    finding.check(lasts.contains(&(hit.end - hit.start)), || format!("{change:?}: {hit:?}"));
                }
            }
            Setting::Wants(parity) => check_filter(index, &mut finding, change, parity),
            Setting::Disabled => {
                let hit = hits.next();
                finding.check(hit.is_none(), || format!("{change:?}: {hit:?}"));
                for (serial, _) in published_under(index, change) {
                    let count = index.hits_of(serial, change.endpoint).len();
                    finding.check(count == 0, || format!("{change:?}: event {serial} was published then and came {count} times"));
                }
            }
            Setting::RateLimit(limit) => {
                check_bucket(&mut finding, limit, hits.map(|hit| hit.start).collect(), &format!("{change:?}"));
            }
        }
    }
    finding.done()
}

/// Events of the tenant whose every publish was sent and answered while a setting was in force, by their serial numbers.
fn published_under<'i>(index: &'i Index<'_>, change: &'i Change) -> impl Iterator<Item = (u64, &'i [&'i Publish])> {
    let tenant = index.evidence.endpoints.get(change.endpoint).map(|endpoint| endpoint.tenant);
    let is_under =
        move |publish: &Publish| Some(publish.tenant) == tenant && change.from <= publish.sent && publish.answered < change.until;
    let all = index.publishes.iter().map(|(serial, publishes)| (*serial, publishes.as_slice()));
    all.filter(move |(_, publishes)| publishes.iter().all(|publish| is_under(publish)))
}

/// A filter applies to every event that is published after its answer: what it wants comes, and nothing else.
fn check_filter(index: &Index<'_>, finding: &mut Finding, change: &Change, parity: Parity) {
    for (serial, publishes) in published_under(index, change) {
        if Parity::of(serial) != parity {
            let count = index.hits_of(serial, change.endpoint).len();
            finding.check(count == 0, || format!("{change:?}: event {serial} is not wanted and came {count} times"));
        } else if publishes.iter().any(|publish| matches!(publish.outcome, Outcome::Ok { .. })) {
            finding.check(index.has_ended(serial, change.endpoint), || {
                format!("{change:?}: event {serial} is wanted and did not come")
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Cancel, DeliveryState, Endpoint, RetryAfter, Row, fingerprint};

    const SECOND: Moment = 1_000_000;

    /// Two events, two endpoints, one of them limited; everything went well.
    fn peace() -> Evidence {
        let mut evidence = Evidence { max_attempts: 8, ..Evidence::default() };
        for (at, rate_limit) in [None, Some(RateLimit { max_per_minute: 60, burst_capacity: 1 })].into_iter().enumerate() {
            let id = format!("ep_{at}").into_boxed_str();
            evidence.endpoint_statuses.insert(id.clone(), "active".to_owned());
            let (retry, max_in_flight) = (None, None);
            let wants = Some("order.");
            evidence.endpoints.push(Endpoint { tenant: 0, wants, id, made: 0, is_doomed: false, rate_limit, retry, max_in_flight });
        }
        for serial in 0..2 {
            let event: Box<str> = format!("evt_{serial}").into();
            let sent = (serial + 1) * 10 * SECOND;
            evidence.publishes.push(Publish {
                serial,
                tenant: 0,
                event_type: "order.made",
                sent,
                answered: sent + 1,
                outcome: Outcome::Ok { event: event.clone(), is_duplicate: false },
                data: fingerprint(&serial.to_le_bytes()),
                idempotency_key: Some("key".repeat(usize::try_from(serial).unwrap() + 1).into()),
                ordering_key: None,
                deliver_at: None,
            });
            for endpoint in 0..2 {
                let delivery: Box<str> = format!("dlv_{serial}_{endpoint}").into();
                let state = DeliveryState { status: "delivered".to_owned(), reason: None, attempt_count: 1 };
                evidence.deliveries.insert(delivery.clone(), state);
                evidence.hits.push(Hit {
                    start: sent + 2,
                    end: sent + 3,
                    endpoint,
                    event: event.clone(),
                    delivery,
                    attempt: 1,
                    serial: Some(serial),
                    tenant: Some(0),
                    event_type: "order.made".into(),
                    data: fingerprint(&serial.to_le_bytes()),
                    body: fingerprint(b"body"),
                    answer: Answer::Status(200),
                    retry_after: RetryAfter::None,
                    marks: [None; 2],
                    secret: None,
                    signature_problem: None,
                    clock_off_seconds: 0,
                });
            }
            evidence.listed.insert(event, [("ep_0".to_owned(), 1), ("ep_1".to_owned(), 1)].into());
        }
        evidence
    }

    fn broken(evidence: &Evidence) -> Vec<&'static str> {
        judge(evidence).iter().filter(|verdict| verdict.is_broken()).map(|verdict| verdict.promise).collect()
    }

    /// Says what has to be found after this was done to a world in which everything went well.
    #[track_caller]
    fn check(expected: &[&str], harm: impl FnOnce(&mut Evidence)) {
        let mut evidence = peace();
        harm(&mut evidence);
        assert_eq!(broken(&evidence), expected);
    }

    /// As if the server had never heard of it.
    fn lose(evidence: &mut Evidence, at: usize) {
        let hit = evidence.hits.remove(at);
        evidence.deliveries.remove(&hit.delivery);
    }

    /// The same hit once more, so much later.
    fn again(evidence: &mut Evidence, at: usize, later: Moment) -> &mut Hit {
        let mut hit = evidence.hits[at].clone();
        hit.start += later;
        hit.end += later;
        evidence.hits.push(hit);
        evidence.hits.last_mut().unwrap()
    }

    #[test]
    fn peace_is_found_to_be_peaceful() {
        check(&[], |_| {});
        assert!(
            judge(&peace()).iter().all(|verdict| {
                let has_its_own_tests = ["I12", "I14", "I17", "I20", "I22", "I25", "I26"].contains(&verdict.promise);
                verdict.checked > 0 || has_its_own_tests || ["I3", "I28"].contains(&verdict.promise)
            }),
            "nothing is left out"
        );
    }

    #[test]
    fn i1_a_lost_event_and_a_second_delivery_are_found() {
        check(&["I1"], |evidence| lose(evidence, 0));
        check(&["I1", "I5"], |evidence| _ = evidence.hits.remove(0));
        check(&["I1"], |evidence| evidence.listed.get_mut("evt_0").unwrap().clear());
        check(&["I1", "I23"], |evidence| {
            again(evidence, 1, 10).delivery = "dlv_other".into();
        });
        check(&[], |evidence| evidence.endpoints[0].made = 15 * SECOND);
        check(&[], |evidence| {
            lose(evidence, 0);
            evidence.cancels.push(Cancel { event: "evt_0".into(), answered: 11 * SECOND, is_granted: false });
        });
        check(&[], |evidence| {
            again(evidence, 0, SECOND).delivery = "dlv_other".into();
            let (id, event, endpoint) = ("dlv_other".into(), "evt_0".into(), "ep_0".into());
            let original =
                Row { id: "dlv_0_0".into(), event: "evt_0".into(), endpoint: "ep_0".into(), replay: None, replay_of: None };
            let (replay, replay_of) = (Some("rpl_1".into()), Some("dlv_0_0".into()));
            evidence.rows.extend([original, Row { id, event, endpoint, replay, replay_of }]);
        });
    }

    #[test]
    fn i3_half_an_event_is_found() {
        let unknown = |evidence: &mut Evidence| evidence.publishes[0].outcome = Outcome::Unknown;
        check(&[], unknown);
        check(&["I3"], |evidence| {
            unknown(evidence);
            lose(evidence, 0);
        });
        check(&[], |evidence| {
            unknown(evidence);
            lose(evidence, 0);
            lose(evidence, 0);
        });
    }

    #[test]
    fn i4_what_nobody_published_is_found() {
        check(&["I4"], |evidence| evidence.publishes[0].outcome = Outcome::No);
        check(&["I1", "I4"], |evidence| evidence.hits[0].serial = Some(77));
        check(&["I4"], |evidence| evidence.hits[0].tenant = Some(1));
        check(&["I4"], |evidence| evidence.hits[0].event_type = "invoice.paid".into());
    }

    #[test]
    fn i5_and_i6_a_state_that_is_not_true_is_found() {
        check(&["I1", "I5", "I11"], |evidence| evidence.hits[0].answer = Answer::Status(500));
        check(&["I6"], |evidence| evidence.deliveries.get_mut("dlv_0_0").unwrap().status = "pending".to_owned());
    }

    #[test]
    fn i9_a_duplicate_is_found_unless_a_kill_explains_it() {
        let twice = |evidence: &mut Evidence| _ = again(evidence, 0, 2 * SECOND);
        check(&["I9", "I10"], twice);
        check(&[], |evidence| {
            twice(evidence);
            evidence.kills.push(10 * SECOND + 500);
        });
        check(&[], |evidence| {
            twice(evidence);
            evidence.kills.push(10 * SECOND - SLACK / 2);
        });
        check(&["I9"], |evidence| {
            again(evidence, 0, 20 * SECOND);
            evidence.kills.push(25 * SECOND);
        });
        check(&[], |evidence| {
            again(evidence, 0, 20 * SECOND);
            evidence.outages.push((9 * SECOND, 25 * SECOND));
            evidence.kills.push(25 * SECOND);
        });
        check(&["I9", "I10"], |evidence| {
            again(evidence, 0, 20 * SECOND);
            evidence.outages.push((9 * SECOND, 25 * SECOND));
        });
    }

    #[test]
    fn i10_attempts_that_fall_or_are_too_many_are_found() {
        check(&["I10"], |evidence| {
            evidence.hits[0].answer = Answer::Status(503);
            evidence.hits[0].attempt = 2;
            again(evidence, 0, SECOND).answer = Answer::Status(200);
            evidence.hits.last_mut().unwrap().attempt = 1;
            evidence.deliveries.get_mut("dlv_0_0").unwrap().attempt_count = 2;
        });
        check(&["I10"], |evidence| evidence.deliveries.get_mut("dlv_0_0").unwrap().attempt_count = 9);
    }

    #[test]
    fn i11_a_permanent_no_that_is_tried_again_is_found() {
        check(&["I11"], |evidence| {
            evidence.hits[0].answer = Answer::Status(400);
            again(evidence, 0, SECOND).answer = Answer::Status(200);
            evidence.hits.last_mut().unwrap().attempt = 2;
            evidence.deliveries.get_mut("dlv_0_0").unwrap().attempt_count = 2;
        });
        check(&["I11"], |evidence| {
            evidence.hits[0].answer = Answer::Status(410);
            let state = evidence.deliveries.get_mut("dlv_0_0").unwrap();
            (state.status, state.reason) = ("dead".to_owned(), Some("endpoint_gone".to_owned()));
        });
    }

    #[test]
    fn i13_two_at_a_time_are_found() {
        check(&["I13"], |evidence| {
            evidence.hits[0].answer = Answer::Cut;
            evidence.hits[0].end += 5 * SECOND;
            again(evidence, 0, SECOND).answer = Answer::Status(200);
            evidence.hits.last_mut().unwrap().attempt = 2;
            evidence.deliveries.get_mut("dlv_0_0").unwrap().attempt_count = 2;
        });
    }

    #[test]
    fn i15_and_i16_other_bytes_ids_and_signatures_are_found() {
        check(&["I15"], |evidence| evidence.hits[0].data = fingerprint(b"other"));
        check(&["I15", "I18"], |evidence| evidence.hits[0].event = "evt_other".into());
        check(&["I16"], |evidence| evidence.hits[0].signature_problem = Some("no signature matches".into()));
        check(&["I16"], |evidence| evidence.hits[0].clock_off_seconds = 3);
    }

    #[test]
    fn i18_a_key_that_makes_two_events_is_found() {
        check(&["I18"], |evidence| evidence.publishes[1].idempotency_key = evidence.publishes[0].idempotency_key.clone());
    }

    #[test]
    fn i28_a_hit_in_a_pause_is_found() {
        let pause = |from| move |evidence: &mut Evidence| evidence.pauses.push(Pause { endpoint: 0, from, until: 15 * SECOND });
        check(&["I28"], pause(8 * SECOND));
        check(&["I28"], pause(10 * SECOND - SECOND / 2));
        check(&[], pause(10 * SECOND - SECOND / 20));
    }

    #[test]
    fn i28_a_hit_with_an_old_url_header_or_secret_is_found() {
        let change = |setting, from, marks, secret| {
            move |evidence: &mut Evidence| {
                evidence.changes.push(Change { endpoint: 0, from, until: 15 * SECOND, setting });
                (evidence.hits[0].marks, evidence.hits[0].secret) = (marks, secret);
            }
        };
        let (mark, secret, late) = (Setting::Mark(3), Setting::Secret(1), 10 * SECOND - SECOND / 20);
        check(&[], change(mark, 8 * SECOND, [Some(3); 2], None));
        check(&["I28"], change(mark, 8 * SECOND, [Some(2), Some(3)], None));
        check(&["I28"], change(mark, 8 * SECOND, [Some(3), None], None));
        check(&[], change(mark, late, [Some(2), Some(2)], None));
        check(&[], change(secret, 8 * SECOND, [None; 2], Some(1)));
        check(&["I28"], change(secret, 8 * SECOND, [None; 2], Some(0)));
    }

    /// The first event is published at 10 s and comes to endpoint 0 at once.
    fn changed(setting: Setting, from: Moment) -> impl Fn(&mut Evidence) {
        move |evidence| evidence.changes.push(Change { endpoint: 0, from, until: 15 * SECOND, setting })
    }

    #[test]
    fn i28_a_request_that_lasts_as_long_as_an_old_timeout_is_found() {
        let hangs = |seconds: Moment, from: Moment| {
            move |evidence: &mut Evidence| {
                changed(Setting::Timeout(SECOND), from)(evidence);
                // Cut off, and delivered by the next try.
                evidence.hits[0].answer = Answer::Cut;
                evidence.hits[0].end = evidence.hits[0].start + seconds * SECOND;
                let next = again(evidence, 0, 8 * SECOND);
                (next.answer, next.attempt, next.end) = (Answer::Status(200), 2, next.start);
                evidence.deliveries.get_mut("dlv_0_0").unwrap().attempt_count = 2;
            }
        };
        check(&[], hangs(1, 8 * SECOND));
        check(&["I28"], hangs(3, 8 * SECOND));
        check(&["I28"], hangs(0, 8 * SECOND));
        check(&[], hangs(3, 10 * SECOND));
        check(&[], |evidence| {
            hangs(3, 8 * SECOND)(evidence);
            evidence.kills.push(13 * SECOND);
        });
    }

    #[test]
    fn i28_an_event_that_a_new_filter_does_not_want_is_found_and_one_that_it_wants_is_missed() {
        check(&[], changed(Setting::Wants(Parity::Even), 8 * SECOND));
        check(&["I28"], changed(Setting::Wants(Parity::Odd), 8 * SECOND));
        check(&[], changed(Setting::Wants(Parity::Odd), 10 * SECOND + 1));
        check(&["I28"], |evidence| {
            changed(Setting::Wants(Parity::Even), 8 * SECOND)(evidence);
            evidence.endpoints[0].is_doomed = true;
            evidence.listed.clear();
            lose(evidence, 0);
        });
    }

    #[test]
    fn i28_a_hit_at_a_disabled_endpoint_is_found_and_so_is_an_event_that_was_published_then() {
        check(&["I28"], changed(Setting::Disabled, 8 * SECOND));
        check(&[], changed(Setting::Disabled, 10 * SECOND + 1));
        check(&["I28"], |evidence| {
            changed(Setting::Disabled, 8 * SECOND)(evidence);
            // It came once the endpoint was enabled.
            (evidence.hits[0].start, evidence.hits[0].end) = (16 * SECOND, 16 * SECOND + 1);
        });
    }

    #[test]
    fn i28_more_than_a_new_rate_limit_allows_is_found() {
        let limit = |max_per_minute, burst_capacity| Setting::RateLimit(RateLimit { max_per_minute, burst_capacity });
        let twice = |setting: Setting, from: Moment| {
            move |evidence: &mut Evidence| {
                changed(setting, from)(evidence);
                evidence.hits[0].answer = Answer::Status(503);
                let next = again(evidence, 0, SECOND);
                (next.answer, next.attempt) = (Answer::Status(200), 2);
                evidence.deliveries.get_mut("dlv_0_0").unwrap().attempt_count = 2;
            }
        };
        check(&["I28"], twice(limit(6, 1), 8 * SECOND));
        check(&[], twice(limit(60, 1), 8 * SECOND));
        check(&[], twice(limit(6, 2), 8 * SECOND));
        check(&[], twice(limit(6, 1), 10 * SECOND + SECOND / 2));
    }

    #[test]
    fn i23_a_fresh_burst_is_found() {
        check(&["I23"], |evidence| {
            evidence.hits[1].answer = Answer::Status(503);
            evidence.deliveries.get_mut("dlv_0_1").unwrap().attempt_count = 2;
            again(evidence, 1, SECOND / 10).answer = Answer::Status(200);
            evidence.hits.last_mut().unwrap().attempt = 2;
        });
    }
}
