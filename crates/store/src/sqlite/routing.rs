//! Loads what routing needs, and the versions that it goes by.

use std::sync::Arc;

use posthaste_core::catalogue;
use posthaste_core::id::TenantId;
use rusqlite::Connection;

use super::{Sqlite, configuration, row};
use crate::columns::unsigned;
use crate::routing::{Routing, Versions, urgent_types};
use crate::{Error, Options};

impl Sqlite {
    /// From memory, or from what the database says now.
    pub(super) async fn routing(&self, tenant: &TenantId) -> Result<Arc<Routing>, Error> {
        if let Some(routing) = self.0.routings.get(tenant) {
            return Ok(routing);
        }
        let (store, wanted) = (self.clone(), tenant.clone());
        let routing = self.read_for_work(move |connection| load(connection, &wanted, &store.0.options)).await?;
        self.0.routings.put(tenant, &routing);
        Ok(routing)
    }
}

/// Zero where there is no such tenant yet.
pub(super) fn tenant_version(connection: &Connection, tenant: &TenantId) -> Result<u64, Error> {
    let mut select = connection.prepare_cached("SELECT version FROM tenants WHERE id = ?1 AND deleted_at_ms IS NULL")?;
    Ok(row::first(select.query([tenant.as_str()])?, |row| row::column(row, "version"))?.map_or(0, unsigned))
}

pub(super) fn catalogue_version(connection: &Connection) -> Result<u64, Error> {
    let mut select = connection.prepare_cached("SELECT value FROM counters WHERE name = 'catalogue'")?;
    Ok(unsigned(select.query_row([], |row| row.get(0))?))
}

/// So many endpoints are read wherever it is: the filter of each may have 16 KiB.
const SMALL_MAX: i64 = 4;

/// Whether its endpoints are read and their filters made ready in no time.
pub(super) fn is_small(connection: &Connection, tenant: &TenantId) -> Result<bool, Error> {
    let mut select = connection
        .prepare_cached("SELECT count(*) FROM (SELECT 1 FROM endpoints WHERE tenant = ?1 AND deleted_at_ms IS NULL LIMIT ?2)")?;
    let count: i64 = select.query_row(rusqlite::params![tenant.as_str(), SMALL_MAX + 1], |row| row.get(0))?;
    Ok(count <= SMALL_MAX)
}

pub(super) fn load(connection: &Connection, tenant: &TenantId, options: &Options) -> Result<Arc<Routing>, Error> {
    let versions = Versions { tenant: tenant_version(connection, tenant)?, catalogue: catalogue_version(connection)? };
    let mut select =
        connection.prepare_cached("SELECT * FROM endpoints WHERE tenant = ?1 AND deleted_at_ms IS NULL ORDER BY id")?;
    // Headers are not looked at, so they stay sealed.
    let endpoints = row::all(select.query([tenant.as_str()])?, configuration::endpoint_without_secrets)?;
    let stored = configuration::tenant(connection, tenant)?;
    let catalogue: Vec<catalogue::Entry> = configuration::event_types(connection)?;
    let tenant = stored.map(|stored| stored.tenant);
    Ok(Arc::new(Routing::new(versions, &options.policies, options.retention, tenant.as_ref(), endpoints, urgent_types(&catalogue))))
}
