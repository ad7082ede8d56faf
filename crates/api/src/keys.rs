//! `/v1/keys`: who may do what. A key is shown once and kept only as its hash.

use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use posthaste_core::id::{KeyId, TenantId};
use posthaste_core::time::Timestamp;
use posthaste_store::{Change, Key, KeyScope};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::call::{Call, Rows, answer, no_content, with_change};
use crate::credentials::hash_of;
use crate::endpoints::refused;
use crate::problem::Problem;

const LIST: &str = "keys";
const PREFIX: &str = "phk_";
const NAME_CHARACTERS_MAX: usize = 128;

#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NewKey)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewKeyBody {
    /// What it is for.
    #[schema(min_length = 1, max_length = 128)]
    name: String,
    /// Left out, it is for all tenants; made by a key that is bound to one, for that one.
    tenant: Option<String>,
    #[schema(min_items = 1)]
    scopes: Vec<ScopeName>,
    #[schema(format = DateTime)]
    expires_at: Option<String>,
}

/// `admin` includes all others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Scope)]
#[serde(rename_all = "snake_case")]
enum ScopeName {
    Publish,
    Read,
    Manage,
    Replay,
    Admin,
}

impl ScopeName {
    fn scope(self) -> KeyScope {
        match self {
            ScopeName::Publish => KeyScope::Publish,
            ScopeName::Read => KeyScope::Read,
            ScopeName::Manage => KeyScope::Manage,
            ScopeName::Replay => KeyScope::Replay,
            ScopeName::Admin => KeyScope::Admin,
        }
    }
}

// No `Debug`: it carries a key once.
#[derive(Serialize, ToSchema)]
#[schema(as = Key)]
pub(crate) struct KeyView {
    id: String,
    name: String,
    tenant: Option<String>,
    #[schema(value_type = Vec<String>)]
    scopes: Vec<&'static str>,
    #[schema(format = DateTime)]
    created_at: String,
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    #[schema(format = DateTime)]
    revoked_at: Option<String>,
    #[schema(format = DateTime)]
    last_used_at: Option<String>,
    /// Shown once, in the answer to its creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

pub(crate) async fn create(call: Call) -> Result<Response, Problem> {
    let (call, body) = call.body().await?;
    let given: NewKeyBody = body.parse()?;
    let tenant = match (&given.tenant, &call.caller.tenant) {
        (None, own) => own.clone(),
        (Some(named), _) => Some(call.caller.ordinary_tenant_for(&call.app, Some(named))?),
    };
    let length = given.name.chars().count();
    if !(1..=NAME_CHARACTERS_MAX).contains(&length) || given.name.chars().any(char::is_control) {
        return Err(Problem::invalid("name", "1 to 128 characters without control characters"));
    }
    if given.scopes.is_empty() {
        return Err(Problem::invalid("scopes", "at least one of publish, read, manage, replay, admin"));
    }
    let mut scopes: Vec<KeyScope> = given.scopes.iter().map(|scope| scope.scope()).collect();
    scopes.sort_unstable();
    scopes.dedup();
    if scopes.len() < given.scopes.len() {
        return Err(Problem::invalid("scopes", "a scope is named twice"));
    }
    let now = call.app.store.now();
    let expires_at = given.expires_at.as_deref().map(Timestamp::parse).transpose();
    let expires_at = expires_at.map_err(|error| Problem::invalid("expires_at", error))?;
    if expires_at.is_some_and(|at| at <= now) {
        return Err(Problem::invalid("expires_at", "has passed already"));
    }
    let text = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>()));
    let key = Key {
        id: KeyId::from_unique(call.app.store.unique()),
        hash: hash_of(text.as_bytes()),
        name: given.name,
        tenant,
        scopes,
        created_at: now,
        expires_at,
        revoked_at: None,
        last_used_at: None,
    };
    let view = view(&key);
    let after = serde_json::to_value(&view).expect("texts and lists of them");
    let audit = with_change(call.audit("key.create", &key.id, key.tenant.as_ref()), None, Some(&after));
    call.configure(Change::CreateKey(Box::new(key)), audit).await?.map_err(refused)?;
    Ok(answer(StatusCode::CREATED, &KeyView { key: Some(text), ..view }))
}

pub(crate) async fn list(call: Call) -> Result<Response, Problem> {
    let limit = call.query.limit()?;
    let mut before = call.cursor(LIST, |position| KeyId::parse(position).ok())?;
    let mut rows: Vec<Key> = Vec::new();
    // Keys of other tenants are passed over, so that a page may take several looks.
    loop {
        let page = call.app.store.keys(before, limit + 1).await?;
        let is_last = page.len() <= limit;
        before = page.last().map(|key| key.id);
        rows.extend(page.into_iter().filter(|key| call.caller.tenant.is_none() || call.caller.tenant == key.tenant));
        if is_last || rows.len() > limit {
            break;
        }
    }
    Ok(call.list(LIST, Rows::cut(rows, limit, |key: &Key| key.id.to_string(), view)))
}

pub(crate) async fn revoke(call: Call) -> Result<Response, Problem> {
    let key = KeyId::parse(&call.name).map_err(|_| Problem::not_found())?;
    let revoked = find(&call, key).await?.ok_or_else(Problem::not_found)?;
    let before = serde_json::to_value(view(&revoked)).expect("texts and lists of them");
    let audit = with_change(call.audit("key.revoke", &key, revoked.tenant.as_ref()), Some(&before), None);
    let change = Change::RevokeKey { key, tenant: call.caller.tenant.clone() };
    call.configure(change, audit).await?.map_err(refused)?;
    Ok(no_content())
}

/// The key with this id, if it is there for this caller. Keys are listed before an id: this one is the first before the next id.
async fn find(call: &Call, id: KeyId) -> Result<Option<Key>, Problem> {
    let next = u128::from_be_bytes(id.to_bytes()).checked_add(1).map(|next| KeyId::from_bytes(next.to_be_bytes()));
    let found = call.app.store.keys(next, 1).await?.pop().filter(|key| key.id == id);
    Ok(found.filter(|key| call.caller.tenant.is_none() || call.caller.tenant == key.tenant))
}

fn view(key: &Key) -> KeyView {
    KeyView {
        id: key.id.to_string(),
        name: key.name.clone(),
        tenant: key.tenant.as_ref().map(TenantId::to_string),
        scopes: key.scopes.iter().map(|scope| scope.name()).collect(),
        created_at: key.created_at.to_rfc3339(),
        expires_at: key.expires_at.map(Timestamp::to_rfc3339),
        revoked_at: key.revoked_at.map(Timestamp::to_rfc3339),
        last_used_at: key.last_used_at.map(Timestamp::to_rfc3339),
        key: None,
    }
}
