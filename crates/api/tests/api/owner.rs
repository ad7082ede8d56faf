//! Somebody who owns the lanes, without sending anything: what the engine does when it is asked.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::delivery::{CancelReason, DeadReason, Outcome, State, Timings};
use posthaste_core::id::{AttemptId, DeliveryId};
use posthaste_core::time::Timestamp;
use posthaste_store::{
    AttemptRecord, Command, CommandOutcome, DeliveryChange, DeliveryQuery, DeliveryRow, Epoch, NodeId, Partition, Record,
    StatusFilter, Store,
};

pub(crate) struct Owner {
    store: Arc<dyn Store>,
    partitions: Vec<(Partition, Epoch)>,
}

const NODE: NodeId = NodeId(7);

impl Owner {
    pub(crate) async fn of(store: &Arc<dyn Store>) -> Owner {
        store.join(NODE).await.unwrap();
        let claimed = store.claim(NODE, 256).await.unwrap().unwrap();
        Owner { store: Arc::clone(store), partitions: claimed.partitions }
    }

    /// Answers commands for as long as the store is open. Deliveries that are named are in flight.
    pub(crate) async fn obey(self, in_flight: Vec<DeliveryId>) {
        let mut commands = self.store.commands(NODE);
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let _ = ready.send(());
            let mut has_tested = false;
            while let Some(asked) = commands.next().await {
                let done = match asked.command {
                    Command::CancelDelivery { delivery, .. } => self.cancel(&[delivery], &in_flight).await,
                    Command::CancelEvent { tenant, event, .. } => {
                        let query = DeliveryQuery {
                            tenant: Some(tenant),
                            event: Some(event),
                            statuses: vec![StatusFilter::Waiting],
                            limit: 100,
                            ..DeliveryQuery::default()
                        };
                        let rows = self.store.deliveries(query).await.unwrap().rows;
                        self.cancel(&rows.iter().map(|row| row.id).collect::<Vec<_>>(), &in_flight).await
                    }
                    Command::SendNow { delivery, .. } if in_flight.contains(&delivery) => CommandOutcome::InFlight,
                    Command::SendNow { delivery, .. } => {
                        let row = self.store.delivery(None, delivery).await.unwrap().unwrap();
                        self.move_to(&row, State::Waiting { due: self.store.now() }).await;
                        CommandOutcome::Done
                    }
                    Command::Test { .. } if std::mem::replace(&mut has_tested, true) => {
                        CommandOutcome::NotBefore(self.store.now() + Duration::from_secs(5))
                    }
                    Command::Test { .. } => CommandOutcome::Tested(Box::new(attempt(&self.store, 1, 204))),
                    Command::Apply { .. } => CommandOutcome::Done,
                };
                let _ = asked.answer.send(done);
            }
        });
        is_ready.await.unwrap();
    }

    async fn cancel(&self, deliveries: &[DeliveryId], in_flight: &[DeliveryId]) -> CommandOutcome {
        if deliveries.is_empty() {
            return CommandOutcome::HasEnded;
        }
        if deliveries.iter().any(|delivery| in_flight.contains(delivery)) {
            return CommandOutcome::InFlight;
        }
        for delivery in deliveries {
            let row = self.store.delivery(None, *delivery).await.unwrap().unwrap();
            if !matches!(row.state, State::Waiting { .. }) {
                return CommandOutcome::HasEnded;
            }
            self.move_to(&row, State::Cancelled { at: self.store.now(), reason: CancelReason::Requested }).await;
        }
        CommandOutcome::Done
    }

    pub(crate) async fn move_to(&self, row: &DeliveryRow, state: State) {
        self.record(row, DeliveryChange::Moved { seq: row.seq, state, audit: None }).await;
    }

    /// As if it had been tried, with this answer, and been given up or delivered.
    pub(crate) async fn attempt(&self, row: &DeliveryRow, status: u16) {
        let attempt = attempt(&self.store, row.attempts + 1, status);
        let at = self.store.now();
        let state = if status < 300 { State::Delivered { at } } else { State::Dead { at, reason: DeadReason::PermanentFailure } };
        self.record(row, DeliveryChange::Attempt { seq: row.seq, attempt: Box::new(attempt), state }).await;
    }

    /// As if it had been tried, with this answer, and were to be tried again at that time.
    pub(crate) async fn attempt_again_at(&self, row: &DeliveryRow, status: u16, due: Timestamp) {
        let attempt = Box::new(attempt(&self.store, row.attempts + 1, status));
        self.record(row, DeliveryChange::Attempt { seq: row.seq, attempt, state: State::Waiting { due } }).await;
    }

    async fn record(&self, row: &DeliveryRow, recorded: DeliveryChange) {
        let (_, epoch) = *self.partitions.iter().find(|(partition, _)| *partition == row.partition).unwrap();
        let record =
            Record { partition: row.partition, epoch, endpoint: row.endpoint, recorded, lane: None, disables_endpoint: None };
        let done = self.store.record(vec![record]).await.unwrap();
        assert_eq!(done, [posthaste_store::RecordResult::Done]);
    }
}

fn attempt(store: &Arc<dyn Store>, number: u32, status: u16) -> AttemptRecord {
    let attempted_at: Timestamp = store.now();
    AttemptRecord {
        id: AttemptId::from_unique(store.unique()),
        number,
        outcome: Outcome::Answered { status, retry_after: None },
        response_time: Duration::from_millis(41),
        timings: Timings { connect: Some(Duration::from_millis(2)), ..Timings::default() },
        timeout: Duration::from_secs(10),
        preview: Some("what it said".to_owned()),
        error: None,
        attempted_at,
        endpoint_version: Some(1),
    }
}
