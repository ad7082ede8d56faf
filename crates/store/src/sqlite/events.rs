//! Publishing: the event and its deliveries, or nothing.

use posthaste_core::delivery::State;
use posthaste_core::event::{Data, Event, EventType, Timing};
use posthaste_core::id::{DeliveryId, EventId, TenantId};
use posthaste_core::route;
use posthaste_core::text::{Label, Labels, Version};
use rusqlite::{Connection, Row, params};
use sha2::{Digest, Sha256};

use super::{Store, endpoints, row};
use crate::Error;

impl Store {
    /// Keeps the event **and** one delivery for each endpoint that [`route::choose`] names, together. Answers their ids.
    pub async fn publish(&self, event: Event) -> Result<Vec<DeliveryId>, Error> {
        let store = self.clone();
        let made = self.0.writer.write(move |connection| publish(&store, connection, &event)).await?;
        self.0.news.send_modify(|commits| *commits += 1);
        Ok(made)
    }
}

fn publish(store: &Store, connection: &Connection, event: &Event) -> Result<Vec<DeliveryId>, Error> {
    connection.prepare_cached(INSERT_EVENT)?.execute(params![
        event.tenant.as_str(),
        event.id.as_str(),
        event.event_type.as_str(),
        event.version.as_ref().map(Version::as_str),
        event.timestamp.as_millis(),
        event.accepted_at.as_millis(),
        event.data.as_str(),
        digest(event.data.as_str()),
        row::lines(event.labels.iter()),
    ])?;
    let routes = endpoints::routes(connection, &event.tenant)?;
    let state = row::state_columns(State::Waiting { due: event.timing.first_due(event.accepted_at) });
    let mut insert = connection.prepare_cached(INSERT_DELIVERY)?;
    route::choose(event, &routes)
        .into_iter()
        .map(|route| {
            let id = DeliveryId::from_unique(store.unique());
            insert.execute(params![
                id.to_bytes(),
                event.tenant.as_str(),
                event.id.as_str(),
                route.endpoint.to_bytes(),
                state.status,
                state.due_at_ms,
                event.accepted_at.as_millis(),
            ])?;
            Ok(id)
        })
        .collect()
}

const INSERT_EVENT: &str = "INSERT INTO events (tenant, id, type, version, timestamp_ms, accepted_at_ms, data, digest, labels)
                            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
const INSERT_DELIVERY: &str = "INSERT INTO deliveries (id, tenant, event, endpoint, status, due_at_ms, created_at_ms)
                               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";

fn digest(data: &str) -> [u8; 32] {
    Sha256::digest(data.as_bytes()).into()
}

/// Reads an event, and refuses one whose payload is not what was published.
pub(super) fn from_row(row: &Row<'_>) -> Result<Event, Error> {
    let data: String = row::column(row, "data")?;
    if row::column::<[u8; 32]>(row, "digest")? != digest(&data) {
        return Err(Error::Corrupt { what: "payload" });
    }
    let labels: Vec<Label> = row::parsed(row, "labels", |text| text.lines().map(Label::parse).collect::<Result<_, _>>())?;
    Ok(Event {
        id: row::parsed(row, "event", EventId::parse)?,
        tenant: row::parsed(row, "tenant", TenantId::parse)?,
        event_type: row::parsed(row, "type", EventType::parse)?,
        version: row::column::<Option<String>>(row, "version")?
            .map(|text| Version::parse(&text))
            .transpose()
            .map_err(|_| Error::Corrupt { what: "version" })?,
        timestamp: row::timestamp(row, "timestamp_ms")?,
        accepted_at: row::timestamp(row, "accepted_at_ms")?,
        data: Data::parse(&data).map_err(|_| Error::Corrupt { what: "payload" })?,
        labels: Labels::new(labels).map_err(|_| Error::Corrupt { what: "labels" })?,
        idempotency_key: None,
        ordering_key: None,
        timing: Timing::default(),
    })
}
