//! Who is calling, and what they may do.
//!
//! A credential is the operator's first key, a key from the store, the token of a portal session (`portal.rs`), or the cookie of a
//! session of the dashboard (`sessions.rs`). Keys are looked up by their hash:
//! what a caller shows is hashed before it is compared with anything, so that the time a comparison takes says nothing
//! about a key. Keys that were found are kept in memory ([`crate::config_cache::ConfigCache`]) until the configuration changes.

use std::collections::HashMap;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use parking_lot::Mutex;
use posthaste_core::bucket::{Bucket, RateLimit};
use posthaste_core::id::{KeyId, SessionId, TenantId};
use posthaste_core::time::Timestamp;
use posthaste_store::{Key, KeyHash, KeyScope, PortalPermissions, SessionAccess, SessionMaker, StoredSession};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::App;
use crate::portal;
use crate::portal_page::Appearance;
use crate::problem::Problem;
use crate::sessions;

/// Who is calling.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// As the audit log names them; never the key itself.
    pub(crate) actor: Arc<str>,
    /// `None`: all tenants.
    pub(crate) tenant: Option<TenantId>,
    scopes: Scopes,
    /// A portal session may be allowed to manage endpoints and yet not to see a new secret.
    pub(crate) may_see_secrets: bool,
    /// Of a portal session.
    pub(crate) permissions: Option<PortalPermissions>,
    pub(crate) appearance: Option<Arc<Appearance>>,
    credential: Credential,
    /// The session that the call is made with, and when it ends.
    pub(crate) session: Option<(SessionId, Timestamp)>,
}

/// What a caller has shown, or what its session stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Credential {
    Nothing,
    AdminKey,
    Key(KeyId),
    /// A portal session, for the tenant that was made at this time.
    Portal {
        tenant_created_at: Timestamp,
    },
}

/// A set of scopes. `admin` includes all others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Scopes(u8);

impl Scopes {
    pub(crate) const ALL: Scopes = Scopes(u8::MAX);

    pub(crate) fn of(scopes: &[KeyScope]) -> Scopes {
        if scopes.contains(&KeyScope::Admin) {
            return Scopes::ALL;
        }
        Scopes(scopes.iter().fold(0, |bits, scope| bits | Scopes::bit(*scope)))
    }

    pub(crate) fn has(self, scope: KeyScope) -> bool {
        self.0 & Scopes::bit(scope) != 0
    }

    fn bit(scope: KeyScope) -> u8 {
        match scope {
            KeyScope::Publish => 1,
            KeyScope::Read => 1 << 1,
            KeyScope::Manage => 1 << 2,
            KeyScope::Replay => 1 << 3,
            KeyScope::Admin => 1 << 4,
        }
    }
}

impl Caller {
    /// For routes that ask for no credential.
    pub(crate) fn nobody() -> Caller {
        Caller {
            actor: "nobody".into(),
            tenant: None,
            scopes: Scopes(0),
            may_see_secrets: false,
            permissions: None,
            appearance: None,
            credential: Credential::Nothing,
            session: None,
        }
    }

    #[cfg(test)]
    pub(crate) fn of_tenant_for_tests(tenant: &str, actor: &str) -> Caller {
        Caller { actor: actor.into(), tenant: Some(TenantId::parse(tenant).expect("a name")), ..Caller::nobody() }
    }

    fn administrator() -> Caller {
        Caller {
            actor: "admin key".into(),
            tenant: None,
            scopes: Scopes::ALL,
            may_see_secrets: true,
            permissions: None,
            appearance: None,
            credential: Credential::AdminKey,
            session: None,
        }
    }

    pub(crate) fn of_key(key: &Key) -> Caller {
        Caller {
            actor: key.id.to_string().into(),
            tenant: key.tenant.clone(),
            scopes: Scopes::of(&key.scopes),
            may_see_secrets: true,
            permissions: None,
            appearance: None,
            credential: Credential::Key(key.id),
            session: None,
        }
    }

    /// Of a session of the portal.
    pub(crate) fn of_portal(session: &StoredSession) -> Option<Caller> {
        let SessionAccess::Portal { tenant, tenant_created_at, permissions, .. } = &session.access else { return None };
        Some(Caller {
            actor: format!("portal:{}", session.id).into(),
            tenant: Some(tenant.clone()),
            scopes: portal::scopes(*permissions),
            may_see_secrets: permissions.secrets,
            permissions: Some(*permissions),
            appearance: Appearance::of(session).map(Arc::new),
            credential: Credential::Portal { tenant_created_at: *tenant_created_at },
            session: Some((session.id, session.expires_at)),
        })
    }

    /// The same, by a session of its own.
    pub(crate) fn with_session(self, id: SessionId, expires_at: Timestamp) -> Caller {
        Caller { session: Some((id, expires_at)), ..self }
    }

    /// What a session that this caller makes ends with; `None` for a caller that has no key.
    pub(crate) fn session_maker(&self, app: &App) -> Option<SessionMaker> {
        match self.credential {
            Credential::AdminKey => Some(app.admin_key.session_maker(app)),
            Credential::Key(key) => Some(SessionMaker::Key(key)),
            Credential::Nothing | Credential::Portal { .. } => None,
        }
    }

    /// The tenant that a portal session is for is never made by it: when it was made, for those who may not make it.
    pub(crate) fn tenant_created_at(&self) -> Option<Timestamp> {
        match self.credential {
            Credential::Portal { tenant_created_at } => Some(tenant_created_at),
            Credential::Nothing | Credential::AdminKey | Credential::Key(_) => None,
        }
    }

    pub(crate) fn has(&self, scope: KeyScope) -> bool {
        self.scopes.has(scope)
    }

    /// Whose share of what all share they use: their tenant's, or their own where they have none.
    pub(crate) fn owner(&self) -> &str {
        self.tenant.as_ref().map_or(&self.actor, TenantId::as_str)
    }

    /// Whether what belongs to this tenant is there for them at all.
    pub(crate) fn sees(&self, tenant: &TenantId) -> bool {
        self.tenant.as_ref().is_none_or(|own| own == tenant)
    }

    /// The tenant that a request is about: the one named, else their own, else the default. Somebody else's is not found.
    pub(crate) fn tenant_for(&self, named: Option<&str>) -> Result<TenantId, Problem> {
        match (named, &self.tenant) {
            (None, Some(own)) => Ok(own.clone()),
            (None, None) => Ok(TenantId::parse(posthaste_store::DEFAULT_TENANT).expect("a valid name")),
            (Some(named), own) => {
                let named = TenantId::parse(named).map_err(|error| Problem::invalid("tenant", error))?;
                match own {
                    Some(own) if *own != named => Err(Problem::not_found()),
                    Some(_) | None => Ok(named),
                }
            }
        }
    }

    /// The same, where it must not be the tenant of notifications: whoever uses that one hears of everybody's endpoints.
    pub(crate) fn ordinary_tenant_for(&self, app: &App, named: Option<&str>) -> Result<TenantId, Problem> {
        let tenant = self.tenant_for(named)?;
        posthaste_store::check_not_reserved(&tenant, app.options.reserved_tenant.as_ref())?;
        Ok(tenant)
    }

    /// Whether they run this server.
    pub(crate) fn is_operator(&self) -> bool {
        self.tenant.is_none() && self.has(KeyScope::Admin)
    }

    /// The tenant that a list is narrowed to, if to one. `Err(Nobody)` where the answer is an empty list.
    pub(crate) fn narrowed_to(&self, named: Option<TenantId>) -> Result<Option<TenantId>, Nobody> {
        match (&self.tenant, named) {
            (Some(own), Some(named)) if *own != named => Err(Nobody),
            (Some(own), _) => Ok(Some(own.clone())),
            (None, named) => Ok(named),
        }
    }
}

/// A list of somebody else's things is empty, as that of nobody's.
#[derive(Debug)]
pub(crate) struct Nobody;

/// The operator's first key, as its hash: the key itself is not kept.
pub(crate) struct AdminKey {
    hash: KeyHash,
    caller: Caller,
}

impl AdminKey {
    pub(crate) fn new(key: &str) -> AdminKey {
        AdminKey { hash: hash_of(key.as_bytes()), caller: Caller::administrator() }
    }

    pub(crate) fn is(&self, shown: &KeyHash) -> bool {
        self.hash.0.ct_eq(&shown.0).into()
    }

    /// A digest that needs our own key: the operator may have chosen this one, so that its plain hash could be guessed.
    pub(crate) fn session_maker(&self, app: &App) -> SessionMaker {
        let mut digest = Hmac::<Sha256>::new_from_slice(&app.options.sealing_key.0).expect("HMAC takes keys of any length");
        digest.update(b"posthaste session of the admin key 1");
        digest.update(&self.hash.0);
        SessionMaker::Admin(digest.finalize().into_bytes().into())
    }

    /// Whether a session is not one of an earlier first key.
    pub(crate) fn may_have_made(&self, app: &App, session: &StoredSession) -> bool {
        match session.made_by {
            SessionMaker::Key(_) => true,
            SessionMaker::Admin(_) => session.made_by == self.session_maker(app),
        }
    }

    pub(crate) fn caller(&self) -> Caller {
        self.caller.clone()
    }
}

impl std::fmt::Debug for AdminKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AdminKey(…)")
    }
}

pub(crate) fn hash_of(key: &[u8]) -> KeyHash {
    KeyHash(Sha256::digest(key).into())
}

/// No key that we have ever made is longer; what is, is not worth hashing.
const KEY_BYTES_MAX: usize = 1024;

/// Finds out who is calling: by the header, or, where there is none, by a session's cookie.
pub(crate) async fn identify(app: &App, headers: &HeaderMap) -> Result<Caller, Problem> {
    if !headers.contains_key(AUTHORIZATION) {
        return sessions::identify(app, headers).await;
    }
    let mut shown = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (shown.next(), shown.next()) else { return Err(Problem::unauthorized()) };
    let key = bearer(value.as_bytes()).ok_or_else(Problem::unauthorized)?;
    let hash = hash_of(key);
    if key.starts_with(portal::TOKEN_PREFIX.as_bytes()) {
        let session = app.store.session(hash).await?.filter(|session| app.admin_key.may_have_made(app, session));
        return session.as_ref().and_then(Caller::of_portal).ok_or_else(Problem::unauthorized);
    }
    if app.admin_key.is(&hash) {
        return Ok(app.admin_key.caller());
    }
    caller_of_hash(app, hash).await
}

/// Who holds a key that we have made, unless it was revoked or has expired.
pub(crate) async fn caller_of_hash(app: &App, hash: KeyHash) -> Result<Caller, Problem> {
    let known = app.known.key(hash).await?.ok_or_else(Problem::unauthorized)?;
    // The clock moves on while a key is remembered.
    let now = app.store.now();
    if known.key.expires_at.is_some_and(|at| at <= now) {
        return Err(Problem::unauthorized());
    }
    app.uses.note(known.key.id, now);
    Ok(known.caller.clone())
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked("Bearer ".len())?;
    (scheme.eq_ignore_ascii_case(b"Bearer ") && !key.is_empty() && key.len() <= KEY_BYTES_MAX).then_some(key)
}

/// How often each caller may call.
#[derive(Debug)]
pub(crate) struct Calls {
    limit: Option<RateLimit>,
    buckets: Mutex<HashMap<Arc<str>, Bucket>>,
}

/// Beyond this many callers, those who have been quiet are forgotten: their buckets are full anyway.
const CALLERS_MAX: usize = 10_000;

impl Calls {
    pub(crate) fn new(limit: Option<RateLimit>) -> Calls {
        Calls { limit, buckets: Mutex::default() }
    }

    pub(crate) fn take(&self, caller: &Caller, now: Timestamp) -> Result<(), Problem> {
        let Some(limit) = self.limit else { return Ok(()) };
        let mut buckets = self.buckets.lock();
        if buckets.len() >= CALLERS_MAX && !buckets.contains_key(&caller.actor) {
            buckets.retain(|_, bucket| !bucket.is_full(now, limit));
        }
        let bucket = buckets.entry(Arc::clone(&caller.actor)).or_insert_with(Bucket::full);
        bucket.take(now, limit).map_err(|ready| Problem::too_many_requests(ready.since(now)))
    }

    /// Counts a call that was dear as so many more. The next ones wait for it.
    pub(crate) fn charge(&self, caller: &Caller, now: Timestamp, calls: u64) {
        let Some(limit) = self.limit else { return };
        if let Some(bucket) = self.buckets.lock().get_mut(&caller.actor) {
            bucket.charge(now, limit, calls);
        }
    }
}

/// When keys were last used, written down now and then.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    noted: Mutex<HashMap<KeyId, Timestamp>>,
}

impl Uses {
    fn note(&self, key: KeyId, now: Timestamp) {
        self.noted.lock().insert(key, now);
    }

    /// All that was noted since this was last asked.
    pub(crate) fn take(&self) -> Vec<(KeyId, Timestamp)> {
        std::mem::take(&mut *self.noted.lock()).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn admin_includes_everything_and_nothing_else_does() {
        for scope in KeyScope::ALL {
            assert!(Scopes::of(&[KeyScope::Admin]).has(scope));
            for other in KeyScope::ALL.into_iter().filter(|other| *other != KeyScope::Admin) {
                assert_eq!(Scopes::of(&[other]).has(scope), other == scope);
            }
        }
        assert!(!Scopes::of(&[]).has(KeyScope::Read));
    }

    #[test]
    fn a_bucket_belongs_to_one_caller() {
        let calls = Calls::new(Some(RateLimit::new(60, 2).unwrap()));
        let caller = |actor: &str| Caller { actor: actor.into(), ..Caller::administrator() };
        let at = Timestamp::from_millis(1_000_000);
        assert!(calls.take(&caller("a"), at).is_ok());
        assert!(calls.take(&caller("a"), at).is_ok());
        assert_eq!(calls.take(&caller("a"), at).unwrap_err().status(), 429);
        assert!(calls.take(&caller("b"), at).is_ok());
        assert!(calls.take(&caller("a"), at + Duration::from_secs(1)).is_ok());
    }

    #[test]
    fn only_a_bearer_token_is_a_key() {
        assert_eq!(bearer(b"Bearer abc"), Some(&b"abc"[..]));
        assert_eq!(bearer(b"bearer abc"), Some(&b"abc"[..]));
        for other in [&b""[..], b"Bearer", b"Bearer ", b"Basic abc", b"abc"] {
            assert_eq!(bearer(other), None);
        }
        assert_eq!(bearer(&[b"Bearer ".as_slice(), &[b'x'; 1025]].concat()), None);
    }
}
