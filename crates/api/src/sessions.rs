//! `/v1/sessions`: an API key, exchanged for a cookie that a browser keeps.
//!
//! A session is sealed, not stored, like a portal token: it names its key by the key's hash, so that it ends with the key, on
//! every node, and after [`LIFETIME`] at the latest. The cookie is invisible to scripts and is not sent by other sites. A call
//! that changes something by the power of a cookie also has to show the `Origin` of this server.

use std::time::Duration;

use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use http::header::{AUTHORIZATION, COOKIE, HOST, HeaderName, HeaderValue, ORIGIN, SET_COOKIE};
use http::{HeaderMap, StatusCode};
use posthaste_core::time::Timestamp;
use posthaste_store::{KeyHash, KeyScope};
use serde::Serialize;
use sha2::Sha256;
use subtle::ConstantTimeEq;
use utoipa::ToSchema;

use crate::App;
use crate::call::{Call, answer, no_content, ok};
use crate::credentials::{Caller, caller_of_hash, hash_shown};
use crate::portal::PortalKey;
use crate::problem::Problem;

/// A day's work.
const LIFETIME: Duration = Duration::from_hours(24);
/// Browsers take a cookie with this prefix only if it is `Secure`, for this host and for all its paths.
const NAME_SECURE: &str = "__Host-posthaste-session";
const NAME_PLAIN: &str = "posthaste-session";
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Which key a session belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holder {
    /// The operator's first key, by a digest that needs our own key: the operator may have chosen it, so that its plain hash
    /// could be guessed.
    Admin([u8; 32]),
    /// One that we have made, by its hash.
    Key([u8; 32]),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Session {
    holder: Holder,
    expires_at: Timestamp,
}

const SEAL_BYTES: usize = 32;

impl Session {
    fn write(&self, key: &PortalKey) -> String {
        let (kind, digest) = match &self.holder {
            Holder::Admin(digest) => (0, digest),
            Holder::Key(digest) => (1, digest),
        };
        let mut bytes = vec![kind];
        bytes.extend_from_slice(digest);
        bytes.extend_from_slice(&self.expires_at.as_millis().to_be_bytes());
        let seal = sealing(key, b"posthaste session 1", &bytes).finalize().into_bytes();
        bytes.extend_from_slice(&seal);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// What a cookie says, if it is ours and has not run out.
    fn read(key: &PortalKey, text: &str, now: Timestamp) -> Option<Session> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (content, shown) = bytes.split_at_checked(bytes.len().checked_sub(SEAL_BYTES)?)?;
        sealing(key, b"posthaste session 1", content).verify_slice(shown).ok()?;
        let (kind, rest) = content.split_first()?;
        let (digest, rest) = rest.split_first_chunk::<32>()?;
        let (expires_at, []) = rest.split_first_chunk::<8>()? else { return None };
        let holder = match kind {
            0 => Holder::Admin(*digest),
            1 => Holder::Key(*digest),
            _ => return None,
        };
        let session = Session { holder, expires_at: Timestamp::from_millis(i64::from_be_bytes(*expires_at)) };
        (now < session.expires_at).then_some(session)
    }
}

fn sealing(key: &PortalKey, purpose: &[u8], content: &[u8]) -> Hmac<Sha256> {
    let mut seal = Hmac::<Sha256>::new_from_slice(&key.0).expect("HMAC takes keys of any length");
    // A seal for one purpose is none for another.
    seal.update(purpose);
    seal.update(content);
    seal
}

fn admin_digest(key: &PortalKey, hash: &KeyHash) -> [u8; 32] {
    sealing(key, b"posthaste session of the admin key 1", &hash.0).finalize().into_bytes().into()
}

/// Who is calling, by a cookie.
pub(crate) async fn identify(app: &App, headers: &HeaderMap) -> Result<Caller, Problem> {
    let session = present(app, headers).ok_or_else(Problem::unauthorized)?;
    match session.holder {
        Holder::Admin(digest) => {
            let expected = admin_digest(&app.options.portal_key, app.admin_key.hash());
            let is_same: bool = expected.ct_eq(&digest).into();
            if is_same { Ok(app.admin_key.caller()) } else { Err(Problem::unauthorized()) }
        }
        Holder::Key(hash) => caller_of_hash(app, KeyHash(hash)).await,
    }
}

fn present(app: &App, headers: &HeaderMap) -> Option<Session> {
    let name = cookie_name(app);
    let mut shown = headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(shown, _)| *shown == name);
    let (_, value) = shown.next()?;
    Session::read(&app.options.portal_key, value, app.store.now())
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

fn is_secure(app: &App) -> bool {
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
    /// `null` where the call was made with a key.
    #[schema(format = DateTime)]
    expires_at: Option<String>,
}

fn view(caller: &Caller, expires_at: Option<Timestamp>) -> SessionView {
    SessionView {
        actor: caller.actor.to_string(),
        tenant: caller.tenant.as_ref().map(|tenant| tenant.as_str().to_owned()),
        scopes: KeyScope::ALL.into_iter().filter(|scope| caller.has(*scope)).map(KeyScope::name).collect(),
        expires_at: expires_at.map(Timestamp::to_rfc3339),
    }
}

pub(crate) async fn create(call: Call) -> Result<Response, Problem> {
    let call = call.without_body().await?;
    let app = &call.app;
    let key = hash_shown(&call.parts.headers).ok_or_else(|| {
        Problem::forbidden("A session is made with an API key in the Authorization header, not with a cookie or a portal token.")
    })?;
    let holder =
        if app.admin_key.is(&key) { Holder::Admin(admin_digest(&app.options.portal_key, &key)) } else { Holder::Key(key.0) };
    let session = Session { holder, expires_at: app.store.now() + LIFETIME };
    app.store.note(call.audit("session.create", &call.caller.actor, call.caller.tenant.as_ref())).await?;
    let mut response = answer(StatusCode::CREATED, &view(&call.caller, Some(session.expires_at)));
    let cookie = cookie(app, &session.write(&app.options.portal_key), LIFETIME);
    response.headers_mut().insert(SET_COOKIE, cookie);
    Ok(response)
}

pub(crate) async fn read(call: Call) -> Result<Response, Problem> {
    let headers = &call.parts.headers;
    let session = if headers.contains_key(AUTHORIZATION) { None } else { present(&call.app, headers) };
    Ok(ok(&view(&call.caller, session.map(|session| session.expires_at))))
}

pub(crate) async fn end(call: Call) -> Result<Response, Problem> {
    let mut response = no_content();
    response.headers_mut().insert(SET_COOKIE, cookie(&call.app, "", Duration::ZERO));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_read_back_and_cannot_be_changed() {
        let key = PortalKey([7; 32]);
        let session = Session { holder: Holder::Key([9; 32]), expires_at: Timestamp::from_millis(1000) };
        let text = session.write(&key);
        assert_eq!(Session::read(&key, &text, Timestamp::from_millis(999)), Some(session));
        assert_eq!(Session::read(&key, &text, Timestamp::from_millis(1000)), None, "it has run out");
        assert_eq!(Session::read(&PortalKey([8; 32]), &text, Timestamp::from_millis(0)), None, "another server's");
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("ASCII");
            assert_eq!(Session::read(&key, &changed, Timestamp::from_millis(0)), None, "changed at {at}");
        }
    }

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
