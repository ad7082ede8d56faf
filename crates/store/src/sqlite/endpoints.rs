//! Endpoints: what tenants have said about where they want to be called.

use posthaste_core::endpoint::Subscription;
use posthaste_core::event::TypePatterns;
use posthaste_core::id::{EndpointId, TenantId};
use posthaste_core::route::Route;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{Store, row};
use crate::{Error, SecretText, StoredEndpoint};

impl Store {
    /// Keeps a new endpoint. From the answer on, every publish sees it.
    pub async fn create_endpoint(&self, endpoint: StoredEndpoint) -> Result<(), Error> {
        self.0
            .writer
            .write(move |connection| {
                let (status, paused_until_ms) = row::status_columns(endpoint.status);
                connection.prepare_cached(INSERT)?.execute(params![
                    endpoint.id.to_bytes(),
                    endpoint.tenant.as_str(),
                    endpoint.url,
                    row::lines(endpoint.subscription.event_types.iter()),
                    status,
                    paused_until_ms,
                    endpoint.secret.0,
                    endpoint.created_at.as_millis(),
                ])?;
                Ok(())
            })
            .await
    }

    pub async fn endpoint(&self, id: EndpointId) -> Result<Option<StoredEndpoint>, Error> {
        self.read(move |connection| {
            let mut select = connection.prepare_cached("SELECT * FROM endpoints WHERE id = ?1")?;
            select.query_row([id.to_bytes()], |row| Ok(from_row(row))).optional()?.transpose()
        })
        .await
    }
}

const INSERT: &str = "INSERT INTO endpoints (id, tenant, url, event_types, status, paused_until_ms, secret, created_at_ms)
                      VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

/// What routing an event of this tenant needs.
pub(super) fn routes(connection: &Connection, tenant: &TenantId) -> Result<Vec<Route<EndpointId>>, Error> {
    let mut select = connection.prepare_cached("SELECT * FROM endpoints WHERE tenant = ?1 ORDER BY id")?;
    let rows = select.query_map([tenant.as_str()], |row| Ok(from_row(row)))?;
    rows.map(|endpoint| {
        let endpoint = endpoint??;
        Ok(Route { endpoint: endpoint.id, status: endpoint.status, subscription: endpoint.subscription })
    })
    .collect()
}

pub(super) fn from_row(row: &Row<'_>) -> Result<StoredEndpoint, Error> {
    Ok(StoredEndpoint {
        id: EndpointId::from_bytes(row::column(row, "id")?),
        tenant: row::parsed(row, "tenant", TenantId::parse)?,
        url: row::column(row, "url")?,
        subscription: Subscription {
            event_types: row::parsed(row, "event_types", |text| TypePatterns::parse(text.lines()))?,
            disabled_event_types: TypePatterns::default(),
            filter: None,
        },
        status: row::status(row, "status", "paused_until_ms")?,
        secret: SecretText(row::column(row, "secret")?),
        created_at: row::timestamp(row, "created_at_ms")?,
    })
}
