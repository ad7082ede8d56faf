//! A fleet of destinations of mixed speed, with outages, under a fixed timeout or an adaptive one (B5).
//!
//! Every decision is the core's own: breaker, retries, verdicts, sketches, timeouts. The world was made up once, from
//! what one would expect of real receivers, and not tuned towards any result:
//!
//! - Speed: six in ten destinations are fast (median 60 to 400 ms), a quarter are middling (0.4 to 2 s), the rest slow
//!   (2 to 6 s). Response times are log-normal around the median (sigma 0.25 to 0.6; 0.2 to 0.45 for slow ones), drift
//!   by a tenth from day to day, and one hour in fifty is two to three times slower.
//! - Traffic: Poisson, between 10 and 120 events an hour, times `busier`. Five failures in a row take a while to come by
//!   at that rate, so the time to notice an outage is also given without the wait for traffic.
//! - Trouble: one answer in five hundred is a 500. About every ten days a destination has an outage of five minutes to
//!   six hours: six in ten hang, a quarter refuse connections, the rest answer 503.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt::Write;
use std::time::Duration;

use posthaste_core::circuit::{Breaker, CircuitPolicy, Permission, Signal, Transition};
use posthaste_core::delivery::{NoConnection, Outcome, Silence, Verdict, judge};
use posthaste_core::id::DeliveryId;
use posthaste_core::jitter;
use posthaste_core::latency::LatencySketch;
use posthaste_core::retry::RetryPolicy;
use posthaste_core::time::Timestamp;
use posthaste_core::timeout::{Adaptive, Change, Evidence, Mode, Tally, TimeoutRules, Trigger};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub seed: u64,
    pub destinations: u32,
    pub days: u32,
    /// Multiplies the traffic of every destination.
    pub busier: u32,
}

/// What the fleet is run with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arm {
    Fixed,
    Adaptive,
}

/// What came of it.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Report {
    pub attempts: u64,
    pub timeouts: u64,
    /// Timed out, although the destination was up and would have answered with a success.
    pub false_timeouts: u64,
    pub busy: Duration,
    pub busy_failing: Duration,
    /// From the start of an outage to the circuit opening, for each outage that was noticed.
    pub noticed_after: Vec<Duration>,
    /// How long the attempt took whose end opened the circuit: the part of it that a timeout decides.
    pub deciding_attempt: Vec<Duration>,
    pub outages: u64,
    /// The timeouts in force, every day of the second half, over the whole fleet.
    pub timeouts_in_force: Vec<Duration>,
    pub lengthened: u64,
    pub shortened: u64,
    pub undone: u64,
    pub spikes: u64,
}

impl Report {
    pub fn false_timeout_percent(&self) -> f64 {
        100.0 * self.false_timeouts as f64 / self.attempts as f64
    }

    pub fn median_timeout(&self) -> Duration {
        let mut sorted = self.timeouts_in_force.clone();
        sorted.sort_unstable();
        sorted[sorted.len() / 2]
    }

    pub fn failing_percent(&self) -> f64 {
        100.0 * self.busy_failing.as_secs_f64() / self.busy.as_secs_f64()
    }

    pub fn mean_time_to_notice(&self) -> Duration {
        mean(&self.noticed_after)
    }

    pub fn mean_deciding_attempt(&self) -> Duration {
        mean(&self.deciding_attempt)
    }

    fn add(&mut self, other: Report) {
        self.attempts += other.attempts;
        self.timeouts += other.timeouts;
        self.false_timeouts += other.false_timeouts;
        self.busy += other.busy;
        self.busy_failing += other.busy_failing;
        self.noticed_after.extend(other.noticed_after);
        self.deciding_attempt.extend(other.deciding_attempt);
        self.outages += other.outages;
        self.timeouts_in_force.extend(other.timeouts_in_force);
        self.lengthened += other.lengthened;
        self.shortened += other.shortened;
        self.undone += other.undone;
        self.spikes += other.spikes;
    }
}

fn mean(times: &[Duration]) -> Duration {
    times.iter().sum::<Duration>() / u32::try_from(times.len()).expect("not that many").max(1)
}

pub fn run(options: &Options, arm: Arm) -> Report {
    let mut report = Report::default();
    for number in 0..options.destinations {
        report.add(World::new(options, number, arm).run());
    }
    report
}

/// Ours beside what the source expected.
pub fn table(fixed: &Report, adaptive: &Report) -> String {
    let mut text = String::new();
    let percent = |value: f64| format!("{value:.2} %");
    let seconds = |value: Duration| format!("{:.1} s", value.as_secs_f64());
    let millis = |value: Duration| format!("{} ms", value.as_millis());
    let mut row = |name: &str, expected: &str, fixed: String, adaptive: String| {
        writeln!(text, "{name:<44} {expected:>20} {fixed:>14} {adaptive:>14}").expect("a String takes everything");
    };
    row("", "source expects", "fixed".to_owned(), "adaptive".to_owned());
    row(
        "false timeouts (share of attempts)",
        "1.8 -> 0.3 %",
        percent(fixed.false_timeout_percent()),
        percent(adaptive.false_timeout_percent()),
    );
    row("median timeout in force", "10,000 -> 3,200 ms", millis(fixed.median_timeout()), millis(adaptive.median_timeout()));
    row("capacity spent on failed attempts", "22 -> 11 %", percent(fixed.failing_percent()), percent(adaptive.failing_percent()));
    row(
        "mean time to notice an outage",
        "38 -> 14 s",
        seconds(fixed.mean_time_to_notice()),
        seconds(adaptive.mean_time_to_notice()),
    );
    row(
        "  of which the deciding attempt itself",
        "",
        seconds(fixed.mean_deciding_attempt()),
        seconds(adaptive.mean_deciding_attempt()),
    );
    row("attempts", "", fixed.attempts.to_string(), adaptive.attempts.to_string());
    row("outages, and how many opened a circuit", "", noticed(fixed), noticed(adaptive));
    row("timeouts lengthened / shortened / undone", "", String::new(), changes(adaptive));
    row("spikes that recomputed at once", "", String::new(), adaptive.spikes.to_string());
    text
}

fn noticed(report: &Report) -> String {
    format!("{}, {}", report.outages, report.noticed_after.len())
}

fn changes(report: &Report) -> String {
    format!("{} / {} / {}", report.lengthened, report.shortened, report.undone)
}

const HOUR: Duration = Duration::from_hours(1);
const IN_FLIGHT_MAX: usize = 16;

/// How an outage shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OutageKind {
    Hangs,
    Refuses,
    Answers503,
}

struct Outage {
    from: Timestamp,
    until: Timestamp,
    trouble: OutageKind,
}

/// One destination's character, drawn once.
struct Destination {
    number: u32,
    median_ms: f64,
    sigma: f64,
    events_per_hour: f64,
    outages: Vec<Outage>,
}

impl Destination {
    fn draw(number: u32, options: &Options, random: &mut ChaCha8Rng) -> Destination {
        let between = |random: &mut ChaCha8Rng, low: f64, high: f64| low * (high / low).powf(random.random::<f64>());
        let (median_ms, sigma) = match random.random::<f64>() {
            share if share < 0.6 => (between(random, 60.0, 400.0), random.random_range(0.25..0.6)),
            share if share < 0.85 => (between(random, 400.0, 2000.0), random.random_range(0.25..0.6)),
            _ => (between(random, 2000.0, 6000.0), random.random_range(0.2..0.45)),
        };
        let events_per_hour = between(random, 10.0, 120.0) * f64::from(options.busier);
        let end = day(options.days);
        let mut outages = Vec::new();
        let mut at = day(0) + waiting_time(random, 0.1 / 24.0);
        while at < end {
            let trouble = match random.random::<f64>() {
                share if share < 0.6 => OutageKind::Hangs,
                share if share < 0.85 => OutageKind::Refuses,
                _ => OutageKind::Answers503,
            };
            let until = at + Duration::from_secs_f64(between(random, 300.0, 6.0 * 3600.0));
            outages.push(Outage { from: at, until, trouble });
            at = until + waiting_time(random, 0.1 / 24.0);
        }
        Destination { number, median_ms, sigma, events_per_hour, outages }
    }

    fn outage_at(&self, at: Timestamp) -> Option<(usize, &Outage)> {
        let next = self.outages.partition_point(|outage| outage.from <= at);
        let last = next.checked_sub(1)?;
        (at < self.outages[last].until).then(|| (last, &self.outages[last]))
    }

    /// How long this attempt would take if nobody lost patience, and what it would say; `None` is never.
    fn answer(&self, at: Timestamp, delivery: DeliveryId, attempt: u32) -> Option<(Duration, Outcome)> {
        let answered = |status| Outcome::Answered { status, retry_after: None };
        let luck = |salt: u32| jitter::draw(delivery, attempt * 8 + salt);
        if let Some((_, outage)) = self.outage_at(at) {
            return match outage.trouble {
                OutageKind::Hangs => None,
                OutageKind::Refuses => Some((Duration::from_millis(5), Outcome::NotSent(NoConnection::Connect))),
                OutageKind::Answers503 => Some((self.response_time(at, luck(0), luck(1)), answered(503))),
            };
        }
        let status = if unit(luck(2)) < 0.002 { 500 } else { 200 };
        Some((self.response_time(at, luck(0), luck(1)), answered(status)))
    }

    fn response_time(&self, at: Timestamp, first: u64, second: u64) -> Duration {
        let mood = |name: u32, period: i64| {
            jitter::draw(
                DeliveryId::from_bytes(u128::from(self.number).to_be_bytes()),
                name ^ u32::try_from(at.as_millis() / period).expect("days since the start"),
            )
        };
        let drift = (0.1 * normal(mood(0x1000_0000, 86_400_000), mood(0x2000_0000, 86_400_000))).exp();
        let slow_hour = mood(0x4000_0000, 3_600_000);
        let spell = if unit(slow_hour) < 0.02 { 2.0 + unit(slow_hour.rotate_left(32)) } else { 1.0 };
        let millis = self.median_ms * drift * spell * (self.sigma * normal(first, second)).exp();
        Duration::from_secs_f64(millis.min(600_000.0) / 1000.0)
    }
}

/// One destination, its queue, and what is known about it.
struct World {
    destination: Destination,
    random: ChaCha8Rng,
    arm: Arm,
    end: Timestamp,
    timers: BinaryHeap<Reverse<(Timestamp, u64, Timer)>>,
    wake_number: u64,
    waiting: VecDeque<(DeliveryId, u32)>,
    in_flight: usize,
    breaker: Breaker,
    breaker_policy: CircuitPolicy,
    retry: RetryPolicy,
    rules: TimeoutRules,
    adaptive: Adaptive,
    seen: Observations,
    deliveries: u128,
    /// The last outage that a circuit has opened in, so that each is counted once.
    noticed: Option<usize>,
    report: Report,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    Arrival,
    Due {
        delivery: DeliveryId,
        attempt: u32,
    },
    Done {
        delivery: DeliveryId,
        attempt: u32,
        started: Timestamp,
        was_probe: bool,
        ended: AttemptEnd,
    },
    Probe,
    /// Housekeeping: spikes every minute, trials every hour, timeouts every day.
    Minute,
}

/// How an attempt ends, known to the world from its start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum AttemptEnd {
    Status(u16),
    Refused,
    TimedOut { would_have_succeeded: bool },
}

impl World {
    fn new(options: &Options, number: u32, arm: Arm) -> World {
        let mut random = ChaCha8Rng::seed_from_u64(options.seed.wrapping_mul(1_000_003).wrapping_add(u64::from(number)));
        let destination = Destination::draw(number, options, &mut random);
        World {
            destination,
            random,
            arm,
            end: day(options.days),
            timers: BinaryHeap::new(),
            wake_number: 0,
            waiting: VecDeque::new(),
            in_flight: 0,
            breaker: Breaker::default(),
            breaker_policy: CircuitPolicy::default(),
            retry: RetryPolicy::default(),
            rules: TimeoutRules::default(),
            adaptive: Adaptive::default(),
            seen: Observations::default(),
            deliveries: 0,
            noticed: None,
            report: Report::default(),
        }
    }

    fn run(mut self) -> Report {
        self.report.outages = u64::try_from(self.destination.outages.len()).expect("a handful");
        self.set_timer(day(0), Timer::Arrival);
        self.set_timer(day(0), Timer::Minute);
        while let Some(Reverse((now, _, timer))) = self.timers.pop() {
            if now >= self.end {
                break;
            }
            self.handle(now, timer);
            self.dispatch(now);
        }
        self.report
    }

    fn set_timer(&mut self, at: Timestamp, timer: Timer) {
        self.wake_number += 1;
        self.timers.push(Reverse((at, self.wake_number, timer)));
    }

    fn handle(&mut self, now: Timestamp, timer: Timer) {
        match timer {
            Timer::Arrival => {
                self.deliveries += 1;
                let delivery = DeliveryId::from_bytes((u128::from(self.destination.number) << 64 | self.deliveries).to_be_bytes());
                self.waiting.push_back((delivery, 1));
                let gap = waiting_time(&mut self.random, self.destination.events_per_hour);
                self.set_timer(now + gap, Timer::Arrival);
            }
            Timer::Due { delivery, attempt } => self.waiting.push_back((delivery, attempt)),
            Timer::Probe => {}
            Timer::Done { delivery, attempt, started, was_probe, ended } => {
                self.done(now, delivery, attempt, started, was_probe, ended);
            }
            Timer::Minute => {
                if self.arm == Arm::Adaptive {
                    self.housekeeping(now);
                }
                if now.as_millis() % 86_400_000 == 0 && now >= day(0) + self.end.since(day(0)) / 2 {
                    self.report.timeouts_in_force.push(self.timeout(false));
                }
                self.set_timer(now + Duration::from_mins(1), Timer::Minute);
            }
        }
    }

    fn timeout(&self, is_probe: bool) -> Duration {
        match self.arm {
            Arm::Fixed => self.rules.default,
            Arm::Adaptive if is_probe => self.adaptive.in_force_for_probe(Mode::Adaptive, &self.rules),
            Arm::Adaptive => self.adaptive.in_force(Mode::Adaptive, &self.rules).0,
        }
    }

    /// Starts what may start.
    fn dispatch(&mut self, now: Timestamp) {
        while self.in_flight < IN_FLIGHT_MAX && !self.waiting.is_empty() {
            let was_probe = match self.breaker.permission(now) {
                Permission::Go => false,
                Permission::Probe => true,
                Permission::Wait { until } => return self.set_timer(until, Timer::Probe),
                Permission::AwaitProbe => return,
            };
            if was_probe {
                self.breaker = self.breaker.probing(now);
            }
            let (delivery, attempt) = self.waiting.pop_front().expect("just seen");
            self.in_flight += 1;
            let patience = self.timeout(was_probe);
            let (takes, ended) = match self.destination.answer(now, delivery, attempt) {
                Some((takes, outcome)) if takes <= patience => match outcome {
                    Outcome::Answered { status, .. } => (takes, AttemptEnd::Status(status)),
                    Outcome::NotSent(_) | Outcome::Silent(_) | Outcome::Blocked => (takes, AttemptEnd::Refused),
                },
                Some((_, outcome)) => (
                    patience,
                    AttemptEnd::TimedOut { would_have_succeeded: outcome == Outcome::Answered { status: 200, retry_after: None } },
                ),
                None => (patience, AttemptEnd::TimedOut { would_have_succeeded: false }),
            };
            self.set_timer(now + takes, Timer::Done { delivery, attempt, started: now, was_probe, ended });
        }
    }

    fn done(&mut self, now: Timestamp, delivery: DeliveryId, attempt: u32, started: Timestamp, was_probe: bool, ended: AttemptEnd) {
        self.in_flight -= 1;
        let took = now.since(started);
        let outcome = match ended {
            AttemptEnd::Status(status) => Outcome::Answered { status, retry_after: None },
            AttemptEnd::Refused => Outcome::NotSent(NoConnection::Connect),
            AttemptEnd::TimedOut { .. } => Outcome::Silent(Silence::Timeout),
        };
        self.report.attempts += 1;
        self.report.busy += took;
        let verdict = judge(now, delivery, attempt, &outcome, &self.retry);
        if verdict != Verdict::Delivered {
            self.report.busy_failing += took;
        }
        if let AttemptEnd::TimedOut { would_have_succeeded } = ended {
            self.report.timeouts += 1;
            self.report.false_timeouts += u64::from(would_have_succeeded);
        }
        self.seen.record(now, took, verdict == Verdict::Delivered, matches!(ended, AttemptEnd::TimedOut { .. }));
        let (breaker, transition) = self.breaker.after(now, Signal::of(&outcome), was_probe, &self.breaker_policy);
        self.breaker = breaker;
        if transition == Some(Transition::Opened) {
            // The attempt that opened it began in the outage, or else the circuit opened for another reason.
            if let Some((index, outage)) = self.destination.outage_at(started)
                && self.noticed != Some(index)
            {
                self.noticed = Some(index);
                self.report.noticed_after.push(now.since(outage.from));
                self.report.deciding_attempt.push(took);
            }
        }
        match verdict {
            Verdict::RetryAt(at) => self.set_timer(at, Timer::Due { delivery, attempt: attempt + 1 }),
            Verdict::Delivered | Verdict::Dead(_) => {}
        }
    }

    fn housekeeping(&mut self, now: Timestamp) {
        let minute = now.as_millis() / 60_000;
        if minute % 60 == 0
            && let Some(since) = self.adaptive.shortened_at(now)
            && self.adaptive.review(now, self.seen.tally(since, now)).is_some()
        {
            self.report.undone += 1;
        }
        let recently = self.seen.tally(now - Duration::from_mins(10), now);
        if recently.is_spike(matches!(self.breaker, Breaker::Closed { .. })) {
            self.report.spikes += 1;
            self.recompute(now, Trigger::Spike);
        } else if minute % (24 * 60) == 0 {
            self.recompute(now, Trigger::Daily);
        }
    }

    fn recompute(&mut self, now: Timestamp, trigger: Trigger) {
        let (successes, timeouts) = self.seen.last_week(now);
        let evidence = Evidence {
            endpoint_created_at: day(0),
            successes: &successes,
            timeouts: &timeouts,
            last_day: self.seen.tally(now - 24 * HOUR, now),
        };
        match self.adaptive.recompute(now, trigger, &evidence, &self.rules) {
            Change::Longer { .. } => self.report.lengthened += 1,
            Change::Shorter { .. } => self.report.shortened += 1,
            Change::TooEarly | Change::Unchanged => {}
        }
    }
}

/// What was observed, hour by hour for a week and minute by minute for a day.
#[derive(Default)]
struct Observations {
    hours: VecDeque<(i64, LatencySketch, LatencySketch)>,
    minutes: VecDeque<(i64, Tally)>,
}

impl Observations {
    fn record(&mut self, now: Timestamp, took: Duration, succeeded: bool, timed_out: bool) {
        let hour = now.as_millis() / 3_600_000;
        if self.hours.back().is_none_or(|(last, ..)| *last != hour) {
            self.hours.push_back((hour, LatencySketch::default(), LatencySketch::default()));
        }
        let (_, successes, timeouts) = self.hours.back_mut().expect("just made");
        if succeeded {
            successes.record(took);
        } else if timed_out {
            timeouts.record(took);
        }
        while self.hours.front().is_some_and(|(first, ..)| *first < hour - 7 * 24) {
            self.hours.pop_front();
        }
        let minute = now.as_millis() / 60_000;
        if self.minutes.back().is_none_or(|(last, _)| *last != minute) {
            self.minutes.push_back((minute, Tally::default()));
        }
        let (_, tally) = self.minutes.back_mut().expect("just made");
        tally.attempts += 1;
        tally.timeouts += u64::from(timed_out);
        while self.minutes.front().is_some_and(|(first, _)| *first < minute - 24 * 60) {
            self.minutes.pop_front();
        }
    }

    fn tally(&self, from: Timestamp, to: Timestamp) -> Tally {
        let (first, last) = (from.as_millis() / 60_000, to.as_millis() / 60_000);
        let mut sum = Tally::default();
        for (_, tally) in self.minutes.iter().rev().take_while(|(minute, _)| first <= *minute).filter(|(minute, _)| *minute < last)
        {
            sum.attempts += tally.attempts;
            sum.timeouts += tally.timeouts;
        }
        sum
    }

    fn last_week(&self, now: Timestamp) -> (LatencySketch, LatencySketch) {
        let first = now.as_millis() / 3_600_000 - 7 * 24;
        let mut all = (LatencySketch::default(), LatencySketch::default());
        for (_, successes, timeouts) in self.hours.iter().filter(|(hour, ..)| first <= *hour) {
            all.0.merge(successes);
            all.1.merge(timeouts);
        }
        all
    }
}

fn day(days: u32) -> Timestamp {
    Timestamp::from_millis(i64::from(days) * 86_400_000)
}

/// Until the next of events that come `per_hour`.
fn waiting_time(random: &mut ChaCha8Rng, per_hour: f64) -> Duration {
    Duration::from_secs_f64(-(1.0 - random.random::<f64>()).ln() * 3600.0 / per_hour)
}

/// In [0, 1).
fn unit(draw: u64) -> f64 {
    (draw >> 11) as f64 / (1u64 << 53) as f64
}

/// A standard normal value (Box and Muller).
fn normal(first: u64, second: u64) -> f64 {
    (-2.0 * (1.0 - unit(first)).ln()).sqrt() * (std::f64::consts::TAU * unit(second)).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Options = Options { seed: 3, destinations: 12, days: 21, busier: 1 };

    #[test]
    fn the_same_seed_makes_the_same_fleet() {
        assert_eq!(run(&SMALL, Arm::Adaptive), run(&SMALL, Arm::Adaptive));
        let other = Options { seed: 4, ..SMALL };
        assert_ne!(run(&SMALL, Arm::Fixed), run(&other, Arm::Fixed));
    }

    #[test]
    fn adaptive_timeouts_notice_outages_sooner_and_cut_off_fewer_answers() {
        let (fixed, adaptive) = (run(&SMALL, Arm::Fixed), run(&SMALL, Arm::Adaptive));
        assert_eq!(fixed.median_timeout(), Duration::from_secs(10));
        assert!(adaptive.median_timeout() < fixed.median_timeout());
        assert!(adaptive.mean_time_to_notice() < fixed.mean_time_to_notice());
        assert!(adaptive.false_timeout_percent() < fixed.false_timeout_percent());
    }
}
