//! Loads what routing needs, and the versions that it goes by.

use std::collections::BTreeSet;
use std::sync::Arc;

use posthaste_core::id::TenantId;

use super::connection::{Connection, Flight, Problem};
use super::{Database, configuration, row};
use crate::columns::unsigned;
use crate::computing;
use crate::routing::{Routing, Versions, urgent_types};
use crate::{Error, Options};

impl Database {
    /// From memory, or from what the database says now.
    pub(super) async fn routing(&self, tenant: &TenantId) -> Result<Arc<Routing>, Error> {
        match self.routings.get(tenant) {
            Some(routing) => Ok(routing),
            None => self.load_routing(tenant).await,
        }
    }

    pub(super) async fn load_routing(&self, tenant: &TenantId) -> Result<Arc<Routing>, Error> {
        let routing = self.read_for_work(|connection| async move { load(&connection, tenant, &self.options).await }).await?;
        self.routings.put(tenant, &routing);
        Ok(routing)
    }

    pub(super) async fn tenant_versions(&self, tenants: Vec<TenantId>) -> Result<Vec<u64>, Error> {
        let names = &tenants.iter().map(TenantId::as_str).collect::<Vec<_>>();
        let present = self.read_for_work(|connection| async move { versions(&connection, names).await }).await?;
        Ok(present.into_iter().map(|versions| versions.tenant).collect())
    }

    /// Loads anew what has changed of these, and leaves alone what has not.
    pub(super) async fn refresh_routings(&self, tenants: &BTreeSet<TenantId>) -> Result<(), Error> {
        let names = &tenants.iter().map(TenantId::as_str).collect::<Vec<_>>();
        let present = self.read_for_work(|connection| async move { versions(&connection, names).await }).await?;
        for (tenant, present) in tenants.iter().zip(present) {
            if self.routings.get(tenant).is_none_or(|known| known.versions != present) {
                self.load_routing(tenant).await?;
            }
        }
        Ok(())
    }
}

/// In the order asked; zero where there is no such tenant yet.
async fn versions(connection: &Connection, tenants: &[&str]) -> Result<Vec<Versions>, Problem> {
    let rows = connection.query(SELECT_VERSIONS, &[&tenants]).await?;
    let versions =
        |row| Ok(Versions { tenant: unsigned(row::column(row, "version")?), catalogue: unsigned(row::column(row, "catalogue")?) });
    rows.iter().map(versions).collect()
}

pub(super) async fn load(connection: &Connection, tenant: &TenantId, options: &Options) -> Result<Arc<Routing>, Problem> {
    let mut flight = Flight::new(connection);
    let name = tenant.as_str();
    // The versions first: what has changed since they were read is found out when they are compared.
    let versions = flight.query(connection.prepare(SELECT_VERSIONS).await?, row::parameters![vec![name]]);
    let endpoints = flight.query(connection.prepare(SELECT_ENDPOINTS).await?, row::parameters![name]);
    let stored = flight.query(connection.prepare(configuration::SELECT_TENANT).await?, row::parameters![name]);
    let types = flight.query(connection.prepare(configuration::SELECT_EVENT_TYPES).await?, vec![]);
    let landed = flight.land().await.map_err(|crash| crash.problem)?;
    let first = landed[versions].first().ok_or(Problem::Store(Error::Corrupt { what: "version" }))?;
    let versions =
        Versions { tenant: unsigned(row::column(first, "version")?), catalogue: unsigned(row::column(first, "catalogue")?) };
    let is_small = landed[endpoints].len() <= READ_IN_PLACE_MAX;
    let (policies, retention) = (options.policies.clone(), options.retention);
    let read = move || {
        // Headers are not looked at, so they stay sealed.
        let endpoints = landed[endpoints].iter().map(configuration::endpoint_without_secrets).collect::<Result<_, _>>()?;
        let tenant = landed[stored].first().map(configuration::tenant_from_row).transpose()?.map(|stored| stored.tenant);
        let catalogue = landed[types].iter().map(configuration::event_type).collect::<Result<Vec<_>, _>>()?;
        Ok(Arc::new(Routing::new(versions, &policies, retention, tenant.as_ref(), endpoints, urgent_types(&catalogue))))
    };
    let routing: Result<Arc<Routing>, Error> = if is_small { read() } else { computing::run(name, read).await? };
    Ok(routing?)
}

/// So many endpoints are read in place: the filter of each may have 16 KiB.
const READ_IN_PLACE_MAX: usize = 4;

const SELECT_VERSIONS: &str =
    "SELECT coalesce(t.version, 0) AS version, (SELECT value FROM counters WHERE name = 'catalogue') AS catalogue
     FROM unnest($1::text[]) WITH ORDINALITY AS asked (id, place)
     LEFT JOIN tenants t ON t.id = asked.id AND t.deleted_at_ms IS NULL ORDER BY asked.place";
const SELECT_ENDPOINTS: &str = "SELECT * FROM endpoints WHERE tenant = $1 AND deleted_at_ms IS NULL ORDER BY id";
