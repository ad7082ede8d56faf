//! What has become of deliveries: attempts, ends, circuits, learned timeouts.
//!
//! Owners tell of it in batches, once it is on disk, so that one uncontended lock is taken for a whole batch.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use posthaste_core::delivery::{CancelReason, DeadReason, Outcome, Silence, Verdict};
use posthaste_core::event::EventType;
use posthaste_core::id::{EndpointId, TenantId};

use crate::Limits;
use crate::count::Histogram;
use crate::note::{Attempt, CircuitChange, ENDS, EndpointStatus, Note, end_of};
use crate::page::{Kind, Page};
use crate::ranked::{Counts, Ranked};

/// Attempts that a policy can ask for.
const ATTEMPTS_MAX: usize = posthaste_core::retry::ATTEMPTS_MAX as usize;
const LATENCY_MILLIS: &[f64] =
    &[5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0, 2_500.0, 5_000.0, 10_000.0, 30_000.0, 60_000.0];
/// Up to the day that an ordinary retry can wait, and 60 s among them, which an alert asks about.
const SECONDS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0, 21_600.0, 86_400.0];
const ATTEMPT_COUNTS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 15.0, 25.0, 50.0];

#[derive(Debug)]
pub struct Deliveries {
    counted: Mutex<TenantCounters>,
    /// By status class: successes, answers that were none, no answer.
    latency: [Histogram; 6],
    attempt_count: Histogram,
    lag: Histogram,
    /// First tries, and the others.
    age: [Histogram; 2],
}

#[derive(Debug)]
struct TenantCounters {
    by_type: Ranked<(TenantId, EventType, EndpointStatus), OfType>,
    by_endpoint: Ranked<EndpointId, OfEndpoint>,
    dead: Ranked<TenantId, Dead>,
    cancelled: [u64; CancelReason::ALL.len()],
    circuits: [u64; CircuitChange::ALL.len()],
    timeouts_shortened: u64,
    timeouts_lengthened: u64,
    last_hour: LastHour,
}

#[derive(Clone, Default, Debug)]
struct OfType {
    attempted: u64,
    succeeded: u64,
    failed: [u64; ENDS.len()],
}

impl Counts for OfType {
    fn add(&mut self, other: &OfType) {
        self.attempted += other.attempted;
        self.succeeded += other.succeeded;
        self.failed.iter_mut().zip(other.failed).for_each(|(own, other)| *own += other);
    }

    fn traffic(&self) -> u64 {
        self.attempted
    }
}

#[derive(Clone, Default, Debug)]
struct OfEndpoint {
    tenant: Option<TenantId>,
    attempts: u64,
    failures: u64,
    timeouts: u64,
    /// What was in force when it was last tried.
    timeout: Option<Duration>,
}

impl Counts for OfEndpoint {
    fn add(&mut self, other: &OfEndpoint) {
        self.attempts += other.attempts;
        self.failures += other.failures;
        self.timeouts += other.timeouts;
        if other.timeout.is_some() {
            self.timeout = other.timeout;
            self.tenant.clone_from(&other.tenant);
        }
    }

    fn traffic(&self) -> u64 {
        self.attempts
    }
}

#[derive(Clone, Default, Debug)]
struct Dead([u64; DeadReason::ALL.len()]);

impl Counts for Dead {
    fn add(&mut self, other: &Dead) {
        self.0.iter_mut().zip(other.0).for_each(|(own, other)| *own += other);
    }

    fn traffic(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// Attempts by their number, and deaths, minute by minute.
#[derive(Debug, Default)]
struct LastHour(VecDeque<Minute>);

#[derive(Debug)]
struct Minute {
    began: Instant,
    attempts: [u32; ATTEMPTS_MAX],
    dead: u64,
}

const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);

impl LastHour {
    fn minute(&mut self, now: Instant) -> &mut Minute {
        while self.0.front().is_some_and(|minute| minute.began + HOUR <= now) {
            self.0.pop_front();
        }
        if self.0.back().is_none_or(|minute| minute.began + MINUTE <= now) {
            self.0.push_back(Minute { began: now, attempts: [0; ATTEMPTS_MAX], dead: 0 });
        }
        self.0.back_mut().expect("just pushed")
    }

    fn attempts(&self, now: Instant) -> [u64; ATTEMPTS_MAX] {
        let mut sums = [0; ATTEMPTS_MAX];
        for minute in self.0.iter().filter(|minute| now < minute.began + HOUR) {
            sums.iter_mut().zip(minute.attempts).for_each(|(sum, count)| *sum += u64::from(count));
        }
        sums
    }

    fn dead(&self, now: Instant) -> u64 {
        self.0.iter().filter(|minute| now < minute.began + HOUR).map(|minute| minute.dead).sum()
    }
}

impl Deliveries {
    pub(crate) fn new(limits: &Limits) -> Deliveries {
        Deliveries {
            counted: Mutex::new(TenantCounters {
                by_type: Ranked::new(limits.types_max),
                by_endpoint: Ranked::new(limits.endpoints_max),
                dead: Ranked::new(limits.types_max),
                cancelled: [0; CancelReason::ALL.len()],
                circuits: [0; CircuitChange::ALL.len()],
                timeouts_shortened: 0,
                timeouts_lengthened: 0,
                last_hour: LastHour::default(),
            }),
            latency: std::array::from_fn(|_| Histogram::new(LATENCY_MILLIS)),
            attempt_count: Histogram::new(ATTEMPT_COUNTS),
            lag: Histogram::new(SECONDS),
            age: [Histogram::new(SECONDS), Histogram::new(SECONDS)],
        }
    }

    /// What has happened since it was last told.
    pub fn note(&self, notes: &[Note]) {
        if notes.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut counted = self.counted.lock();
        for note in notes {
            match note {
                Note::Attempt(attempt) => self.attempted(&mut counted, now, attempt),
                Note::Dead { tenant, reason } => counted.died(now, tenant, *reason),
                Note::Cancelled { reason, .. } => counted.cancelled[*reason as usize] += 1,
                Note::Circuit(change) => counted.circuits[*change as usize] += 1,
                Note::Timeout { endpoint, tenant, timeout, is_shorter } => {
                    let of_endpoint = OfEndpoint { tenant: Some(tenant.clone()), timeout: Some(*timeout), ..OfEndpoint::default() };
                    counted.by_endpoint.add(endpoint, &of_endpoint);
                    if *is_shorter {
                        counted.timeouts_shortened += 1;
                    } else {
                        counted.timeouts_lengthened += 1;
                    }
                }
            }
        }
    }

    fn attempted(&self, counted: &mut TenantCounters, now: Instant, attempt: &Attempt) {
        let is_success = attempt.verdict == Verdict::Delivered;
        let end = end_of(&attempt.outcome);
        let mut of_type = OfType { attempted: 1, succeeded: u64::from(is_success), failed: [0; ENDS.len()] };
        of_type.failed[end] = u64::from(!is_success);
        // Two names that count their readers: to clone them costs two additions.
        let key = (attempt.tenant.clone(), attempt.event_type.clone(), attempt.status);
        counted.by_type.add(&key, &of_type);
        // There from its first attempt on, at zero: a series that begins at one has not risen for whoever compares.
        counted.dead.add(&attempt.tenant, &Dead::default());
        let of_endpoint = OfEndpoint {
            tenant: Some(attempt.tenant.clone()),
            attempts: 1,
            failures: u64::from(!is_success),
            timeouts: u64::from(attempt.outcome == Outcome::Silent(Silence::Timeout)),
            timeout: Some(attempt.timeout),
        };
        counted.by_endpoint.add(&attempt.endpoint, &of_endpoint);
        let place = (attempt.number.max(1) as usize - 1).min(ATTEMPTS_MAX - 1);
        counted.last_hour.minute(now).attempts[place] += 1;
        self.latency[end.min(5)].observe_millis(attempt.response_time);
        self.lag.observe_seconds(attempt.lag);
        match attempt.verdict {
            Verdict::RetryAt(_) => {}
            Verdict::Delivered => {
                self.attempt_count.observe(f64::from(attempt.number));
                self.age[usize::from(attempt.number > 1)].observe_seconds(attempt.age);
            }
            Verdict::Dead(reason) => {
                self.attempt_count.observe(f64::from(attempt.number));
                counted.died(now, &attempt.tenant, reason);
            }
        }
    }

    pub(crate) fn show(&self, page: &mut Page) {
        let now = Instant::now();
        let mut counted = self.counted.lock();
        counted.rank();
        counted.show(page, now);
        drop(counted);
        let mut latency = page.family(
            "webhook_delivery_latency_ms",
            Kind::Histogram,
            "From the start of an attempt to the head of the answer or the failure, in milliseconds.",
        );
        for (histogram, status_class) in self.latency.iter().zip(["1xx", "2xx", "3xx", "4xx", "5xx", "none"]) {
            if histogram.count() > 0 || status_class == "2xx" {
                histogram.show(&mut latency, &[("status_class", &status_class)]);
            }
        }
        let mut attempts = page.family(
            "webhook_delivery_attempt_count",
            Kind::Histogram,
            "How many attempts deliveries took that were delivered, or died of their last attempt.",
        );
        self.attempt_count.show(&mut attempts, &[]);
        let mut lag = page.family(
            "webhook_delivery_lag_seconds",
            Kind::Histogram,
            "From when a delivery was due to the start of the attempt, holds included, in seconds.",
        );
        self.lag.show(&mut lag, &[]);
        let mut age = page.family(
            "webhook_delivery_age_seconds",
            Kind::Histogram,
            "From when a delivery was made (or from its deliver_at) until it was delivered, in seconds; those delivered by their first try apart.",
        );
        for (histogram, first_try) in self.age.iter().zip([true, false]) {
            histogram.show(&mut age, &[("first_try", &first_try)]);
        }
    }
}

const OTHER: &str = "other";

/// One of the numbers of an endpoint.
type Count = fn(&OfEndpoint) -> u64;

impl TenantCounters {
    fn died(&mut self, now: Instant, tenant: &TenantId, reason: DeadReason) {
        let mut dead = Dead::default();
        dead.0[place_of(reason)] = 1;
        self.dead.add(tenant, &dead);
        self.last_hour.minute(now).dead += 1;
    }

    fn rank(&mut self) {
        self.by_type.rank();
        self.by_endpoint.rank();
        self.dead.rank();
    }

    fn show(&self, page: &mut Page, now: Instant) {
        let by_type: Vec<([&str; 3], &OfType)> = self
            .by_type
            .shown()
            .into_iter()
            .map(|(key, counts)| match key {
                Some((tenant, event_type, status)) => ([tenant.as_str(), event_type.as_str(), status.name()], counts),
                None => ([OTHER; 3], counts),
            })
            .collect();
        let mut attempted = page.family("webhook_deliveries_attempted_total", Kind::Counter, "Attempts that were recorded.");
        for ([tenant, event_type, status], counts) in &by_type {
            let labels: &crate::page::Labels<'_> = &[("tenant", tenant), ("type", event_type), ("endpoint_status", status)];
            attempted.sample(labels, counts.attempted as f64);
        }
        let mut succeeded = page.family(
            "webhook_deliveries_succeeded_total",
            Kind::Counter,
            "Attempts that delivered: one for each delivery that arrived.",
        );
        for ([tenant, event_type, status], counts) in by_type.iter().filter(|(_, counts)| counts.succeeded > 0) {
            let labels: &crate::page::Labels<'_> =
                &[("tenant", tenant), ("type", event_type), ("endpoint_status", status), ("status_class", &"2xx")];
            succeeded.sample(labels, counts.succeeded as f64);
        }
        let mut failed =
            page.family("webhook_deliveries_failed_total", Kind::Counter, "Attempts that failed, whether or not another followed.");
        for ([tenant, event_type, status], counts) in &by_type {
            for (end, count) in ENDS.iter().zip(counts.failed).filter(|(_, count)| *count > 0) {
                let labels: &crate::page::Labels<'_> = &[
                    ("tenant", tenant),
                    ("type", event_type),
                    ("endpoint_status", status),
                    ("status_class", &end.status_class),
                    ("reason", &end.reason),
                ];
                failed.sample(labels, count as f64);
            }
        }
        self.show_endpoints(page);
        let mut dead = page.family("webhook_dead_lettered_total", Kind::Counter, "Deliveries that died, by why.");
        for (tenant, counts) in self.dead.shown() {
            for (reason, count) in DeadReason::ALL.into_iter().zip(counts.0) {
                dead.sample(&[("tenant", &tenant.map_or(OTHER, TenantId::as_str)), ("reason", &reason.name())], count as f64);
            }
        }
        let mut cancelled =
            page.family("webhook_deliveries_cancelled_total", Kind::Counter, "Deliveries that were cancelled, by why.");
        for (reason, count) in CancelReason::ALL.into_iter().zip(self.cancelled) {
            cancelled.sample(&[("reason", &reason.name())], count as f64);
        }
        let mut circuits = page.family(
            "webhook_circuit_transitions_total",
            Kind::Counter,
            "Circuits that opened (also again, after a failed probe), let a probe through, or closed.",
        );
        for (change, count) in CircuitChange::ALL.into_iter().zip(self.circuits) {
            circuits.sample(&[("to", &change.name())], count as f64);
        }
        let mut changes =
            page.family("posthaste_timeout_changes_total", Kind::Counter, "Changes of timeouts that are learned, by direction.");
        changes.sample(&[("direction", &"shorter")], self.timeouts_shortened as f64);
        changes.sample(&[("direction", &"longer")], self.timeouts_lengthened as f64);
        page.gauge(
            "webhook_dead_letters_1h",
            "Deliveries that died in the last hour, as far as this process has lived.",
            self.last_hour.dead(now) as f64,
        );
        let mut distribution = page.family(
            "webhook_attempt_distribution",
            Kind::Gauge,
            "Attempts in the last hour by their number, as far as this process has lived.",
        );
        let attempts = self.last_hour.attempts(now);
        let shown = attempts.iter().rposition(|count| *count > 0).map_or(1, |last| last + 1);
        for (place, count) in attempts.iter().take(shown).enumerate() {
            distribution.sample(&[("attempt", &(place + 1))], *count as f64);
        }
    }

    fn show_endpoints(&self, page: &mut Page) {
        let shown = self.by_endpoint.shown();
        let named: Vec<(String, &str, &OfEndpoint)> = shown
            .iter()
            .map(|(endpoint, counts)| {
                let tenant = counts.tenant.as_ref().filter(|_| endpoint.is_some()).map_or(OTHER, TenantId::as_str);
                (endpoint.map_or_else(|| OTHER.to_owned(), ToString::to_string), tenant, *counts)
            })
            .collect();
        let counters: [(&'static str, &str, Count); 3] = [
            ("webhook_endpoint_attempts_total", "Attempts at each of the busiest endpoints; the rest together.", |counts| {
                counts.attempts
            }),
            ("webhook_endpoint_failures_total", "Those of them that failed.", |counts| counts.failures),
            ("webhook_endpoint_timeouts_total", "Those of them that no answer came to in time.", |counts| counts.timeouts),
        ];
        for (name, help, count) in counters {
            let mut family = page.family(name, Kind::Counter, help);
            for (endpoint, tenant, counts) in &named {
                family.sample(&[("endpoint", endpoint), ("tenant", tenant)], count(counts) as f64);
            }
        }
        let mut timeout = page.family(
            "posthaste_endpoint_timeout_seconds",
            Kind::Gauge,
            "How long each of the busiest endpoints may take to answer, as it was at its last attempt or change.",
        );
        for (endpoint, tenant, counts) in named.iter().filter(|(endpoint, ..)| endpoint != OTHER) {
            if let Some(in_force) = counts.timeout {
                timeout.sample(&[("endpoint", endpoint), ("tenant", tenant)], in_force.as_secs_f64());
            }
        }
    }
}

fn place_of(reason: DeadReason) -> usize {
    DeadReason::ALL.iter().position(|other| *other == reason).expect("one of all")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Format;

    fn attempt(endpoint: u128, tenant: &str, number: u32, status: u16, verdict: Verdict) -> Note {
        Note::Attempt(Box::new(Attempt {
            endpoint: EndpointId::from_bytes(endpoint.to_be_bytes()),
            tenant: TenantId::parse(tenant).unwrap(),
            event_type: EventType::parse("invoice.paid").unwrap(),
            status: EndpointStatus::Active,
            number,
            outcome: Outcome::Answered { status, retry_after: None },
            verdict,
            response_time: Duration::from_millis(20),
            lag: Duration::from_millis(3),
            age: Duration::from_secs(2),
            timeout: Duration::from_secs(10),
        }))
    }

    fn page(deliveries: &Deliveries) -> String {
        let mut page = Page::new(Format::Text);
        deliveries.show(&mut page);
        page.end()
    }

    #[test]
    fn an_attempt_is_counted_once_under_each_name() {
        let deliveries = Deliveries::new(&Limits::default());
        let later = Verdict::RetryAt(posthaste_core::time::Timestamp::from_millis(5));
        deliveries.note(&[
            attempt(1, "acme", 1, 503, later),
            attempt(1, "acme", 2, 200, Verdict::Delivered),
            attempt(2, "acme", 1, 404, Verdict::Dead(DeadReason::PermanentFailure)),
            Note::Dead { tenant: TenantId::parse("acme").unwrap(), reason: DeadReason::Expired },
            Note::Circuit(CircuitChange::Open),
        ]);
        let text = page(&deliveries);
        for line in [
            r#"webhook_deliveries_attempted_total{tenant="acme",type="invoice.paid",endpoint_status="active"} 3"#,
            r#"webhook_deliveries_succeeded_total{tenant="acme",type="invoice.paid",endpoint_status="active",status_class="2xx"} 1"#,
            r#"webhook_deliveries_failed_total{tenant="acme",type="invoice.paid",endpoint_status="active",status_class="5xx",reason="http_error"} 1"#,
            r#"webhook_deliveries_failed_total{tenant="acme",type="invoice.paid",endpoint_status="active",status_class="4xx",reason="http_error"} 1"#,
            r#"webhook_dead_lettered_total{tenant="acme",reason="permanent_failure"} 1"#,
            r#"webhook_dead_lettered_total{tenant="acme",reason="expired"} 1"#,
            r#"webhook_circuit_transitions_total{to="open"} 1"#,
            "webhook_dead_letters_1h 2",
            r#"webhook_attempt_distribution{attempt="1"} 2"#,
            r#"webhook_attempt_distribution{attempt="2"} 1"#,
            r#"webhook_delivery_age_seconds_count{first_try="false"} 1"#,
            r#"webhook_delivery_age_seconds_count{first_try="true"} 0"#,
            "webhook_delivery_attempt_count_count 2",
            "webhook_delivery_lag_seconds_count 3",
            r#"webhook_delivery_latency_ms_count{status_class="4xx"} 1"#,
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
    }

    #[test]
    fn ten_thousand_endpoints_of_ten_thousand_tenants_make_a_page_as_long_as_was_set() {
        let limits = Limits { endpoints_max: 50, types_max: 20 };
        let deliveries = Deliveries::new(&limits);
        for round in 0..3_u32 {
            for endpoint in 0..10_000_u32 {
                let dead = Verdict::Dead(DeadReason::PermanentFailure);
                // The later ones are busier, so that places change hands.
                let times = if endpoint > 9_900 { 5 * (round + 1) } else { 1 };
                let notes: Vec<Note> =
                    (0..times).map(|_| attempt(endpoint.into(), &format!("tenant-{endpoint}"), 1, 404, dead)).collect();
                deliveries.note(&notes);
            }
            let text = page(&deliveries);
            let series = |name: &str| text.lines().filter(|line| line.starts_with(&format!("{name}{{"))).count();
            assert_eq!(series("webhook_endpoint_attempts_total"), 51);
            assert_eq!(series("webhook_endpoint_failures_total"), 51);
            assert_eq!(series("webhook_deliveries_attempted_total"), 21);
            assert!(series("webhook_deliveries_failed_total") <= 21);
            assert_eq!(series("webhook_dead_lettered_total"), 105);
            assert!(text.lines().count() < 550, "{}", text.lines().count());
        }
        let sum = |name: &str| -> f64 {
            let text = page(&deliveries);
            let lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
            lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
        };
        let made = f64::from(3 * 9_901 + 99 * (5 + 10 + 15));
        for name in ["webhook_endpoint_attempts_total", "webhook_deliveries_attempted_total", "webhook_dead_lettered_total"] {
            assert!((sum(name) - made).abs() < 0.5, "{name}: {} of {made}", sum(name));
        }
    }
}
