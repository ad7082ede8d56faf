//! The one place where a delivery is tried: build, sign, post.
//!
//! First tries, retries, replays and test-sends all come through here. What the answer means is decided by the core, and
//! recorded, when the owner hears of it.

use posthaste_core::id::AttemptId;
use posthaste_sender::request::{self, Try};
use posthaste_sender::{Client, MaySend, Posted};
use posthaste_store::{AttemptRecord, Store};
use posthaste_traces::Attempt as ObservedAttempts;

use crate::owner::SendRequest;

/// `None` if nothing was tried, because it may not be sent any more. `seen` is told of its steps, if somebody looks.
pub(crate) async fn attempt(
    store: &dyn Store,
    client: &Client,
    may_send: MaySend<'_>,
    sending: &SendRequest,
    seen: Option<&mut ObservedAttempts>,
) -> Option<AttemptRecord> {
    let attempted_at = store.now();
    let posted = post(store, client, may_send, sending, seen).await?;
    Some(AttemptRecord {
        id: AttemptId::from_unique(store.unique()),
        number: sending.number,
        outcome: posted.outcome,
        response_time: posted.response_time,
        timings: posted.timings,
        timeout: sending.timeout,
        preview: posted.preview,
        error: posted.error,
        attempted_at,
        endpoint_version: Some(sending.target.stored.version),
    })
}

async fn post(
    store: &dyn Store,
    client: &Client,
    may_send: MaySend<'_>,
    sending: &SendRequest,
    mut seen: Option<&mut ObservedAttempts>,
) -> Option<Posted> {
    let now = store.wall_clock();
    let target = &sending.target;
    let address = match &target.address {
        Ok(address) => address,
        Err(rule) => return Some(Posted::blocked(rule.to_string())),
    };
    let Ok(signer) = target.signer_at(now) else { return Some(Posted::blocked("the endpoint's secret cannot be read")) };
    let one_try = Try {
        delivery: sending.send.delivery,
        attempt: sending.number,
        event: &sending.event,
        address,
        signer: &signer,
        payload_format: target.stored.endpoint.payload_format,
        headers: &target.stored.endpoint.headers,
        now,
        span: seen.as_ref().map(|seen| seen.post()),
    };
    let request = request::build(&one_try);
    if let Some(seen) = &mut seen {
        seen.signed();
    }
    let posted = client.post_while(may_send, address, request, sending.timeout, now).await?;
    if let Some(seen) = &mut seen {
        seen.answered();
    }
    Some(posted)
}
