//! Publishes, and writes down every call: what was sent, what was answered, and when.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::caller::{Answered, Caller, NoAnswer};
use crate::draw::scattered;
use crate::evidence::{Cancel, Clock, Moment, Outcome, Publish, fingerprint};
use crate::wall;

pub const EVENT_TYPES: [&str; 2] = ["invoice.paid", "order.made"];
/// How long to leave a server alone that does not answer.
const PAUSE: Duration = Duration::from_millis(10);
/// The tenant whose events have ordering keys.
pub const ORDERED: u32 = 4;
/// Few enough that each has several events under way.
const ORDERING_KEYS: u64 = 12;
/// The tenant whose events are for later, some of them cancelled.
pub const LATER: u32 = 5;
/// How often a call with an idempotency key is repeated until somebody answers it.
const REPEATS_MAX: u32 = 200;

/// What is published.
#[derive(Clone, Debug)]
pub struct Load {
    pub server: SocketAddr,
    pub key: String,
    pub seed: u64,
    /// Events in a second, all callers together.
    pub rate: u64,
    pub callers: u64,
    /// Tenants `t0`, `t1`, …, each with its share.
    pub shares: Vec<u64>,
    /// Whether the server takes idempotency keys.
    pub has_idempotency_keys: bool,
    /// Every fiftieth event is one that must be refused.
    pub has_bad_ones: bool,
    pub filler_bytes: usize,
}

/// The log of what was published.
#[derive(Debug)]
pub struct PublishLog {
    clock: Clock,
    next_serial: AtomicU64,
    publishes: Mutex<Vec<Publish>>,
    cancels: Mutex<Vec<Cancel>>,
}

/// Publishes until it is stopped.
#[derive(Debug)]
pub struct Publishing {
    stop: watch::Sender<bool>,
    callers: JoinSet<()>,
}

impl PublishLog {
    pub fn new(clock: Clock) -> Arc<PublishLog> {
        Arc::new(PublishLog { clock, next_serial: AtomicU64::new(0), publishes: Mutex::default(), cancels: Mutex::default() })
    }

    pub fn publishes(&self) -> Vec<Publish> {
        self.publishes.lock().clone()
    }

    pub fn cancels(&self) -> Vec<Cancel> {
        self.cancels.lock().clone()
    }

    pub fn count(&self) -> usize {
        self.publishes.lock().len()
    }

    /// How many calls were answered with 2xx since so many calls.
    pub fn acknowledged_since(&self, calls: usize) -> usize {
        self.publishes.lock().iter().skip(calls).filter(|publish| matches!(publish.outcome, Outcome::Ok { .. })).count()
    }

    /// How many calls were not.
    pub fn failed_since(&self, calls: usize) -> usize {
        self.publishes.lock().iter().skip(calls).filter(|publish| publish.outcome == Outcome::Unknown).count()
    }

    pub fn start(self: &Arc<PublishLog>, load: &Load) -> Publishing {
        let (stop, stopped) = watch::channel(false);
        let mut callers = JoinSet::new();
        for _ in 0..load.callers {
            callers.spawn(Arc::clone(self).publish_until(load.clone(), stopped.clone()));
        }
        Publishing { stop, callers }
    }

    async fn publish_until(self: Arc<PublishLog>, load: Load, mut stopped: watch::Receiver<bool>) {
        let mut caller = Caller::new(load.server, &load.key);
        let mut turns = tokio::time::interval(Duration::from_micros(1_000_000 * load.callers / load.rate.max(1)));
        // After a stall there is no rush to make up for it; but a turn that is a little late does not put off those after it.
        turns.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                biased;
                _ = stopped.wait_for(|is_stopped| *is_stopped) => return,
                _ = turns.tick() => {}
            }
            if self.publish(&load, &mut caller).await == Outcome::Unknown {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// One event, with as many calls as it takes if repeating is safe. Now and then somebody else uses its key.
    pub async fn publish(&self, load: &Load, caller: &mut Caller) -> Outcome {
        let serial = self.next_serial.fetch_add(1, Ordering::Relaxed);
        let drawn = scattered(load.seed ^ 0x5eed, serial);
        let key = (load.has_idempotency_keys && (drawn >> 48).is_multiple_of(4)).then(|| format!("key-{serial}").into_boxed_str());
        let outcome = self.publish_one(load, caller, serial, drawn, key.as_deref()).await;
        if key.is_some() && (drawn >> 52).is_multiple_of(4) && matches!(outcome, Outcome::Ok { .. }) {
            let other = self.next_serial.fetch_add(1, Ordering::Relaxed);
            // For the same tenant, with another payload: to be refused.
            self.publish_one(load, caller, other, drawn, key.as_deref()).await;
        }
        if let Outcome::Ok { event, .. } = &outcome
            && tenant(&load.shares, drawn >> 8) == LATER
            && (drawn >> 32).is_multiple_of(3)
        {
            self.cancel(caller, event).await;
        }
        outcome
    }

    /// Noted before it is sent: from then on the event may be cancelled, whatever is answered.
    async fn cancel(&self, caller: &mut Caller, event: &str) {
        let at = {
            let mut cancels = self.cancels.lock();
            cancels.push(Cancel { event: event.into(), answered: Moment::MAX, is_granted: false });
            cancels.len() - 1
        };
        let answer = caller.call(Method::POST, &format!("/v1/events/{event}/cancel"), Bytes::new()).await;
        let cancel = &mut self.cancels.lock()[at];
        cancel.answered = self.clock.now();
        cancel.is_granted = answer.is_ok_and(|answered| (200..300).contains(&answered.status));
    }

    async fn publish_one(&self, load: &Load, caller: &mut Caller, serial: u64, drawn: u64, key: Option<&str>) -> Outcome {
        let is_bad = load.has_bad_ones && drawn.is_multiple_of(50);
        let tenant = tenant(&load.shares, drawn >> 8);
        let event_type = EVENT_TYPES[usize::from(drawn >> 40 & 1 == 1)];
        let data = payload(serial, drawn, load.filler_bytes);
        let shown_type = if is_bad { "not a type!" } else { event_type };
        let with_key = key.map(|key| format!(r#","idempotency_key":"{key}""#)).unwrap_or_default();
        let ordering_key = (tenant == ORDERED).then(|| format!("k{}", (drawn >> 16) % ORDERING_KEYS).into_boxed_str());
        let with_order = ordering_key.as_ref().map(|key| format!(r#","ordering_key":"{key}""#)).unwrap_or_default();
        // In milliseconds, as it is written.
        let wall = (tenant == LATER).then(|| self.clock.wall(self.clock.now()) / 1000 + 1_000 + (drawn >> 20) % 2_000);
        let with_time = wall.map(|millis| format!(r#","deliver_at":"{}""#, wall::rfc3339(millis))).unwrap_or_default();
        let body = Bytes::from(format!(
            r#"{{"type":"{shown_type}","tenant":"t{tenant}"{with_key}{with_order}{with_time},"data":{data}}}"#
        ));
        let mut repeats = 0;
        loop {
            let sent = self.clock.now();
            let answer = caller.call(Method::POST, "/v1/events", body.clone()).await;
            let outcome = outcome(answer);
            self.publishes.lock().push(Publish {
                serial,
                tenant,
                event_type,
                sent,
                answered: self.clock.now(),
                outcome: outcome.clone(),
                data: fingerprint(data.as_bytes()),
                idempotency_key: key.map(Into::into),
                ordering_key: ordering_key.clone(),
                deliver_at: wall.map(|millis| self.clock.at_wall(millis * 1000)),
            });
            if outcome != Outcome::Unknown || key.is_none() || repeats == REPEATS_MAX {
                return outcome;
            }
            repeats += 1;
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl Publishing {
    /// No call is under way when this comes back.
    pub async fn stop(self) {
        let _ = self.stop.send(true);
        self.callers.join_all().await;
    }
}

fn outcome(answer: Result<Answered, NoAnswer>) -> Outcome {
    match answer {
        Ok(answered) if (200..300).contains(&answered.status) => {
            let json = answered.json();
            match json["id"].as_str() {
                Some(event) => Outcome::Ok { event: event.into(), is_duplicate: json["duplicate"].as_bool().unwrap_or_default() },
                // It says yes and not to what: as good as no answer.
                None => Outcome::Unknown,
            }
        }
        // Too many at once is an answer about the moment, not about the event.
        Ok(answered) if (400..500).contains(&answered.status) && answered.status != 429 => Outcome::No,
        Ok(_) | Err(NoAnswer) => Outcome::Unknown,
    }
}

fn tenant(shares: &[u64], drawn: u64) -> u32 {
    let mut left = drawn % shares.iter().sum::<u64>();
    for (tenant, share) in (0u32..).zip(shares) {
        if left < *share {
            return tenant;
        }
        left -= share;
    }
    0
}

/// JSON that nobody who decodes and encodes it would leave as it is.
fn payload(serial: u64, drawn: u64, filler_bytes: usize) -> String {
    let (filler, is_even) = ("x".repeat(filler_bytes), serial.is_multiple_of(2));
    format!(
        r#"{{"serial":{serial}, "even":{is_even},"b" : 1.00,"a":12345678901234567890123.0e-2,  "text":"ü \u00fc \/ {drawn:x}","a":null,"filler":"{filler}"}}"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_kept() {
        let mut counts = [0u32; 3];
        for n in 0..1000 {
            counts[tenant(&[8, 1, 1], scattered(1, n)) as usize] += 1;
        }
        assert!(counts[0] > 700 && counts[1] > 50 && counts[2] > 50, "{counts:?}");
    }
}
