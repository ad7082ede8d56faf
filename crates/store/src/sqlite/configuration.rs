//! What people have said: endpoints, tenants, event types, keys, and who said so.

use posthaste_core::catalogue;
use posthaste_core::endpoint::{Endpoint, Headers};
use posthaste_core::event::EventType;
use posthaste_core::health::DisableReason;
use posthaste_core::id::{EndpointId, EndpointUid, KeyId, TenantId};
use posthaste_core::tenant::Tenant;
use posthaste_core::time::Timestamp;
use rusqlite::{Connection, Row, named_params, params};

use super::writer::State;
use super::{SMALL, Sqlite, file, lanes, routing, row, sessions};
use crate::columns::{limit, lines, millis, scopes, signed, status, status_columns, unsigned};
use crate::document::{self, EndpointColumns};
use crate::endpoint_versions::{VersionColumns, header_names};
use crate::secrets;
use crate::{
    Audit, AuditRow, Change, ChangeResult, EndpointBundle, EndpointQuery, EndpointVersion, Error, Key, KeyHash, Keyring,
    NewEndpoint, Refusal, SealedValues, StoredEndpoint, StoredSecret, StoredTenant, partition_of,
};

impl Sqlite {
    pub(super) async fn configure(&self, change: Change, audit: Audit) -> Result<Result<ChangeResult, Refusal>, Error> {
        let store = self.clone();
        self.write(SMALL, move |connection, state| {
            let now = store.clock_now();
            let changed = apply(connection, &store.0.options.keyring, &change, now)?;
            let version = match changed {
                Ok(version) => version,
                Err(refusal) => return Ok(Err(refusal)),
            };
            write_audit(connection, &audit, now)?;
            state.forget_versions();
            let number = raise(connection, "configuration")?;
            Ok(Ok(ChangeResult { number, version }))
        })
        .await
    }

    pub(super) async fn sealed_values(&self) -> Result<SealedValues, Error> {
        let keyring = self.0.options.keyring.clone();
        self.read(move |connection| file::sealed_values(connection, &keyring)).await
    }

    pub(super) async fn configuration_number(&self) -> Result<u64, Error> {
        self.read_for_work(|connection| {
            let select = "SELECT value FROM counters WHERE name = 'configuration'";
            Ok(unsigned(connection.prepare_cached(select)?.query_row([], |row| row.get(0))?))
        })
        .await
    }

    pub(super) async fn endpoint(&self, tenant: Option<TenantId>, id: EndpointId) -> Result<Option<StoredEndpoint>, Error> {
        let store = self.clone();
        self.read(move |connection| {
            let mut select = connection.prepare_cached("SELECT * FROM endpoints WHERE id = ?1 AND (?2 IS NULL OR tenant = ?2)")?;
            let rows = select.query(params![id.to_bytes(), tenant.as_ref().map(TenantId::as_str)])?;
            row::first(rows, |row| endpoint(row, &store.0.options.keyring))
        })
        .await
    }

    pub(super) async fn endpoints(&self, query: EndpointQuery) -> Result<Vec<StoredEndpoint>, Error> {
        let store = self.clone();
        self.read(move |connection| {
            let by_tenant = "SELECT * FROM endpoints WHERE tenant = :tenant AND (:uid IS NULL OR uid = :uid)
                               AND (:before IS NULL OR id < :before) AND deleted_at_ms IS NULL ORDER BY id DESC LIMIT :limit";
            let of_all = "SELECT * FROM endpoints WHERE (:tenant IS NULL) AND (:uid IS NULL OR uid = :uid)
                            AND (:before IS NULL OR id < :before) AND deleted_at_ms IS NULL ORDER BY id DESC LIMIT :limit";
            if query.is_disabled {
                return disabled(connection, &query, |row| endpoint(row, &store.0.options.keyring));
            }
            let mut select = connection.prepare_cached(if query.tenant.is_some() { by_tenant } else { of_all })?;
            let rows = select.query(named_params! {
                ":tenant": query.tenant.as_ref().map(TenantId::as_str),
                ":uid": query.uid.as_ref().map(EndpointUid::as_str),
                ":before": query.before.map(EndpointId::to_bytes),
                ":limit": limit(query.limit),
            })?;
            row::all(rows, |row| endpoint(row, &store.0.options.keyring))
        })
        .await
    }

    pub(super) async fn tenant_versions(&self, tenants: Vec<TenantId>) -> Result<Vec<u64>, Error> {
        self.read_for_work(move |connection| tenants.iter().map(|tenant| routing::tenant_version(connection, tenant)).collect())
            .await
    }

    pub(super) async fn load_endpoints(&self, endpoints: Vec<EndpointId>) -> Result<Vec<EndpointBundle>, Error> {
        let store = self.clone();
        self.read_for_work(move |connection| {
            let mut found = Vec::with_capacity(endpoints.len());
            for id in endpoints {
                let mut select = connection.prepare_cached("SELECT * FROM endpoints WHERE id = ?1")?;
                let Some(endpoint) = row::first(select.query([id.to_bytes()])?, |row| endpoint(row, &store.0.options.keyring))?
                else {
                    continue;
                };
                let tenant = tenant(connection, &endpoint.endpoint.tenant)?;
                found.push(EndpointBundle { endpoint, tenant, lane: lanes::lane(connection, id)? });
            }
            Ok(found)
        })
        .await
    }

    pub(super) async fn tenant(&self, id: TenantId) -> Result<Option<StoredTenant>, Error> {
        self.read(move |connection| tenant(connection, &id)).await
    }

    pub(super) async fn tenants(&self, after: Option<TenantId>, rows_max: usize) -> Result<Vec<StoredTenant>, Error> {
        self.read(move |connection| {
            let mut select =
                connection.prepare_cached("SELECT * FROM tenants WHERE id > ?1 AND deleted_at_ms IS NULL ORDER BY id LIMIT ?2")?;
            let after = after.as_ref().map_or("", TenantId::as_str);
            row::all(select.query(params![after, limit(rows_max)])?, tenant_from_row)
        })
        .await
    }

    pub(super) async fn event_types(&self) -> Result<Vec<catalogue::Entry>, Error> {
        self.read(event_types).await
    }

    pub(super) async fn key(&self, hash: KeyHash) -> Result<Option<Key>, Error> {
        let now = self.clock_now();
        self.read_for_work(move |connection| {
            let mut select = connection.prepare_cached(
                "SELECT * FROM keys WHERE hash = ?1 AND revoked_at_ms IS NULL AND (expires_at_ms IS NULL OR expires_at_ms > ?2)",
            )?;
            row::first(select.query(params![hash.0, now.as_millis()])?, key)
        })
        .await
    }

    pub(super) async fn keys(&self, before: Option<KeyId>, rows_max: usize) -> Result<Vec<Key>, Error> {
        self.read(move |connection| {
            let mut select =
                connection.prepare_cached("SELECT * FROM keys WHERE ?1 IS NULL OR id < ?1 ORDER BY id DESC LIMIT ?2")?;
            row::all(select.query(params![before.map(KeyId::to_bytes), limit(rows_max)])?, key)
        })
        .await
    }

    pub(super) async fn keys_used(&self, used: Vec<(KeyId, Timestamp)>) -> Result<(), Error> {
        self.write(SMALL * used.len(), move |connection, _| {
            let mut update = connection
                .prepare_cached("UPDATE keys SET last_used_at_ms = max(coalesce(last_used_at_ms, 0), ?2) WHERE id = ?1")?;
            for (key, at) in &used {
                update.execute(params![key.to_bytes(), at.as_millis()])?;
            }
            Ok(())
        })
        .await
    }

    pub(super) async fn audit(
        &self,
        tenant: Option<TenantId>,
        before: Option<u64>,
        rows_max: usize,
    ) -> Result<Vec<AuditRow>, Error> {
        self.read(move |connection| {
            let by_tenant = "SELECT * FROM audit WHERE tenant = ?1 AND seq < ?2 ORDER BY seq DESC LIMIT ?3";
            let of_all = "SELECT * FROM audit WHERE ?1 IS NULL AND seq < ?2 ORDER BY seq DESC LIMIT ?3";
            let mut select = connection.prepare_cached(if tenant.is_some() { by_tenant } else { of_all })?;
            let tenant = tenant.as_ref().map(TenantId::as_str);
            let rows = select.query(params![tenant, before.map_or(i64::MAX, signed), limit(rows_max)])?;
            row::all(rows, audit_row)
        })
        .await
    }
}

/// Checks first and writes then, so that a refusal has changed nothing. Answers the version of what was changed.
fn apply(connection: &Connection, keyring: &Keyring, change: &Change, now: Timestamp) -> Result<Result<u64, Refusal>, Error> {
    match change {
        Change::CreateEndpoint(new) => create_endpoint(connection, keyring, new, now),
        Change::ReplaceEndpoint { endpoint, expected_version, secrets } => {
            replace_endpoint(connection, keyring, endpoint, *expected_version, secrets.as_deref(), now)
        }
        Change::ReplaceSecrets { endpoint, secrets } => replace_secrets(connection, keyring, *endpoint, secrets, now),
        Change::DeleteEndpoint { endpoint } => {
            let Some(stored) = load_endpoint(connection, keyring, *endpoint)? else { return Ok(Err(Refusal::NotFound)) };
            connection
                .prepare_cached("UPDATE endpoints SET deleted_at_ms = ?2, version = version + 1 WHERE id = ?1")?
                .execute(params![endpoint.to_bytes(), now.as_millis()])?;
            touch_tenant(connection, &stored.endpoint.tenant, now)?;
            Ok(Ok(stored.version + 1))
        }
        Change::PutTenant { tenant, extra } => put_tenant(connection, tenant, extra, now),
        Change::ReplaceTenant { tenant: changed, extra, expected } => {
            let Some(present) = tenant(connection, &changed.id)? else { return Ok(Err(Refusal::NotFound)) };
            if (present.tenant, present.extra) != **expected {
                return Ok(Err(Refusal::Stale));
            }
            put_tenant(connection, changed, extra, now)
        }
        Change::DeleteTenant { tenant } => delete_tenant(connection, tenant, now),
        Change::PutEventType(entry) => put_event_type(connection, entry),
        Change::CreateEventType(entry) => match event_type(connection, &entry.name)? {
            Some(_) => Ok(Err(Refusal::Taken)),
            None => put_event_type(connection, entry),
        },
        Change::ReplaceEventType { entry, expected } => match event_type(connection, &entry.name)? {
            None => Ok(Err(Refusal::NotFound)),
            Some(present) if present != **expected => Ok(Err(Refusal::Stale)),
            Some(_) => put_event_type(connection, entry),
        },
        Change::DeleteEventType { name } => {
            let deleted = connection.prepare_cached("DELETE FROM event_types WHERE name = ?1")?.execute([name.as_str()])?;
            if deleted == 0 { Ok(Err(Refusal::NotFound)) } else { raise(connection, "catalogue").map(Ok) }
        }
        Change::CreateKey(key) => create_key(connection, key),
        Change::RevokeKey { key, tenant } => {
            let revoked = connection
                .prepare_cached(
                    "UPDATE keys SET revoked_at_ms = coalesce(revoked_at_ms, ?2) WHERE id = ?1 AND (?3 IS NULL OR tenant = ?3)",
                )?
                .execute(params![key.to_bytes(), now.as_millis(), tenant.as_ref().map(TenantId::as_str)])?;
            if revoked == 0 {
                return Ok(Err(Refusal::NotFound));
            }
            sessions::end_of_key(connection, *key)?;
            Ok(Ok(1))
        }
    }
}

fn create_endpoint(
    connection: &Connection,
    keyring: &Keyring,
    new: &NewEndpoint,
    now: Timestamp,
) -> Result<Result<u64, Refusal>, Error> {
    let endpoint = &new.endpoint;
    if let Some(created_at) = new.tenant_created_at
        && tenant(connection, &endpoint.tenant)?.is_none_or(|stored| stored.created_at != created_at)
    {
        return Ok(Err(Refusal::NotFound));
    }
    let count: i64 = connection
        .prepare_cached("SELECT count(*) FROM endpoints WHERE tenant = ?1 AND deleted_at_ms IS NULL")?
        .query_row([endpoint.tenant.as_str()], |row| row.get(0))?;
    if count >= i64::from(new.per_tenant_max) {
        return Ok(Err(Refusal::LimitReached));
    }
    if is_uid_taken(connection, endpoint)? {
        return Ok(Err(Refusal::Taken));
    }
    touch_tenant(connection, &endpoint.tenant, now)?;
    let (status, paused_until_ms) = status_columns(endpoint.status);
    connection
        .prepare_cached(
            "INSERT INTO endpoints (id, tenant, partition, uid, url, status, paused_until_ms, document, sealed, version,
                                    created_at_ms, updated_at_ms)
             VALUES (:id, :tenant, :partition, :uid, :url, :status, :paused_until_ms, :document, :sealed, 1, :created_at_ms,
                     :updated_at_ms)",
        )?
        .execute(named_params! {
            ":id": endpoint.id.to_bytes(),
            ":tenant": endpoint.tenant.as_str(),
            ":partition": partition_of(&endpoint.tenant),
            ":uid": endpoint.uid.as_ref().map(EndpointUid::as_str),
            ":url": endpoint.url,
            ":status": status,
            ":paused_until_ms": paused_until_ms,
            ":document": document::endpoint(endpoint),
            ":sealed": secrets::seal(keyring, endpoint.id, &new.secrets, &endpoint.headers),
            ":created_at_ms": endpoint.created_at.as_millis(),
            ":updated_at_ms": endpoint.updated_at.as_millis(),
        })?;
    Ok(Ok(1))
}

fn is_uid_taken(connection: &Connection, endpoint: &Endpoint) -> Result<bool, Error> {
    let Some(uid) = &endpoint.uid else { return Ok(false) };
    let mut select = connection
        .prepare_cached("SELECT 1 FROM endpoints WHERE tenant = ?1 AND uid = ?2 AND id <> ?3 AND deleted_at_ms IS NULL")?;
    Ok(select.exists(params![endpoint.tenant.as_str(), uid.as_str(), endpoint.id.to_bytes()])?)
}

/// One that was not deleted.
fn load_endpoint(connection: &Connection, keyring: &Keyring, id: EndpointId) -> Result<Option<StoredEndpoint>, Error> {
    let mut select = connection.prepare_cached("SELECT * FROM endpoints WHERE id = ?1 AND deleted_at_ms IS NULL")?;
    row::first(select.query([id.to_bytes()])?, |row| endpoint(row, keyring))
}

fn replace_endpoint(
    connection: &Connection,
    keyring: &Keyring,
    endpoint: &Endpoint,
    expected_version: Option<u64>,
    secrets: Option<&[StoredSecret]>,
    now: Timestamp,
) -> Result<Result<u64, Refusal>, Error> {
    let Some(stored) = load_endpoint(connection, keyring, endpoint.id)? else { return Ok(Err(Refusal::NotFound)) };
    if expected_version.is_some_and(|expected| expected != stored.version) {
        return Ok(Err(Refusal::Stale));
    }
    if is_uid_taken(connection, endpoint)? {
        return Ok(Err(Refusal::Taken));
    }
    let (status, paused_until_ms) = status_columns(endpoint.status);
    connection
        .prepare_cached(
            "UPDATE endpoints SET uid = :uid, url = :url, status = :status, paused_until_ms = :paused_until_ms,
                    document = :document, sealed = :sealed, version = version + 1, updated_at_ms = :updated_at_ms WHERE id = :id",
        )?
        .execute(named_params! {
            ":id": endpoint.id.to_bytes(),
            ":uid": endpoint.uid.as_ref().map(EndpointUid::as_str),
            ":url": endpoint.url,
            ":status": status,
            ":paused_until_ms": paused_until_ms,
            ":document": document::endpoint(endpoint),
            ":sealed": secrets::seal(keyring, endpoint.id, secrets.unwrap_or(&stored.secrets), &endpoint.headers),
            ":updated_at_ms": now.as_millis(),
        })?;
    if let Some(VersionColumns { url, payload_format, header_names }) = VersionColumns::replaced(&stored.endpoint, endpoint) {
        let id = endpoint.id.to_bytes();
        let columns = params![id, signed(stored.version), url, payload_format, header_names, now.as_millis()];
        connection.prepare_cached(INSERT_VERSION)?.execute(columns)?;
    }
    touch_tenant(connection, &stored.endpoint.tenant, now)?;
    Ok(Ok(stored.version + 1))
}

const INSERT_VERSION: &str =
    "INSERT INTO endpoint_versions (endpoint, last_version, url, payload_format, header_names, replaced_at_ms)
                              VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

/// What an endpoint is now, as history shows it. Headers that cannot be read do not hide the rest.
pub(super) fn present_version(
    connection: &Connection,
    keyring: &Keyring,
    id: EndpointId,
) -> Result<Option<EndpointVersion>, Error> {
    let mut select = connection.prepare_cached("SELECT * FROM endpoints WHERE id = ?1")?;
    row::first(select.query([id.to_bytes()])?, |row| {
        let endpoint = endpoint_without_secrets(row)?;
        let sealed: Vec<u8> = row::column(row, "sealed")?;
        let headers = secrets::open(keyring, id, &sealed, &endpoint.signing).ok().map(|(_, headers)| headers);
        Ok(EndpointVersion {
            version: unsigned(row::column(row, "version")?),
            url: endpoint.url,
            payload_format: endpoint.payload_format,
            header_names: headers.as_ref().map(header_names),
        })
    })
}

fn replace_secrets(
    connection: &Connection,
    keyring: &Keyring,
    id: EndpointId,
    secrets: &[StoredSecret],
    now: Timestamp,
) -> Result<Result<u64, Refusal>, Error> {
    let Some(stored) = load_endpoint(connection, keyring, id)? else { return Ok(Err(Refusal::NotFound)) };
    connection
        .prepare_cached("UPDATE endpoints SET sealed = ?2, version = version + 1 WHERE id = ?1")?
        .execute(params![id.to_bytes(), secrets::seal(keyring, id, secrets, &stored.endpoint.headers)])?;
    // Whoever sends there has to hear of it.
    touch_tenant(connection, &stored.endpoint.tenant, now)?;
    Ok(Ok(stored.version + 1))
}

/// Makes it if it is not there, and raises its version. One that was deleted begins as a new one would: with nothing of what was set before, and
/// without the events up to then.
pub(super) fn touch_tenant(connection: &Connection, id: &TenantId, now: Timestamp) -> Result<(), Error> {
    let new = Tenant::new(id.clone());
    connection
        .prepare_cached(
            "INSERT INTO tenants (id, version, retention_ms, document, extra, created_at_ms)
             VALUES (?1, 1 + (SELECT value FROM counters WHERE name = 'removed_tenant_version'),
               coalesce(?2, (SELECT value FROM counters WHERE name = 'default_retention_ms')), ?3, '{}', ?4)
             ON CONFLICT (id) DO UPDATE SET version = version + 1, deleted_at_ms = NULL,
               retention_ms = CASE WHEN deleted_at_ms IS NULL THEN retention_ms ELSE excluded.retention_ms END,
               document = CASE WHEN deleted_at_ms IS NULL THEN document ELSE excluded.document END,
               extra = CASE WHEN deleted_at_ms IS NULL THEN extra ELSE excluded.extra END,
               created_at_ms = CASE WHEN deleted_at_ms IS NULL THEN created_at_ms ELSE excluded.created_at_ms END,
               first_event = CASE WHEN deleted_at_ms IS NULL THEN first_event ELSE (SELECT coalesce(max(seq), 0) + 1 FROM events) END",
        )?
        .execute(params![id.as_str(), new.retention.map(|retention| millis(retention.as_duration())), document::tenant(&new), now.as_millis()])?;
    Ok(())
}

fn put_tenant(connection: &Connection, tenant: &Tenant, extra: &str, now: Timestamp) -> Result<Result<u64, Refusal>, Error> {
    let version: i64 = connection
        .prepare_cached(
            "INSERT INTO tenants (id, version, retention_ms, document, extra, created_at_ms)
             VALUES (?1, 1 + (SELECT value FROM counters WHERE name = 'removed_tenant_version'),
               coalesce(?2, (SELECT value FROM counters WHERE name = 'default_retention_ms')), ?3, ?4, ?5)
             ON CONFLICT (id) DO UPDATE SET version = version + 1, retention_ms = excluded.retention_ms,
               document = excluded.document, extra = excluded.extra, deleted_at_ms = NULL,
               created_at_ms = CASE WHEN deleted_at_ms IS NULL THEN created_at_ms ELSE excluded.created_at_ms END,
               first_event = CASE WHEN deleted_at_ms IS NULL THEN first_event ELSE (SELECT coalesce(max(seq), 0) + 1 FROM events) END
             RETURNING version",
        )?
        .query_row(
            params![tenant.id.as_str(), tenant.retention.map(|retention| millis(retention.as_duration())), document::tenant(tenant), extra, now.as_millis()],
            |row| row.get(0),
        )?;
    Ok(Ok(unsigned(version)))
}

fn put_event_type(connection: &Connection, entry: &catalogue::Entry) -> Result<Result<u64, Refusal>, Error> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO event_types (name, document) VALUES (?1, ?2)")?
        .execute(params![entry.name.as_str(), document::catalogue_entry(entry)])?;
    raise(connection, "catalogue").map(Ok)
}

fn event_type(connection: &Connection, name: &EventType) -> Result<Option<catalogue::Entry>, Error> {
    let mut select = connection.prepare_cached("SELECT * FROM event_types WHERE name = ?1")?;
    row::first(select.query([name.as_str()])?, |row| document::read_catalogue_entry(name.clone(), row::text(row, "document")?))
}

fn delete_tenant(connection: &Connection, id: &TenantId, now: Timestamp) -> Result<Result<u64, Refusal>, Error> {
    let deleted = connection
        .prepare_cached(
            "UPDATE tenants SET deleted_at_ms = ?2, version = version + 1, swept_to = 0,
                    deleted_to = (SELECT coalesce(max(seq), 0) FROM events)
             WHERE id = ?1 AND deleted_at_ms IS NULL",
        )?
        .execute(params![id.as_str(), now.as_millis()])?;
    if deleted == 0 {
        return Ok(Err(Refusal::NotFound));
    }
    connection
        .prepare_cached(
            "UPDATE endpoints SET deleted_at_ms = ?2, version = version + 1 WHERE tenant = ?1 AND deleted_at_ms IS NULL",
        )?
        .execute(params![id.as_str(), now.as_millis()])?;
    connection
        .prepare_cached("UPDATE keys SET revoked_at_ms = coalesce(revoked_at_ms, ?2) WHERE tenant = ?1")?
        .execute(params![id.as_str(), now.as_millis()])?;
    sessions::end_of_tenant(connection, id)?;
    Ok(Ok(1))
}

fn create_key(connection: &Connection, key: &Key) -> Result<Result<u64, Refusal>, Error> {
    let made = connection
        .prepare_cached(
            "INSERT INTO keys (id, hash, name, tenant, scopes, created_at_ms, expires_at_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
             ON CONFLICT DO NOTHING",
        )?
        .execute(params![
            key.id.to_bytes(),
            key.hash.0,
            key.name,
            key.tenant.as_ref().map(TenantId::as_str),
            lines(key.scopes.iter().map(|scope| scope.name())),
            key.created_at.as_millis(),
            key.expires_at.map(Timestamp::as_millis),
        ])?;
    Ok(if made == 0 { Err(Refusal::Taken) } else { Ok(1) })
}

pub(super) fn raise(connection: &Connection, counter: &str) -> Result<u64, Error> {
    let value: i64 = connection
        .prepare_cached("UPDATE counters SET value = value + 1 WHERE name = ?1 RETURNING value")?
        .query_row([counter], |row| row.get(0))?;
    Ok(unsigned(value))
}

pub(super) fn write_audit(connection: &Connection, audit: &Audit, now: Timestamp) -> Result<(), Error> {
    // Counted, because the number of a deleted row must not come back: notifications are known by it.
    let number = raise(connection, "audit_number")?;
    connection
        .prepare_cached(
            "INSERT INTO audit (seq, at_ms, actor, address, action, subject, tenant, before, after)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?
        .execute(params![
            signed(number),
            now.as_millis(),
            audit.actor,
            audit.address,
            audit.action,
            audit.subject,
            audit.tenant.as_ref().map(TenantId::as_str),
            audit.before,
            audit.after,
        ])?;
    Ok(())
}

/// Disables an endpoint with the attempt that said so, or that was one too many.
pub(super) fn disable_endpoint(
    connection: &Connection,
    state: &mut State,
    id: EndpointId,
    reason: DisableReason,
    now: Timestamp,
) -> Result<(), Error> {
    let mut update = connection.prepare_cached(
        "UPDATE endpoints SET status = 'disabled', paused_until_ms = NULL, version = version + 1, updated_at_ms = ?2
         WHERE id = ?1 AND status <> 'disabled' AND deleted_at_ms IS NULL RETURNING tenant",
    )?;
    let tenant =
        row::first(update.query(params![id.to_bytes(), now.as_millis()])?, |row| row::parsed(row, "tenant", TenantId::parse))?;
    if let Some(tenant) = tenant {
        touch_tenant(connection, &tenant, now)?;
        // Together with it: whoever tells people of it finds it here, whatever happens in between.
        write_audit(connection, &Audit::auto_disabled(id, &tenant, reason), now)?;
        raise(connection, "configuration")?;
        state.forget_versions();
    }
    Ok(())
}

pub(super) fn tenant(connection: &Connection, id: &TenantId) -> Result<Option<StoredTenant>, Error> {
    let mut select = connection.prepare_cached("SELECT * FROM tenants WHERE id = ?1 AND deleted_at_ms IS NULL")?;
    row::first(select.query([id.as_str()])?, tenant_from_row)
}

fn tenant_from_row(row: &Row<'_>) -> Result<StoredTenant, Error> {
    let id = row::parsed(row, "id", TenantId::parse)?;
    Ok(StoredTenant {
        tenant: document::read_tenant(id, row::text(row, "document")?)?,
        version: unsigned(row::column(row, "version")?),
        created_at: row::timestamp(row, "created_at_ms")?,
        extra: row::column(row, "extra")?,
    })
}

pub(super) fn event_types(connection: &Connection) -> Result<Vec<catalogue::Entry>, Error> {
    let mut select = connection.prepare_cached("SELECT * FROM event_types ORDER BY name")?;
    row::all(select.query([])?, |row| {
        let name = row::parsed(row, "name", EventType::parse)?;
        document::read_catalogue_entry(name, row::text(row, "document")?)
    })
}

fn endpoint(row: &Row<'_>, keyring: &Keyring) -> Result<StoredEndpoint, Error> {
    let mut endpoint = endpoint_without_secrets(row)?;
    let sealed: Vec<u8> = row::column(row, "sealed")?;
    let (secrets, headers) = secrets::open(keyring, endpoint.id, &sealed, &endpoint.signing)?;
    endpoint.headers = headers;
    Ok(StoredEndpoint {
        partition: partition_of(&endpoint.tenant),
        endpoint,
        secrets,
        version: unsigned(row::column(row, "version")?),
        deleted_at: row::optional_timestamp(row, "deleted_at_ms")?,
    })
}

/// Everything but what is sealed.
pub(super) fn endpoint_without_secrets(row: &Row<'_>) -> Result<Endpoint, Error> {
    let columns = EndpointColumns {
        id: EndpointId::from_bytes(row::column(row, "id")?),
        tenant: row::parsed(row, "tenant", TenantId::parse)?,
        uid: row::optional(row, "uid", EndpointUid::parse)?,
        url: row::column(row, "url")?,
        status: status(row::text(row, "status")?, row::column(row, "paused_until_ms")?)?,
        headers: Headers::default(),
        created_at: row::timestamp(row, "created_at_ms")?,
        updated_at: row::timestamp(row, "updated_at_ms")?,
    };
    document::read_endpoint(row::text(row, "document")?, columns)
}

fn key(row: &Row<'_>) -> Result<Key, Error> {
    Ok(Key {
        id: KeyId::from_bytes(row::column(row, "id")?),
        hash: KeyHash(row::column(row, "hash")?),
        name: row::column(row, "name")?,
        tenant: row::optional(row, "tenant", TenantId::parse)?,
        scopes: scopes(row::text(row, "scopes")?)?,
        created_at: row::timestamp(row, "created_at_ms")?,
        expires_at: row::optional_timestamp(row, "expires_at_ms")?,
        revoked_at: row::optional_timestamp(row, "revoked_at_ms")?,
        last_used_at: row::optional_timestamp(row, "last_used_at_ms")?,
    })
}

fn audit_row(row: &Row<'_>) -> Result<AuditRow, Error> {
    Ok(AuditRow {
        seq: unsigned(row::column(row, "seq")?),
        at: row::timestamp(row, "at_ms")?,
        audit: Audit {
            actor: row::column(row, "actor")?,
            address: row::column(row, "address")?,
            action: row::column(row, "action")?,
            subject: row::column(row, "subject")?,
            tenant: row::optional(row, "tenant", TenantId::parse)?,
            before: row::column(row, "before")?,
            after: row::column(row, "after")?,
        },
    })
}

/// Few, and found by an index of their own; in the order of tenants and ids.
const SELECT_DISABLED: &str = "SELECT * FROM endpoints INDEXED BY endpoints_disabled
     WHERE status = 'disabled' AND deleted_at_ms IS NULL AND (:tenant IS NULL OR tenant = :tenant) LIMIT :limit";

fn disabled<T>(
    connection: &Connection,
    query: &EndpointQuery,
    read: impl FnMut(&Row<'_>) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    let mut select = connection.prepare_cached(SELECT_DISABLED)?;
    let rows = select.query(named_params! {
        ":tenant": query.tenant.as_ref().map(TenantId::as_str),
        ":limit": limit(query.limit),
    })?;
    row::all(rows, read)
}
