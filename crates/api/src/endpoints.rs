//! `/v1/endpoints`: where a tenant wants its events sent, and how.
//!
//! One shape of body serves POST, PATCH and PUT. POST and PUT start from an endpoint about which nothing was said, PATCH from
//! the present one. Header values may be credentials: they are shown in the answer that makes the endpoint and as
//! [`MASKED`] ever after, and sending that back keeps the value.

use std::collections::BTreeMap;

use axum::response::Response;
use http::StatusCode;
use posthaste_core::destination::Destination;
use posthaste_core::endpoint::{
    Description, Endpoint, HeaderError, HeaderNames, Headers, HexPrefix, MaxInFlight, Metadata, Override, PayloadFormat, Policies,
    Signing, Status, Subscription,
};
use posthaste_core::filter::Filter;
use posthaste_core::id::{EndpointId, EndpointUid, TenantId};
use posthaste_core::tenant::Tenant;
use posthaste_core::time::Timestamp;
use posthaste_signing::{HexSecret, Secret, SigningKey};
use posthaste_store::{Change, ChangeResult, EndpointQuery, NewEndpoint, Refusal, SecretText, StoredEndpoint, StoredSecret};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::App;
use crate::call::{Call, Rows, TRIES_MAX, answer, document_of, no_content, ok, tagged, with_change};
use crate::credentials::Caller;
use crate::lane_status::{HealthView, LaneStatus, lanes_and_health};
use crate::patch::{Patch, check_read_only};
use crate::policies::{
    CircuitBody, CircuitView, Liftable, RateLimitBody, RateLimitShown, RetryBody, ScheduleBody, ScheduleShown, TimeoutBody,
    TimeoutView, in_force, overriding, patterns, show_rate_limit, show_schedule,
};
use crate::problem::Problem;
use crate::query::UID;
use crate::tenants;

const LIST: &str = "endpoints";
/// What stands in answers for a value that is not shown.
const MASKED: &str = "********";

/// What is said about an endpoint. `null` goes back to what is inherited or to the default.
#[derive(Clone, Default, Debug, Deserialize, ToSchema)]
#[schema(as = EndpointSettings)]
#[serde(deny_unknown_fields)]
pub(crate) struct EndpointBody {
    #[serde(default)]
    #[schema(value_type = Option<String>, max_length = 2048)]
    url: Patch<String>,
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    tenant: Patch<String>,
    #[serde(default)]
    #[schema(value_type = Option<String>, max_length = 1024)]
    description: Patch<String>,
    /// Your own name for it, unique in its tenant.
    #[serde(default)]
    #[schema(value_type = Option<String>, max_length = 128)]
    uid: Patch<String>,
    /// `*`, patterns such as `invoice.*`, exact names; empty means all.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>, max_items = 1000)]
    event_types: Patch<Vec<String>>,
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>, max_items = 1000)]
    disabled_event_types: Patch<Vec<String>>,
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    filter: Patch<Box<RawValue>>,
    #[serde(default)]
    #[schema(value_type = Option<RateLimitShown>)]
    rate_limit: Patch<Liftable<RateLimitBody>>,
    #[serde(default)]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    max_in_flight: Patch<u32>,
    #[serde(default)]
    #[schema(value_type = Option<ScheduleShown>)]
    delivery_schedule: Patch<Liftable<ScheduleBody>>,
    #[serde(default)]
    #[schema(value_type = Option<RetryBody>)]
    retry: Patch<RetryBody>,
    #[serde(default)]
    #[schema(value_type = Option<TimeoutBody>)]
    timeout: Patch<TimeoutBody>,
    #[serde(default)]
    #[schema(value_type = Option<CircuitBody>)]
    circuit: Patch<CircuitBody>,
    #[serde(default)]
    #[schema(value_type = Option<SigningBody>)]
    signing: Patch<SigningBody>,
    #[serde(default)]
    #[schema(value_type = Option<PayloadFormatName>)]
    payload_format: Patch<PayloadFormatName>,
    /// Sent with every request; shown as `********` later.
    #[serde(default)]
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    headers: Patch<BTreeMap<String, String>>,
    #[serde(default)]
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    metadata: Patch<BTreeMap<String, String>>,
    /// Your own secret, where it is made; later `rotate-secret`.
    #[serde(default)]
    #[schema(value_type = Option<String>, write_only)]
    secret: Patch<String>,
    #[serde(default)]
    #[schema(value_type = Option<Value>, read_only)]
    id: Patch<Value>,
    #[serde(default)]
    #[schema(value_type = Option<Value>, read_only)]
    status: Patch<Value>,
    #[serde(default)]
    #[schema(value_type = Option<Value>, read_only)]
    paused_until: Patch<Value>,
    #[serde(default)]
    #[schema(value_type = Option<Value>, read_only)]
    public_key: Patch<Value>,
    #[serde(default)]
    #[schema(value_type = Option<Value>, read_only)]
    health: Patch<Value>,
    /// Policies that it does not set itself. Sent back, those stay inherited.
    #[serde(default)]
    #[schema(value_type = Option<Value>, read_only)]
    inherited: Patch<Value>,
    #[serde(default)]
    #[schema(value_type = Option<Value>, read_only)]
    created_at: Patch<Value>,
    #[serde(default)]
    #[schema(value_type = Option<Value>, read_only)]
    updated_at: Patch<Value>,
    /// Of the answer to a change; nothing is said by sending it back.
    #[serde(default)]
    #[schema(value_type = Option<Value>, read_only)]
    warnings: Patch<Value>,
}

/// How requests are signed. `prefix` and `header_names` belong to `timestamp-hex`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Signing)]
#[serde(deny_unknown_fields)]
pub(crate) struct SigningBody {
    scheme: SchemeName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prefix: Option<PrefixName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    header_names: Option<HeaderNamesBody>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
enum SchemeName {
    #[serde(rename = "standard")]
    Standard,
    #[serde(rename = "standard-ed25519")]
    StandardEd25519,
    #[serde(rename = "timestamp-hex")]
    TimestampHex,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
enum PrefixName {
    #[serde(rename = "v1=")]
    V1,
    #[serde(rename = "sha256=")]
    Sha256,
}

#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = SigningHeaderNames)]
#[serde(deny_unknown_fields)]
struct HeaderNamesBody {
    id: Option<String>,
    delivery: Option<String>,
    timestamp: Option<String>,
    signature: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PayloadFormatName {
    Envelope,
    Data,
    Cloudevents,
}

impl PayloadFormatName {
    pub(crate) fn of(format: PayloadFormat) -> PayloadFormatName {
        match format {
            PayloadFormat::Envelope => PayloadFormatName::Envelope,
            PayloadFormat::Data => PayloadFormatName::Data,
            PayloadFormat::CloudEvents => PayloadFormatName::Cloudevents,
        }
    }
}

/// An endpoint, with the policies that apply to it once server, tenant and endpoint have been heard.
// No `Debug`: it carries a secret once.
#[derive(Serialize, ToSchema)]
#[schema(as = Endpoint)]
pub(crate) struct EndpointView {
    id: String,
    tenant: String,
    url: String,
    description: String,
    #[schema(value_type = String)]
    status: &'static str,
    /// When a pause ends by itself.
    #[schema(format = DateTime)]
    paused_until: Option<String>,
    event_types: Vec<String>,
    disabled_event_types: Vec<String>,
    uid: Option<String>,
    #[schema(value_type = Option<Object>)]
    filter: Option<Box<RawValue>>,
    rate_limit: Option<RateLimitShown>,
    max_in_flight: u32,
    delivery_schedule: Option<ScheduleShown>,
    retry: RetryBody,
    timeout: TimeoutView,
    circuit: CircuitView,
    /// Which of the policies come from the tenant or the server.
    #[schema(value_type = Vec<String>)]
    inherited: Vec<&'static str>,
    signing: SigningBody,
    #[serde(skip_serializing_if = "Option::is_none")]
    public_key: Option<String>,
    health: HealthView,
    payload_format: PayloadFormatName,
    headers: BTreeMap<String, String>,
    metadata: BTreeMap<String, String>,
    #[schema(format = DateTime)]
    created_at: String,
    #[schema(format = DateTime)]
    updated_at: String,
    /// Shown once, in the answer to its creation or rotation.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    /// What a change has done beside what was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// An endpoint as it was found, with what has to be known to show it.
#[derive(Debug)]
pub(crate) struct LoadedEndpoint {
    pub(crate) stored: StoredEndpoint,
    pub(crate) tenant: Option<Tenant>,
    pub(crate) observed: LaneStatus,
}

impl LoadedEndpoint {
    pub(crate) fn policies(&self, app: &App) -> Policies {
        in_force(&app.options.policies, self.tenant.as_ref().map(|tenant| &tenant.defaults), &self.stored.endpoint.policies)
    }

    pub(crate) fn view(&self, app: &App) -> EndpointView {
        view(app, &self.stored.endpoint, &self.stored.secrets, &self.policies(app), &self.observed)
    }

    /// For the one answer that shows it.
    pub(crate) fn view_with_secret(&self, app: &App, secret: String) -> EndpointView {
        EndpointView { secret: Some(secret), ..self.view(app) }
    }

    /// The view as JSON, for comparing and for the audit log. It has no secrets.
    pub(crate) fn document(&self, app: &App) -> Value {
        document(&self.view(app))
    }
}

fn document(view: &EndpointView) -> Value {
    document_of(view)
}

pub(crate) async fn create(call: Call) -> Result<Response, Problem> {
    let (call, body) = call.body().await?;
    let mut given: EndpointBody = body.parse()?;
    let tenant = call.caller.tenant_for(std::mem::take(&mut given.tenant).value().as_deref())?;
    make(&call, tenant, given, None).await
}

/// Makes a new one, and answers with its secret.
async fn make(call: &Call, tenant: TenantId, mut given: EndpointBody, uid: Option<EndpointUid>) -> Result<Response, Problem> {
    let app = &call.app;
    let stored_tenant = app.store.tenant(tenant.clone()).await?;
    let is_reserved = app.options.reserved_tenant.as_ref() == Some(&tenant);
    if !call.caller.is_operator() {
        posthaste_store::check_not_reserved(&tenant, app.options.reserved_tenant.as_ref())?;
    }
    if app.options.strict_tenants && stored_tenant.is_none() {
        return Err(Problem::invalid("tenant", "there is no such tenant"));
    }
    given.check_read_only_fields(None)?;
    let own_secret = std::mem::take(&mut given.secret).value();
    let id = EndpointId::from_unique(app.store.unique());
    let mut blank = Endpoint::new(id, tenant.clone(), String::new(), app.store.now());
    blank.uid = uid;
    let endpoint = given.lay_over(app, blank, None)?;
    if is_reserved {
        check_notification_types(&endpoint)?;
    }
    let secret = secret_for(&endpoint.signing, own_secret)?;
    let secrets = vec![StoredSecret { secret: SecretText(secret.clone()), until: None }];
    let per_tenant_max = stored_tenant.as_ref().and_then(tenants::endpoints_max).unwrap_or(app.options.endpoints_per_tenant_max);
    let policies =
        in_force(&app.options.policies, stored_tenant.as_ref().map(|stored| &stored.tenant.defaults), &endpoint.policies);
    let view = view(app, &endpoint, &secrets, &policies, &LaneStatus::default());
    let audit = with_change(call.audit("endpoint.create", &id, Some(&tenant)), None, Some(&document(&view)));
    let headers = endpoint.headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let change = Change::CreateEndpoint(Box::new(NewEndpoint {
        endpoint,
        secrets,
        per_tenant_max,
        tenant_created_at: call.caller.tenant_created_at(),
    }));
    let made = call.configure(change, audit).await?.map_err(refused)?;
    // The one answer that shows what was given.
    let view = EndpointView { secret: call.caller.may_see_secrets.then_some(secret), headers, ..view };
    Ok(tagged(answer(StatusCode::CREATED, &view), made.version))
}

pub(crate) async fn list(call: Call) -> Result<Response, Problem> {
    let limit = call.query.limit()?;
    let before = call.cursor(LIST, |position| EndpointId::parse(position).ok())?;
    let uid = call.query.text(&UID).map(EndpointUid::parse).transpose().map_err(|error| Problem::invalid("uid", error))?;
    let Ok(tenant) = call.caller.narrowed_to(call.query.tenant()?) else {
        return Ok(call.list(LIST, Rows::<EndpointView>::none()));
    };
    let rows = call.app.store.endpoints(EndpointQuery { tenant, uid, is_disabled: false, before, limit: limit + 1 }).await?;
    let shown: Vec<EndpointId> = rows.iter().take(limit).map(|row| row.endpoint.id).collect();
    let mut observed = lanes_and_health(&call.app, &shown).await?;
    let mut tenants: BTreeMap<TenantId, Option<Tenant>> = BTreeMap::new();
    for row in &rows {
        let id = &row.endpoint.tenant;
        if !tenants.contains_key(id) {
            let tenant = call.app.store.tenant(id.clone()).await?.map(|stored| stored.tenant);
            tenants.insert(id.clone(), tenant);
        }
    }
    let rows: Vec<LoadedEndpoint> = rows
        .into_iter()
        .map(|stored| LoadedEndpoint {
            tenant: tenants.get(&stored.endpoint.tenant).cloned().flatten(),
            observed: observed.remove(&stored.endpoint.id).unwrap_or_default(),
            stored,
        })
        .collect();
    let position = |found: &LoadedEndpoint| found.stored.endpoint.id.to_string();
    Ok(call.list(LIST, Rows::cut(rows, limit, position, |found| found.view(&call.app))))
}

pub(crate) async fn read(call: Call) -> Result<Response, Problem> {
    let found = find(&call).await?;
    Ok(tagged(ok(&found.view(&call.app)), found.stored.version))
}

pub(crate) async fn change(call: Call) -> Result<Response, Problem> {
    let (call, body) = call.body().await?;
    let given: EndpointBody = body.parse()?;
    if !given.secret.is_absent() {
        return Err(Problem::invalid("secret", "is changed with rotate-secret"));
    }
    replace(&call, "endpoint.change", EditTarget::IsNamed, |found, document| {
        let given = given.clone();
        given.check_read_only_fields(Some(document))?;
        given
            .clone()
            .lay_over(&call.app, found.stored.endpoint.clone(), Some(document))
            .map(|endpoint| without_hidden_headers(&call.caller, &given, &found.stored.endpoint, endpoint))
    })
    .await
}

/// An application that passes on a customer's name for a tenant does not name notifications; an operator who wants them does.
fn check_notification_types(endpoint: &Endpoint) -> Result<(), Problem> {
    let types = &endpoint.subscription.event_types;
    let is_ours = |pattern: &dyn std::fmt::Display| posthaste_store::is_reserved_type(&pattern.to_string());
    if types.iter().next().is_some() && types.iter().all(|pattern| is_ours(pattern)) {
        return Ok(());
    }
    let message = "this tenant is reserved for notifications: name those that the endpoint is for, such as `posthaste.*`";
    Err(Problem::invalid("event_types", message))
}

pub(crate) async fn delete(call: Call) -> Result<Response, Problem> {
    let found = find(&call).await?;
    call.precondition().check(found.stored.version)?;
    let endpoint = &found.stored.endpoint;
    let audit = call.audit("endpoint.delete", &endpoint.id, Some(&endpoint.tenant));
    let audit = with_change(audit, Some(&found.document(&call.app)), None);
    call.configure(Change::DeleteEndpoint { endpoint: endpoint.id }, audit).await?.map_err(refused)?;
    Ok(no_content())
}

/// `PUT /v1/endpoints/uid:{uid}`: makes it, or replaces everything but its id, its status and its secrets.
pub(crate) async fn put(call: Call) -> Result<Response, Problem> {
    let Some(uid) = call.name.strip_prefix("uid:") else {
        return Err(Problem::not_found());
    };
    let uid = EndpointUid::parse(uid).map_err(|error| Problem::invalid("uid", error))?;
    let named = call.query.tenant()?;
    let (call, body) = call.body().await?;
    let mut given: EndpointBody = body.parse()?;
    let in_body = std::mem::take(&mut given.tenant).value();
    if let (Some(named), Some(in_body)) = (&named, &in_body)
        && named.as_str() != in_body
    {
        return Err(Problem::invalid("tenant", "differs from the one in the address"));
    }
    let tenant = call.caller.tenant_for(named.as_ref().map(TenantId::as_str).or(in_body.as_deref()))?;
    match &given.uid {
        Patch::Absent | Patch::Null => {}
        Patch::Is(same) if same == uid.as_str() => {}
        Patch::Is(_) => return Err(Problem::invalid("uid", "differs from the one in the address")),
    }
    given.uid = Patch::Absent;
    if find_by_uid(&call, &tenant, &uid).await?.is_none() {
        if call.precondition().is_given() {
            return Err(Problem::stale());
        }
        match make(&call, tenant.clone(), given.clone(), Some(uid.clone())).await {
            // Somebody has made it between our look and our write: then it is there to be replaced.
            Err(problem) if problem.status() == StatusCode::CONFLICT && find_by_uid(&call, &tenant, &uid).await?.is_some() => {}
            made => return made,
        }
    }
    if !given.secret.is_absent() {
        return Err(Problem::invalid("secret", "is changed with rotate-secret"));
    }
    replace(&call, "endpoint.replace", EditTarget::HasUid(&tenant, &uid), |found, document| {
        let given = given.clone();
        given.check_read_only_fields(Some(document))?;
        let present = &found.stored.endpoint;
        let mut blank = Endpoint::new(present.id, tenant.clone(), String::new(), present.created_at);
        (blank.uid, blank.status) = (Some(uid.clone()), present.status);
        // What was masked can be sent back here, too.
        blank.headers = present.headers.clone();
        let endpoint = given.clone().with_headers_replaced().lay_over(&call.app, blank, Some(document))?;
        Ok(without_hidden_headers(&call.caller, &given, present, endpoint))
    })
    .await
}

async fn find_by_uid(call: &Call, tenant: &TenantId, uid: &EndpointUid) -> Result<Option<LoadedEndpoint>, Problem> {
    let query = EndpointQuery { tenant: Some(tenant.clone()), uid: Some(uid.clone()), limit: 1, ..EndpointQuery::default() };
    match call.app.store.endpoints(query).await?.pop() {
        Some(stored) => Ok(Some(complete(&call.app, stored).await?)),
        None => Ok(None),
    }
}

/// The endpoint that the address names, if it is there for this caller.
pub(crate) async fn find(call: &Call) -> Result<LoadedEndpoint, Problem> {
    if let Some(uid) = call.name.strip_prefix("uid:") {
        let uid = EndpointUid::parse(uid).map_err(|_| Problem::not_found())?;
        let tenant = call.caller.tenant_for(call.query.tenant()?.as_ref().map(TenantId::as_str))?;
        return find_by_uid(call, &tenant, &uid).await?.ok_or_else(Problem::not_found);
    }
    let id = EndpointId::parse(&call.name).map_err(|_| Problem::not_found())?;
    let stored = find_stored(call, id).await?;
    complete(&call.app, stored).await
}

pub(crate) async fn find_stored(call: &Call, id: EndpointId) -> Result<StoredEndpoint, Problem> {
    let stored = call.app.store.endpoint(call.caller.tenant.clone(), id).await?;
    stored.filter(|stored| stored.deleted_at.is_none()).ok_or_else(Problem::not_found)
}

async fn complete(app: &App, stored: StoredEndpoint) -> Result<LoadedEndpoint, Problem> {
    let tenant = app.store.tenant(stored.endpoint.tenant.clone()).await?.map(|stored| stored.tenant);
    let id = stored.endpoint.id;
    let observed = lanes_and_health(app, &[id]).await?.remove(&id).unwrap_or_default();
    Ok(LoadedEndpoint { stored, tenant, observed })
}

/// Which endpoint a change is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EditTarget<'a> {
    /// By its id, in the address.
    IsNamed,
    HasUid(&'a TenantId, &'a EndpointUid),
}

/// An endpoint as it is to be, and what the caller is told about that.
#[derive(Debug)]
pub(crate) struct EndpointEdit {
    pub(crate) endpoint: Endpoint,
    warnings: Vec<String>,
}

impl From<Endpoint> for EndpointEdit {
    fn from(endpoint: Endpoint) -> EndpointEdit {
        EndpointEdit { endpoint, warnings: vec![] }
    }
}

/// Header values are credentials for the server that they were given for. A caller who may not see them may not have them sent
/// to another one either: they are removed, unless the caller has given them again.
fn without_hidden_headers(caller: &Caller, given: &EndpointBody, present: &Endpoint, mut endpoint: Endpoint) -> EndpointEdit {
    if caller.may_see_secrets || is_same_server(&present.url, &endpoint.url) {
        return endpoint.into();
    }
    let is_given = |name: &str| {
        matches!(&given.headers, Patch::Is(headers)
            if headers.iter().any(|(given, value)| given.eq_ignore_ascii_case(name) && value != MASKED))
    };
    let removed: Vec<String> =
        endpoint.headers.iter().map(|(name, _)| name).filter(|name| !is_given(name)).map(str::to_owned).collect();
    let kept: Vec<(String, String)> = endpoint
        .headers
        .iter()
        .filter(|(name, _)| is_given(name))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let kept = kept.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    endpoint.headers = Headers::new(kept, &endpoint.signing).expect("fewer of those that were accepted");
    let warning = |name: &String| {
        format!(
            "The header `{name}` was removed: its value was for the server of the old URL, and this session may not see it. Set it again."
        )
    };
    EndpointEdit { endpoint, warnings: removed.iter().map(warning).collect() }
}

/// Scheme, host and port. What cannot be read is another server.
fn is_same_server(one: &str, other: &str) -> bool {
    match (Destination::parse(one), Destination::parse(other)) {
        (Ok(one), Ok(other)) => (one.scheme(), one.host(), one.port()) == (other.scheme(), other.host(), other.port()),
        (Ok(_) | Err(_), Ok(_) | Err(_)) => false,
    }
}

/// Reads, changes and writes it back, again if somebody else was faster; unless the caller has named a version.
pub(crate) async fn replace(
    call: &Call,
    action: &str,
    which: EditTarget<'_>,
    edit: impl Fn(&LoadedEndpoint, &Value) -> Result<EndpointEdit, Problem>,
) -> Result<Response, Problem> {
    let precondition = call.precondition();
    for _ in 0..TRIES_MAX {
        let mut found = match which {
            EditTarget::IsNamed => find(call).await?,
            EditTarget::HasUid(tenant, uid) => find_by_uid(call, tenant, uid).await?.ok_or_else(Problem::not_found)?,
        };
        precondition.check(found.stored.version)?;
        let before = found.document(&call.app);
        let EndpointEdit { endpoint, warnings } = edit(&found, &before)?;
        let secrets = fitting_secrets(&found.stored, &endpoint.signing);
        if endpoint == found.stored.endpoint && secrets.is_none() {
            // Nothing to write: said again, as verbs may be.
            return Ok(tagged(ok(&found.view(&call.app)), found.stored.version));
        }
        if secrets.is_some() && !call.caller.may_see_secrets {
            return Err(Problem::forbidden(
                "Another way to sign comes with a new secret, and that needs the permission `secrets`.",
            ));
        }
        let has_new_headers = endpoint.headers != found.stored.endpoint.headers;
        let expected_version = Some(found.stored.version);
        let audit = call.audit(action, &endpoint.id, Some(&endpoint.tenant));
        found.stored.endpoint = Endpoint { updated_at: call.app.store.now(), ..endpoint };
        if let Some(secrets) = &secrets {
            found.stored.secrets.clone_from(secrets);
        }
        let (was, is) = difference(&before, &found.document(&call.app), has_new_headers);
        let change = Change::ReplaceEndpoint {
            endpoint: Box::new(found.stored.endpoint.clone()),
            expected_version,
            secrets: secrets.clone(),
        };
        match call.configure(change, with_change(audit, Some(&was), Some(&is))).await? {
            Ok(ChangeResult { version, .. }) => {
                let new_secret = secrets.and_then(|secrets| secrets.into_iter().next()).map(|stored| stored.secret.0);
                let secret = new_secret.filter(|_| call.caller.may_see_secrets);
                return Ok(tagged(ok(&EndpointView { secret, warnings, ..found.view(&call.app) }), version));
            }
            Err(Refusal::Stale) if precondition.is_given() => return Err(Problem::stale()),
            Err(Refusal::Stale) => {}
            Err(refusal) => return Err(refused(refusal)),
        }
    }
    Err(changed_all_the_time())
}

pub(crate) fn changed_all_the_time() -> Problem {
    Problem::unavailable("It is being changed by others all the time. Nothing was changed; try again.")
}

/// The fields that differ, for the audit log.
fn difference(before: &Value, after: &Value, has_new_headers: bool) -> (Value, Value) {
    let (Value::Object(before), Value::Object(after)) = (before, after) else { return (before.clone(), after.clone()) };
    let differs = |name: &str| (name == "headers" && has_new_headers) || before.get(name) != after.get(name);
    let pick = |of: &serde_json::Map<String, Value>| {
        Value::Object(of.iter().filter(|(name, _)| differs(name)).map(|(name, value)| (name.clone(), value.clone())).collect())
    };
    (pick(before), pick(after))
}

pub(crate) fn refused(refusal: Refusal) -> Problem {
    match refusal {
        Refusal::NotFound => Problem::not_found(),
        Refusal::Stale => Problem::stale(),
        Refusal::Taken => Problem::conflict("Another endpoint of this tenant has that uid."),
        Refusal::LimitReached => Problem::conflict("The tenant has as many endpoints as it may have."),
        Refusal::StillWaiting => Problem::conflict("It has not ended yet."),
        Refusal::PayloadGone => Problem::conflict("Its payload is gone, so there is nothing to send."),
        Refusal::Unsubscribed => {
            Problem::conflict("The endpoint does not subscribe to this event type any more. Subscribe it first.")
        }
        Refusal::EndpointTakesNothing => Problem::conflict("The endpoint is disabled or deleted. Enable it first."),
        Refusal::LeaseEnded => Problem::unavailable("This node is not part of the cluster now."),
    }
}

impl EndpointBody {
    fn check_read_only_fields(&self, present: Option<&Value>) -> Result<(), Problem> {
        for (field, given) in [
            ("id", &self.id),
            ("status", &self.status),
            ("paused_until", &self.paused_until),
            ("public_key", &self.public_key),
            ("health", &self.health),
            ("inherited", &self.inherited),
            ("created_at", &self.created_at),
            ("updated_at", &self.updated_at),
        ] {
            check_read_only(field, given, present.and_then(|present| present.get(field)))?;
        }
        // The answer to a change may be sent back, with what it was told.
        if present.is_none() {
            check_read_only("warnings", &self.warnings, None)?;
        }
        match (&self.tenant, present.and_then(|present| present.get("tenant"))) {
            (Patch::Absent, _) => Ok(()),
            (Patch::Is(tenant), Some(present)) if present == tenant.as_str() => Ok(()),
            (Patch::Null | Patch::Is(_), _) => Err(Problem::invalid("tenant", "an endpoint stays with its tenant")),
        }
    }

    /// For PUT, where what is not said about headers means none.
    fn with_headers_replaced(mut self) -> EndpointBody {
        if self.headers.is_absent() {
            self.headers = Patch::Null;
        }
        self
    }

    /// Lays what was said over an endpoint. `document` is how it is shown now, if it is there already.
    fn lay_over(self, app: &App, mut endpoint: Endpoint, document: Option<&Value>) -> Result<Endpoint, Problem> {
        let is_still_inherited = self.inherited_and_repeated(document);
        match self.url {
            Patch::Is(url) => endpoint.url = checked_url(app, &url)?,
            Patch::Absent if !endpoint.url.is_empty() => {}
            Patch::Absent | Patch::Null => return Err(Problem::invalid("url", "missing field `url`")),
        }
        let description = match self.description {
            Patch::Absent => endpoint.description,
            Patch::Null => Description::parse("").expect("nothing is a description"),
            Patch::Is(text) => Description::parse(&text).map_err(|error| Problem::invalid("description", error))?,
        };
        endpoint.description = description;
        endpoint.uid = self
            .uid
            .over(endpoint.uid, |uid| EndpointUid::parse(&uid).map(Some).map_err(|error| Problem::invalid("uid", error)))?;
        let Subscription { event_types, disabled_event_types, filter } = endpoint.subscription;
        let types = |field: &str, list: &[String]| match app.options.types_per_endpoint_max {
            max if list.len() > max => Err(Problem::invalid(field, format!("at most {max} event types in a list"))),
            _ => patterns(field, list),
        };
        endpoint.subscription = Subscription {
            event_types: self.event_types.over(event_types, |list| types("event_types", &list))?,
            disabled_event_types: self
                .disabled_event_types
                .over(disabled_event_types, |list| types("disabled_event_types", &list))?,
            filter: self.filter.over(filter, |source| read_filter(source.get()).map(Some))?,
        };
        if !is_still_inherited.contains(&"max_in_flight") {
            endpoint.max_in_flight = self.max_in_flight.over(endpoint.max_in_flight, |count| {
                MaxInFlight::new(count).map(Some).map_err(|error| Problem::invalid("max_in_flight", error))
            })?;
        }
        let shown = |field: &str| document.and_then(|document| document.get(field));
        let policies = &mut endpoint.policies;
        if !is_still_inherited.contains(&"retry") {
            policies.retry = self.retry.over(policies.retry.take(), |retry| retry.read().map(Some))?;
        }
        if !is_still_inherited.contains(&"timeout") {
            policies.timeout = self.timeout.over(policies.timeout, |timeout| timeout.read(shown("timeout")).map(Some))?;
        }
        if !is_still_inherited.contains(&"circuit") {
            policies.circuit = self.circuit.over(policies.circuit, |circuit| circuit.read(shown("circuit")).map(Some))?;
        }
        if !is_still_inherited.contains(&"delivery_schedule") {
            policies.delivery_schedule =
                overriding(self.delivery_schedule, policies.delivery_schedule.clone(), ScheduleBody::read)?;
        }
        if !is_still_inherited.contains(&"rate_limit") {
            policies.rate_limit = overriding(self.rate_limit, policies.rate_limit.clone(), RateLimitBody::read)?;
        }
        endpoint.signing = self.signing.over(endpoint.signing, SigningBody::read)?;
        endpoint.payload_format = self.payload_format.over(endpoint.payload_format, |format| {
            Ok(match format {
                PayloadFormatName::Envelope => PayloadFormat::Envelope,
                PayloadFormatName::Data => PayloadFormat::Data,
                PayloadFormatName::Cloudevents => PayloadFormat::CloudEvents,
            })
        })?;
        endpoint.headers = read_headers(self.headers, &endpoint.headers, &endpoint.signing)?;
        endpoint.metadata = self
            .metadata
            .over(endpoint.metadata, |entries| Metadata::new(entries).map_err(|error| Problem::invalid("metadata", error)))?;
        Ok(endpoint)
    }

    /// The policies that are inherited, and that came back as they are shown together with the word that they are: so
    /// that sending an answer back changes nothing.
    fn inherited_and_repeated(&self, document: Option<&Value>) -> Vec<&'static str> {
        let (Some(document), Patch::Is(Value::Array(inherited))) = (document, &self.inherited) else { return vec![] };
        let has_been_sent = |name: &str| match name {
            "retry" => !self.retry.is_absent(),
            "timeout" => !self.timeout.is_absent(),
            "circuit" => !self.circuit.is_absent(),
            "delivery_schedule" => !self.delivery_schedule.is_absent(),
            "max_in_flight" => !self.max_in_flight.is_absent(),
            _ => !self.rate_limit.is_absent(),
        };
        let is_the_same = |name: &str| match name {
            "retry" => {
                matches!(&self.retry, Patch::Is(given) if is_shown(document, "retry", &given.clone().read().map(|policy| RetryBody::show(&policy))))
            }
            "timeout" => matches!(&self.timeout, Patch::Is(given) if given.repeats(&document["timeout"])),
            "circuit" => matches!(&self.circuit, Patch::Is(given) if given.repeats(&document["circuit"])),
            "delivery_schedule" => match &self.delivery_schedule {
                Patch::Is(Liftable::Set(given)) => {
                    is_shown(document, name, &given.clone().read().map(|schedule| ScheduleBody::show(&schedule)))
                }
                Patch::Absent | Patch::Null | Patch::Is(Liftable::Lift) => false,
            },
            "max_in_flight" => matches!(self.max_in_flight, Patch::Is(count) if document[name] == count),
            _ => match &self.rate_limit {
                Patch::Is(Liftable::Set(given)) => is_shown(document, name, &Ok(given.clone())),
                Patch::Absent | Patch::Null | Patch::Is(Liftable::Lift) => false,
            },
        };
        POLICY_NAMES
            .into_iter()
            .filter(|name| inherited.iter().any(|listed| listed == name) && has_been_sent(name) && is_the_same(name))
            .collect()
    }
}

const POLICY_NAMES: [&str; 6] = ["retry", "timeout", "circuit", "delivery_schedule", "rate_limit", "max_in_flight"];

fn is_shown<T: Serialize>(document: &Value, field: &str, given: &Result<T, Problem>) -> bool {
    given.as_ref().is_ok_and(|given| serde_json::to_value(given).is_ok_and(|given| document.get(field) == Some(&given)))
}

/// What can be known of a URL without asking anybody.
fn checked_url(app: &App, url: &str) -> Result<String, Problem> {
    let refuse = |error: &dyn std::fmt::Display| Problem::invalid("url", error);
    let destination = Destination::parse(url).map_err(|error| refuse(&error))?;
    app.options.destinations.check(&destination).map_err(|error| refuse(&error))?;
    Ok(url.to_owned())
}

pub(crate) fn read_filter(source: &str) -> Result<Filter, Problem> {
    Filter::parse(source).map_err(|error| {
        let field = if error.at == "filter" { error.at } else { format!("filter.{}", error.at) };
        Problem::invalid(field, error.problem)
    })
}

fn read_headers(given: Patch<BTreeMap<String, String>>, present: &Headers, signing: &Signing) -> Result<Headers, Problem> {
    let kept: BTreeMap<String, String> = present.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let wanted = match given {
        Patch::Absent => kept,
        Patch::Null => BTreeMap::new(),
        Patch::Is(mut wanted) => {
            for (name, value) in &mut wanted {
                if value == MASKED {
                    let kept = kept.get(&name.to_ascii_lowercase());
                    let message = "is how a value is shown that we keep; there is none under this name";
                    value.clone_from(kept.ok_or_else(|| Problem::invalid(format!("headers.{name}"), message))?);
                }
            }
            wanted
        }
    };
    Headers::new(wanted.iter().map(|(name, value)| (name.as_str(), value.as_str())), signing).map_err(|error| {
        let field = match &error {
            HeaderError::Name { name } | HeaderError::Reserved { name } | HeaderError::Value { name } => {
                format!("headers.{}", name.escape_debug())
            }
            HeaderError::TooMany | HeaderError::Twice => "headers".to_owned(),
        };
        // The name is told by the field; a control character in it is not repeated.
        let message = match error {
            HeaderError::Name { .. } => "is not a header name".to_owned(),
            HeaderError::Reserved { .. } => "frames, routes, signs or traces the request and is set by Posthaste".to_owned(),
            HeaderError::Value { .. } => "0 to 4,096 characters of visible ASCII, with spaces only inside".to_owned(),
            HeaderError::TooMany | HeaderError::Twice => error.to_string(),
        };
        Problem::invalid(field, message)
    })
}

impl SigningBody {
    fn read(self) -> Result<Signing, Problem> {
        match self.scheme {
            SchemeName::Standard | SchemeName::StandardEd25519 => {
                let misplaced = if self.prefix.is_some() {
                    Some("signing.prefix")
                } else {
                    self.header_names.as_ref().map(|_| "signing.header_names")
                };
                if let Some(field) = misplaced {
                    return Err(Problem::invalid(field, "belongs to the scheme `timestamp-hex`"));
                }
                Ok(if self.scheme == SchemeName::Standard { Signing::Standard } else { Signing::StandardEd25519 })
            }
            SchemeName::TimestampHex => {
                let prefix = match self.prefix {
                    None | Some(PrefixName::V1) => HexPrefix::V1,
                    Some(PrefixName::Sha256) => HexPrefix::Sha256,
                };
                let default = HeaderNames::default();
                let given = self.header_names.unwrap_or_default();
                let or = |given: Option<String>, default: &str| given.unwrap_or_else(|| default.to_owned());
                let header_names = HeaderNames::new(
                    &or(given.id, default.id()),
                    &or(given.delivery, default.delivery()),
                    &or(given.timestamp, default.timestamp()),
                    &or(given.signature, default.signature()),
                )
                .map_err(|error| Problem::invalid("signing.header_names", error.to_string().escape_debug()))?;
                Ok(Signing::TimestampHex { prefix, header_names })
            }
        }
    }

    fn show(signing: &Signing) -> SigningBody {
        match signing {
            Signing::Standard => SigningBody { scheme: SchemeName::Standard, prefix: None, header_names: None },
            Signing::StandardEd25519 => SigningBody { scheme: SchemeName::StandardEd25519, prefix: None, header_names: None },
            Signing::TimestampHex { prefix, header_names } => SigningBody {
                scheme: SchemeName::TimestampHex,
                prefix: Some(match prefix {
                    HexPrefix::V1 => PrefixName::V1,
                    HexPrefix::Sha256 => PrefixName::Sha256,
                }),
                header_names: Some(HeaderNamesBody {
                    id: Some(header_names.id().to_owned()),
                    delivery: Some(header_names.delivery().to_owned()),
                    timestamp: Some(header_names.timestamp().to_owned()),
                    signature: Some(header_names.signature().to_owned()),
                }),
            },
        }
    }
}

/// A secret of the caller's own, if it fits the scheme, or a new one.
pub(crate) fn secret_for(signing: &Signing, own: Option<String>) -> Result<String, Problem> {
    match own {
        Some(own) if fits(signing, &own) => Ok(own),
        Some(_) => Err(Problem::invalid("secret", secret_rule(signing))),
        None => Ok(match signing {
            Signing::Standard | Signing::TimestampHex { .. } => Secret::from_random(rand::random()).reveal().to_owned(),
            Signing::StandardEd25519 => SigningKey::from_random(rand::random()).reveal().to_string(),
        }),
    }
}

fn fits(signing: &Signing, secret: &str) -> bool {
    match signing {
        Signing::Standard => Secret::parse(secret).is_ok(),
        Signing::StandardEd25519 => SigningKey::parse(secret).is_ok(),
        Signing::TimestampHex { .. } => HexSecret::parse(secret).is_ok(),
    }
}

fn secret_rule(signing: &Signing) -> posthaste_signing::SecretError {
    match signing {
        Signing::Standard => posthaste_signing::SecretError::Shared,
        Signing::StandardEd25519 => posthaste_signing::SecretError::Signing,
        Signing::TimestampHex { .. } => posthaste_signing::SecretError::Hex,
    }
}

/// A new secret where the scheme has become one that the present secret cannot sign under. There is no overlap then:
/// receivers cannot verify both schemes with one header.
fn fitting_secrets(stored: &StoredEndpoint, signing: &Signing) -> Option<Vec<StoredSecret>> {
    let is_same_kind = std::mem::discriminant(&stored.endpoint.signing) == std::mem::discriminant(signing);
    if is_same_kind || stored.secrets.iter().all(|stored| fits(signing, &stored.secret.0)) {
        return None;
    }
    let secret = secret_for(signing, None).expect("a new one fits");
    Some(vec![StoredSecret { secret: SecretText(secret), until: None }])
}

fn view(app: &App, endpoint: &Endpoint, secrets: &[StoredSecret], policies: &Policies, observed: &LaneStatus) -> EndpointView {
    let status = endpoint.status.at(app.store.now());
    let own = &endpoint.policies;
    let inherited = [
        ("retry", own.retry.is_none()),
        ("timeout", own.timeout.is_none()),
        ("circuit", own.circuit.is_none()),
        ("delivery_schedule", own.delivery_schedule == Override::Inherit),
        ("rate_limit", own.rate_limit == Override::Inherit),
        ("max_in_flight", endpoint.max_in_flight.is_none()),
    ];
    let present = secrets.iter().find(|stored| stored.until.is_none());
    let public_key = match endpoint.signing {
        Signing::StandardEd25519 => {
            present.and_then(|stored| SigningKey::parse(&stored.secret.0).ok()).map(|key| key.public_key().to_string())
        }
        Signing::Standard | Signing::TimestampHex { .. } => None,
    };
    EndpointView {
        id: endpoint.id.to_string(),
        tenant: endpoint.tenant.to_string(),
        url: endpoint.url.clone(),
        description: endpoint.description.to_string(),
        status: match status {
            Status::Active => "active",
            Status::Paused { .. } => "paused",
            Status::Disabled => "disabled",
        },
        paused_until: match status {
            Status::Paused { until } => until.map(Timestamp::to_rfc3339),
            Status::Active | Status::Disabled => None,
        },
        event_types: endpoint.subscription.event_types.iter().map(ToString::to_string).collect(),
        disabled_event_types: endpoint.subscription.disabled_event_types.iter().map(ToString::to_string).collect(),
        uid: endpoint.uid.as_ref().map(ToString::to_string),
        filter: endpoint
            .subscription
            .filter
            .as_ref()
            .map(|filter| RawValue::from_string(filter.source().to_owned()).expect("checked when it came in")),
        rate_limit: show_rate_limit(&own.rate_limit, policies.rate_limit),
        max_in_flight: endpoint.max_in_flight.unwrap_or(policies.max_in_flight).get(),
        delivery_schedule: show_schedule(&own.delivery_schedule, policies.delivery_schedule.as_ref()),
        retry: RetryBody::show(&policies.retry),
        timeout: TimeoutView::show(policies.timeout, &observed.timeout(), &app.options.timeout_rules),
        circuit: CircuitView::show(&policies.circuit, observed.breaker()),
        inherited: inherited.into_iter().filter(|(_, is_inherited)| *is_inherited).map(|(name, _)| name).collect(),
        signing: SigningBody::show(&endpoint.signing),
        public_key,
        health: observed.health(endpoint.status),
        payload_format: PayloadFormatName::of(endpoint.payload_format),
        headers: endpoint.headers.iter().map(|(name, _)| (name.to_owned(), MASKED.to_owned())).collect(),
        metadata: endpoint.metadata.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        created_at: endpoint.created_at.to_rfc3339(),
        updated_at: endpoint.updated_at.to_rfc3339(),
        secret: None,
        warnings: vec![],
    }
}
