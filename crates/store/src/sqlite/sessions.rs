//! People who are logged in.

use posthaste_core::id::{KeyId, SessionId, TenantId};
use rusqlite::{Connection, Row, named_params, params};

use super::configuration::write_audit;
use super::{SMALL, Sqlite, row};
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

impl Sqlite {
    pub(super) async fn create_session(&self, session: NewSession, audit: Audit) -> Result<Result<(), Refusal>, Error> {
        let store = self.clone();
        self.write(SMALL, move |connection, _| {
            let is_kept = connection.prepare_cached("SELECT 1 FROM sessions WHERE id = ?1")?.exists([session.id.to_bytes()])?;
            if is_kept {
                return Ok(Ok(()));
            }
            if !insert(connection, &session)? {
                return Ok(Err(Refusal::NotFound));
            }
            make_room(connection, &session)?;
            write_audit(connection, &audit, store.clock_now())?;
            Ok(Ok(()))
        })
        .await
    }

    pub(super) async fn start_session(&self, code: KeyHash, token: KeyHash, audit: Audit) -> Result<Option<StoredSession>, Error> {
        let store = self.clone();
        self.write(SMALL, move |connection, _| {
            let now = store.clock_now();
            let mut update = connection.prepare_cached(START)?;
            let rows = update.query(named_params! { ":code": code.0, ":token": token.0, ":now": now.as_millis() })?;
            let Some(started) = row::first(rows, session)? else { return Ok(None) };
            write_audit(connection, &audit.clone().about_session(&started), now)?;
            Ok(Some(started))
        })
        .await
    }

    pub(super) async fn session(&self, token: KeyHash) -> Result<Option<StoredSession>, Error> {
        let now = self.clock_now().as_millis();
        self.read_for_work(move |connection| {
            let mut select = connection.prepare_cached(SELECT)?;
            row::first(select.query(params![token.0, now])?, |row| {
                let key: Option<[u8; 32]> = row::column(row, "key_hash")?;
                Ok(StoredSession { key: key.map(KeyHash), ..session(row)? })
            })
        })
        .await
    }

    pub(super) async fn sessions(&self, query: SessionQuery) -> Result<Vec<StoredSession>, Error> {
        let now = self.clock_now().as_millis();
        self.read(move |connection| {
            let (key, is_admin) = maker_filter(query.made_by);
            let mut select = connection.prepare_cached(LIST)?;
            let rows = select.query(named_params! {
                ":tenant": query.tenant.as_ref().map(TenantId::as_str),
                ":key": key,
                ":is_admin": is_admin,
                ":before": query.before.map(SessionId::to_bytes),
                ":now": now,
                ":limit": limit(query.limit),
            })?;
            row::all(rows, session)
        })
        .await
    }

    pub(super) async fn end_sessions(&self, which: EndSessions, audit: Audit) -> Result<u64, Error> {
        let store = self.clone();
        self.write(SMALL, move |connection, _| {
            let ended = match &which {
                EndSessions::One(id) => {
                    connection.prepare_cached("DELETE FROM sessions WHERE id = ?1")?.execute([id.to_bytes()])?
                }
                EndSessions::Portal { id, tenant } => connection
                    .prepare_cached("DELETE FROM sessions WHERE id = ?1 AND tenant IS NOT NULL AND (?2 IS NULL OR tenant = ?2)")?
                    .execute(params![id.to_bytes(), tenant.as_ref().map(TenantId::as_str)])?,
                EndSessions::OfTenant(tenant) => {
                    connection.prepare_cached("DELETE FROM sessions WHERE tenant = ?1")?.execute([tenant.as_str()])?
                }
                EndSessions::MadeBy { key, tenant } => {
                    let (key, _) = maker_filter(Some(*key));
                    connection
                        .prepare_cached(
                            "DELETE FROM sessions WHERE key IS ?1 AND tenant IS NOT NULL AND (?2 IS NULL OR tenant = ?2)",
                        )?
                        .execute(params![key, tenant.as_ref().map(TenantId::as_str)])?
                }
            };
            if ended > 0 {
                write_audit(connection, &audit, store.clock_now())?;
            }
            Ok(ended as u64)
        })
        .await
    }
}

/// The key, and whether it is the operator's first one, which has no id.
fn maker_filter(maker: Option<SessionMaker>) -> (Option<[u8; 16]>, bool) {
    match maker {
        None => (None, false),
        Some(SessionMaker::Admin(_)) => (None, true),
        Some(SessionMaker::Key(key)) => (Some(key.to_bytes()), false),
    }
}

/// Unless its tenant is gone, or is another one of the same name, or its key was revoked.
const INSERT: &str = "INSERT INTO sessions (id, hash, tenant, tenant_created_at_ms, permissions, key, admin, created_at_ms,
                           started_at_ms, expires_at_ms, ends_at_ms, appearance)
     SELECT :id, :hash, :tenant, :tenant_created_at_ms, :permissions, :key, :admin, :created_at_ms, :started_at_ms,
            :expires_at_ms, :ends_at_ms, :appearance
     WHERE (:tenant IS NULL OR EXISTS (
         SELECT 1 FROM tenants t WHERE t.id = :tenant AND t.created_at_ms = :tenant_created_at_ms AND t.deleted_at_ms IS NULL))
       AND (:key IS NULL OR EXISTS (SELECT 1 FROM keys k WHERE k.id = :key AND k.revoked_at_ms IS NULL))";

fn insert(connection: &Connection, new: &NewSession) -> Result<bool, Error> {
    let (tenant, tenant_created_at, permissions, appearance) = match &new.access {
        SessionAccess::Dashboard => (None, None, 0, None),
        SessionAccess::Portal { tenant, tenant_created_at, permissions, appearance } => {
            (Some(tenant.as_str()), Some(tenant_created_at.as_millis()), permissions.bits(), appearance.as_deref())
        }
    };
    let (key, admin) = match new.made_by {
        SessionMaker::Admin(digest) => (None, Some(digest)),
        SessionMaker::Key(key) => (Some(key.to_bytes()), None),
    };
    let inserted = connection.prepare_cached(INSERT)?.execute(named_params! {
        ":id": new.id.to_bytes(),
        ":hash": new.hash.0,
        ":tenant": tenant,
        ":tenant_created_at_ms": tenant_created_at,
        ":permissions": permissions,
        ":key": key,
        ":admin": admin,
        ":created_at_ms": new.created_at.as_millis(),
        ":started_at_ms": new.code_expires_at.is_none().then_some(new.created_at.as_millis()),
        ":expires_at_ms": new.expires_at.as_millis(),
        ":ends_at_ms": new.code_expires_at.unwrap_or(new.expires_at).min(new.expires_at).as_millis(),
        ":appearance": appearance,
    })?;
    Ok(inserted > 0)
}

fn make_room(connection: &Connection, new: &NewSession) -> Result<(), Error> {
    match &new.access {
        SessionAccess::Portal { tenant, .. } => connection
            .prepare_cached(
                "DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE tenant = ?1 ORDER BY id DESC LIMIT -1 OFFSET ?2)",
            )?
            .execute(params![tenant.as_str(), limit(SESSIONS_MAX)])?,
        SessionAccess::Dashboard => {
            let (key, _) = maker_filter(Some(new.made_by));
            connection
                .prepare_cached(
                    "DELETE FROM sessions WHERE id IN (
                       SELECT id FROM sessions WHERE key IS ?1 AND tenant IS NULL ORDER BY id DESC LIMIT -1 OFFSET ?2)",
                )?
                .execute(params![key, limit(SESSIONS_MAX)])?
        }
    };
    Ok(())
}

/// Once: the code is not there any more afterwards.
const START: &str = concat!(
    "UPDATE sessions AS s SET hash = :token, started_at_ms = :now, ends_at_ms = s.expires_at_ms
     WHERE s.hash = :code AND s.started_at_ms IS NULL AND ",
    is_live!(":now"),
    " RETURNING *"
);
const SELECT: &str = concat!(
    "SELECT s.*, (SELECT k.hash FROM keys k WHERE k.id = s.key) AS key_hash FROM sessions s
     WHERE s.hash = ?1 AND s.started_at_ms IS NOT NULL AND ",
    is_live!("?2")
);
const LIST: &str = concat!(
    "SELECT s.* FROM sessions s
     WHERE s.tenant IS NOT NULL AND (:tenant IS NULL OR s.tenant = :tenant) AND (:key IS NULL OR s.key = :key)
       AND (NOT :is_admin OR s.key IS NULL) AND (:before IS NULL OR s.id < :before) AND ",
    is_live!(":now"),
    " ORDER BY s.id DESC LIMIT :limit"
);

fn session(row: &Row<'_>) -> Result<StoredSession, Error> {
    let access = match row::optional(row, "tenant", TenantId::parse)? {
        None => SessionAccess::Dashboard,
        Some(tenant) => SessionAccess::Portal {
            tenant,
            tenant_created_at: row::timestamp(row, "tenant_created_at_ms")?,
            permissions: PortalPermissions::from_bits(row::column(row, "permissions")?),
            appearance: row::column(row, "appearance")?,
        },
    };
    let made_by = match (row::column::<Option<[u8; 16]>>(row, "key")?, row::column::<Option<[u8; 32]>>(row, "admin")?) {
        (Some(key), _) => SessionMaker::Key(KeyId::from_bytes(key)),
        (None, Some(digest)) => SessionMaker::Admin(digest),
        (None, None) => return Err(corrupt("key")("a session that no key has made")),
    };
    Ok(StoredSession {
        id: SessionId::from_bytes(row::column(row, "id")?),
        access,
        made_by,
        created_at: row::timestamp(row, "created_at_ms")?,
        started_at: row::optional_timestamp(row, "started_at_ms")?,
        expires_at: row::timestamp(row, "expires_at_ms")?,
        key: None,
    })
}

/// With a tenant that is deleted: its sessions, and those that its keys have made.
pub(super) fn end_of_tenant(connection: &Connection, tenant: &TenantId) -> Result<(), Error> {
    connection
        .prepare_cached("DELETE FROM sessions WHERE tenant = ?1 OR key IN (SELECT id FROM keys WHERE tenant = ?1)")?
        .execute([tenant.as_str()])?;
    Ok(())
}

/// With a key that is revoked.
pub(super) fn end_of_key(connection: &Connection, key: KeyId) -> Result<(), Error> {
    connection.prepare_cached("DELETE FROM sessions WHERE key = ?1")?.execute([key.to_bytes()])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asked with every call of a person.
    #[test]
    fn a_session_is_found_without_reading_others() {
        let mut connection = Connection::open_in_memory().expect("a database");
        super::super::migrations::run(&mut connection).expect("a schema");
        for statement in [SELECT, START] {
            let steps = row::plan(&connection, statement);
            assert!(!steps.iter().any(|step| step.starts_with("SCAN")), "{statement}\n{steps:?}");
        }
    }
}
