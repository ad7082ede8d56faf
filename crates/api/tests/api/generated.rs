//! Thousands of requests that nobody thought of, made from the OpenAPI document: none may be answered with a failure of ours,
//! and none in a way that the document does not describe.

use std::collections::HashMap;

use axum::body::Body;
use http::Request;
use jsonschema::Validator;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde_json::{Map, Value, json};
use tower::ServiceExt;

use crate::owner::Owner;
use crate::server::{ADMIN, Server, text};

const REQUESTS_PER_OPERATION: usize = 100;
/// Another seed, other requests; this one is what the check runs.
const SEED: u64 = 4711;
/// How many deliveries are dead before the first request.
const DEAD: usize = 6;
const SCOPES: &[&str] = &["read", "manage", "publish", "replay"];

struct Generator {
    dice: ChaCha8Rng,
    document: Value,
    /// Names of things that are there, to be put where a name can stand, by the resource that they belong to.
    ids: HashMap<&'static str, Vec<String>>,
    /// How much of what may be said is said in this request.
    share: u32,
    made: u32,
}

/// The resource that a path is about.
fn resource(path: &str) -> &'static str {
    match path.split('/').nth(2).unwrap_or_default() {
        "endpoints" => "endpoints",
        "events" => "events",
        "deliveries" => "deliveries",
        "dead-letters" => "dead-letters",
        "replays" => "replays",
        "tenants" => "tenants",
        "event-types" => "event-types",
        "keys" => "keys",
        "portal-sessions" => "portal-sessions",
        _ => "errors",
    }
}

impl Generator {
    fn chance(&mut self, percent: u32) -> bool {
        self.dice.random_range(0..100) < percent
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.dice.random_range(0..from.len())]
    }

    /// A value that fits a schema, mostly.
    fn value(&mut self, schema: &Value, depth: u32) -> Value {
        if let Some(reference) = schema["$ref"].as_str() {
            let target = self.document.pointer(reference.trim_start_matches('#')).unwrap().clone();
            return self.value(&target, depth + 1);
        }
        if self.chance(2) {
            return self.nonsense(depth);
        }
        // A shape with more that is required: the shape itself says what there is.
        if let Some(parts) = schema["allOf"].as_array() {
            let shape = parts[0].clone();
            return self.value(&shape, depth);
        }
        if let Some(options) = schema["enum"].as_array() {
            let options = options.clone();
            return self.pick(&options).clone();
        }
        for several in ["oneOf", "anyOf"] {
            if let Some(options) = schema[several].as_array() {
                let options = options.clone();
                let option = self.pick(&options).clone();
                return self.value(&option, depth + 1);
            }
        }
        let kinds: Vec<String> = match &schema["type"] {
            Value::String(kind) => vec![kind.clone()],
            Value::Array(kinds) => kinds.iter().map(text).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => vec!["any".to_owned()],
        };
        match self.pick(&kinds).clone().as_str() {
            "null" => Value::Null,
            "boolean" => json!(self.chance(50)),
            "integer" => self.integer(schema),
            "number" => json!(self.dice.random_range(-2.0..20.0)),
            "string" => self.string(schema),
            "array" => {
                let count = self.dice.random_range(0..4);
                let items = schema["items"].clone();
                (0..count).map(|_| self.value(&items, depth + 1)).collect()
            }
            "object" => self.object(schema, depth),
            _ => self.nonsense(depth),
        }
    }

    fn integer(&mut self, schema: &Value) -> Value {
        let low = schema["minimum"].as_i64().unwrap_or(-5);
        let high = schema["maximum"].as_i64().unwrap_or(1000);
        match self.dice.random_range(0..10) {
            0 => json!(low),
            1 => json!(high),
            2 => json!(low - 1),
            3 => json!(high.saturating_add(1)),
            4 => json!(u64::MAX),
            _ => json!(self.dice.random_range(low..=high)),
        }
    }

    fn string(&mut self, schema: &Value) -> Value {
        if schema["format"] == "date-time" {
            let times = [
                "2026-04-08T10:15:30Z",
                "2027-01-01T00:00:00+02:00",
                "2026-11-20T00:00:00.123456Z",
                "9999-01-01T00:00:00Z",
                "yesterday",
                "",
            ];
            return json!(self.pick(&times));
        }
        let words = [
            "acme",
            "globex",
            "invoice.paid",
            "invoice.*",
            "*",
            "https://example.com/hooks",
            "http://127.0.0.1:8080/",
            "UTC",
            "America/Chicago",
            "22:00",
            "06:00",
            "mon",
            "x-header",
            "v1",
            "",
            "a b",
            "\u{1f600}",
            "\u{0}",
            "dlv_01knp9e1ege0094d2pf2dbsqqg",
            "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
            "unlimited",
            "always",
            "../..",
            "%2e",
            "null",
            "0",
        ];
        if self.chance(15) {
            return json!(self.known("deliveries"));
        }
        if self.chance(3) {
            return json!("x".repeat(self.dice.random_range(100..3000)));
        }
        json!(self.pick(&words))
    }

    /// What a person would write under this name. Without it nearly everything would be refused at the first field.
    fn plausible(&mut self, name: &str) -> Option<Value> {
        self.made += 1;
        Some(match name {
            "url" => json!("https://example.com/hooks"),
            "tenant" => json!(self.known("tenants")),
            "endpoint" => json!(self.known("endpoints")),
            "type" => json!("invoice.paid"),
            // One that is there already, too.
            "id" if self.chance(30) => json!(self.known("events")),
            "uid" | "id" => json!(format!("generated-{}", self.made)),
            "name" => json!(format!("type-{}", self.made)),
            "version" => json!(format!("v{}", self.made)),
            "reason" => json!("a reason"),
            "timezone" => json!("America/Chicago"),
            "start" | "quiet_start" => json!("22:00"),
            "end" | "quiet_end" => json!("06:00"),
            "days" => json!(["mon", "tue"]),
            "from" => json!("2026-01-01T00:00:00Z"),
            "to" | "until" | "expires_at" | "deliver_at" => json!("2027-01-01T00:00:00Z"),
            "event_types" | "disabled_event_types" | "applies_to" => json!(["invoice.*"]),
            "bypass_event_types" => json!(["payment.failed"]),
            "filter" => json!({"data.amount": {"$gte": 1000}}),
            "headers" => json!({"x-generated": "1"}),
            "emails" => json!(["ops@example.com"]),
            "ids" => json!([self.known("deliveries")]),
            "code" => json!(self.known("codes")),
            "schema" => json!({"type": "object"}),
            "example" => json!({}),
            _ => return None,
        })
    }

    fn known(&mut self, resource: &str) -> String {
        let known = self.ids[resource].clone();
        self.pick(&known).clone()
    }

    fn object(&mut self, schema: &Value, depth: u32) -> Value {
        let mut object = Map::new();
        let required: Vec<String> = schema["required"].as_array().into_iter().flatten().map(text).collect();
        let properties = schema["properties"].as_object().cloned().unwrap_or_default();
        let share = if depth > 3 { self.share / 2 } else { self.share };
        for (name, property) in &properties {
            let is_read_only = property["readOnly"] == true;
            // An endpoint without a URL would teach us nothing more.
            let is_wanted = (required.contains(name) || name == "url") && !self.chance(3);
            if is_wanted || (self.chance(share) && (!is_read_only || self.chance(5))) {
                let value = match self.plausible(name) {
                    Some(plausible) if !self.chance(10) => plausible,
                    Some(_) | None => self.value(property, depth + 1),
                };
                object.insert(name.clone(), value);
            }
        }
        if properties.is_empty() {
            for _ in 0..self.dice.random_range(0..3) {
                let name = text(&self.string(&json!({})));
                let more = schema["additionalProperties"].clone();
                object.insert(name, self.value(&more, depth + 1));
            }
        }
        if self.chance(3) {
            object.insert("nonsense".to_owned(), json!(1));
        }
        Value::Object(object)
    }

    fn nonsense(&mut self, depth: u32) -> Value {
        match self.dice.random_range(0..8) {
            0 => Value::Null,
            1 => json!(true),
            2 => json!(-1),
            3 => json!(1e300),
            4 => json!("nonsense"),
            5 if depth < 6 => json!([self.nonsense(depth + 1)]),
            6 if depth < 6 => json!({"data.amount": {"$gte": self.nonsense(depth + 1)}}),
            _ => json!({}),
        }
    }

    /// An address for a path of the document.
    fn address(&mut self, path: &str, operation: &Value) -> String {
        let name = match self.dice.random_range(0..10) {
            0 => "nonsense".to_owned(),
            1 => "%20%00".to_owned(),
            2 => self.known("tenants"),
            3 => self.known("deliveries"),
            _ => self.known(resource(path)),
        };
        let mut address = match path.split_once('{') {
            None => path.to_owned(),
            Some((head, rest)) => format!("{head}{name}{}", rest.split_once('}').unwrap().1),
        };
        let mut separator = '?';
        let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        for parameter in parameters.iter().filter(|parameter| parameter["in"] == "query") {
            if self.chance(25) {
                let value = self.value(&parameter["schema"], 3);
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let value: String = form_urlencoded::byte_serialize(value.as_bytes()).collect();
                address = format!("{address}{separator}{}={value}", text(&parameter["name"]));
                separator = '&';
            }
        }
        if self.chance(2) {
            address = format!("{address}{separator}nonsense=1");
        }
        address
    }

    fn body(&mut self, operation: &Value) -> Vec<u8> {
        let schema = operation["requestBody"]["content"]["application/json"]["schema"].clone();
        self.share = *self.pick(&[0, 5, 15, 40]);
        if schema.is_null() {
            return vec![];
        }
        // The document's own example is acceptable, which few drawn bodies are where several fields have to fit.
        let example = &operation["requestBody"]["content"]["application/json"]["example"];
        let is_example = !example.is_null() && self.chance(10);
        let mut body = if is_example { example.to_string() } else { self.value(&schema, 0).to_string() };
        // JSON that no program can hold, in place of what one can.
        let odd = ["1e999", "-1e-999", &"9".repeat(400), "\"\\ud800\"", "\"\\udc00x\"", "0.1e+0000000000000000000400"];
        for plain in ["1000", "4999", "\"nonsense\"", "1e300", "-1", "{}"] {
            if self.chance(15) {
                let odd = *self.pick(&odd);
                body = body.replacen(plain, odd, 1);
            }
        }
        let mut body = body.into_bytes();
        if self.chance(4) && !body.is_empty() {
            let at = self.dice.random_range(0..body.len());
            body[at] = self.dice.random_range(0..=255);
        }
        if self.chance(2) {
            body.truncate(body.len() / 2);
        }
        body
    }
}

/// Validators for answers, each made once.
struct Answers {
    document: Value,
    validators: HashMap<(String, u16), Option<Validator>>,
}

impl Answers {
    /// What is wrong with an answer, if anything is.
    fn fault(&mut self, operation: &Value, status: u16, media_type: Option<&str>, body: &[u8]) -> Option<String> {
        let mut described = operation["responses"][status.to_string()].clone();
        if let Some(reference) = described["$ref"].as_str() {
            described = self.document.pointer(reference.trim_start_matches('#'))?.clone();
        }
        if described.is_null() {
            return Some(format!("{status} is not described"));
        }
        let Some(content) = described.get("content").and_then(Value::as_object) else {
            return (!body.is_empty()).then(|| "a body that is not described".to_owned());
        };
        let media_type = media_type.unwrap_or_default().split(';').next().unwrap_or_default().to_owned();
        let Some(described) = content.get(&media_type) else { return Some(format!("{media_type} is not described")) };
        if !media_type.ends_with("json") {
            return None;
        }
        let Ok(body) = serde_json::from_slice::<Value>(body) else {
            // JSON that no program can hold is shown as it came in.
            let text = std::str::from_utf8(body).unwrap_or_default();
            return posthaste_core::json::check(text, 128).err().map(|error| error.to_string());
        };
        let key = (text(&operation["operationId"]), status);
        let validator = self.validators.entry(key).or_insert_with(|| {
            let mut schema = described["schema"].clone();
            schema["components"] = self.document["components"].clone();
            Some(jsonschema::validator_for(&schema).unwrap())
        });
        validator.as_ref()?.validate(&body).err().map(|error| format!("{} at {}: {body}", error, error.instance_path()))
    }
}

/// What a portal link has behind its `#`.
fn code_of(link: &Value) -> String {
    text(&link["url"]).split_once("#code=").unwrap().1.to_owned()
}

async fn i48_thousands_of_generated_requests_get_a_described_answer_and_no_failure(server: Server) {
    let endpoint = server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "acme", "uid": "crm"}"#).await;
    let event = server.post("/v1/events", r#"{"type": "invoice.paid", "tenant": "acme", "data": {}}"#).await.expect(202);
    let replay = server.post("/v1/replays", r#"{"tenant": "acme", "status": ["dead"], "reason": "x"}"#).await.expect(202);
    // A tenant that no request names, so that its dead letters are not taken away before they can be retried.
    server.endpoint(r#"{"url": "http://127.0.0.1:8080/", "tenant": "keeper"}"#).await;
    for _ in 0..8 {
        server.post("/v1/events", r#"{"type": "invoice.paid", "tenant": "keeper", "data": {}}"#).await.expect(202);
    }
    server.post("/v1/event-types", r#"{"name": "invoice.sent"}"#).await.expect(201);
    let key = server.post("/v1/keys", r#"{"name": "x", "scopes": ["read"]}"#).await.expect(201);
    let link = server.post("/v1/portal-links", r#"{"tenant": "keeper", "permissions": ["view"]}"#).await.expect(201);
    let deliveries = server.deliveries().await;
    let owner = Owner::of(&server.store).await;
    for row in deliveries.iter().take(DEAD) {
        owner.attempt(row, 404).await;
    }
    owner.obey(vec![]).await;
    let mut tenant_key = server.key(Some("acme"), SCOPES).await;
    let document: Value = serde_json::from_str(&posthaste_api::openapi()).unwrap();
    let mut answers = Answers { document: document.clone(), validators: HashMap::new() };
    let ids = HashMap::from([
        ("endpoints", vec![text(&endpoint["id"])]),
        ("events", vec![text(&event["id"])]),
        ("replays", vec![text(&replay["id"])]),
        ("deliveries", deliveries.iter().map(|row| row.id.to_string()).collect()),
        ("dead-letters", deliveries.iter().take(DEAD).map(|row| row.id.to_string()).collect()),
        ("tenants", vec!["acme".to_owned()]),
        ("event-types", vec!["invoice.sent".to_owned()]),
        ("keys", vec![text(&key["id"])]),
        ("portal-sessions", vec![text(&link["session"])]),
        ("codes", vec![code_of(&link)]),
        ("errors", vec!["invalid".to_owned()]),
    ]);
    let dice = ChaCha8Rng::seed_from_u64(SEED);
    let mut generator = Generator { dice, document: document.clone(), ids, share: 0, made: 0 };
    let mut operations: Vec<(String, String, Value)> = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            operations.push((path.clone(), method.to_ascii_uppercase(), operation.clone()));
        }
    }
    let mut statuses: HashMap<u16, usize> = HashMap::new();
    let mut succeeded: HashMap<String, usize> = HashMap::new();
    let mut faults = Vec::new();
    let requests = operations.len() * REQUESTS_PER_OPERATION;
    for number in 0..requests {
        let (path, method, operation) = operations[number % operations.len()].clone();
        let address = generator.address(&path, &operation);
        let body = generator.body(&operation);
        let key = match generator.dice.random_range(0..20) {
            0 => "wrong".to_owned(),
            1..=4 => tenant_key.clone(),
            _ => ADMIN.to_owned(),
        };
        let mut request = Request::builder().method(method.as_str()).uri(&address).header("authorization", format!("Bearer {key}"));
        if !body.is_empty() && !generator.chance(2) {
            request = request.header("content-type", "application/json");
        }
        if generator.chance(5) {
            request = request.header("if-match", "\"1\"").header("idempotency-key", "k1");
        }
        let shown = format!("{method} {address} {}", String::from_utf8_lossy(&body[..body.len().min(300)]));
        let response = server.router.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
        let status = response.status().as_u16();
        *statuses.entry(status).or_default() += 1;
        if status < 300 {
            *succeeded.entry(text(&operation["operationId"])).or_default() += 1;
        }
        if operation["operationId"] == "stream" && status == 200 {
            continue;
        }
        let media_type = response.headers().get("content-type").map(|value| value.to_str().unwrap().to_owned());
        let bytes = axum::body::to_bytes(response.into_body(), 64 * 1024 * 1024).await.unwrap();
        // A key goes with its tenant.
        if status == 401 && key == tenant_key {
            tenant_key = server.key(Some("acme"), SCOPES).await;
        }
        if status >= 500 {
            faults.push(format!("{shown}\n  {status} {}", String::from_utf8_lossy(&bytes)));
        }
        if let Some(fault) = answers.fault(&operation, status, media_type.as_deref(), &bytes) {
            faults.push(format!("{shown}\n  {status}: {fault}"));
        }
        // What was made can be asked for.
        if status == 201 || status == 202 {
            let made: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            if operation["operationId"] == "createPortalLink" {
                generator.ids.get_mut("codes").unwrap().push(code_of(&made));
                generator.ids.get_mut("portal-sessions").unwrap().push(text(&made["session"]));
            }
            let name = ["id", "name"].iter().find_map(|field| made[field].as_str());
            let known = generator.ids.get_mut(resource(&path)).unwrap();
            if let Some(name) = name {
                known.push(name.to_owned());
                // The newest are the likeliest to be there still.
                known.drain(..known.len().saturating_sub(12));
            }
        }
    }
    println!("{requests} requests, by status: {statuses:?}");
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults[..faults.len().min(20)].join("\n"));
    // It would prove nothing if everything had been refused.
    let silent: Vec<String> = operations
        .iter()
        .map(|(_, _, operation)| text(&operation["operationId"]))
        .filter(|name| !succeeded.contains_key(name))
        .collect();
    assert!(silent.is_empty(), "never succeeded: {silent:?}");
}

on_both_databases! {
    i48_thousands_of_generated_requests_get_a_described_answer_and_no_failure
}
