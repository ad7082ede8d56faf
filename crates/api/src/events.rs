//! `/v1/events`: something happened.

use std::sync::Arc;

use axum::Json as Answer;
use axum::extract::State;
use http::StatusCode;
use posthaste_core::event::{Data, Event, EventType, Timing};
use posthaste_core::id::{EventId, TenantId};
use posthaste_core::text::{Label, Labels, Version};
use posthaste_core::time::Timestamp;
use posthaste_store::{NewEvent, Published as Stored};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::App;
use crate::body::Json;
use crate::problem::Problem;

pub(crate) const DEFAULT_TENANT: &str = "default";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewEventBody {
    #[serde(rename = "type")]
    event_type: String,
    /// Kept as the bytes that it came as.
    data: Box<RawValue>,
    tenant: Option<String>,
    version: Option<String>,
    timestamp: Option<String>,
    #[serde(default)]
    labels: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Published {
    id: String,
    #[serde(rename = "type")]
    event_type: String,
    tenant: String,
    timestamp: String,
    duplicate: bool,
    deliveries: u32,
}

/// Answers only after the event and its deliveries are on disk.
pub(crate) async fn publish(
    State(app): State<App>,
    Json(new): Json<NewEventBody>,
) -> Result<(StatusCode, Answer<Published>), Problem> {
    let event = read(&app, &new)?;
    let published = Published {
        id: event.id.to_string(),
        event_type: event.event_type.to_string(),
        tenant: event.tenant.to_string(),
        timestamp: event.timestamp.to_rfc3339(),
        duplicate: false,
        deliveries: 0,
    };
    let fingerprint = Sha256::digest(new.data.get().as_bytes()).into();
    let new = NewEvent { event: Arc::new(event), is_id_chosen: false, fingerprint };
    let deliveries = match app.store.publish(vec![new]).await?.as_slice() {
        [Stored::Made { deliveries }] => *deliveries,
        // Nobody can give a key or an id yet.
        _ => return Err(Problem::invalid("", "it was published before")),
    };
    Ok((StatusCode::ACCEPTED, Answer(Published { deliveries, ..published })))
}

fn read(app: &App, new: &NewEventBody) -> Result<Event, Problem> {
    let accepted_at = app.store.now();
    let label =
        |(index, text): (usize, &String)| Label::parse(text).map_err(|error| Problem::invalid(format!("labels[{index}]"), error));
    let labels = new.labels.iter().enumerate().map(label).collect::<Result<_, _>>()?;
    let optional = |field: &'static str| move |error: posthaste_core::text::TextError| Problem::invalid(field, error);
    Ok(Event {
        id: EventId::from_unique(app.store.unique()),
        tenant: TenantId::parse(new.tenant.as_deref().unwrap_or(DEFAULT_TENANT)).map_err(optional("tenant"))?,
        event_type: EventType::parse(&new.event_type).map_err(optional("type"))?,
        version: new.version.as_deref().map(Version::parse).transpose().map_err(optional("version"))?,
        timestamp: match &new.timestamp {
            None => accepted_at,
            Some(text) => Timestamp::parse(text).map_err(|error| Problem::invalid("timestamp", error))?,
        },
        accepted_at,
        data: Data::parse(new.data.get()).map_err(|error| Problem::invalid("data", error))?,
        labels: Labels::new(labels).map_err(optional("labels"))?,
        idempotency_key: None,
        ordering_key: None,
        timing: Timing::default(),
    })
}
