//! The one place where a delivery is tried: build, post, judge, record.

use posthaste_core::delivery::{Outcome, judge};
use posthaste_core::id::AttemptId;
use posthaste_core::time::Timestamp;
use posthaste_sender::request::{self, Secret, Try};
use posthaste_sender::{Client, Posted};
use posthaste_store::{AttemptRecord, Due, Error, Recorded, Store};

use crate::{Options, STORE_PAUSE};

/// Tries it once and sees to it that the result is remembered.
pub(crate) async fn attempt(store: Store, client: Client, options: Options, due: Due) {
    let number = due.attempts + 1;
    let attempted_at = store.now();
    let posted = send(&client, &options, &due, number, store.wall_clock()).await;
    let now = store.now();
    let verdict = judge(now, due.delivery, number, &posted.outcome, &options.retry);
    let Posted { outcome, response_time, preview, error } = posted;
    tracing::info!(
        delivery = %due.delivery, event = %due.event.id, endpoint = %due.endpoint.id, tenant = %due.event.tenant,
        attempt = number, ?outcome, response_time_ms = response_time.as_millis(), ?verdict, "webhook_delivery_attempt"
    );
    let attempt = AttemptRecord {
        id: AttemptId::from_unique(store.unique()),
        number,
        outcome,
        response_time,
        timeout: options.timeout,
        preview,
        error,
        attempted_at,
    };
    let recorded =
        Recorded { delivery: due.delivery, attempt, state: verdict.state(now), disables_endpoint: verdict.disables_endpoint() };
    // Until this is remembered the delivery must not be tried again, so it stays in flight.
    loop {
        match store.record(recorded.clone()).await {
            Ok(()) | Err(Error::MovedOn) => return,
            Err(error) => tracing::error!(delivery = %due.delivery, %error, "an attempt could not be recorded yet"),
        }
        tokio::time::sleep(STORE_PAUSE).await;
    }
}

async fn send(client: &Client, options: &Options, due: &Due, number: u32, now: Timestamp) -> Posted {
    let not_sent = |error: &str| Posted {
        outcome: Outcome::Blocked,
        response_time: std::time::Duration::ZERO,
        preview: None,
        error: Some(error.to_owned()),
    };
    let Ok(url) = due.endpoint.url.parse() else { return not_sent("the endpoint's URL cannot be read") };
    let Ok(secret) = Secret::parse(&due.endpoint.secret.0) else { return not_sent("the endpoint's secret cannot be read") };
    let one_try = Try { delivery: due.delivery, attempt: number, event: &due.event, url: &url, secrets: &[secret], now };
    client.post(request::build(&one_try), options.timeout, now).await
}
