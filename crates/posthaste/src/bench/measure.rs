//! One load, from the first publish to the last arrival, and what it cost.

use std::time::Duration;

use super::load::{Load, Plan, Sent};
use super::meter::{Metered, Spread, Used};
use super::receiver::Receiver;
use super::testbed::BenchEnvironment;

/// Nothing that works leaves its receiver alone for so long in the middle of a load.
pub(super) const PATIENCE: Duration = Duration::from_mins(1);

pub(super) struct Measured {
    pub(super) deliveries: usize,
    /// Events acknowledged in a second.
    pub(super) publishes_per_second: f64,
    /// Of a request, which may be a batch.
    pub(super) publish: Spread,
    /// At the receiver, from the first request to the last arrival.
    pub(super) deliveries_per_second: f64,
    /// From the request to the arrival.
    pub(super) arrival: Spread,
    pub(super) used: Used,
}

impl Measured {
    pub(super) fn server_seconds_per_thousand(&self) -> f64 {
        self.used.server * 1000.0 / self.deliveries as f64
    }

    pub(super) fn database_seconds_per_thousand(&self) -> f64 {
        self.used.database.map_or(f64::NAN, |seconds| seconds * 1000.0 / self.deliveries as f64)
    }
}

/// Each event goes to so many endpoints.
pub(super) async fn measure(
    ground: &BenchEnvironment,
    name: &str,
    plan: &Plan,
    copies: usize,
    metered: Metered,
) -> anyhow::Result<Measured> {
    let receiver = Receiver(&ground.receiver);
    let deliveries = plan.events * copies;
    receiver.expect(deliveries).await?;
    let before = metered.used();
    let load = Load(&ground.load);
    let (sent, ()) = tokio::try_join!(load.publish(plan), receiver.wait_for(deliveries, PATIENCE, name))?;
    let used = metered.used_when_settled().await.since(&before);
    let arrivals = receiver.arrivals().await?;
    let began = sent.iter().map(|sent| sent.began_ns).min().unwrap_or(0);
    let acknowledged = sent.iter().map(|sent| sent.acknowledged_ns).max().unwrap_or(0);
    let last = arrivals.iter().flatten().copied().max().unwrap_or(0);
    Ok(Measured {
        deliveries,
        publishes_per_second: per_second(plan.events, began, acknowledged),
        publish: Spread::of(sent.iter().map(Sent::took)),
        deliveries_per_second: per_second(deliveries, began, last),
        arrival: arrived(&sent, plan, copies, &arrivals, |sent| sent.began_ns),
        used,
    })
}

/// How long each delivery took, from a moment of its request.
pub(super) fn arrived(sent: &[Sent], plan: &Plan, copies: usize, arrivals: &[Option<u64>], from: impl Fn(&Sent) -> u64) -> Spread {
    let of_one = |sent: &Sent| {
        let end = (sent.first + plan.batch).min(plan.first + plan.events);
        let (from, places) = (from(sent), sent.first * copies..end * copies);
        arrivals.get(places).unwrap_or_default().iter().flatten().map(move |at| Duration::from_nanos(at.saturating_sub(from)))
    };
    Spread::of(sent.iter().flat_map(of_one))
}

pub(super) fn per_second(count: usize, from_ns: u64, to_ns: u64) -> f64 {
    count as f64 / Duration::from_nanos(to_ns.saturating_sub(from_ns).max(1)).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_copy_of_every_event_of_a_batch_has_its_own_time() {
        let plan = Plan {
            server: "127.0.0.1:1".parse().unwrap(),
            key: String::new(),
            tenants: vec![],
            first: 0,
            events: 3,
            connections: 1,
            payload_bytes: 100,
            batch: 2,
            requests_per_second: None,
        };
        let sent = [
            Sent { first: 0, began_ns: 1_000, acknowledged_ns: 2_000 },
            Sent { first: 2, began_ns: 5_000, acknowledged_ns: 6_000 },
        ];
        let arrivals = [Some(2_000), Some(3_000), Some(4_000), None, Some(5_500), Some(9_000)];
        let spread = arrived(&sent, &plan, 2, &arrivals, |sent| sent.began_ns);
        assert_eq!(spread.count(), 5, "one has not arrived");
        assert_eq!(spread.at(0), Some(Duration::from_nanos(500)));
        assert_eq!(spread.at(1000), Some(Duration::from_micros(4)));
    }
}
