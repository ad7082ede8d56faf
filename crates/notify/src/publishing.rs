//! A notification as an event of a tenant of its own, and the endpoints that tenants' URLs are kept as.
//!
//! One event reaches operators and the tenant that it is about: each tenant's endpoint filters by whose news it is.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use posthaste_core::endpoint::{Description, Endpoint, Metadata, Status};
use posthaste_core::event::{Data, Event, EventType, Timing};
use posthaste_core::filter::Filter;
use posthaste_core::id::{EndpointId, EndpointUid, EventId, TenantId};
use posthaste_core::text::Labels;
use posthaste_signing::Secret;
use posthaste_store::{
    Audit, Change, EndpointQuery, Error, NewEndpoint, NewEvent, Published, SecretText, Store, StoredEndpoint, StoredSecret,
};
use posthaste_traces::{Publish, PublishedAs};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::Options;
use crate::message::Message;

/// What came of it.
pub(crate) enum NotifyOutcome {
    /// And these addresses want to hear of it.
    Now { emails: Vec<String> },
    /// It is kept already.
    Before,
}

/// What a tenant has said about notifications, in the JSON that the API keeps with it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Extra {
    notifications: Preferences,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Preferences {
    emails: Vec<String>,
    url: Option<String>,
}

pub(crate) async fn publish(store: &dyn Store, options: &Options, message: &Message) -> Result<NotifyOutcome, Error> {
    let (operators, began) = (&options.tenant, Instant::now());
    let stored = store.tenant(message.tenant.clone()).await?;
    let Extra { notifications } = stored.and_then(|stored| serde_json::from_str(&stored.extra).ok()).unwrap_or_default();
    keep_endpoint(store, operators, &message.tenant, notifications.url.as_deref()).await?;
    let now = store.now();
    let event = Event {
        id: match &message.id {
            Some(id) => EventId::parse(id).expect("made of words and numbers"),
            None => EventId::from_unique(store.unique()),
        },
        tenant: operators.clone(),
        event_type: EventType::parse(message.kind.name()).expect("one of ours"),
        version: None,
        timestamp: message.at,
        accepted_at: now,
        data: Data::parse(&message.data()).expect("made by a JSON library"),
        labels: Labels::default(),
        idempotency_key: None,
        ordering_key: None,
        timing: Timing::default(),
        trace: None,
    };
    // Of the same id the same is told, if perhaps in other words: nothing is compared.
    let event = Arc::new(event);
    let resolved: Arc<OnceLock<Instant>> = Arc::default();
    let new = NewEvent {
        event: Arc::clone(&event),
        is_id_chosen: message.id.is_some(),
        fingerprint: [0; 32],
        resolved: options.traces.as_ref().map(|_| Arc::clone(&resolved)),
    };
    let created = Instant::now();
    let published = store.publish(vec![new]).await?;
    if let (Some(traces), Some(Published::Made { deliveries })) = (&options.traces, published.first()) {
        let (resolved, published_as) = (resolved.get().copied(), PublishedAs::Made { deliveries: *deliveries });
        traces.published(&Publish { event: &event, route: None, began, created, resolved, ended: Instant::now(), published_as });
    }
    Ok(match published.first() {
        Some(Published::Made { deliveries }) => {
            if let Some(metrics) = &options.metrics {
                metrics.publishing().created([(&event.tenant, &event.event_type, *deliveries)]);
            }
            NotifyOutcome::Now { emails: notifications.emails }
        }
        // What operators filter by is their own; a notification that their filters take too long for is in the log.
        Some(Published::TooCostly(why)) => {
            tracing::error!(%why, "a notification was not published");
            NotifyOutcome::Before
        }
        Some(Published::Duplicate { .. } | Published::Conflict { .. }) | None => NotifyOutcome::Before,
    })
}

/// The endpoint of a tenant's own URL: made, changed or taken away, as the tenant says.
async fn keep_endpoint(store: &dyn Store, operators: &TenantId, tenant: &TenantId, url: Option<&str>) -> Result<(), Error> {
    let uid = uid_of(tenant);
    let query = EndpointQuery { tenant: Some(operators.clone()), uid: Some(uid.clone()), limit: 1, ..EndpointQuery::default() };
    let found = store.endpoints(query).await?.into_iter().next();
    let (change, action, subject) = match (found, url) {
        (None, None) => return Ok(()),
        (Some(StoredEndpoint { endpoint, .. }), Some(url)) if endpoint.url == url => return Ok(()),
        (Some(StoredEndpoint { endpoint, version, .. }), Some(url)) => {
            let id = endpoint.id;
            // One that was given up at its old place has not failed at the new one.
            let endpoint = Endpoint { url: url.to_owned(), status: Status::Active, updated_at: store.now(), ..endpoint };
            let change = Change::ReplaceEndpoint { endpoint: Box::new(endpoint), expected_version: Some(version), secrets: None };
            (change, "endpoint.update", id)
        }
        (Some(StoredEndpoint { endpoint, .. }), None) => {
            (Change::DeleteEndpoint { endpoint: endpoint.id }, "endpoint.delete", endpoint.id)
        }
        (None, Some(url)) => {
            let endpoint = new_endpoint(store, operators, tenant, uid, url);
            let (id, secret) = (endpoint.id, Secret::from_random(rand::random()));
            let secrets = vec![StoredSecret { secret: SecretText(secret.reveal().to_owned()), until: None }];
            (
                Change::CreateEndpoint(Box::new(NewEndpoint {
                    endpoint,
                    secrets,
                    per_tenant_max: u32::MAX,
                    tenant_created_at: None,
                })),
                "endpoint.create",
                id,
            )
        }
    };
    let audit = Audit {
        actor: "posthaste".to_owned(),
        address: None,
        action: action.to_owned(),
        subject: subject.to_string(),
        tenant: Some(operators.clone()),
        before: None,
        after: None,
    };
    if let Err(refusal) = store.configure(change, audit).await? {
        // Another node, or a person, was quicker; the next notification looks again.
        tracing::debug!(%tenant, %refusal, "the endpoint for notifications was not changed");
    }
    Ok(())
}

fn new_endpoint(store: &dyn Store, operators: &TenantId, tenant: &TenantId, uid: EndpointUid, url: &str) -> Endpoint {
    let id = EndpointId::from_unique(store.unique());
    let mut endpoint = Endpoint::new(id, operators.clone(), url.to_owned(), store.now());
    endpoint.uid = Some(uid);
    let description = format!("Notifications of the tenant {tenant}, at its notifications.url");
    endpoint.description = Description::parse(&description).expect("shorter than a description may be");
    let name = serde_json::Value::from(tenant.as_str());
    endpoint.subscription.filter = Some(Filter::parse(&format!("{{\"data.tenant\": {name}}}")).expect("one condition"));
    let metadata = BTreeMap::from([("notifications_of".to_owned(), tenant.to_string())]);
    endpoint.metadata = Metadata::new(metadata).expect("a name is short");
    endpoint
}

/// A tenant's id may be longer than a uid, and may have characters that a uid has not.
fn uid_of(tenant: &TenantId) -> EndpointUid {
    let digest = Sha256::digest(tenant.as_str());
    let hex = digest.iter().take(16).fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    EndpointUid::parse(&format!("notifications-{hex}")).expect("letters, digits and a hyphen")
}
