//! Rows whose numbers were taken early and that become visible late.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::time::Duration;

use posthaste_core::bucket::Bucket;
use posthaste_core::delivery::{Outcome, Silence};
use posthaste_core::event::EventType;
use posthaste_core::id::{DeliveryId, EndpointId, TenantId};
use posthaste_core::scheduler::{
    Backlog, Class, Command, Entry, LaneConfig, LaneMemory, Limits, Scheduler, Seq, TenantConfig, WindowQuery,
};
use posthaste_core::text::OrderingKey;
use posthaste_core::time::Timestamp;

const NOW: Timestamp = Timestamp::from_millis(1_767_236_400_000);

fn keyed(seq: Seq, due: Timestamp) -> Entry {
    Entry {
        delivery: DeliveryId::from_bytes(u128::from(seq).to_be_bytes()),
        seq,
        timestamp: NOW,
        due,
        attempts: 0,
        is_later: due > NOW,
        event_type: EventType::parse("order.paid").unwrap(),
        is_priority: false,
        class: Class::Exempt,
        ordering_key: Some(OrderingKey::parse("k").unwrap()),
        expires_at: None,
    }
}

/// Answers every read from these rows, and returns what is sent.
fn sent(scheduler: &mut Scheduler, endpoint: EndpointId, head: &Entry) -> Vec<DeliveryId> {
    let mut sent = Vec::new();
    while let Some(command) = scheduler.next(NOW) {
        match command {
            Command::Read { want, .. } => {
                let rows = match &want {
                    WindowQuery::Heads { after: None } | WindowQuery::Head(_) => vec![head.clone()],
                    WindowQuery::Heads { .. } | WindowQuery::Fresh(_) | WindowQuery::Later(_) => vec![],
                };
                scheduler.refilled(endpoint, &want, rows, false, 0);
            }
            Command::Send { delivery, .. } => sent.push(delivery),
            Command::End { .. } => panic!("nothing ends"),
        }
    }
    sent
}

fn scheduler_of_one_lane() -> (Scheduler, EndpointId) {
    let limits = Limits { in_flight_max: 8, window: 4, low_water: 2, retries: None };
    let mut scheduler = Scheduler::new(NOW, limits);
    let (tenant, endpoint) = (TenantId::parse("acme").unwrap(), EndpointId::from_bytes([9; 16]));
    scheduler.configure_tenant(NOW, &tenant, TenantConfig::default(), Bucket::full());
    scheduler.configure(NOW, &tenant, endpoint, LaneConfig::default(), LaneMemory::new(), Backlog::Unknown);
    (scheduler, endpoint)
}

#[test]
fn i6_a_row_of_a_key_that_becomes_visible_while_a_higher_number_is_in_flight_does_not_wait_for_its_retry() {
    let (mut scheduler, endpoint) = scheduler_of_one_lane();
    let (late, early) = (keyed(3, NOW), keyed(5, NOW));
    assert_eq!(sent(&mut scheduler, endpoint, &early), [early.delivery]);
    scheduler.hint(endpoint);
    assert_eq!(sent(&mut scheduler, endpoint, &late), [], "its key is busy");
    scheduler.finished(NOW, endpoint, early.delivery, &Outcome::Silent(Silence::Timeout));
    scheduler.recorded(endpoint, early.delivery);
    assert_eq!(sent(&mut scheduler, endpoint, &late), [late.delivery], "the other one waits for its retry");
    assert!(scheduler.is_bounded());
}

#[test]
fn i6_a_row_of_a_key_that_becomes_visible_after_a_higher_number_does_not_wait_for_it() {
    let (mut scheduler, endpoint) = scheduler_of_one_lane();
    let (late, early) = (keyed(3, NOW), keyed(5, NOW + Duration::from_hours(24)));
    assert_eq!(sent(&mut scheduler, endpoint, &early), [], "tomorrow");
    scheduler.hint(endpoint);
    assert_eq!(sent(&mut scheduler, endpoint, &late), [late.delivery], "committed a moment later, and due now");
    assert!(scheduler.is_bounded());
}
