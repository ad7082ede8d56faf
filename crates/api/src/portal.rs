//! `/v1/portal-links`: a way in for one tenant's people, for a short time.
//!
//! A token says itself whom it is for, what it allows and until when, under a seal that every node can check: nothing is
//! stored, so that a link can be made for every page view. In the link it stands behind a `#`, which browsers do not send
//! and proxies do not log.

use std::time::Duration;

use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use http::StatusCode;
use posthaste_core::id::TenantId;
use posthaste_core::time::Timestamp;
use posthaste_store::KeyScope;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::Sha256;
use utoipa::ToSchema;

use crate::call::{Call, answer, with_change};
use crate::credentials::Scopes;
use crate::problem::Problem;

pub(crate) const PREFIX: &str = "phl_";
const EXPIRES_IN_DEFAULT: Duration = Duration::from_hours(1);
/// A day's work; longer is what keys are for.
const EXPIRES_IN_SECONDS_MAX: u64 = 7 * 24 * 60 * 60;

/// What seals portal tokens; the same on every node.
#[derive(Clone)]
pub struct PortalKey(pub [u8; 32]);

impl std::fmt::Debug for PortalKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PortalKey(…)")
    }
}

/// What somebody may do who comes by a link.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a permission of its own")]
pub(crate) struct Permissions {
    pub(crate) view: bool,
    pub(crate) manage: bool,
    pub(crate) secrets: bool,
    pub(crate) replay: bool,
}

impl Permissions {
    /// Whoever may change or replay something may also see it.
    pub(crate) fn scopes(self) -> Scopes {
        let mut scopes = vec![KeyScope::Read];
        if self.manage {
            scopes.push(KeyScope::Manage);
        }
        if self.replay {
            scopes.push(KeyScope::Replay);
        }
        Scopes::of(&scopes)
    }

    fn bits(self) -> u8 {
        u8::from(self.view) | u8::from(self.manage) << 1 | u8::from(self.secrets) << 2 | u8::from(self.replay) << 3
    }

    fn from_bits(bits: u8) -> Permissions {
        let has = |place: u8| bits >> place & 1 == 1;
        Permissions { view: has(0), manage: has(1), secrets: has(2), replay: has(3) }
    }
}

/// What a token says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Token {
    pub(crate) tenant: TenantId,
    pub(crate) permissions: Permissions,
    pub(crate) expires_at: Timestamp,
    pub(crate) nonce: u64,
}

const SEAL_BYTES: usize = 32;
/// Expiry, permissions and nonce.
const HEAD_BYTES: usize = 8 + 1 + 8;

impl Token {
    pub(crate) fn write(&self, key: &PortalKey) -> String {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.tenant.as_str().len() + SEAL_BYTES);
        bytes.extend_from_slice(&self.expires_at.as_millis().to_be_bytes());
        bytes.push(self.permissions.bits());
        bytes.extend_from_slice(&self.nonce.to_be_bytes());
        bytes.extend_from_slice(self.tenant.as_str().as_bytes());
        let seal = seal(key, &bytes).finalize().into_bytes();
        bytes.extend_from_slice(&seal);
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }

    /// What stands behind the prefix, if it is ours and has not run out.
    pub(crate) fn read(key: &PortalKey, text: &[u8], now: Timestamp) -> Option<Token> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (content, shown) = bytes.split_at_checked(bytes.len().checked_sub(SEAL_BYTES)?)?;
        seal(key, content).verify_slice(shown).ok()?;
        let (expires_at, rest) = content.split_first_chunk::<8>()?;
        let (permissions, rest) = rest.split_first()?;
        let (nonce, tenant) = rest.split_first_chunk::<8>()?;
        let token = Token {
            tenant: TenantId::parse(std::str::from_utf8(tenant).ok()?).ok()?,
            permissions: Permissions::from_bits(*permissions),
            expires_at: Timestamp::from_millis(i64::from_be_bytes(*expires_at)),
            nonce: u64::from_be_bytes(*nonce),
        };
        (now < token.expires_at).then_some(token)
    }
}

fn seal(key: &PortalKey, content: &[u8]) -> Hmac<Sha256> {
    let mut seal = Hmac::<Sha256>::new_from_slice(&key.0).expect("HMAC takes keys of any length");
    // A seal for one purpose is none for another.
    seal.update(b"posthaste portal token 1");
    seal.update(content);
    seal
}

/// For whom, for what, and for how long.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewPortalLink {
    tenant: Option<String>,
    #[schema(min_items = 1)]
    permissions: Vec<Permission>,
    /// One hour unless said.
    #[schema(minimum = 1, maximum = 604_800)]
    expires_in_seconds: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Permission {
    View,
    Manage,
    Secrets,
    Replay,
}

// No `Debug`: the address carries a credential.
#[derive(Serialize, ToSchema)]
pub(crate) struct PortalLink {
    /// To be opened in a browser. The token stands behind the `#`.
    url: String,
    #[schema(format = DateTime)]
    expires_at: String,
}

pub(crate) async fn create(call: Call) -> Result<Response, Problem> {
    let (call, body) = call.body().await?;
    let new: NewPortalLink = body.parse()?;
    let tenant = call.caller.tenant_for(new.tenant.as_deref())?;
    if new.permissions.is_empty() {
        return Err(Problem::invalid("permissions", "at least one of view, manage, secrets, replay"));
    }
    let seconds = new.expires_in_seconds.unwrap_or(EXPIRES_IN_DEFAULT.as_secs());
    if !(1..=EXPIRES_IN_SECONDS_MAX).contains(&seconds) {
        return Err(Problem::invalid("expires_in_seconds", "1 to 604,800 (7 days)"));
    }
    if call.app.store.tenant(tenant.clone()).await?.is_none() {
        return Err(Problem::not_found());
    }
    let has = |wanted: Permission| new.permissions.contains(&wanted);
    let token = Token {
        permissions: Permissions {
            view: has(Permission::View),
            manage: has(Permission::Manage),
            secrets: has(Permission::Secrets),
            replay: has(Permission::Replay),
        },
        expires_at: call.app.store.now() + Duration::from_secs(seconds),
        nonce: rand::random(),
        tenant,
    };
    let expires_at = token.expires_at.to_rfc3339();
    // The token itself is a credential, and is written down nowhere.
    let granted = json!({"permissions": new.permissions, "expires_at": expires_at});
    let audit = call.audit("portal-link.create", &token.tenant, Some(&token.tenant));
    call.app.store.note(with_change(audit, None, Some(&granted))).await?;
    let url =
        format!("{}/portal#token={}", call.app.options.public_url.trim_end_matches('/'), token.write(&call.app.options.portal_key));
    Ok(answer(StatusCode::CREATED, &PortalLink { url, expires_at }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_back_and_cannot_be_changed() {
        let key = PortalKey([7; 32]);
        let token = Token {
            tenant: TenantId::parse("acme").unwrap(),
            permissions: Permissions { view: true, manage: false, secrets: true, replay: false },
            expires_at: Timestamp::from_millis(1000),
            nonce: 42,
        };
        let written = token.write(&key);
        let text = written.strip_prefix(PREFIX).unwrap().as_bytes();
        assert_eq!(Token::read(&key, text, Timestamp::from_millis(999)), Some(token));
        assert_eq!(Token::read(&key, text, Timestamp::from_millis(1000)), None, "it has run out");
        assert_eq!(Token::read(&PortalKey([8; 32]), text, Timestamp::from_millis(0)), None, "another server's");
        for at in 0..text.len() {
            let mut changed = text.to_vec();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(Token::read(&key, &changed, Timestamp::from_millis(0)), None, "changed at {at}");
        }
        for short in ["", "AAAA", "!"] {
            assert_eq!(Token::read(&key, short.as_bytes(), Timestamp::from_millis(0)), None);
        }
    }
}
