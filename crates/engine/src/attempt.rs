//! The one place where a delivery is tried: build, post, judge, record.

use std::sync::Arc;

use posthaste_core::delivery::{Outcome, judge};
use posthaste_core::event::Event;
use posthaste_core::id::AttemptId;
use posthaste_core::scheduler::Entry;
use posthaste_core::time::Timestamp;
use posthaste_sender::request::{self, Signer, Try};
use posthaste_sender::{Client, Posted};
use posthaste_store::{AttemptRecord, Epoch, Record, Recorded, RecordedAs, Store, StoredEndpoint, Timings};

use crate::{Options, STORE_PAUSE};

/// A delivery whose time has come, with everything that sending it takes.
pub(crate) struct Due {
    pub(crate) entry: Entry,
    pub(crate) event: Event,
    pub(crate) endpoint: Arc<StoredEndpoint>,
    pub(crate) epoch: Epoch,
}

/// Tries it once and sees to it that the result is remembered.
pub(crate) async fn attempt(store: Arc<dyn Store>, client: Client, options: Options, due: Due) {
    let Entry { delivery, seq, attempts, .. } = due.entry;
    let number = attempts + 1;
    let attempted_at = store.now();
    let posted = send(&client, &options, &due, number, store.wall_clock()).await;
    let now = store.now();
    let verdict = judge(now, delivery, number, &posted.outcome, &options.retry);
    let Posted { outcome, response_time, timings, preview, error } = posted;
    let posthaste_sender::Timings { dns, connect, tls, first_byte } = timings;
    tracing::info!(
        %delivery, event = %due.event.id, endpoint = %due.endpoint.endpoint.id, tenant = %due.event.tenant,
        attempt = number, ?outcome, response_time_ms = response_time.as_millis(), ?verdict, "webhook_delivery_attempt"
    );
    let attempt = Box::new(AttemptRecord {
        id: AttemptId::from_unique(store.unique()),
        number,
        outcome,
        response_time,
        timings: Timings { dns, connect, tls, first_byte },
        timeout: options.timeout,
        preview,
        error,
        attempted_at,
    });
    let record = Record {
        partition: due.endpoint.partition,
        epoch: due.epoch,
        endpoint: due.endpoint.endpoint.id,
        recorded: Recorded::Attempt { seq, attempt, state: verdict.state(now) },
        lane: None,
        disables_endpoint: verdict.disables_endpoint(),
    };
    // Until this is remembered the delivery must not be tried again, so it stays in flight.
    loop {
        match store.record(vec![record.clone()]).await.as_deref() {
            Ok([RecordedAs::Done | RecordedAs::MovedOn]) => return,
            Ok(refused) => {
                tracing::error!(%delivery, ?refused, "an attempt was not recorded: somebody else owns its delivery now");
                return;
            }
            Err(error) => tracing::error!(%delivery, %error, "an attempt could not be recorded yet"),
        }
        tokio::time::sleep(STORE_PAUSE).await;
    }
}

async fn send(client: &Client, options: &Options, due: &Due, number: u32, now: Timestamp) -> Posted {
    let not_sent = |error: String| Posted {
        outcome: Outcome::Blocked,
        response_time: std::time::Duration::ZERO,
        timings: posthaste_sender::Timings::default(),
        preview: None,
        error: Some(error),
    };
    let endpoint = &due.endpoint;
    let url = match request::url(&endpoint.endpoint.url) {
        Ok(url) => url,
        Err(rule) => return not_sent(rule.to_string()),
    };
    // A rotated secret signs beside its successor until its overlap ends.
    let in_force = endpoint.secrets.iter().filter(|secret| secret.until.is_none_or(|until| now < until));
    let Ok(signer) = Signer::new(&endpoint.endpoint.signing, in_force.map(|stored| stored.secret.0.as_str())) else {
        return not_sent("the endpoint's secret cannot be read".to_owned());
    };
    let one_try = Try {
        delivery: due.entry.delivery,
        attempt: number,
        event: &due.event,
        url: &url,
        signer: &signer,
        payload_format: endpoint.endpoint.payload_format,
        headers: &endpoint.endpoint.headers,
        now,
    };
    client.post(request::build(&one_try), options.timeout, now).await
}
