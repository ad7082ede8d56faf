//! `/v1/portal-links` and `/v1/portal-sessions`: a way in for one tenant's people, for a short time.
//!
//! A link carries a code that is good for five minutes and for one use. It stands behind a `#`, which browsers do not send and
//! proxies do not log. The portal exchanges it for a token, which is a credential of this API for that tenant alone. Both are
//! kept as their hashes. A session ends with its time, with its tenant, with the key that made its link, or when it is ended.

use std::time::Duration;

use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use http::header::SET_COOKIE;
use posthaste_core::id::{KeyId, SessionId};
use posthaste_core::time::Timestamp;
use posthaste_store::{
    EndSessions, KeyScope, NewSession, PortalPermissions, SessionAccess, SessionMaker, SessionQuery, StoredSession,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use crate::call::{Call, Rows, answer, no_content, with_change};
use crate::credentials::{Scopes, hash_of};
use crate::endpoints::refused;
use crate::portal_page::{self, Appearance, cookie_of, session_of, token_of};
use crate::problem::Problem;
use crate::query::KEY;
use crate::sessions::check_origin;

/// Of the token of a session.
pub(crate) const TOKEN_PREFIX: &str = "phs_";
const CODE_PREFIX: &str = "phc_";
const LIST: &str = "portal-sessions";
const EXPIRES_IN_DEFAULT: Duration = Duration::from_hours(1);
/// A day's work; longer is what keys are for.
const EXPIRES_IN_SECONDS_MAX: u64 = 7 * 24 * 60 * 60;
/// Enough to open a link, and too short for one that lies in a log or a history.
const CODE_LIFETIME: Duration = Duration::from_mins(5);
/// How the operator's first key is named, which has no id.
const ADMIN_KEY_NAME: &str = "admin";

/// Whoever may change or replay something may also see it.
pub(crate) fn scopes(permissions: PortalPermissions) -> Scopes {
    let mut scopes = vec![KeyScope::Read];
    if permissions.manage {
        scopes.push(KeyScope::Manage);
    }
    if permissions.replay {
        scopes.push(KeyScope::Replay);
    }
    Scopes::of(&scopes)
}

/// For whom, for what, and for how long.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewPortalLink {
    tenant: Option<String>,
    #[schema(min_items = 1)]
    permissions: Vec<Permission>,
    /// How long the session lasts, from now on. One hour unless said.
    #[schema(minimum = 1, maximum = 604_800)]
    expires_in_seconds: Option<u64>,
    /// How the portal looks to whoever opens the link.
    appearance: Option<Appearance>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Permission {
    View,
    Manage,
    Secrets,
    Replay,
}

pub(crate) fn shown(permissions: PortalPermissions) -> Vec<Permission> {
    let PortalPermissions { view, manage, secrets, replay } = permissions;
    let all =
        [(Permission::View, view), (Permission::Manage, manage), (Permission::Secrets, secrets), (Permission::Replay, replay)];
    all.into_iter().filter(|(_, is_granted)| *is_granted).map(|(permission, _)| permission).collect()
}

// No `Debug`: the address carries a credential.
#[derive(Serialize, ToSchema)]
pub(crate) struct PortalLink {
    /// To be opened in a browser. The code stands behind the `#`, and is good for one use.
    url: String,
    /// When the session ends that the link begins.
    #[schema(format = DateTime)]
    expires_at: String,
    /// By when the link has to be opened.
    #[schema(format = DateTime)]
    code_expires_at: String,
    /// By which the link, and then its session, can be ended.
    session: String,
}

pub(crate) async fn create(call: Call) -> Result<Response, Problem> {
    let (call, body) = call.body().await?;
    let new: NewPortalLink = body.parse()?;
    let tenant = call.caller.ordinary_tenant_for(&call.app, new.tenant.as_deref())?;
    if new.permissions.is_empty() {
        return Err(Problem::invalid("permissions", "at least one of view, manage, secrets, replay"));
    }
    let seconds = new.expires_in_seconds.unwrap_or(EXPIRES_IN_DEFAULT.as_secs());
    if !(1..=EXPIRES_IN_SECONDS_MAX).contains(&seconds) {
        return Err(Problem::invalid("expires_in_seconds", "1 to 604,800 (7 days)"));
    }
    if let Some(appearance) = &new.appearance {
        appearance.check(&call.app.options.portal_origins)?;
    }
    let made_by = call
        .caller
        .session_maker(&call.app)
        .ok_or_else(|| Problem::forbidden("A portal link is made with an API key, or in the dashboard."))?;
    let stored = call.app.store.tenant(tenant.clone()).await?.ok_or_else(Problem::not_found)?;
    let has = |wanted: Permission| new.permissions.contains(&wanted);
    let now = call.app.store.now();
    let code = secret(CODE_PREFIX);
    let expires_at = now + Duration::from_secs(seconds);
    let code_expires_at = (now + CODE_LIFETIME).min(expires_at);
    let session = NewSession {
        id: SessionId::from_unique(call.app.store.unique()),
        hash: hash_of(code.as_bytes()),
        access: SessionAccess::Portal {
            tenant: tenant.clone(),
            tenant_created_at: stored.created_at,
            permissions: PortalPermissions {
                view: has(Permission::View),
                manage: has(Permission::Manage),
                secrets: has(Permission::Secrets),
                replay: has(Permission::Replay),
            },
            appearance: new.appearance.as_ref().map(Appearance::write),
        },
        made_by,
        created_at: now,
        expires_at,
        code_expires_at: Some(code_expires_at),
    };
    let id = session.id.to_string();
    // The code itself is a credential, and is written down nowhere.
    let granted = json!({"session": id, "permissions": new.permissions, "expires_at": expires_at.to_rfc3339()});
    let audit = with_change(call.audit("portal-link.create", &tenant, Some(&tenant)), None, Some(&granted));
    call.app.store.create_session(session, audit).await?.map_err(refused)?;
    let url = format!("{}/portal#code={code}", call.app.options.public_url.trim_end_matches('/'));
    let link = PortalLink { url, expires_at: expires_at.to_rfc3339(), code_expires_at: code_expires_at.to_rfc3339(), session: id };
    Ok(answer(StatusCode::CREATED, &link))
}

/// A credential that nobody can guess.
pub(crate) fn secret(prefix: &str) -> String {
    format!("{prefix}{}", URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>()))
}

/// The code of a link.
// No `Debug`: it is a credential.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PortalCode {
    code: String,
    /// Keep the token in a cookie that scripts cannot read, as the portal's own pages do, instead of answering it.
    #[serde(default)]
    cookie: bool,
}

// No `Debug`: it carries a credential.
#[derive(Serialize, ToSchema)]
pub(crate) struct StartedPortalSession {
    id: String,
    /// A credential of this API, for the `Authorization` header; not where it is in a cookie.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    tenant: String,
    permissions: Vec<Permission>,
    #[schema(format = DateTime)]
    expires_at: String,
}

/// Exchanges a code for a session. Whoever shows a code needs no other credential.
pub(crate) async fn start(call: Call) -> Result<Response, Problem> {
    let (call, body) = call.body().await?;
    let given: PortalCode = body.parse()?;
    if given.cookie {
        // Whoever could set the cookie of a stranger's browser would show their own tenant to its reader.
        check_origin(&call.app, &call.parts.headers)?;
    }
    let token = token_of(&call.app, &given.code);
    let audit = call.audit("portal-session.start", &"", None);
    let (code, hash) = (hash_of(given.code.as_bytes()), hash_of(token.as_bytes()));
    let mut started = call.app.store.start_session(code, hash, audit).await?;
    if started.is_none() && given.cookie && cookie_of(&call.app, &call.parts.headers) == Some(token.as_str()) {
        // A used link that is opened again where its session lives goes on.
        started = session_of(&call.app, &token).await?;
    }
    // One that was made with a first key that has been replaced since is as good as revoked.
    let started = started.filter(|session| call.app.admin_key.may_have_made(&call.app, session));
    let Some(StoredSession { id, access: SessionAccess::Portal { tenant, permissions, .. }, expires_at, .. }) = started else {
        return Err(call.app.failures.refuse(call.address(), call.app.store.now(), code_refused()));
    };
    let lifetime = expires_at.since(call.app.store.now());
    let set_cookie = given.cookie.then(|| portal_page::cookie(&call.app, &token, lifetime));
    let session = StartedPortalSession {
        id: id.to_string(),
        token: (!given.cookie).then_some(token),
        tenant: tenant.to_string(),
        permissions: shown(permissions),
        expires_at: expires_at.to_rfc3339(),
    };
    let mut response = answer(StatusCode::CREATED, &session);
    if let Some(cookie) = set_cookie {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    Ok(response)
}

fn code_refused() -> Problem {
    Problem::unauthorized()
        .saying("The code is not valid: it was used before, is older than five minutes, or was revoked. Ask for a new link.")
}

/// A session of the portal, or a link that has not been used yet.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PortalSession)]
pub(crate) struct PortalSessionView {
    id: String,
    tenant: String,
    permissions: Vec<Permission>,
    /// The id of the key that made its link; `admin` for the operator's first key.
    key: String,
    #[schema(format = DateTime)]
    created_at: String,
    /// When the link was used; `null` for one that has not been.
    #[schema(format = DateTime)]
    started_at: Option<String>,
    #[schema(format = DateTime)]
    expires_at: String,
}

fn view(session: &StoredSession) -> Option<PortalSessionView> {
    let SessionAccess::Portal { tenant, permissions, .. } = &session.access else { return None };
    Some(PortalSessionView {
        id: session.id.to_string(),
        tenant: tenant.to_string(),
        permissions: shown(*permissions),
        key: match session.made_by {
            SessionMaker::Admin(_) => ADMIN_KEY_NAME.to_owned(),
            SessionMaker::Key(key) => key.to_string(),
        },
        created_at: session.created_at.to_rfc3339(),
        started_at: session.started_at.map(Timestamp::to_rfc3339),
        expires_at: session.expires_at.to_rfc3339(),
    })
}

/// The key that the query names.
fn named_key(call: &Call) -> Result<Option<SessionMaker>, Problem> {
    let Some(text) = call.query.text(&KEY) else { return Ok(None) };
    if text == ADMIN_KEY_NAME {
        return Ok(Some(call.app.admin_key.session_maker(&call.app)));
    }
    let key = KeyId::parse(text).map_err(|error| Problem::invalid(KEY.name, error))?;
    Ok(Some(SessionMaker::Key(key)))
}

pub(crate) async fn list(call: Call) -> Result<Response, Problem> {
    let limit = call.query.limit()?;
    let before = call.cursor(LIST, |position| SessionId::parse(position).ok())?;
    let made_by = named_key(&call)?;
    let Ok(tenant) = call.caller.narrowed_to(call.query.tenant()?) else {
        return Ok(call.list(LIST, Rows::<PortalSessionView>::none()));
    };
    let query = SessionQuery { tenant, made_by, before, limit: limit + 1 };
    let mut rows = call.app.store.sessions(query).await?;
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| has_more).map(|session| session.id.to_string());
    Ok(call.list(LIST, Rows::new(rows.iter().filter_map(view).collect(), next)))
}

pub(crate) async fn end(call: Call) -> Result<Response, Problem> {
    let id = SessionId::parse(&call.name).map_err(|_| Problem::not_found())?;
    let tenant = call.caller.tenant.clone();
    let audit = call.audit("portal-session.end", &id, tenant.as_ref());
    match call.app.store.end_sessions(EndSessions::Portal { id, tenant }, audit).await? {
        0 => Err(Problem::not_found()),
        _ => Ok(no_content()),
    }
}

/// All of a tenant, all made by a key, or both. That there were none is fine: it may be repeated.
pub(crate) async fn end_many(call: Call) -> Result<Response, Problem> {
    let (named, key) = (call.query.tenant()?, named_key(&call)?);
    if named.is_none() && key.is_none() {
        return Err(Problem::invalid("tenant", "name a tenant or a key whose sessions are to be ended"));
    }
    let Ok(tenant) = call.caller.narrowed_to(named) else { return Ok(no_content()) };
    let which = match (tenant, key) {
        (Some(tenant), None) => EndSessions::OfTenant(tenant),
        (tenant, Some(key)) => EndSessions::MadeBy { key, tenant },
        (None, None) => return Err(Problem::invalid("tenant", "name a tenant or a key whose sessions are to be ended")),
    };
    let subject = call.query.text(&KEY).map(str::to_owned).or(call.query.tenant()?.map(|tenant| tenant.to_string()));
    let tenant = call.caller.narrowed_to(call.query.tenant()?).ok().flatten();
    let audit = call.audit("portal-session.end-all", &subject.unwrap_or_default(), tenant.as_ref());
    call.app.store.end_sessions(which, audit).await?;
    Ok(no_content())
}
