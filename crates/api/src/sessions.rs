//! `/v1/sessions`: an API key, exchanged for a cookie that a browser keeps.
//!
//! A session is a row that names its key: it ends with the key, on every node, after [`LIFETIME`] at the latest, and when it is
//! ended. The cookie holds a random token, of which only the hash is kept; it is invisible to scripts and is not sent by other
//! sites. A call that changes something by the power of a cookie also has to show the `Origin` of this server.

use std::time::Duration;

use axum::response::Response;
use http::header::{AUTHORIZATION, COOKIE, HOST, HeaderName, HeaderValue, ORIGIN, SET_COOKIE};
use http::{HeaderMap, StatusCode};
use posthaste_core::id::SessionId;
use posthaste_core::time::Timestamp;
use posthaste_store::{EndSessions, KeyScope, NewSession, SessionAccess, SessionMaker};
use serde::Serialize;
use utoipa::ToSchema;

use crate::App;
use crate::call::{Call, answer, no_content, ok};
use crate::credentials::{Caller, caller_of_hash, hash_of};
use crate::endpoints::refused;
use crate::portal::{self, Permission, secret};
use crate::portal_page::{self, Appearance};
use crate::problem::Problem;

/// A day's work.
const LIFETIME: Duration = Duration::from_hours(24);
/// Of the token in a cookie.
const TOKEN_PREFIX: &str = "phd_";
/// Browsers take a cookie with this prefix only if it is `Secure`, for this host and for all its paths.
const NAME_SECURE: &str = "__Host-posthaste-session";
const NAME_PLAIN: &str = "posthaste-session";
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Who is calling, by a cookie.
pub(crate) async fn identify(app: &App, headers: &HeaderMap) -> Result<Caller, Problem> {
    if portal_page::is_asked(headers) {
        return portal_page::identify(app, headers).await;
    }
    let token = shown(app, headers).filter(|token| token.starts_with(TOKEN_PREFIX)).ok_or_else(Problem::unauthorized)?;
    let session = app.store.session(hash_of(token.as_bytes())).await?.ok_or_else(Problem::unauthorized)?;
    let caller = match (&session.access, session.made_by, session.key) {
        (SessionAccess::Dashboard, SessionMaker::Admin(_), _) if app.admin_key.may_have_made(app, &session) => {
            app.admin_key.caller()
        }
        (SessionAccess::Dashboard, SessionMaker::Key(_), Some(hash)) => caller_of_hash(app, hash).await?,
        (SessionAccess::Dashboard | SessionAccess::Portal { .. }, _, _) => return Err(Problem::unauthorized()),
    };
    Ok(caller.with_session(session.id, session.expires_at))
}

/// The cookie's value.
fn shown<'a>(app: &App, headers: &'a HeaderMap) -> Option<&'a str> {
    cookie_value(headers.get_all(COOKIE).iter(), cookie_name(app))
}

/// The value of the first cookie of this name.
pub(crate) fn cookie_value<'a>(cookies: impl Iterator<Item = &'a HeaderValue>, name: &str) -> Option<&'a str> {
    let mut shown = cookies
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(shown, _)| *shown == name);
    shown.next().map(|(_, value)| value)
}

/// A call with a cookie that changes something has to come from our own pages.
pub(crate) fn check_origin(app: &App, headers: &HeaderMap) -> Result<(), Problem> {
    if headers.contains_key(AUTHORIZATION) || is_own_origin(&app.options.public_url, headers) {
        return Ok(());
    }
    Err(Problem::forbidden("A call with a session cookie that changes something needs an Origin header that names this server."))
}

fn is_own_origin(public_url: &str, headers: &HeaderMap) -> bool {
    if headers.get(SEC_FETCH_SITE).is_some_and(|site| site != "same-origin") {
        return false;
    }
    let mut origins = headers.get_all(ORIGIN).iter();
    let (Some(origin), None) = (origins.next(), origins.next()) else { return false };
    let Ok(origin) = origin.to_str() else { return false };
    if origin == origin_of(public_url) {
        return true;
    }
    // Opened under another name of this server. A browser sends its cookie only to the name that it got it from.
    let authority = origin.split_once("://").map(|(_, authority)| authority);
    authority.is_some() && authority == headers.get(HOST).and_then(|host| host.to_str().ok())
}

/// Scheme and authority of an address.
fn origin_of(url: &str) -> &str {
    let authority_at = url.find("://").map_or(0, |at| at + 3);
    let end = url[authority_at..].find('/').map_or(url.len(), |at| authority_at + at);
    &url[..end]
}

pub(crate) fn is_secure(app: &App) -> bool {
    app.options.public_url.starts_with("https://")
}

fn cookie_name(app: &App) -> &'static str {
    if is_secure(app) { NAME_SECURE } else { NAME_PLAIN }
}

fn cookie(app: &App, value: &str, lifetime: Duration) -> HeaderValue {
    let secure = if is_secure(app) { "; Secure" } else { "" };
    let name = cookie_name(app);
    let text = format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}{secure}", lifetime.as_secs());
    HeaderValue::from_str(&text).expect("visible ASCII")
}

/// Who is logged in, and what they may do.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Session)]
pub(crate) struct SessionView {
    /// As the audit log names the caller.
    actor: String,
    /// `null`: all tenants.
    tenant: Option<String>,
    #[schema(value_type = Vec<String>)]
    scopes: Vec<&'static str>,
    /// Of a session of the portal.
    #[serde(skip_serializing_if = "Option::is_none")]
    permissions: Option<Vec<Permission>>,
    /// Of a session of the portal whose link says how it looks.
    #[serde(skip_serializing_if = "Option::is_none")]
    appearance: Option<Appearance>,
    /// `null` where the call was made with a key.
    #[schema(format = DateTime)]
    expires_at: Option<String>,
}

fn view(caller: &Caller, expires_at: Option<Timestamp>) -> SessionView {
    SessionView {
        actor: caller.actor.to_string(),
        tenant: caller.tenant.as_ref().map(|tenant| tenant.as_str().to_owned()),
        scopes: KeyScope::ALL.into_iter().filter(|scope| caller.has(*scope)).map(KeyScope::name).collect(),
        permissions: caller.permissions.map(portal::shown),
        appearance: caller.appearance.as_deref().cloned(),
        expires_at: expires_at.map(Timestamp::to_rfc3339),
    }
}

pub(crate) async fn create(call: Call) -> Result<Response, Problem> {
    let call = call.without_body().await?;
    let app = &call.app;
    let made_by = call.caller.session_maker(app).filter(|_| call.caller.session.is_none()).ok_or_else(|| {
        Problem::forbidden("A session is made with an API key in the Authorization header, not with a cookie or a portal token.")
    })?;
    let now = app.store.now();
    let token = secret(TOKEN_PREFIX);
    let session = NewSession {
        id: SessionId::from_unique(app.store.unique()),
        hash: hash_of(token.as_bytes()),
        access: SessionAccess::Dashboard,
        made_by,
        created_at: now,
        expires_at: now + LIFETIME,
        code_expires_at: None,
    };
    let expires_at = session.expires_at;
    let audit = call.audit("session.create", &call.caller.actor, call.caller.tenant.as_ref());
    app.store.create_session(session, audit).await?.map_err(refused)?;
    let mut response = answer(StatusCode::CREATED, &view(&call.caller, Some(expires_at)));
    response.headers_mut().insert(SET_COOKIE, cookie(app, &token, LIFETIME));
    Ok(response)
}

pub(crate) async fn read(call: Call) -> Result<Response, Problem> {
    Ok(ok(&view(&call.caller, call.caller.session.map(|(_, expires_at)| expires_at))))
}

/// Ends the session that the call is made with, wherever a copy of its token may be.
pub(crate) async fn end(call: Call) -> Result<Response, Problem> {
    if let Some((id, _)) = call.caller.session {
        let audit = call.audit("session.end", &id, call.caller.tenant.as_ref());
        call.app.store.end_sessions(EndSessions::One(id), audit).await?;
    }
    let mut response = no_content();
    let ended = if portal_page::is_asked(&call.parts.headers) { portal_page::cookie } else { cookie };
    response.headers_mut().insert(SET_COOKIE, ended(&call.app, "", Duration::ZERO));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_this_server_by_its_public_url_or_by_the_name_that_was_called() {
        let headers = |pairs: &[(HeaderName, &'static str)]| {
            pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect::<HeaderMap>()
        };
        for (pairs, is_own) in [
            (&[(ORIGIN, "https://hooks.example.com")][..], true),
            (&[(ORIGIN, "http://localhost:8080"), (HOST, "localhost:8080")], true),
            (&[(ORIGIN, "https://evil.example"), (HOST, "hooks.example.com")], false),
            (&[(ORIGIN, "null"), (HOST, "hooks.example.com")], false),
            (&[(ORIGIN, "https://hooks.example.com"), (SEC_FETCH_SITE, "cross-site")], false),
            (&[(ORIGIN, "https://hooks.example.com"), (SEC_FETCH_SITE, "same-origin")], true),
            (&[(HOST, "hooks.example.com")], false),
        ] {
            assert_eq!(is_own_origin("https://hooks.example.com/base", &headers(pairs)), is_own, "{pairs:?}");
        }
    }
}
