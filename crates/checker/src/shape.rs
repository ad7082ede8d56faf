//! Judges of order and shape: when tries may come (I12, I14, I26), in which order (I20, I22), how many at once (I25), and what a
//! replay makes (I17).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::evidence::{Hit, Moment, Outcome, Publish, ReplayEnd, RetryAfter};
use crate::verdict::{Finding, Index, SLACK, Verdict};

/// How much later than its time something may come on a busy machine where nothing else holds it.
const LATE_MAX: Moment = 5_000_000;
/// After a kill everything goes on within this time: a lease, and three seconds.
const BACK_WITHIN: Moment = 8_000_000;

/// A publish that reached an endpoint.
#[derive(Clone, Copy)]
struct Arrived<'a> {
    /// The first of its calls.
    publish: &'a Publish,
    /// When it was certainly accepted.
    answered: Option<Moment>,
    first: &'a Hit,
}

impl<'a> Index<'a> {
    fn arrived(&self, endpoint: usize) -> Vec<Arrived<'a>> {
        let mut found = Vec::new();
        for (serial, publishes) in &self.publishes {
            let (Some(publish), Some(first)) = (publishes.first(), self.hits_of(*serial, endpoint).first()) else { continue };
            let accepted = publishes.iter().filter(|publish| matches!(publish.outcome, Outcome::Ok { .. }));
            found.push(Arrived { publish, answered: accepted.map(|publish| publish.answered).min(), first });
        }
        found
    }

    /// The hits of the original delivery, without replays.
    fn originals_of(&self, serial: u64, endpoint: usize) -> impl Iterator<Item = &'a Hit> {
        self.hits_of(serial, endpoint).iter().copied().filter(|hit| !self.replayed.contains(&*hit.delivery))
    }

    fn kills_between(&self, from: Moment, until: Moment) -> usize {
        let from = from.saturating_sub(SLACK);
        self.evidence.kills.iter().filter(|kill| (from..=until).contains(*kill)).count()
    }
}

pub(crate) fn back_off(index: &Index<'_>) -> Verdict {
    let mut finding = Finding::about("I12", "tries come no sooner than the policy and Retry-After say, and not much later");
    for (delivery, hits) in &index.deliveries {
        let Some(endpoint) = hits.first().and_then(|hit| index.evidence.endpoints.get(hit.endpoint)) else { continue };
        let Some(retry) = endpoint.retry else { continue };
        for (hit, next) in hits.iter().zip(hits.iter().skip(1)) {
            // A try that was forgotten is made again at once, under the same number.
            if next.attempt != hit.attempt + 1 || hit.answer.is_success() {
                continue;
            }
            let (least, most) = retry.bounds(hit.attempt);
            let asked = match hit.retry_after {
                RetryAfter::Seconds(seconds) => Moment::from(seconds) * 1_000_000,
                RetryAfter::None | RetryAfter::Malformed => 0,
            };
            let waited = next.start.saturating_sub(hit.end);
            finding.check(waited + SLACK >= least.max(asked), || {
                let floor = least.max(asked);
                format!("{delivery}: attempt {} came {waited} µs after the one before it, and {floor} were wanted", next.attempt)
            });
            if index.kills_between(hit.start, next.start) == 0 && index.evidence.outages.is_empty() {
                finding.check(waited <= most.max(asked) + LATE_MAX, || {
                    format!(
                        "{delivery}: attempt {} came {waited} µs after the one before it, at most {most} were wanted",
                        next.attempt
                    )
                });
            }
        }
    }
    finding.done()
}

pub(crate) fn later_and_cancelled(index: &Index<'_>) -> Verdict {
    let mut finding =
        Finding::about("I14", "nothing comes before its deliver_at, and nothing that was cancelled before comes at all");
    let mut first_of_event: HashMap<&str, &Hit> = HashMap::new();
    for hit in index.hits.values().flatten() {
        let first = first_of_event.entry(&hit.event).or_insert(hit);
        if hit.start < first.start {
            *first = hit;
        }
    }
    for publish in &index.evidence.publishes {
        let (Some(deliver_at), Outcome::Ok { event, .. }) = (publish.deliver_at, &publish.outcome) else { continue };
        let Some(first) = first_of_event.get(&**event) else { continue };
        finding.check(first.start + SLACK >= deliver_at, || format!("{event} was due at {deliver_at} and came at {}", first.start));
    }
    for cancel in index.evidence.cancels.iter().filter(|cancel| cancel.is_granted) {
        let first = first_of_event.get(&*cancel.event);
        let is_kept = first.is_none_or(|first| first.start < cancel.answered);
        finding.check(is_kept, || format!("{} was cancelled by {} and came at {:?}", cancel.event, cancel.answered, first));
    }
    finding.done()
}

pub(crate) fn replays(index: &Index<'_>) -> Verdict {
    let mut finding = Finding::about("I17", "a replay makes what matched less what it skipped, each once, and nothing else");
    let rows: BTreeMap<&str, _> = index.evidence.rows.iter().map(|row| (&*row.id, row)).collect();
    for replay in &index.evidence.replays {
        let ReplayEnd { id, state, matched, created, skipped, remaining } = replay;
        finding.check(state == "done" && *remaining == 0, || format!("{id} is {state} with {remaining} remaining"));
        finding.check(*matched == created + skipped + remaining, || format!("the books of {replay:?} do not balance"));
        let made = index.evidence.rows.iter().filter(|row| row.replay.as_ref() == Some(id)).count() as u64;
        finding.check(made == *created, || format!("{id} says that it made {created}, and there are {made}"));
        if let Some(dry) = index.evidence.dry_runs.get(id) {
            finding.check(dry == created, || format!("the dry run before {id} said {dry}, and it made {created}"));
        }
    }
    let mut repeated = BTreeSet::new();
    for row in index.evidence.rows.iter().filter(|row| row.replay.is_some()) {
        let original = row.replay_of.as_deref().and_then(|original| rows.get(original));
        let is_true = original.is_some_and(|original| original.event == row.event && original.endpoint == row.endpoint);
        finding.check(is_true, || format!("{row:?} repeats {original:?}"));
        finding.check(repeated.insert(row.replay_of.clone()), || format!("{:?} was made again more than once", row.replay_of));
    }
    finding.done()
}

pub(crate) fn order_of_keys(index: &Index<'_>) -> Verdict {
    let mut finding = Finding::about("I20", "what has the same ordering key comes one after the other, in the order of acceptance");
    for endpoint in 0..index.evidence.endpoints.len() {
        let mut by_key: BTreeMap<&str, Vec<Arrived<'_>>> = BTreeMap::new();
        for arrived in index.arrived(endpoint) {
            if let Some(key) = &arrived.publish.ordering_key {
                by_key.entry(key).or_default().push(arrived);
            }
        }
        for (key, events) in by_key {
            let (mut by_sent, mut by_answered) = (events.clone(), events);
            by_sent.sort_by_key(|arrived| arrived.publish.sent);
            by_answered.retain(|arrived| arrived.answered.is_some());
            by_answered.sort_by_key(|arrived| arrived.answered);
            let mut older = by_answered.into_iter().peekable();
            // Of everything that was certainly accepted before: the last start of a try, and the end of the last try that counted.
            let (mut last_start, mut last_end) = ((0, 0), (0, 0));
            for Arrived { publish, first, .. } in by_sent {
                while let Some(before) = older.next_if(|before| before.answered < Some(publish.sent)) {
                    let before = before.publish;
                    for hit in index.originals_of(before.serial, endpoint) {
                        last_start = last_start.max((hit.start, before.serial));
                    }
                    let ended = index
                        .originals_of(before.serial, endpoint)
                        .find(|hit| hit.answer.is_success() || hit.answer.is_permanent());
                    last_end = last_end.max((ended.map_or(0, |hit| hit.end), before.serial));
                }
                if last_start.0 == 0 {
                    continue;
                }
                finding.check(last_start.0 <= first.start, || {
                    format!(
                        "key {key} at endpoint {endpoint}: event {} was tried at {}, after the younger {} had come at {}",
                        last_start.1, last_start.0, publish.serial, first.start
                    )
                });
                finding.check(last_end.0 <= first.start + SLACK, || {
                    format!(
                        "key {key} at endpoint {endpoint}: event {} came at {}, before event {} had ended at {}",
                        publish.serial, first.start, last_end.1, last_end.0
                    )
                });
            }
        }
    }
    finding.done()
}

pub(crate) fn oldest_first(index: &Index<'_>) -> Verdict {
    let mut finding = Finding::about("I22", "with k in flight nothing is overtaken by more than k − 1 younger ones");
    for (at, endpoint) in index.evidence.endpoints.iter().enumerate() {
        let Some(cap) = endpoint.max_in_flight else { continue };
        let mut events = index.arrived(at);
        events.retain(|arrived| arrived.publish.ordering_key.is_none() && arrived.publish.deliver_at.is_none());
        events.sort_by_key(|arrived| arrived.first.start);
        for (place, Arrived { publish, answered, first }) in events.iter().enumerate() {
            let Some(answered) = *answered else { continue };
            // Its turn may have come before theirs: it then had to be read, or a connection had to be made for it.
            let by = |younger: &&Arrived<'_>| answered < younger.publish.sent && younger.first.start + SLACK < first.start;
            let overtaken = events[..place].iter().filter(by).count();
            // What was being sent when the server was killed is chosen again.
            let allowed = (cap as usize - 1) * (1 + index.kills_between(answered, first.start));
            // Only where there was a backlog is there a choice.
            if place > 0 && events[place - 1].first.start > answered {
                finding.check(overtaken <= allowed, || {
                    format!(
                        "event {} was overtaken by {overtaken} at endpoint {at}, and {allowed} may: it was accepted at {answered} and \
                         came at {} as attempt {}; kills at {:?}",
                        publish.serial, first.start, first.attempt, index.evidence.kills
                    )
                });
            }
        }
    }
    finding.done()
}

pub(crate) fn caps(index: &Index<'_>) -> Verdict {
    let mut finding = Finding::about("I25", "no more in flight than the endpoint and the tenant allow, twice that across a kill");
    for (at, endpoint) in index.evidence.endpoints.iter().enumerate() {
        if let Some(cap) = endpoint.max_in_flight {
            check_cap(index, &mut finding, cap, &format!("endpoint {at}"), |hit| hit.endpoint == at);
        }
    }
    for (tenant, cap) in &index.evidence.tenant_caps {
        let is_its = |hit: &Hit| index.evidence.endpoints.get(hit.endpoint).is_some_and(|endpoint| endpoint.tenant == *tenant);
        check_cap(index, &mut finding, *cap, &format!("tenant {tenant}"), is_its);
    }
    finding.done()
}

/// Counts as a case only where the cap was reached: below it nothing is learned.
fn check_cap(index: &Index<'_>, finding: &mut Finding, cap: u32, whose: &str, is_counted: impl Fn(&Hit) -> bool) {
    let mut hits: Vec<&Hit> = index.evidence.hits.iter().filter(|hit| is_counted(hit)).collect();
    hits.sort_by_key(|hit| hit.start);
    let mut open: Vec<&Hit> = Vec::new();
    for hit in hits {
        open.retain(|earlier| hit.start < earlier.end);
        open.push(hit);
        let first = open.iter().map(|earlier| earlier.start).min().unwrap_or(hit.start);
        let allowed = if index.kills_between(first, hit.start) > 0 { 2 * cap } else { cap };
        if open.len() >= cap as usize {
            finding.check(open.len() <= allowed as usize, || {
                format!("{whose}: {} in flight at {}, {allowed} may be", open.len(), hit.start)
            });
        }
    }
}

pub(crate) fn quiet_hours(index: &Index<'_>) -> Verdict {
    let mut finding = Finding::about("I26", "nothing that is covered starts in a quiet window; what was held comes at its end");
    for window in &index.evidence.quiet {
        let is_covered = |hit: &&Hit| hit.endpoint == window.endpoint && *hit.event_type != *window.bypass;
        let mut covered: Vec<&Hit> = index.evidence.hits.iter().filter(is_covered).collect();
        covered.sort_by_key(|hit| hit.start);
        // The window's edges in wall time and this clock agree to less than the slack.
        let in_force = window.from + SLACK..window.until.saturating_sub(SLACK);
        let inside = covered.iter().find(|hit| in_force.contains(&hit.start));
        finding.check(inside.is_none(), || format!("{window:?}: {inside:?}"));
        finding.0.checked += covered.iter().filter(|hit| !in_force.contains(&hit.start)).count() as u64;
        let held = index.evidence.publishes.iter().any(|publish| {
            let is_its = index.evidence.endpoints.get(window.endpoint).is_some_and(|endpoint| endpoint.tenant == publish.tenant);
            let is_inside = window.from < publish.sent && publish.answered + SLACK < window.until;
            is_its && is_inside && publish.event_type != window.bypass && matches!(publish.outcome, Outcome::Ok { .. })
        });
        if held && window.is_whole && index.kills_between(window.until.saturating_sub(BACK_WITHIN), window.until + LATE_MAX) == 0 {
            let released = covered.iter().find(|hit| hit.start + SLACK >= window.until);
            let is_soon = released.is_some_and(|hit| hit.start <= window.until + LATE_MAX + SLACK);
            finding.check(is_soon, || format!("{window:?} ended, and the first of what was held came as {released:?}"));
        }
    }
    finding.done()
}

/// Promises without a case where there has to be one.
pub fn without_case<'a>(verdicts: &'a [Verdict], expected: &'a [&'static str]) -> impl Iterator<Item = &'static str> {
    verdicts.iter().filter(|verdict| verdict.checked == 0 && expected.contains(&verdict.promise)).map(|verdict| verdict.promise)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Answer, Cancel, Endpoint, Evidence, QuietWindow, Retry, Row, fingerprint};
    use crate::verdict::judge;

    const SECOND: Moment = 1_000_000;

    fn endpoint() -> Endpoint {
        Endpoint {
            tenant: 0,
            wants: None,
            id: "ep_0".into(),
            made: 0,
            is_doomed: false,
            rate_limit: None,
            retry: Some(Retry { base: SECOND, factor: 2, cap: 4 * SECOND }),
            max_in_flight: Some(2),
        }
    }

    /// Events 0 to 5, published a second apart and delivered one after the other.
    fn peace() -> Evidence {
        let mut evidence = Evidence { max_attempts: 8, endpoints: vec![endpoint()], ..Evidence::default() };
        evidence.endpoint_statuses.insert("ep_0".into(), "active".to_owned());
        for serial in 0..6 {
            let event: Box<str> = format!("evt_{serial}").into();
            let sent = (serial + 1) * SECOND;
            evidence.publishes.push(Publish {
                serial,
                tenant: 0,
                event_type: "order.made",
                sent,
                answered: sent + 10,
                outcome: Outcome::Ok { event: event.clone(), is_duplicate: false },
                data: fingerprint(b"x"),
                idempotency_key: None,
                ordering_key: None,
                deliver_at: None,
            });
            evidence.hits.push(Hit {
                start: 10 * SECOND + serial * SECOND,
                end: 10 * SECOND + serial * SECOND + SECOND / 2,
                endpoint: 0,
                event,
                delivery: format!("dlv_{serial}").into(),
                attempt: 1,
                serial: Some(serial),
                tenant: Some(0),
                event_type: "order.made".into(),
                data: fingerprint(b"x"),
                body: fingerprint(b"body"),
                answer: Answer::Status(200),
                retry_after: RetryAfter::None,
                marks: [None; 2],
                secret: None,
                signature_problem: None,
                clock_off_seconds: 0,
            });
        }
        evidence
    }

    #[track_caller]
    fn check(promise: &str, is_broken: bool, harm: impl FnOnce(&mut Evidence)) {
        let mut evidence = peace();
        harm(&mut evidence);
        let verdicts = judge(&evidence);
        let verdict = verdicts.iter().find(|verdict| verdict.promise == promise).unwrap();
        assert_eq!(verdict.is_broken(), is_broken, "{verdict}");
        assert!(verdict.checked > 0, "{verdict}");
    }

    /// The first try of event 0 failed, and the second came so long after its end.
    fn retried(evidence: &mut Evidence, after: Moment, retry_after: RetryAfter) {
        let mut again = evidence.hits[0].clone();
        evidence.hits[0].answer = Answer::Status(503);
        evidence.hits[0].retry_after = retry_after;
        (again.attempt, again.start) = (2, evidence.hits[0].end + after);
        again.end = again.start + 10;
        evidence.hits.push(again);
    }

    #[test]
    fn i12_a_try_too_early_or_too_late_is_found() {
        check("I12", false, |evidence| retried(evidence, SECOND, RetryAfter::None));
        check("I12", false, |evidence| retried(evidence, SECOND / 2, RetryAfter::None));
        check("I12", true, |evidence| retried(evidence, SECOND / 5, RetryAfter::None));
        check("I12", true, |evidence| retried(evidence, SECOND, RetryAfter::Seconds(3)));
        check("I12", false, |evidence| retried(evidence, 3 * SECOND, RetryAfter::Seconds(3)));
        check("I12", false, |evidence| retried(evidence, SECOND, RetryAfter::Malformed));
        check("I12", true, |evidence| retried(evidence, 20 * SECOND, RetryAfter::Malformed));
        check("I12", false, |evidence| {
            retried(evidence, 20 * SECOND, RetryAfter::None);
            evidence.kills.push(12 * SECOND);
        });
    }

    #[test]
    fn i12_the_bounds_double_up_to_the_cap() {
        let retry = Retry { base: SECOND, factor: 2, cap: 4 * SECOND };
        assert_eq!([1, 2, 3, 4].map(|attempt| retry.bounds(attempt).1), [1, 2, 4, 4].map(|seconds| seconds * SECOND));
        assert_eq!(retry.bounds(2).0, SECOND);
    }

    #[test]
    fn i14_what_comes_before_its_time_or_after_its_cancelling_is_found() {
        check("I14", false, |evidence| evidence.publishes[0].deliver_at = Some(10 * SECOND));
        check("I14", true, |evidence| evidence.publishes[0].deliver_at = Some(11 * SECOND));
        let cancel = |answered, is_granted| Cancel { event: "evt_0".into(), answered, is_granted };
        check("I14", true, |evidence| evidence.cancels.push(cancel(9 * SECOND, true)));
        check("I14", false, |evidence| evidence.cancels.push(cancel(11 * SECOND, true)));
        check("I14", false, |evidence| {
            evidence.cancels.extend([cancel(9 * SECOND, false), cancel(11 * SECOND, true)]);
        });
        check("I14", false, |evidence| {
            evidence.cancels.push(cancel(9 * SECOND, true));
            evidence.hits.remove(0);
        });
    }

    /// One replay that has repeated the first two deliveries.
    fn replayed(evidence: &mut Evidence) {
        let row = |id: &str, event: &str, of: Option<&str>| Row {
            id: id.into(),
            event: event.into(),
            endpoint: "ep_0".into(),
            replay: of.map(|_| "rpl_1".into()),
            replay_of: of.map(Into::into),
        };
        evidence.rows = vec![
            row("dlv_0", "evt_0", None),
            row("dlv_1", "evt_1", None),
            row("dlv_10", "evt_0", Some("dlv_0")),
            row("dlv_11", "evt_1", Some("dlv_1")),
        ];
        let (id, state) = ("rpl_1".into(), "done".to_owned());
        evidence.replays = vec![ReplayEnd { id, state, matched: 3, created: 2, skipped: 1, remaining: 0 }];
    }

    #[test]
    fn i17_books_that_do_not_balance_and_rows_that_are_too_many_are_found() {
        check("I17", false, replayed);
        let harms: [fn(&mut Evidence); 7] = [
            |evidence| evidence.replays[0].matched = 4,
            |evidence| evidence.replays[0].state = "running".to_owned(),
            |evidence| (evidence.replays[0].created, evidence.replays[0].skipped) = (1, 2),
            |evidence| _ = evidence.rows.pop(),
            |evidence| evidence.rows[3].replay_of = Some("dlv_0".into()),
            |evidence| evidence.rows[3].endpoint = "ep_1".into(),
            |evidence| _ = evidence.dry_runs.insert("rpl_1".into(), 3),
        ];
        for harm in harms {
            check("I17", true, |evidence| {
                replayed(evidence);
                harm(evidence);
            });
        }
    }

    #[test]
    fn i20_a_younger_one_that_does_not_wait_is_found() {
        let keyed = |evidence: &mut Evidence| {
            for publish in &mut evidence.publishes {
                publish.ordering_key = Some(format!("key-{}", publish.serial % 2).into());
            }
        };
        check("I20", false, keyed);
        check("I20", true, |evidence| {
            keyed(evidence);
            let (first, third) = (evidence.hits[0].start, evidence.hits[2].start);
            (evidence.hits[0].start, evidence.hits[2].start) = (third, first);
        });
        check("I20", false, |evidence| {
            keyed(evidence);
            // Of another key.
            (evidence.hits[0].end, evidence.hits[1].start) = (11 * SECOND + SECOND / 2, 10 * SECOND + 1);
        });
        check("I20", true, |evidence| {
            keyed(evidence);
            evidence.hits[0].end = 13 * SECOND;
        });
        check("I20", true, |evidence| {
            keyed(evidence);
            retried(evidence, 3 * SECOND, RetryAfter::None);
        });
    }

    #[test]
    fn i22_more_than_k_minus_1_that_overtake_are_found() {
        check("I22", false, |evidence| evidence.hits[0].start += SECOND + SLACK + 1);
        check("I22", true, |evidence| evidence.hits[0].start += 2 * SECOND + SLACK + 1);
        check("I22", false, |evidence| {
            evidence.hits[0].start += 2 * SECOND + SLACK + 1;
            evidence.kills.push(9 * SECOND);
        });
    }

    #[test]
    fn i25_one_more_than_the_cap_is_found_and_twice_as_many_across_a_kill_are_not() {
        let overlap =
            |count: usize| move |evidence: &mut Evidence| evidence.hits[..count].iter_mut().for_each(|hit| hit.end = 16 * SECOND);
        check("I25", false, |evidence| {
            overlap(1)(evidence);
            evidence.hits[1].end = 11 * SECOND + 1;
        });
        check("I25", true, overlap(2));
        check("I25", false, |evidence| {
            overlap(3)(evidence);
            evidence.kills.push(11 * SECOND + SECOND / 2);
            evidence.hits.truncate(4);
        });
        check("I25", true, |evidence| {
            evidence.endpoints[0].max_in_flight = None;
            _ = evidence.tenant_caps.insert(0, 1);
            overlap(1)(evidence);
        });
    }

    #[test]
    fn i26_what_starts_in_a_window_or_stays_long_after_it_is_found() {
        let window = |from, until| QuietWindow { endpoint: 0, from, until, bypass: "invoice.paid", is_whole: true };
        check("I26", true, |evidence| evidence.quiet.push(window(9 * SECOND, 14 * SECOND)));
        check("I26", false, |evidence| evidence.quiet.push(window(SECOND, 10 * SECOND)));
        check("I26", false, |evidence| {
            evidence.quiet.push(window(9 * SECOND, 14 * SECOND));
            evidence.hits.iter_mut().for_each(|hit| hit.event_type = "invoice.paid".into());
        });
        check("I26", true, |evidence| {
            evidence.quiet.push(window(SECOND, 10 * SECOND));
            evidence.hits.iter_mut().for_each(|hit| hit.start += 10 * SECOND);
        });
    }

    #[test]
    fn a_judge_without_a_case_is_named() {
        let verdicts = judge(&peace());
        let missing: Vec<&str> = without_case(&verdicts, &["I1", "I14", "I17"]).collect();
        assert_eq!(missing, ["I14", "I17"]);
    }
}
