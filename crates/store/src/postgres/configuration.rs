//! What people have said: endpoints, tenants, event types, keys, and who said so.

use std::collections::{BTreeMap, BTreeSet};

use posthaste_core::catalogue;
use posthaste_core::endpoint::{Endpoint, Headers};
use posthaste_core::event::EventType;
use posthaste_core::health::DisableReason;
use posthaste_core::id::{EndpointId, EndpointUid, KeyId, TenantId};
use posthaste_core::tenant::Tenant;
use posthaste_core::time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::connection::{Connection, Problem};
use super::row::{self, optional_storable, storable};
use super::{Database, sessions};
use crate::columns::{limit, lines, millis, scopes, signed, status, status_columns, unsigned};
use crate::document::{self, EndpointColumns};
use crate::endpoint_versions::{VersionColumns, header_names};
use crate::secrets;
use crate::{
    Audit, AuditRow, Change, ChangeResult, EndpointBundle, EndpointQuery, EndpointVersion, Error, Key, KeyHash, Keyring, LaneState,
    NewEndpoint, Refusal, SealedValues, StoredEndpoint, StoredSecret, StoredTenant, partition_of,
};

/// Whoever holds it may change what people have said: `words` in ASCII. Changes are rare, and one after the other they are as
/// simple as with SQLite.
const LOCK: i64 = 0x77_6f72_6473;

impl Database {
    pub(super) async fn configure(&self, change: Change, audit: Audit) -> Result<Result<ChangeResult, Refusal>, Error> {
        let (change, audit) = (&change, &audit);
        self.transact(|connection| async move {
            take_lock(&connection).await?;
            let now = self.clock_now();
            let version = match apply(&connection, &self.options.keyring, change, now).await? {
                Ok(version) => version,
                Err(refusal) => return Ok(Err(refusal)),
            };
            write_audit(&connection, audit, now).await?;
            let number = raise(&connection, "configuration").await?;
            Ok(Ok(ChangeResult { number, version }))
        })
        .await
    }

    pub(super) async fn sealed_values(&self) -> Result<SealedValues, Error> {
        let keyring = &self.options.keyring;
        self.read(|connection| async move { sealed_values(&connection, keyring).await }).await
    }

    pub(super) async fn configuration_number(&self) -> Result<u64, Error> {
        self.read_for_work(|connection| async move {
            let row = connection.query_one(SELECT_NUMBER, &[]).await?;
            Ok(unsigned(row::column(&row, "value")?))
        })
        .await
    }

    pub(super) async fn endpoint(&self, tenant: Option<TenantId>, id: EndpointId) -> Result<Option<StoredEndpoint>, Error> {
        let tenant = tenant.as_ref().map(TenantId::as_str);
        self.read(|connection| async move {
            let row = connection.query_opt(SELECT_ENDPOINT, &[&id.to_bytes().as_slice(), &tenant]).await?;
            Ok(row.map(|row| endpoint(&row, &self.options.keyring)).transpose()?)
        })
        .await
    }

    pub(super) async fn endpoints(&self, query: EndpointQuery) -> Result<Vec<StoredEndpoint>, Error> {
        let query = &query;
        self.read(|connection| async move {
            let uid = query.uid.as_ref().map(EndpointUid::as_str);
            let before = query.before.map(|before| before.to_bytes().to_vec());
            let rows = match &query.tenant {
                tenant if query.is_disabled => {
                    let tenant = tenant.as_ref().map(TenantId::as_str);
                    connection.query(SELECT_DISABLED_ENDPOINTS, &[&tenant, &limit(query.limit)]).await?
                }
                Some(tenant) => {
                    connection.query(SELECT_ENDPOINTS_OF_TENANT, &[&uid, &before, &limit(query.limit), &tenant.as_str()]).await?
                }
                None => connection.query(SELECT_ENDPOINTS_OF_ALL, &[&uid, &before, &limit(query.limit)]).await?,
            };
            Ok(rows.iter().map(|row| endpoint(row, &self.options.keyring)).collect::<Result<_, _>>()?)
        })
        .await
    }

    pub(super) async fn load_endpoints(&self, endpoints: Vec<EndpointId>) -> Result<Vec<EndpointBundle>, Error> {
        let ids = &endpoints.iter().map(|id| id.to_bytes().to_vec()).collect::<Vec<_>>();
        self.read_for_work(|connection| async move {
            let rows = connection.query(SELECT_ENDPOINTS_BY_ID, &[ids]).await?;
            let mut lanes = BTreeMap::new();
            for row in connection.query(SELECT_LANES, &[ids]).await? {
                let id = EndpointId::from_bytes(row::bytes(&row, "endpoint")?);
                let (memory, timeout) = document::read_lane(row::text(&row, "document")?)?;
                let version = unsigned(row::column(&row, "version")?);
                lanes.insert(id, LaneState { memory, timeout, version });
            }
            let found = rows.iter().map(|row| endpoint(row, &self.options.keyring)).collect::<Result<Vec<_>, _>>()?;
            let names: BTreeSet<&str> = found.iter().map(|stored| stored.endpoint.tenant.as_str()).collect();
            let names: Vec<&str> = names.into_iter().collect();
            let tenants = connection.query(SELECT_TENANTS_BY_ID, &[&names]).await?;
            let tenants = tenants.iter().map(tenant_from_row).collect::<Result<Vec<_>, _>>()?;
            let tenants: BTreeMap<_, _> = tenants.into_iter().map(|stored| (stored.tenant.id.clone(), stored)).collect();
            let bundle = |endpoint: StoredEndpoint| EndpointBundle {
                tenant: tenants.get(&endpoint.endpoint.tenant).cloned(),
                lane: lanes.remove(&endpoint.endpoint.id),
                endpoint,
            };
            Ok(found.into_iter().map(bundle).collect())
        })
        .await
    }

    pub(super) async fn tenant(&self, id: TenantId) -> Result<Option<StoredTenant>, Error> {
        let id = &id;
        self.read(|connection| async move { tenant(&connection, id).await }).await
    }

    pub(super) async fn tenants(&self, after: Option<TenantId>, rows_max: usize) -> Result<Vec<StoredTenant>, Error> {
        let after = after.as_ref().map_or("", TenantId::as_str);
        self.read(|connection| async move {
            let rows = connection.query(SELECT_TENANTS, &[&after, &limit(rows_max)]).await?;
            Ok(rows.iter().map(tenant_from_row).collect::<Result<_, _>>()?)
        })
        .await
    }

    pub(super) async fn event_types(&self) -> Result<Vec<catalogue::Entry>, Error> {
        self.read(|connection| async move {
            let rows = connection.query(SELECT_EVENT_TYPES, &[]).await?;
            Ok(rows.iter().map(event_type).collect::<Result<_, _>>()?)
        })
        .await
    }

    pub(super) async fn key(&self, hash: KeyHash) -> Result<Option<Key>, Error> {
        self.read_for_work(|connection| async move {
            let now = self.clock_now().as_millis();
            let row = connection.query_opt(SELECT_KEY, &[&hash.0.as_slice(), &now]).await?;
            Ok(row.as_ref().map(key).transpose()?)
        })
        .await
    }

    pub(super) async fn keys(&self, before: Option<KeyId>, rows_max: usize) -> Result<Vec<Key>, Error> {
        self.read(|connection| async move {
            let before = before.map(|before| before.to_bytes().to_vec());
            let rows = connection.query(SELECT_KEYS, &[&before, &limit(rows_max)]).await?;
            Ok(rows.iter().map(key).collect::<Result<_, _>>()?)
        })
        .await
    }

    pub(super) async fn keys_used(&self, mut used: Vec<(KeyId, Timestamp)>) -> Result<(), Error> {
        // In order, because other nodes do the same; and each once, because one statement changes a row once.
        used.sort_by_key(|(key, at)| (*key, std::cmp::Reverse(*at)));
        used.dedup_by_key(|(key, _)| *key);
        let keys = &used.iter().map(|(key, _)| key.to_bytes().to_vec()).collect::<Vec<_>>();
        let times = &used.iter().map(|(_, at)| at.as_millis()).collect::<Vec<_>>();
        self.transact(|connection| async move { connection.execute(UPDATE_KEYS_USED, &[keys, times]).await }).await?;
        Ok(())
    }

    pub(super) async fn audit(
        &self,
        tenant: Option<TenantId>,
        before: Option<u64>,
        rows_max: usize,
    ) -> Result<Vec<AuditRow>, Error> {
        let tenant = tenant.as_ref();
        self.read(|connection| async move {
            let before = before.map_or(i64::MAX, signed);
            let rows = match tenant {
                Some(tenant) => connection.query(SELECT_AUDIT_OF_TENANT, &[&before, &limit(rows_max), &tenant.as_str()]).await?,
                None => connection.query(SELECT_AUDIT_OF_ALL, &[&before, &limit(rows_max)]).await?,
            };
            Ok(rows.iter().map(audit_row).collect::<Result<_, _>>()?)
        })
        .await
    }
}

const SELECT_NUMBER: &str = "SELECT value FROM counters WHERE name = 'configuration'";
const SELECT_ENDPOINT: &str = "SELECT * FROM endpoints WHERE id = $1 AND ($2::text IS NULL OR tenant = $2)";
const SELECT_ENDPOINTS_BY_ID: &str = "SELECT * FROM endpoints WHERE id = ANY($1)";
const SELECT_TENANTS_BY_ID: &str = "SELECT * FROM tenants WHERE id = ANY($1) AND deleted_at_ms IS NULL";
const SELECT_LANES: &str = "SELECT endpoint, document, version FROM lanes WHERE endpoint = ANY($1)";
const SELECT_ENDPOINTS_OF_TENANT: &str =
    "SELECT * FROM endpoints WHERE tenant = $4 AND ($1::text IS NULL OR uid = $1) AND ($2::bytea IS NULL OR id < $2)
       AND deleted_at_ms IS NULL ORDER BY id DESC LIMIT $3";
const SELECT_ENDPOINTS_OF_ALL: &str =
    "SELECT * FROM endpoints WHERE ($1::text IS NULL OR uid = $1) AND ($2::bytea IS NULL OR id < $2)
       AND deleted_at_ms IS NULL ORDER BY id DESC LIMIT $3";
/// Few, and found by an index of their own.
const SELECT_DISABLED_ENDPOINTS: &str = "SELECT * FROM endpoints
     WHERE status = 'disabled' AND deleted_at_ms IS NULL AND ($1::text IS NULL OR tenant = $1) ORDER BY tenant, id LIMIT $2";
const SELECT_TENANTS: &str = "SELECT * FROM tenants WHERE id > $1 AND deleted_at_ms IS NULL ORDER BY id LIMIT $2";
pub(super) const SELECT_TENANT: &str = "SELECT * FROM tenants WHERE id = $1 AND deleted_at_ms IS NULL";
pub(super) const SELECT_EVENT_TYPES: &str = "SELECT * FROM event_types ORDER BY name";
const SELECT_KEY: &str =
    "SELECT * FROM keys WHERE hash = $1 AND revoked_at_ms IS NULL AND (expires_at_ms IS NULL OR expires_at_ms > $2)";
const SELECT_KEYS: &str = "SELECT * FROM keys WHERE $1::bytea IS NULL OR id < $1 ORDER BY id DESC LIMIT $2";
const UPDATE_KEYS_USED: &str = "UPDATE keys k SET last_used_at_ms = greatest(k.last_used_at_ms, used.at_ms)
                                FROM unnest($1::bytea[], $2::bigint[]) AS used (id, at_ms) WHERE k.id = used.id";
const SELECT_AUDIT_OF_TENANT: &str = "SELECT * FROM audit WHERE tenant = $3 AND seq < $1 ORDER BY seq DESC LIMIT $2";
const SELECT_AUDIT_OF_ALL: &str = "SELECT * FROM audit WHERE seq < $1 ORDER BY seq DESC LIMIT $2";

pub(super) async fn take_lock(connection: &Connection) -> Result<(), Problem> {
    connection.execute(TAKE_LOCK, &[&LOCK]).await?;
    Ok(())
}

const TAKE_LOCK: &str = "SELECT pg_advisory_xact_lock($1)";

/// Checks first and writes then, so that a refusal has changed nothing. Answers the version of what was changed.
async fn apply(
    connection: &Connection,
    keyring: &Keyring,
    change: &Change,
    now: Timestamp,
) -> Result<Result<u64, Refusal>, Problem> {
    match change {
        Change::CreateEndpoint(new) => create_endpoint(connection, keyring, new, now).await,
        Change::ReplaceEndpoint { endpoint, expected_version, secrets } => {
            replace_endpoint(connection, keyring, endpoint, *expected_version, secrets.as_deref(), now).await
        }
        Change::ReplaceSecrets { endpoint, secrets } => replace_secrets(connection, keyring, *endpoint, secrets, now).await,
        Change::DeleteEndpoint { endpoint } => {
            let Some(stored) = load_endpoint(connection, keyring, *endpoint).await? else { return Ok(Err(Refusal::NotFound)) };
            connection.execute(DELETE_ENDPOINT, &[&endpoint.to_bytes().as_slice(), &now.as_millis()]).await?;
            touch_tenant(connection, &stored.endpoint.tenant, now).await?;
            Ok(Ok(stored.version + 1))
        }
        Change::PutTenant { tenant, extra } => put_tenant(connection, tenant, extra, now).await,
        Change::ReplaceTenant { tenant: changed, extra, expected } => {
            let present = connection.query_opt(SELECT_PRESENT_TENANT, &[&changed.id.as_str()]).await?;
            let Some(present) = present.as_ref().map(tenant_from_row).transpose()? else { return Ok(Err(Refusal::NotFound)) };
            if (present.tenant, present.extra) != **expected {
                return Ok(Err(Refusal::Stale));
            }
            put_tenant(connection, changed, extra, now).await
        }
        Change::DeleteTenant { tenant } => delete_tenant(connection, tenant, now).await,
        Change::PutEventType(entry) => put_event_type(connection, entry).await,
        Change::CreateEventType(entry) => match present_event_type(connection, &entry.name).await? {
            Some(_) => Ok(Err(Refusal::Taken)),
            None => put_event_type(connection, entry).await,
        },
        Change::ReplaceEventType { entry, expected } => match present_event_type(connection, &entry.name).await? {
            None => Ok(Err(Refusal::NotFound)),
            Some(present) if present != **expected => Ok(Err(Refusal::Stale)),
            Some(_) => put_event_type(connection, entry).await,
        },
        Change::DeleteEventType { name } => {
            let deleted = connection.execute(DELETE_EVENT_TYPE, &[&name.as_str()]).await?;
            if deleted == 0 { Ok(Err(Refusal::NotFound)) } else { raise(connection, "catalogue").await.map(Ok) }
        }
        Change::CreateKey(key) => create_key(connection, key).await,
        Change::RevokeKey { key, tenant } => {
            let tenant = tenant.as_ref().map(TenantId::as_str);
            let revoked = connection.execute(REVOKE_KEY, &[&key.to_bytes().as_slice(), &now.as_millis(), &tenant]).await?;
            if revoked == 0 {
                return Ok(Err(Refusal::NotFound));
            }
            sessions::end_of_key(connection, *key).await?;
            Ok(Ok(1))
        }
    }
}

async fn put_event_type(connection: &Connection, entry: &catalogue::Entry) -> Result<Result<u64, Refusal>, Problem> {
    connection.execute(PUT_EVENT_TYPE, &[&entry.name.as_str(), &document::catalogue_entry(entry)]).await?;
    raise(connection, "catalogue").await.map(Ok)
}

async fn present_event_type(connection: &Connection, name: &EventType) -> Result<Option<catalogue::Entry>, Problem> {
    let row = connection.query_opt(SELECT_PRESENT_EVENT_TYPE, &[&name.as_str()]).await?;
    Ok(row.as_ref().map(event_type).transpose()?)
}

const SELECT_PRESENT_TENANT: &str = "SELECT * FROM tenants WHERE id = $1 AND deleted_at_ms IS NULL FOR UPDATE";
const SELECT_PRESENT_EVENT_TYPE: &str = "SELECT * FROM event_types WHERE name = $1 FOR UPDATE";
const DELETE_ENDPOINT: &str = "UPDATE endpoints SET deleted_at_ms = $2, version = version + 1 WHERE id = $1";
const PUT_EVENT_TYPE: &str =
    "INSERT INTO event_types (name, document) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET document = excluded.document";
const DELETE_EVENT_TYPE: &str = "DELETE FROM event_types WHERE name = $1";
const REVOKE_KEY: &str =
    "UPDATE keys SET revoked_at_ms = coalesce(revoked_at_ms, $2) WHERE id = $1 AND ($3::text IS NULL OR tenant = $3)";

async fn create_endpoint(
    connection: &Connection,
    keyring: &Keyring,
    new: &NewEndpoint,
    now: Timestamp,
) -> Result<Result<u64, Refusal>, Problem> {
    let endpoint = &new.endpoint;
    if let Some(created_at) = new.tenant_created_at
        && tenant(connection, &endpoint.tenant).await?.is_none_or(|stored| stored.created_at != created_at)
    {
        return Ok(Err(Refusal::NotFound));
    }
    let row = connection.query_one(COUNT_ENDPOINTS, &[&endpoint.tenant.as_str()]).await?;
    if row::column::<i64>(&row, "count")? >= i64::from(new.per_tenant_max) {
        return Ok(Err(Refusal::LimitReached));
    }
    if is_uid_taken(connection, endpoint).await? {
        return Ok(Err(Refusal::Taken));
    }
    touch_tenant(connection, &endpoint.tenant, now).await?;
    let (status, paused_until_ms) = status_columns(endpoint.status);
    connection
        .execute(
            INSERT_ENDPOINT,
            &[
                &endpoint.id.to_bytes().as_slice(),
                &endpoint.tenant.as_str(),
                &partition(&endpoint.tenant),
                &endpoint.uid.as_ref().map(EndpointUid::as_str),
                &storable(&endpoint.url),
                &status,
                &paused_until_ms,
                &storable(&document::endpoint(endpoint)),
                &secrets::seal(keyring, endpoint.id, &new.secrets, &endpoint.headers),
                &endpoint.created_at.as_millis(),
                &endpoint.updated_at.as_millis(),
            ],
        )
        .await?;
    Ok(Ok(1))
}

const COUNT_ENDPOINTS: &str = "SELECT count(*) AS count FROM endpoints WHERE tenant = $1 AND deleted_at_ms IS NULL";
const INSERT_ENDPOINT: &str =
    "INSERT INTO endpoints (id, tenant, partition, uid, url, status, paused_until_ms, document, sealed, version, created_at_ms,
                            updated_at_ms)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 1, $10, $11)";

/// As a column has it.
pub(super) fn partition(tenant: &TenantId) -> i16 {
    i16::try_from(partition_of(tenant)).expect("there are 256 of them")
}

async fn is_uid_taken(connection: &Connection, endpoint: &Endpoint) -> Result<bool, Problem> {
    let Some(uid) = &endpoint.uid else { return Ok(false) };
    let found =
        connection.query_opt(SELECT_UID, &[&endpoint.tenant.as_str(), &uid.as_str(), &endpoint.id.to_bytes().as_slice()]).await?;
    Ok(found.is_some())
}

const SELECT_UID: &str = "SELECT 1 FROM endpoints WHERE tenant = $1 AND uid = $2 AND id <> $3 AND deleted_at_ms IS NULL";

/// One that was not deleted.
async fn load_endpoint(connection: &Connection, keyring: &Keyring, id: EndpointId) -> Result<Option<StoredEndpoint>, Problem> {
    let row = connection.query_opt(SELECT_PRESENT_ENDPOINT, &[&id.to_bytes().as_slice()]).await?;
    Ok(row.map(|row| endpoint(&row, keyring)).transpose()?)
}

/// Locked, because an owner may disable it with an attempt at the same time.
const SELECT_PRESENT_ENDPOINT: &str = "SELECT * FROM endpoints WHERE id = $1 AND deleted_at_ms IS NULL FOR UPDATE";

async fn replace_endpoint(
    connection: &Connection,
    keyring: &Keyring,
    endpoint: &Endpoint,
    expected_version: Option<u64>,
    secrets: Option<&[StoredSecret]>,
    now: Timestamp,
) -> Result<Result<u64, Refusal>, Problem> {
    let Some(stored) = load_endpoint(connection, keyring, endpoint.id).await? else { return Ok(Err(Refusal::NotFound)) };
    if expected_version.is_some_and(|expected| expected != stored.version) {
        return Ok(Err(Refusal::Stale));
    }
    if is_uid_taken(connection, endpoint).await? {
        return Ok(Err(Refusal::Taken));
    }
    let (status, paused_until_ms) = status_columns(endpoint.status);
    connection
        .execute(
            UPDATE_ENDPOINT,
            &[
                &endpoint.id.to_bytes().as_slice(),
                &endpoint.uid.as_ref().map(EndpointUid::as_str),
                &storable(&endpoint.url),
                &status,
                &paused_until_ms,
                &storable(&document::endpoint(endpoint)),
                &secrets::seal(keyring, endpoint.id, secrets.unwrap_or(&stored.secrets), &endpoint.headers),
                &now.as_millis(),
            ],
        )
        .await?;
    if let Some(VersionColumns { url, payload_format, header_names }) = VersionColumns::replaced(&stored.endpoint, endpoint) {
        let (id, last_version) = (endpoint.id.to_bytes(), signed(stored.version));
        let columns: [&(dyn ToSql + Sync); 6] =
            [&id.as_slice(), &last_version, &storable(&url), &payload_format, &header_names, &now.as_millis()];
        connection.execute(INSERT_VERSION, &columns).await?;
    }
    touch_tenant(connection, &stored.endpoint.tenant, now).await?;
    if stored.endpoint.policies.delivery_schedule != endpoint.policies.delivery_schedule {
        wait_for_publishers(connection).await?;
    }
    Ok(Ok(stored.version + 1))
}

/// Rows that wait are stamped anew after a change of quiet hours, and one that was planned by the old ones and is not committed yet
/// would be passed over. Every publisher writes into this table: those who are at it are waited for, and those who come later see
/// the change. Whoever has to wait too long tries again, so that nobody waits long behind it.
async fn wait_for_publishers(connection: &Connection) -> Result<(), Problem> {
    connection.batch("SET LOCAL lock_timeout = '1s'; LOCK TABLE commits IN SHARE MODE").await
}

const UPDATE_ENDPOINT: &str =
    "UPDATE endpoints SET uid = $2, url = $3, status = $4, paused_until_ms = $5, document = $6, sealed = $7,
            version = version + 1, updated_at_ms = $8 WHERE id = $1";

const INSERT_VERSION: &str =
    "INSERT INTO endpoint_versions (endpoint, last_version, url, payload_format, header_names, replaced_at_ms)
                              VALUES ($1, $2, $3, $4, $5, $6)";

/// What an endpoint is now, as history shows it. Headers that cannot be read do not hide the rest.
pub(super) async fn present_version(
    connection: &Connection,
    keyring: &Keyring,
    id: EndpointId,
) -> Result<Option<EndpointVersion>, Problem> {
    let tenant: Option<&str> = None;
    let row = connection.query_opt(SELECT_ENDPOINT, &[&id.to_bytes().as_slice(), &tenant]).await?;
    let Some(row) = row else { return Ok(None) };
    let endpoint = endpoint_without_secrets(&row)?;
    let headers = secrets::open(keyring, id, row::column(&row, "sealed")?, &endpoint.signing).ok().map(|(_, headers)| headers);
    Ok(Some(EndpointVersion {
        version: unsigned(row::column(&row, "version")?),
        url: endpoint.url,
        payload_format: endpoint.payload_format,
        header_names: headers.as_ref().map(header_names),
    }))
}

async fn replace_secrets(
    connection: &Connection,
    keyring: &Keyring,
    id: EndpointId,
    secrets: &[StoredSecret],
    now: Timestamp,
) -> Result<Result<u64, Refusal>, Problem> {
    let Some(stored) = load_endpoint(connection, keyring, id).await? else { return Ok(Err(Refusal::NotFound)) };
    let sealed = secrets::seal(keyring, id, secrets, &stored.endpoint.headers);
    connection.execute(UPDATE_SECRETS, &[&id.to_bytes().as_slice(), &sealed]).await?;
    // Whoever sends there has to hear of it.
    touch_tenant(connection, &stored.endpoint.tenant, now).await?;
    Ok(Ok(stored.version + 1))
}

const UPDATE_SECRETS: &str = "UPDATE endpoints SET sealed = $2, version = version + 1 WHERE id = $1";

pub(super) async fn sealed_values(connection: &Connection, keyring: &Keyring) -> Result<SealedValues, Problem> {
    let rows = connection.query(COUNT_SEALED, &[]).await?;
    let by_key = rows.iter().map(|row| Ok((row::column::<Vec<u8>>(row, "key")?, unsigned(row::column(row, "n")?))));
    Ok(SealedValues::count(keyring, by_key.collect::<Result<Vec<_>, Error>>()?))
}

const COUNT_SEALED: &str = "SELECT substring(sealed FROM 2 FOR 8) AS key, count(*) AS n FROM endpoints GROUP BY 1";

/// Makes it if it is not there, and raises its version.
async fn touch_tenant(connection: &Connection, id: &TenantId, now: Timestamp) -> Result<(), Problem> {
    write_tenant(connection, TOUCH_TENANT, id, now).await
}

/// Makes it if it is not there. One that is there keeps its version, so that publishers do not get into each other's way.
pub(super) async fn make_tenant(connection: &Connection, id: &TenantId, now: Timestamp) -> Result<(), Problem> {
    write_tenant(connection, MAKE_TENANT, id, now).await
}

async fn write_tenant(connection: &Connection, sql: &str, id: &TenantId, now: Timestamp) -> Result<(), Problem> {
    let new = Tenant::new(id.clone());
    let retention_ms = new.retention.map(|retention| millis(retention.as_duration()));
    connection.execute(sql, &[&id.as_str(), &retention_ms, &document::tenant(&new), &now.as_millis()]).await?;
    Ok(())
}

/// One that was deleted begins as a new one would: with nothing of what was set before, and without the events up to then. Whoever publishes for
/// the new one takes its number after this is committed, and whoever published for the old one took it before.
const TOUCH_TENANT: &str = "INSERT INTO tenants (id, version, retention_ms, document, extra, created_at_ms)
     VALUES ($1, 1 + (SELECT value FROM counters WHERE name = 'removed_tenant_version'),
       coalesce($2, (SELECT value FROM counters WHERE name = 'default_retention_ms')), $3, '{}', $4)
     ON CONFLICT (id) DO UPDATE SET version = tenants.version + 1, deleted_at_ms = NULL,
       retention_ms = CASE WHEN tenants.deleted_at_ms IS NULL THEN tenants.retention_ms ELSE excluded.retention_ms END,
       document = CASE WHEN tenants.deleted_at_ms IS NULL THEN tenants.document ELSE excluded.document END,
       extra = CASE WHEN tenants.deleted_at_ms IS NULL THEN tenants.extra ELSE excluded.extra END,
       created_at_ms = CASE WHEN tenants.deleted_at_ms IS NULL THEN tenants.created_at_ms ELSE excluded.created_at_ms END,
       first_event = CASE WHEN tenants.deleted_at_ms IS NULL THEN tenants.first_event ELSE nextval('events_seq') END";
const MAKE_TENANT: &str = "INSERT INTO tenants (id, version, retention_ms, document, extra, created_at_ms)
     VALUES ($1, 1 + (SELECT value FROM counters WHERE name = 'removed_tenant_version'),
       coalesce($2, (SELECT value FROM counters WHERE name = 'default_retention_ms')), $3, '{}', $4)
     ON CONFLICT (id) DO UPDATE SET version = tenants.version + 1, deleted_at_ms = NULL,
       retention_ms = CASE WHEN tenants.deleted_at_ms IS NULL THEN tenants.retention_ms ELSE excluded.retention_ms END,
       document = CASE WHEN tenants.deleted_at_ms IS NULL THEN tenants.document ELSE excluded.document END,
       extra = CASE WHEN tenants.deleted_at_ms IS NULL THEN tenants.extra ELSE excluded.extra END,
       created_at_ms = CASE WHEN tenants.deleted_at_ms IS NULL THEN tenants.created_at_ms ELSE excluded.created_at_ms END,
       first_event = CASE WHEN tenants.deleted_at_ms IS NULL THEN tenants.first_event ELSE nextval('events_seq') END
     WHERE tenants.deleted_at_ms IS NOT NULL";

async fn put_tenant(
    connection: &Connection,
    tenant: &Tenant,
    extra: &str,
    now: Timestamp,
) -> Result<Result<u64, Refusal>, Problem> {
    let retention_ms = tenant.retention.map(|retention| millis(retention.as_duration()));
    let before = self::tenant(connection, &tenant.id).await?;
    let row = connection
        .query_one(
            PUT_TENANT,
            &[&tenant.id.as_str(), &retention_ms, &storable(&document::tenant(tenant)), &storable(extra), &now.as_millis()],
        )
        .await?;
    let schedule_before = before.map(|before| before.tenant.defaults.delivery_schedule).unwrap_or_default();
    if schedule_before != tenant.defaults.delivery_schedule {
        wait_for_publishers(connection).await?;
    }
    Ok(Ok(unsigned(row::column(&row, "version")?)))
}

const PUT_TENANT: &str = "INSERT INTO tenants (id, version, retention_ms, document, extra, created_at_ms)
     VALUES ($1, 1 + (SELECT value FROM counters WHERE name = 'removed_tenant_version'),
       coalesce($2, (SELECT value FROM counters WHERE name = 'default_retention_ms')), $3, $4, $5)
     ON CONFLICT (id) DO UPDATE SET version = tenants.version + 1, retention_ms = excluded.retention_ms,
       document = excluded.document, extra = excluded.extra, deleted_at_ms = NULL,
       created_at_ms = CASE WHEN tenants.deleted_at_ms IS NULL THEN tenants.created_at_ms ELSE excluded.created_at_ms END,
       first_event = CASE WHEN tenants.deleted_at_ms IS NULL THEN tenants.first_event ELSE nextval('events_seq') END
     RETURNING version";

async fn delete_tenant(connection: &Connection, id: &TenantId, now: Timestamp) -> Result<Result<u64, Refusal>, Problem> {
    if connection.execute(DELETE_TENANT, &[&id.as_str(), &now.as_millis()]).await? == 0 {
        return Ok(Err(Refusal::NotFound));
    }
    connection.execute(DELETE_ENDPOINTS, &[&id.as_str(), &now.as_millis()]).await?;
    connection.execute(REVOKE_KEYS, &[&id.as_str(), &now.as_millis()]).await?;
    sessions::end_of_tenant(connection, id).await?;
    Ok(Ok(1))
}

const DELETE_TENANT: &str = "UPDATE tenants SET deleted_at_ms = $2, version = version + 1, swept_to = 0, events_swept_to = 0,
                               deleted_to = (SELECT last_value FROM deliveries_seq_seq), events_deleted_to = (SELECT last_value FROM events_seq)
                             WHERE id = $1 AND deleted_at_ms IS NULL";
const DELETE_ENDPOINTS: &str =
    "UPDATE endpoints SET deleted_at_ms = $2, version = version + 1 WHERE tenant = $1 AND deleted_at_ms IS NULL";
const REVOKE_KEYS: &str = "UPDATE keys SET revoked_at_ms = coalesce(revoked_at_ms, $2) WHERE tenant = $1";

async fn create_key(connection: &Connection, key: &Key) -> Result<Result<u64, Refusal>, Problem> {
    let made = connection
        .execute(
            INSERT_KEY,
            &[
                &key.id.to_bytes().as_slice(),
                &key.hash.0.as_slice(),
                &storable(&key.name),
                &key.tenant.as_ref().map(TenantId::as_str),
                &lines(key.scopes.iter().map(|scope| scope.name())),
                &key.created_at.as_millis(),
                &key.expires_at.map(Timestamp::as_millis),
            ],
        )
        .await?;
    Ok(if made == 0 { Err(Refusal::Taken) } else { Ok(1) })
}

const INSERT_KEY: &str =
    "INSERT INTO keys (id, hash, name, tenant, scopes, created_at_ms, expires_at_ms) VALUES ($1, $2, $3, $4, $5, $6, $7)
     ON CONFLICT DO NOTHING";

async fn raise(connection: &Connection, counter: &str) -> Result<u64, Problem> {
    let row = connection.query_one(RAISE, &[&counter]).await?;
    Ok(unsigned(row::column(&row, "value")?))
}

const RAISE: &str = "UPDATE counters SET value = value + 1 WHERE name = $1 RETURNING value";

pub(super) async fn write_audit(connection: &Connection, audit: &Audit, now: Timestamp) -> Result<(), Problem> {
    connection
        .execute(
            INSERT_AUDIT,
            &[
                &now.as_millis(),
                &storable(&audit.actor),
                &optional_storable(audit.address.as_ref()),
                &storable(&audit.action),
                &storable(&audit.subject),
                &audit.tenant.as_ref().map(TenantId::as_str),
                &optional_storable(audit.before.as_ref()),
                &optional_storable(audit.after.as_ref()),
            ],
        )
        .await?;
    Ok(())
}

const INSERT_AUDIT: &str = "INSERT INTO audit (at_ms, actor, address, action, subject, tenant, before, after)
                            VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";

/// Disables an endpoint with the attempt that said so, or that was one too many.
pub(super) async fn disable_endpoint(
    connection: &Connection,
    id: EndpointId,
    reason: DisableReason,
    now: Timestamp,
) -> Result<(), Problem> {
    take_lock(connection).await?;
    let disabled = connection.query_opt(DISABLE_ENDPOINT, &[&id.to_bytes().as_slice(), &now.as_millis()]).await?;
    if let Some(row) = disabled {
        let tenant = row::parsed(&row, "tenant", TenantId::parse)?;
        touch_tenant(connection, &tenant, now).await?;
        // Together with it: whoever tells people of it finds it here, whatever happens in between.
        write_audit(connection, &Audit::auto_disabled(id, &tenant, reason), now).await?;
        raise(connection, "configuration").await?;
    }
    Ok(())
}

const DISABLE_ENDPOINT: &str =
    "UPDATE endpoints SET status = 'disabled', paused_until_ms = NULL, version = version + 1, updated_at_ms = $2
     WHERE id = $1 AND status <> 'disabled' AND deleted_at_ms IS NULL RETURNING tenant";

pub(super) async fn tenant(connection: &Connection, id: &TenantId) -> Result<Option<StoredTenant>, Problem> {
    let row = connection.query_opt(SELECT_TENANT, &[&id.as_str()]).await?;
    Ok(row.as_ref().map(tenant_from_row).transpose()?)
}

pub(super) fn tenant_from_row(row: &Row) -> Result<StoredTenant, Error> {
    let id = row::parsed(row, "id", TenantId::parse)?;
    Ok(StoredTenant {
        tenant: document::read_tenant(id, row::text(row, "document")?)?,
        version: unsigned(row::column(row, "version")?),
        created_at: row::timestamp(row, "created_at_ms")?,
        extra: row::column(row, "extra")?,
    })
}

pub(super) fn event_type(row: &Row) -> Result<catalogue::Entry, Error> {
    let name = row::parsed(row, "name", EventType::parse)?;
    document::read_catalogue_entry(name, row::text(row, "document")?)
}

fn endpoint(row: &Row, keyring: &Keyring) -> Result<StoredEndpoint, Error> {
    let mut endpoint = endpoint_without_secrets(row)?;
    let (secrets, headers) = secrets::open(keyring, endpoint.id, row::column(row, "sealed")?, &endpoint.signing)?;
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
pub(super) fn endpoint_without_secrets(row: &Row) -> Result<Endpoint, Error> {
    let columns = EndpointColumns {
        id: EndpointId::from_bytes(row::bytes(row, "id")?),
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

fn key(row: &Row) -> Result<Key, Error> {
    Ok(Key {
        id: KeyId::from_bytes(row::bytes(row, "id")?),
        hash: KeyHash(row::bytes(row, "hash")?),
        name: row::column(row, "name")?,
        tenant: row::optional(row, "tenant", TenantId::parse)?,
        scopes: scopes(row::text(row, "scopes")?)?,
        created_at: row::timestamp(row, "created_at_ms")?,
        expires_at: row::optional_timestamp(row, "expires_at_ms")?,
        revoked_at: row::optional_timestamp(row, "revoked_at_ms")?,
        last_used_at: row::optional_timestamp(row, "last_used_at_ms")?,
    })
}

fn audit_row(row: &Row) -> Result<AuditRow, Error> {
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
