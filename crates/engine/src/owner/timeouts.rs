//! Timeouts that are learned: when to look, and what comes of it.

use std::time::Duration;

use posthaste_core::circuit::Breaker;
use posthaste_core::id::{DeliveryId, EndpointId};
use posthaste_core::time::Timestamp;
use posthaste_core::timeout::{Adaptive, Evidence, Tally, Trigger};
use posthaste_metrics::Note;
use posthaste_store::{Counts, DeliveryChange, LaneState};

use super::ownership::EndpointState;
use super::{Effect, ObservedAttempts, OnRecorded, Owner};
use crate::tally::BETWEEN_SPIKES;

pub(super) const DAY: Duration = Duration::from_hours(24);
pub(super) const HOUR: Duration = Duration::from_hours(1);

impl Owner {
    pub(super) fn consider_timeout(&mut self, now: Timestamp, endpoint: EndpointId, delivery: DeliveryId, breaker: Breaker) {
        let known = self.endpoints.get_mut(&endpoint).expect("just sent there");
        let is_closed = matches!(breaker, Breaker::Closed { .. });
        let may_spike = known.spiked_at.is_none_or(|spiked_at| spiked_at + BETWEEN_SPIKES <= now);
        let shortened_at = known.timeout.shortened_at(now);
        if may_spike && known.recent.tally().is_spike(is_closed) {
            known.spiked_at = Some(now);
            known.spike_shown_by = Some(delivery);
            return;
        }
        let trigger = if known.computes_at <= now {
            known.computes_at = now + DAY;
            Some(Trigger::Daily)
        } else if shortened_at.is_some() && known.reviews_at <= now {
            None
        } else {
            return;
        };
        known.reviews_at = now + HOUR;
        self.effects.push(Effect::ReadStatistics { generation: self.generation, endpoint, trigger, shortened_at });
    }

    /// An attempt is recorded: if it showed a spike, what is looked at now includes it and those before it.
    pub(super) fn consider_spike(&mut self, now: Timestamp, endpoint: EndpointId, delivery: DeliveryId) {
        let has_shown_it = |known: &&mut EndpointState| known.spike_shown_by == Some(delivery);
        let Some(known) = self.endpoints.get_mut(&endpoint).filter(has_shown_it) else { return };
        known.spike_shown_by = None;
        known.reviews_at = now + HOUR;
        let shortened_at = known.timeout.shortened_at(now);
        self.effects.push(Effect::ReadStatistics {
            generation: self.generation,
            endpoint,
            trigger: Some(Trigger::Spike),
            shortened_at,
        });
    }

    pub(super) fn statistics_read(
        &mut self,
        now: Timestamp,
        endpoint: EndpointId,
        trigger: Option<Trigger>,
        seen: &ObservedAttempts,
    ) {
        let Some(known) = self.endpoints.get_mut(&endpoint) else { return };
        let tally = |counts: Counts| Tally { attempts: counts.attempts, timeouts: counts.timeouts };
        let before = known.timeout;
        let undone = seen.since_shortened.and_then(|counts| known.timeout.review(now, tally(counts)));
        if let (None, Some(trigger), Some(week)) = (undone, trigger, &seen.week) {
            let evidence = Evidence {
                endpoint_created_at: known.target.stored.endpoint.created_at,
                successes: &week.successes,
                timeouts: &week.timeouts,
                last_day: tally(seen.day),
            };
            let change = known.timeout.recompute(now, trigger, &evidence, &self.options.timeouts);
            tracing::info!(%endpoint, ?trigger, ?change, "timeout_computed");
        }
        if known.timeout == before {
            return;
        }
        let in_force = |timeout: &Adaptive| timeout.in_force(known.mode, &self.options.timeouts).0;
        let (was, is) = (in_force(&before), in_force(&known.timeout));
        if was != is && self.options.metrics.is_some() {
            self.notes.push(Note::Timeout { endpoint, tenant: known.tenant.clone(), timeout: is, is_shorter: is < was });
        }
        let memory = self.scheduler.memory(endpoint).unwrap_or_default();
        known.written = memory;
        let timeout = known.timeout;
        let lane = Some(LaneState { memory, timeout, version: self.next_lane_version() });
        self.changed.insert(endpoint);
        self.record(endpoint, DeliveryChange::Nothing, lane, None, OnRecorded::Nothing);
    }
}
