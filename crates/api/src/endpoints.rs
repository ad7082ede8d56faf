//! `/v1/endpoints`: where a tenant wants its events sent.

use axum::Json as Answer;
use axum::extract::State;
use http::{StatusCode, Uri};
use posthaste_core::endpoint::{Endpoint, Status, Subscription};
use posthaste_core::event::{TypePattern, TypePatterns};
use posthaste_core::id::{EndpointId, TenantId};
use posthaste_signing::Secret;
use posthaste_store::{Audit, Change, NewEndpoint, SecretText, StoredSecret};
use serde::{Deserialize, Serialize};

use crate::App;
use crate::body::{Id, Json};
use crate::events::DEFAULT_TENANT;
use crate::problem::Problem;

const URL_BYTES_MAX: usize = 2048;
/// Enough for any customer; a loop that makes endpoints ends here.
const ENDPOINTS_PER_TENANT_MAX: u32 = 1000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewEndpointBody {
    url: String,
    tenant: Option<String>,
    #[serde(default)]
    event_types: Vec<String>,
}

// No `Debug`: it carries a secret once.
#[derive(Serialize)]
pub(crate) struct EndpointView {
    id: String,
    tenant: String,
    url: String,
    status: &'static str,
    event_types: Vec<String>,
    created_at: String,
    /// Shown once, in the answer to its creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
}

pub(crate) async fn create(
    State(app): State<App>,
    Json(new): Json<NewEndpointBody>,
) -> Result<(StatusCode, Answer<EndpointView>), Problem> {
    let tenant =
        TenantId::parse(new.tenant.as_deref().unwrap_or(DEFAULT_TENANT)).map_err(|error| Problem::invalid("tenant", error))?;
    check_url(&new.url).map_err(|message| Problem::invalid("url", message))?;
    let secret = Secret::from_random(rand::random());
    let id = EndpointId::from_unique(app.store.unique());
    let subscription = Subscription { event_types: patterns(&new.event_types)?, ..Subscription::default() };
    let endpoint = Endpoint { subscription, ..Endpoint::new(id, tenant.clone(), new.url, app.store.now()) };
    let secrets = vec![StoredSecret { secret: SecretText(secret.reveal().to_owned()), until: None }];
    let audit = Audit {
        actor: "admin key".to_owned(),
        address: None,
        action: "endpoint.create".to_owned(),
        subject: endpoint.id.to_string(),
        tenant: Some(tenant),
        before: None,
        after: None,
    };
    let new = NewEndpoint { endpoint: endpoint.clone(), secrets, per_tenant_max: ENDPOINTS_PER_TENANT_MAX };
    app.store
        .configure(Change::CreateEndpoint(Box::new(new)), audit)
        .await?
        .map_err(|refusal| Problem::invalid("tenant", refusal))?;
    let view = EndpointView { secret: Some(secret.reveal().to_owned()), ..view(&endpoint) };
    Ok((StatusCode::CREATED, Answer(view)))
}

pub(crate) async fn read(State(app): State<App>, Id(id): Id) -> Result<Answer<EndpointView>, Problem> {
    let id = EndpointId::parse(&id).map_err(|_| Problem::not_found())?;
    let endpoint = app.store.endpoint(id).await?.ok_or_else(Problem::not_found)?;
    if endpoint.deleted_at.is_some() {
        return Err(Problem::not_found());
    }
    Ok(Answer(view(&endpoint.endpoint)))
}

fn view(endpoint: &Endpoint) -> EndpointView {
    EndpointView {
        id: endpoint.id.to_string(),
        tenant: endpoint.tenant.to_string(),
        url: endpoint.url.clone(),
        status: match endpoint.status {
            Status::Active => "active",
            Status::Paused { .. } => "paused",
            Status::Disabled => "disabled",
        },
        event_types: endpoint.subscription.event_types.iter().map(ToString::to_string).collect(),
        created_at: endpoint.created_at.to_rfc3339(),
        secret: None,
    }
}

fn patterns(texts: &[String]) -> Result<TypePatterns, Problem> {
    let parse = |(index, text): (usize, &String)| {
        TypePattern::parse(text).map_err(|error| Problem::invalid(format!("event_types[{index}]"), error))
    };
    let patterns = texts.iter().enumerate().map(parse).collect::<Result<_, _>>()?;
    TypePatterns::new(patterns).map_err(|error| Problem::invalid("event_types", error))
}

/// What can be known without asking anybody.
fn check_url(url: &str) -> Result<(), &'static str> {
    if url.len() > URL_BYTES_MAX {
        return Err("at most 2,048 characters");
    }
    if url.bytes().any(|byte| !byte.is_ascii_graphic() || byte == b'\\') {
        return Err("no control characters, spaces, backslashes or characters beyond ASCII");
    }
    let uri: Uri = url.parse().map_err(|_| "not a URL such as http://127.0.0.1:3000/webhooks")?;
    let authority = uri.authority().ok_or("not a URL such as http://127.0.0.1:3000/webhooks")?;
    if authority.as_str().contains(['@', '%']) {
        return Err("no user name, password or percent sign before the path");
    }
    // `Uri` reads anything after the colon; only a number is a port.
    let is_after_host = authority.as_str().strip_prefix(authority.host()).unwrap_or_default();
    if !is_after_host.is_empty() && !matches!(authority.port_u16(), Some(1..)) {
        return Err("the port is not a number from 1 to 65,535");
    }
    match uri.scheme_str() {
        Some("http") => Ok(()),
        Some("https") => Err("https is not built yet; today deliveries go to http:// in networks that the operator allows"),
        Some(_) | None => Err("starts with http://"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_could_never_be_delivered_to_is_refused() {
        for bad in [
            "",
            "127.0.0.1",
            "/hooks",
            "ftp://a.b/",
            "https://a.b/",
            "http://user@a.b/",
            "http://a%2eb/",
            "http://a.b/ x",
            "http://a.b\\c",
            "http://a.b/\n",
            "http://ä.b/",
            "http://a.b:99999/",
            "http://a.b:0/",
            "http://a.b:abc/",
            "http://a.b:/",
        ] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
        assert!(check_url(&format!("http://a.b/{}", "x".repeat(2048))).is_err());
        assert_eq!(check_url("http://127.0.0.1:3000/hooks?a=b"), Ok(()));
    }
}
