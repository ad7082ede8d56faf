//! The OpenAPI document, the pages made from it, and its examples.

use serde_json::Value;

use crate::server::{ADMIN, Server};

fn document() -> Value {
    serde_json::from_str(&posthaste_api::openapi()).unwrap()
}

#[tokio::test]
async fn the_document_is_served_without_a_key_and_describes_every_route() {
    let server = Server::new("openapi");
    let request = http::Request::get("/openapi.json").body(axum::body::Body::empty()).unwrap();
    let shown = server.send(request).await.expect(200);
    assert_eq!(shown, document());
    assert_eq!(shown["openapi"], "3.1.0");
    for route in posthaste_api::routes() {
        let operation = &shown["paths"][route.path][route.method.as_str().to_ascii_lowercase()];
        assert_eq!(operation["operationId"], route.operation, "{} {}", route.method, route.path);
        assert!(!operation["summary"].as_str().unwrap().is_empty());
        assert_eq!(operation.get("requestBody").is_some(), route.takes_body);
    }
    let operations: usize = shown["paths"].as_object().unwrap().values().map(|path| path.as_object().unwrap().len()).sum();
    assert_eq!(operations, posthaste_api::routes().len());
}

#[test]
fn every_reference_leads_somewhere_and_every_answer_is_described() {
    fn walk(value: &Value, document: &Value, place: &str) {
        if let Some(reference) = value.get("$ref").and_then(Value::as_str) {
            let target = document.pointer(reference.trim_start_matches('#'));
            assert!(target.is_some(), "{place}: {reference} leads nowhere");
        }
        if place.ends_with("/responses") {
            for (status, response) in value.as_object().unwrap() {
                assert!(
                    response.get("$ref").is_some() || response["description"].is_string(),
                    "{place}/{status} has no description"
                );
            }
        }
        match value {
            Value::Object(members) => members.iter().for_each(|(name, member)| walk(member, document, &format!("{place}/{name}"))),
            Value::Array(items) => items.iter().for_each(|item| walk(item, document, place)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let document = document();
    walk(&document, &document, "");
}

#[tokio::test]
async fn every_example_in_the_document_works() {
    let server = Server::new("examples");
    let document = document();
    let mut sent = 0;
    for route in posthaste_api::routes().into_iter().filter(|route| !route.example.is_empty()) {
        let operation = &document["paths"][route.path][route.method.as_str().to_ascii_lowercase()];
        let example = operation["requestBody"]["content"]["application/json"]["example"].clone();
        assert_eq!(example, serde_json::from_str::<Value>(route.example).unwrap());
        let answer = server.call(ADMIN, route.method.as_str(), route.path, example.to_string()).await;
        assert!(answer.status.is_success(), "{} {}: {}", route.method, route.path, answer.text());
        sent += 1;
    }
    assert!(sent >= 8, "{sent}");
}

#[tokio::test]
async fn the_pages_need_nothing_from_elsewhere() {
    let server = Server::new("docs");
    let page = server.get("/docs").await;
    assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
    let text = page.text();
    for route in posthaste_api::routes() {
        assert!(text.contains(&format!("id=\"{}\"", route.operation)), "{} is not on the page", route.operation);
    }
    for outside in ["<script", "<link", "<img", "@import", "url(", "src=", "href=\"http"] {
        assert!(!text.contains(outside), "{outside}");
    }
    // The type of every problem leads to its page.
    let problem = server.get("/v1/endpoints/x").await.expect(404);
    let page = server.get(problem["type"].as_str().unwrap()).await;
    assert_eq!(page.status, 200);
    assert!(page.text().contains("<h1>Not found</h1>"), "{}", page.text());
    server.get("/docs/errors/nonsense").await.expect(404);
    server.get("/docs/errors/..%2fREADME").await.expect(404);
}

#[tokio::test]
async fn every_request_in_the_guide_works() {
    let guide = include_str!("../../../../docs/guide/api.md");
    let server = Server::new("guide");
    let (mut sent, mut portal_code) = (0, String::new());
    for block in guide.split("```http\n").skip(1).map(|rest| rest.split("```").next().unwrap()) {
        let (line, body) = block.split_once('\n').unwrap();
        let (method, path) = line.split_once(' ').unwrap();
        // The reader puts in the code of the link that the request before has made.
        let answer = server.call(ADMIN, method, path, body.replace("phc_…", &portal_code)).await;
        assert!(answer.status.is_success(), "{line}: {}", answer.text());
        if let Some((_, rest)) = answer.text().split_once("#code=") {
            portal_code = rest.split('"').next().unwrap().to_owned();
        }
        sent += 1;
    }
    assert_eq!(sent, 10);
}
