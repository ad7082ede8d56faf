//! People who are logged in.

use posthaste_core::id::{KeyId, SessionId, TenantId};
use tokio_postgres::Row;

use super::Database;
use super::configuration::write_audit;
use super::connection::{Connection, Problem};
use super::row;
use crate::columns::{corrupt, limit};
use crate::{
    Audit, EndSessions, Error, KeyHash, NewSession, PortalPermissions, Refusal, SESSIONS_MAX, SessionAccess, SessionMaker,
    SessionQuery, StoredSession,
};

/// What makes a session one that is not over: its time, its tenant and its key.
macro_rules! is_live {
    ($now:literal) => {
        concat!(
            "s.ends_at_ms > ",
            $now,
            " AND (s.tenant IS NULL OR EXISTS (
                 SELECT 1 FROM tenants t
                 WHERE t.id = s.tenant AND t.created_at_ms = s.tenant_created_at_ms AND t.deleted_at_ms IS NULL))
               AND (s.key IS NULL OR EXISTS (
                 SELECT 1 FROM keys k WHERE k.id = s.key AND k.revoked_at_ms IS NULL
                   AND (k.expires_at_ms IS NULL OR k.expires_at_ms > ",
            $now,
            ")))"
        )
    };
}

impl Database {
    pub(super) async fn create_session(&self, session: NewSession, audit: Audit) -> Result<Result<(), Refusal>, Error> {
        let (session, audit) = (&session, &audit);
        self.transact(|connection| async move {
            if connection.query_opt(SELECT_KEPT, &[&session.id.to_bytes().as_slice()]).await?.is_some() {
                return Ok(Ok(()));
            }
            if !insert(&connection, session).await? {
                return Ok(Err(Refusal::NotFound));
            }
            make_room(&connection, session).await?;
            write_audit(&connection, audit, self.clock_now()).await?;
            Ok(Ok(()))
        })
        .await
    }

    pub(super) async fn start_session(&self, code: KeyHash, token: KeyHash, audit: Audit) -> Result<Option<StoredSession>, Error> {
        let audit = &audit;
        self.transact(|connection| async move {
            let now = self.clock_now();
            let row = connection.query_opt(START, &[&code.0.as_slice(), &token.0.as_slice(), &now.as_millis()]).await?;
            let Some(started) = row.as_ref().map(session).transpose()? else { return Ok(None) };
            write_audit(&connection, &audit.clone().about_session(&started), now).await?;
            Ok(Some(started))
        })
        .await
    }

    pub(super) async fn session(&self, token: KeyHash) -> Result<Option<StoredSession>, Error> {
        self.read_for_work(|connection| async move {
            let now = self.clock_now().as_millis();
            let Some(row) = connection.query_opt(SELECT, &[&token.0.as_slice(), &now]).await? else { return Ok(None) };
            let key = row::optional_bytes(&row, "key_hash")?.map(KeyHash);
            Ok(Some(StoredSession { key, ..session(&row)? }))
        })
        .await
    }

    pub(super) async fn sessions(&self, query: SessionQuery) -> Result<Vec<StoredSession>, Error> {
        let query = &query;
        self.read(|connection| async move {
            let (key, is_admin) = maker_filter(query.made_by);
            let tenant = query.tenant.as_ref().map(TenantId::as_str);
            let before = query.before.map(|before| before.to_bytes().to_vec());
            let now = self.clock_now().as_millis();
            let rows = connection.query(LIST, &[&tenant, &key, &is_admin, &before, &now, &limit(query.limit)]).await?;
            Ok(rows.iter().map(session).collect::<Result<_, _>>()?)
        })
        .await
    }

    pub(super) async fn end_sessions(&self, which: EndSessions, audit: Audit) -> Result<u64, Error> {
        let (which, audit) = (&which, &audit);
        self.transact(|connection| async move {
            let ended = match which {
                EndSessions::One(id) => connection.execute(END_ONE, &[&id.to_bytes().as_slice()]).await?,
                EndSessions::Portal { id, tenant } => {
                    let tenant = tenant.as_ref().map(TenantId::as_str);
                    connection.execute(END_PORTAL, &[&id.to_bytes().as_slice(), &tenant]).await?
                }
                EndSessions::OfTenant(tenant) => connection.execute(END_OF_TENANT, &[&tenant.as_str()]).await?,
                EndSessions::MadeBy { key, tenant } => {
                    let (key, is_admin) = maker_filter(Some(*key));
                    let tenant = tenant.as_ref().map(TenantId::as_str);
                    connection.execute(END_MADE_BY, &[&key, &tenant, &is_admin]).await?
                }
            };
            if ended > 0 {
                write_audit(&connection, audit, self.clock_now()).await?;
            }
            Ok(ended)
        })
        .await
    }
}

const SELECT_KEPT: &str = "SELECT 1 FROM sessions WHERE id = $1";
const END_ONE: &str = "DELETE FROM sessions WHERE id = $1";
const END_PORTAL: &str = "DELETE FROM sessions WHERE id = $1 AND tenant IS NOT NULL AND ($2::text IS NULL OR tenant = $2)";
const END_OF_TENANT: &str = "DELETE FROM sessions WHERE tenant = $1";
const END_MADE_BY: &str = "DELETE FROM sessions
     WHERE (key = $1::bytea OR ($3::boolean AND key IS NULL)) AND tenant IS NOT NULL AND ($2::text IS NULL OR tenant = $2)";

/// The key, and whether it is the operator's first one, which has no id.
fn maker_filter(maker: Option<SessionMaker>) -> (Option<Vec<u8>>, bool) {
    match maker {
        None => (None, false),
        Some(SessionMaker::Admin(_)) => (None, true),
        Some(SessionMaker::Key(key)) => (Some(key.to_bytes().to_vec()), false),
    }
}

/// Unless its tenant is gone, or is another one of the same name, or its key was revoked. Both are locked, so that neither goes
/// while its session comes.
async fn insert(connection: &Connection, new: &NewSession) -> Result<bool, Problem> {
    let (tenant, tenant_created_at, permissions, appearance) = match &new.access {
        SessionAccess::Dashboard => (None, None, 0, None),
        SessionAccess::Portal { tenant, tenant_created_at, permissions, appearance } => {
            (Some(tenant.as_str()), Some(tenant_created_at.as_millis()), permissions.bits(), appearance.as_deref())
        }
    };
    let (key, admin) = match new.made_by {
        SessionMaker::Admin(digest) => (None, Some(digest.to_vec())),
        SessionMaker::Key(key) => (Some(key.to_bytes().to_vec()), None),
    };
    if tenant.is_some() && connection.query_opt(LOCK_TENANT, &[&tenant, &tenant_created_at]).await?.is_none() {
        return Ok(false);
    }
    if key.is_some() && connection.query_opt(LOCK_KEY, &[&key]).await?.is_none() {
        return Ok(false);
    }
    let started_at = new.code_expires_at.is_none().then_some(new.created_at.as_millis());
    let ends_at = new.code_expires_at.unwrap_or(new.expires_at).min(new.expires_at).as_millis();
    connection
        .execute(
            INSERT,
            &[
                &new.id.to_bytes().as_slice(),
                &new.hash.0.as_slice(),
                &tenant,
                &tenant_created_at,
                &permissions,
                &key,
                &admin,
                &new.created_at.as_millis(),
                &started_at,
                &new.expires_at.as_millis(),
                &ends_at,
                &appearance,
            ],
        )
        .await?;
    Ok(true)
}

const LOCK_TENANT: &str = "SELECT 1 FROM tenants WHERE id = $1 AND created_at_ms = $2 AND deleted_at_ms IS NULL FOR SHARE";
const LOCK_KEY: &str = "SELECT 1 FROM keys WHERE id = $1 AND revoked_at_ms IS NULL FOR SHARE";
const INSERT: &str = "INSERT INTO sessions (id, hash, tenant, tenant_created_at_ms, permissions, key, admin, created_at_ms,
                           started_at_ms, expires_at_ms, ends_at_ms, appearance)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";

async fn make_room(connection: &Connection, new: &NewSession) -> Result<(), Problem> {
    match (&new.access, new.made_by) {
        (SessionAccess::Portal { tenant, .. }, _) => {
            connection.execute(MAKE_ROOM_OF_TENANT, &[&tenant.as_str(), &limit(SESSIONS_MAX)]).await?
        }
        (SessionAccess::Dashboard, SessionMaker::Key(key)) => {
            connection.execute(MAKE_ROOM_OF_KEY, &[&key.to_bytes().as_slice(), &limit(SESSIONS_MAX)]).await?
        }
        (SessionAccess::Dashboard, SessionMaker::Admin(_)) => {
            connection.execute(MAKE_ROOM_OF_ADMIN, &[&limit(SESSIONS_MAX)]).await?
        }
    };
    Ok(())
}

const MAKE_ROOM_OF_TENANT: &str =
    "DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE tenant = $1 ORDER BY id DESC OFFSET $2)";
const MAKE_ROOM_OF_KEY: &str = "DELETE FROM sessions
     WHERE id IN (SELECT id FROM sessions WHERE key = $1 AND tenant IS NULL ORDER BY id DESC OFFSET $2)";
const MAKE_ROOM_OF_ADMIN: &str = "DELETE FROM sessions
     WHERE id IN (SELECT id FROM sessions WHERE key IS NULL AND tenant IS NULL ORDER BY id DESC OFFSET $1)";

/// Once: the code is not there any more afterwards.
const START: &str = concat!(
    "UPDATE sessions s SET hash = $2, started_at_ms = $3, ends_at_ms = s.expires_at_ms
     WHERE s.hash = $1 AND s.started_at_ms IS NULL AND ",
    is_live!("$3"),
    " RETURNING s.*"
);
const SELECT: &str = concat!(
    "SELECT s.*, (SELECT k.hash FROM keys k WHERE k.id = s.key) AS key_hash FROM sessions s
     WHERE s.hash = $1 AND s.started_at_ms IS NOT NULL AND ",
    is_live!("$2")
);
const LIST: &str = concat!(
    "SELECT s.* FROM sessions s
     WHERE s.tenant IS NOT NULL AND ($1::text IS NULL OR s.tenant = $1) AND ($2::bytea IS NULL OR s.key = $2)
       AND (NOT $3::boolean OR s.key IS NULL) AND ($4::bytea IS NULL OR s.id < $4) AND ",
    is_live!("$5"),
    " ORDER BY s.id DESC LIMIT $6"
);

fn session(row: &Row) -> Result<StoredSession, Error> {
    let access = match row::optional(row, "tenant", TenantId::parse)? {
        None => SessionAccess::Dashboard,
        Some(tenant) => SessionAccess::Portal {
            tenant,
            tenant_created_at: row::timestamp(row, "tenant_created_at_ms")?,
            permissions: PortalPermissions::from_bits(row::column(row, "permissions")?),
            appearance: row::column(row, "appearance")?,
        },
    };
    let made_by = match (row::optional_bytes(row, "key")?, row::optional_bytes(row, "admin")?) {
        (Some(key), _) => SessionMaker::Key(KeyId::from_bytes(key)),
        (None, Some(digest)) => SessionMaker::Admin(digest),
        (None, None) => return Err(corrupt("key")("a session that no key has made")),
    };
    Ok(StoredSession {
        id: SessionId::from_bytes(row::bytes(row, "id")?),
        access,
        made_by,
        created_at: row::timestamp(row, "created_at_ms")?,
        started_at: row::optional_timestamp(row, "started_at_ms")?,
        expires_at: row::timestamp(row, "expires_at_ms")?,
        key: None,
    })
}

/// With a tenant that is deleted: its sessions, and those that its keys have made.
pub(super) async fn end_of_tenant(connection: &Connection, tenant: &TenantId) -> Result<(), Problem> {
    connection.execute(END_WITH_TENANT, &[&tenant.as_str()]).await?;
    Ok(())
}

const END_WITH_TENANT: &str = "DELETE FROM sessions WHERE tenant = $1 OR key IN (SELECT id FROM keys WHERE tenant = $1)";

/// With a key that is revoked.
pub(super) async fn end_of_key(connection: &Connection, key: KeyId) -> Result<(), Problem> {
    connection.execute(END_WITH_KEY, &[&key.to_bytes().as_slice()]).await?;
    Ok(())
}

const END_WITH_KEY: &str = "DELETE FROM sessions WHERE key = $1";
