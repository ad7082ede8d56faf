//! What the portal's pages and programs in other origins' pages need: the cookie of a portal session, who may frame the portal,
//! and who may call the API from a page of their own.
//!
//! The origins in [`Options::portal_origins`](crate::Options::portal_origins) are the operator's own applications. Nobody else's
//! page frames the portal, and nobody else's reads what the API answers.

use std::time::Duration;

use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS,
    ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION, CONTENT_SECURITY_POLICY, COOKIE, HeaderName, HeaderValue,
    ORIGIN, VARY, X_FRAME_OPTIONS,
};
use http::{HeaderMap, Method, StatusCode};
use posthaste_store::{SessionAccess, StoredSession};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use utoipa::ToSchema;

use crate::App;
use crate::credentials::{Caller, hash_of};
use crate::portal::TOKEN_PREFIX;
use crate::problem::Problem;
use crate::sessions::{cookie_value, is_secure};

/// Names the cookie that a call is made with: pages of the portal send `portal`, those of the dashboard nothing. A browser may
/// have both.
pub(crate) const SESSION_KIND: HeaderName = HeaderName::from_static("posthaste-session");
const NAME_SECURE: &str = "__Host-posthaste-portal";
const NAME_PLAIN: &str = "posthaste-portal";
/// The portal's own pages begin with this.
pub(crate) const PATH: &str = "/portal";
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE");
const HEADERS: HeaderValue = HeaderValue::from_static("authorization, content-type, if-match, idempotency-key, last-event-id");
const EXPOSED: HeaderValue = HeaderValue::from_static("etag, retry-after, x-request-id, posthaste-effective-by");
/// An hour: browsers ask again after that.
const PREFLIGHT_SECONDS: HeaderValue = HeaderValue::from_static("3600");

/// How the portal looks to the people who open a link.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Appearance {
    /// The operator's name, shown instead of Posthaste's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 80)]
    name: Option<String>,
    /// An image from one of the origins in the setting `portal_origins`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 2048)]
    logo_url: Option<String>,
    /// Of buttons and links, such as `#3451d1`. Text on it stays readable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^#[0-9A-Fa-f]{6}$")]
    primary_color: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    theme: Option<Theme>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    font: Option<Font>,
}

/// `auto` follows the reader's system.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = PortalTheme)]
enum Theme {
    Auto,
    Light,
    Dark,
}

/// Fonts that readers have: none is downloaded.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = PortalFont)]
enum Font {
    Sans,
    Serif,
    Rounded,
    Monospace,
}

const NAME_CHARS_MAX: usize = 80;
const LOGO_BYTES_MAX: usize = 2048;

impl Appearance {
    pub(crate) fn check(&self, origins: &[String]) -> Result<(), Problem> {
        if let Some(name) = &self.name {
            let is_fine = (1..=NAME_CHARS_MAX).contains(&name.chars().count()) && !name.chars().any(char::is_control);
            if !is_fine {
                return Err(Problem::invalid("appearance.name", "1 to 80 characters, none of them a control character"));
            }
        }
        if let Some(color) = &self.primary_color {
            let is_fine = color.len() == 7
                && color.strip_prefix('#').is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
            if !is_fine {
                return Err(Problem::invalid("appearance.primary_color", "`#` and six hexadecimal digits"));
            }
        }
        if let Some(logo) = &self.logo_url {
            let is_plain = logo.len() <= LOGO_BYTES_MAX && logo.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
            let is_ours = origins.iter().any(|origin| logo.strip_prefix(origin.as_str()).is_some_and(|path| path.starts_with('/')));
            if !is_plain || !is_ours {
                return Err(Problem::invalid(
                    "appearance.logo_url",
                    "an address below one of the origins in the server's setting portal_origins",
                ));
            }
        }
        Ok(())
    }

    pub(crate) fn write(&self) -> String {
        serde_json::to_string(self).expect("texts")
    }

    /// What a session was made with. One that is not readable any more looks like the server's own pages.
    pub(crate) fn of(session: &StoredSession) -> Option<Appearance> {
        let SessionAccess::Portal { appearance: Some(text), .. } = &session.access else { return None };
        serde_json::from_str(text).ok()
    }
}

/// The token of the session that a code begins. It follows from the code and a key of ours, so that a used code, shown again with
/// the cookie of its own session, is known; the code alone tells nobody the token.
pub(crate) fn token_of(app: &App, code: &str) -> String {
    let mut digest = Hmac::<Sha256>::new_from_slice(&app.options.sealing_key.0).expect("HMAC takes keys of any length");
    digest.update(b"posthaste token of a portal session 1");
    digest.update(code.as_bytes());
    format!("{TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(digest.finalize().into_bytes()))
}

/// Whether a call is to be made with the cookie of the portal.
pub(crate) fn is_asked(headers: &HeaderMap) -> bool {
    headers.get(SESSION_KIND).is_some_and(|kind| kind == "portal")
}

/// Who is calling, by the cookie of a portal session.
pub(crate) async fn identify(app: &App, headers: &HeaderMap) -> Result<Caller, Problem> {
    let token = cookie_of(app, headers).ok_or_else(Problem::unauthorized)?;
    let session = session_of(app, token).await?.ok_or_else(Problem::unauthorized)?;
    Caller::of_portal(&session).ok_or_else(Problem::unauthorized)
}

/// The session that a token stands for, unless it is over.
pub(crate) async fn session_of(app: &App, token: &str) -> Result<Option<StoredSession>, Problem> {
    let session = app.store.session(hash_of(token.as_bytes())).await?;
    Ok(session.filter(|session| app.admin_key.may_have_made(app, session)))
}

pub(crate) fn cookie_of<'a>(app: &App, headers: &'a HeaderMap) -> Option<&'a str> {
    let name = if is_secure(app) { NAME_SECURE } else { NAME_PLAIN };
    cookie_value(headers.get_all(COOKIE).iter(), name).filter(|token| token.starts_with(TOKEN_PREFIX))
}

/// A cookie that scripts cannot read. Where the portal may be framed, other sites' pages send it, each in a jar of its own; calls
/// that change something need our own `Origin` all the same.
pub(crate) fn cookie(app: &App, value: &str, lifetime: Duration) -> HeaderValue {
    let is_framed = !app.options.portal_origins.is_empty();
    let (name, site) = match (is_secure(app), is_framed) {
        (true, true) => (NAME_SECURE, "None; Secure; Partitioned"),
        (true, false) => (NAME_SECURE, "Strict; Secure"),
        (false, _) => (NAME_PLAIN, "Strict"),
    };
    let text = format!("{name}={value}; Path=/; HttpOnly; Max-Age={}; SameSite={site}", lifetime.as_secs());
    HeaderValue::from_str(&text).expect("visible ASCII")
}

/// What browsers are told of the portal's pages: who may frame them, and where its logo may come from.
pub(crate) fn frame_page(app: &App, response: &mut Response) {
    let origins = app.options.portal_origins.join(" ");
    let headers = response.headers_mut();
    let Some(policy) = headers.get(CONTENT_SECURITY_POLICY).and_then(|policy| policy.to_str().ok()) else { return };
    if origins.is_empty() {
        return;
    }
    let policy = policy
        .replace("frame-ancestors 'none'", &format!("frame-ancestors {origins}"))
        .replace("img-src 'self' data:", &format!("img-src 'self' data: {origins}"));
    // Older than the policy, and without a way to name origins.
    headers.remove(X_FRAME_OPTIONS);
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_str(&policy).expect("origins are visible ASCII"));
}

/// The origin of a page that may call the API with a portal token.
fn allowed_origin(app: &App, headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(ORIGIN)?;
    app.options.portal_origins.iter().any(|allowed| allowed.as_bytes() == origin.as_bytes()).then(|| origin.clone())
}

/// Answers a browser that asks what a page may call.
pub(crate) fn preflight(app: &App, method: &Method, path: &str, headers: &HeaderMap) -> Option<Response> {
    if method != Method::OPTIONS || !path.starts_with("/v1/") || !headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
        return None;
    }
    let origin = allowed_origin(app, headers)?;
    let mut response = Response::default();
    *response.status_mut() = StatusCode::NO_CONTENT;
    let answered = response.headers_mut();
    answered.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    answered.insert(VARY, HeaderValue::from_static("origin"));
    answered.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    answered.insert(ACCESS_CONTROL_ALLOW_HEADERS, HEADERS);
    answered.insert(ACCESS_CONTROL_MAX_AGE, PREFLIGHT_SECONDS);
    Some(response)
}

/// The origin that may read the answer: of a call with a portal token, or of the exchange of a code. Cookies are never meant.
pub(crate) fn reader(app: &App, path: &str, headers: &HeaderMap) -> Option<HeaderValue> {
    let prefix = format!("bearer {TOKEN_PREFIX}");
    let has_token = headers.get(AUTHORIZATION).is_some_and(|value| {
        value.as_bytes().get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix.as_bytes()))
    });
    if has_token || path == "/v1/portal-sessions" { allowed_origin(app, headers) } else { None }
}

pub(crate) fn let_read(response: &mut Response, origin: HeaderValue) {
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(VARY, HeaderValue::from_static("origin"));
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
}
