//! The OpenAPI document, made from the table of routes and from the types of bodies and answers.

use std::collections::BTreeMap;

use posthaste_store::KeyScope;
use serde_json::{Map, Value, json};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::problem::{self, Problem};
use crate::routes::{Access, RequestSpec, ResponseSpec, Route};
use crate::statuses;

/// A type as the document shows it.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    name: fn() -> String,
    collect: fn(&mut Vec<(String, RefOr<Schema>)>),
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    One,
    List,
    Array,
}

pub(crate) fn shape<T: ToSchema>() -> Shape {
    Shape { name: || T::name().into_owned(), collect: collect::<T>, kind: Kind::One }
}

/// A page of them.
pub(crate) fn list_of<T: ToSchema>() -> Shape {
    Shape { kind: Kind::List, ..shape::<T>() }
}

pub(crate) fn array_of<T: ToSchema>() -> Shape {
    Shape { kind: Kind::Array, ..shape::<T>() }
}

fn collect<T: ToSchema>(schemas: &mut Vec<(String, RefOr<Schema>)>) {
    T::schemas(schemas);
    schemas.push((T::name().into_owned(), <T as PartialSchema>::schema()));
}

impl Shape {
    fn document(self) -> Value {
        let one = json!({"$ref": format!("#/components/schemas/{}", (self.name)())});
        match self.kind {
            Kind::One => one,
            Kind::Array => json!({"type": "array", "items": one, "minItems": 1, "maxItems": 1000}),
            Kind::List => json!({
                "type": "object",
                "required": ["data", "as_of", "next_cursor"],
                "properties": {
                    "data": {"type": "array", "items": one},
                    "as_of": {
                        "type": "string",
                        "format": "date-time",
                        "description": "When it was read. What depends on a delivery that is under way is at most two seconds older.",
                    },
                    "next_cursor": {"type": ["string", "null"], "description": "Where the next page begins; null on the last."},
                },
            }),
        }
    }
}

/// Statuses that any call may be answered with, whatever it asks for.
const PROBLEMS_OF_ALL: [u16; 4] = [400, 414, 422, 431];
const PROBLEMS_OF_API: [u16; 5] = [401, 403, 404, 429, 503];
const PROBLEMS_OF_BODIES: [u16; 3] = [408, 413, 415];

/// The whole document.
pub(crate) fn document(table: &[Route]) -> Value {
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    let mut schemas: Vec<(String, RefOr<Schema>)> = Vec::new();
    collect::<Problem>(&mut schemas);
    for route in table {
        let shapes = route.body.iter().map(|body| body.shape).chain(route.answers.iter().filter_map(|gives| gives.shape));
        shapes.for_each(|shape| (shape.collect)(&mut schemas));
        paths.entry(route.path).or_default().insert(route.method.as_str().to_ascii_lowercase(), operation(route));
    }
    let mut schemas: BTreeMap<String, Value> =
        schemas.into_iter().map(|(name, schema)| (name, serde_json::to_value(schema).expect("a schema is JSON"))).collect();
    if let Some(delivery) = schemas.get_mut("Delivery") {
        for (field, words) in [
            ("status", &statuses::STATUSES[..]),
            ("hold_reason", &statuses::HOLD_REASONS),
            ("dead_reason", &statuses::DEAD_REASONS),
            ("cancel_reason", &statuses::CANCEL_REASONS),
        ] {
            delivery["properties"][field]["description"] = json!(statuses::in_words(words));
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Posthaste",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Webhook delivery that never loses an event.",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": responses(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "An API key or a portal token."}},
        },
    })
}

/// One for each kind of problem.
fn responses() -> Map<String, Value> {
    let content = json!({"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}});
    problem::one_of_each()
        .iter()
        .map(|problem| {
            let mut response = json!({"description": problem.title(), "content": content.clone()});
            if matches!(problem.status().as_u16(), 429 | 503) {
                response["headers"] = json!({"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}});
            }
            (problem.status().as_u16().to_string(), response)
        })
        .collect()
}

fn operation(route: &Route) -> Value {
    let mut parameters: Vec<Value> = route.query.iter().map(crate::query::Parameter::document).collect();
    if let Some(name) = place(route.path) {
        parameters.insert(0, json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}));
    }
    for header in route.headers {
        parameters.push(json!({"name": header, "in": "header", "schema": {"type": "string"}}));
    }
    let mut answers: Map<String, Value> = route.answers.iter().map(|gives| (gives.status.to_string(), given(gives))).collect();
    let mut problems: Vec<u16> = PROBLEMS_OF_ALL.into_iter().chain(route.problems.iter().copied()).collect();
    match route.access {
        Access::Anybody => problems.extend([404, 503]),
        Access::Scope(_) | Access::ServerWide(_) | Access::ServerWideOrLocal(_) => problems.extend(PROBLEMS_OF_API),
    }
    if route.body.is_some() {
        problems.extend(PROBLEMS_OF_BODIES);
    }
    for status in problems {
        answers.insert(status.to_string(), json!({"$ref": format!("#/components/responses/{status}")}));
    }
    let mut operation = json!({
        "operationId": route.operation,
        "summary": route.summary,
        "tags": [tag(route.path)],
        "parameters": parameters,
        "responses": answers,
    });
    if let Some(body) = &route.body {
        operation["requestBody"] = taken(body);
    }
    match route.access {
        Access::Anybody => operation["security"] = json!([]),
        // Whoever needs none is on this machine and knows.
        Access::Scope(scope) | Access::ServerWide(scope) | Access::ServerWideOrLocal(scope) => {
            // The roles that a caller needs, as OpenAPI 3.1 has them for schemes other than OAuth.
            operation["security"] = json!([{"key": [KeyScope::name(scope)]}]);
            operation["x-scope"] = json!(KeyScope::name(scope));
        }
    }
    operation
}

fn taken(body: &RequestSpec) -> Value {
    let mut content = Map::new();
    for media_type in body.media_types {
        let mut schema = body.shape.document();
        if !body.fields.is_empty() {
            schema = json!({"allOf": [schema, {"type": "object", "required": body.fields}]});
        }
        let mut media = json!({"schema": schema});
        if !body.example.is_empty() && *media_type == "application/json" {
            media["example"] = serde_json::from_str(body.example).expect("our own example is JSON");
        }
        content.insert((*media_type).to_owned(), media);
    }
    json!({"required": body.is_required, "content": content})
}

fn given(gives: &ResponseSpec) -> Value {
    let mut answer = json!({"description": gives.about});
    let schema = match (gives.shape, gives.status) {
        (Some(shape), _) => shape.document(),
        (None, 204) => return answer,
        (None, _) if gives.media_type == "application/json" => json!({"type": "object"}),
        (None, _) => json!({"type": "string"}),
    };
    answer["content"] = json!({gives.media_type: {"schema": schema}});
    answer
}

/// The name of what stands in the address.
pub(crate) fn place(path: &str) -> Option<&str> {
    path.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(name, _)| name)
}

/// The resource that a route belongs to.
pub(crate) fn tag(path: &str) -> &str {
    match path.strip_prefix("/v1/") {
        Some(rest) => rest.split('/').next().unwrap_or(rest),
        None => "server",
    }
}
