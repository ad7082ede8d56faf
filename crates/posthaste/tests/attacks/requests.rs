//! Requests that once met a bug, or were taken although they say nothing.

use std::path::{Path, PathBuf};

use posthaste_checker::caller::Caller;
use posthaste_checker::server::{Process, Program};
use serde_json::{Value, json};

pub(crate) struct Server {
    pub(crate) program: Program,
    _process: Process,
    directory: PathBuf,
}

impl Server {
    pub(crate) async fn start(name: &str) -> Server {
        let directory = std::env::temp_dir().join(format!("posthaste-requests-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let program = Program {
            binary: Path::new(env!("CARGO_BIN_EXE_posthaste")).to_owned(),
            data_dir: directory.join("data"),
            listen: std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap(),
            admin_key: "phk_requests_0123456789abcdef".to_owned(),
            flags: ["--log", "error"].map(str::to_owned).to_vec(),
            log: directory.join("log"),
        };
        let mut process = program.start(&[]).unwrap();
        program.ready(&mut process).await.unwrap();
        Server { program, _process: process, directory }
    }

    pub(crate) fn caller(&self) -> Caller {
        Caller::new(self.program.listen, &self.program.admin_key)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[tokio::test]
async fn numbers_and_texts_that_no_program_can_hold_are_taken_and_shown_as_they_came() {
    let server = Server::start("odd").await;
    let mut caller = server.caller();
    let digits = "9".repeat(400);
    for odd in ["1e999", "-1e999", &digits, r#""\ud800""#, r#""a\udc00""#] {
        let body = format!(r#"{{"url": "https://example.com/", "filter": {{"data.a": {odd}}}}}"#);
        let made = caller.call(http::Method::POST, "/v1/endpoints", body.into()).await.unwrap();
        assert_eq!(made.status, 201, "{odd}: {:?}", made.body);
        assert!(String::from_utf8_lossy(&made.body).contains(odd), "{odd}: {:?}", made.body);
        let rest = String::from_utf8_lossy(&made.body).into_owned();
        let id = rest.split(r#""id":""#).nth(1).unwrap().split('"').next().unwrap().to_owned();
        let path = format!("/v1/endpoints/{id}");
        let changed = caller.call(http::Method::PATCH, &path, r#"{"description": "odd"}"#.into()).await.unwrap();
        assert_eq!(changed.status, 200, "{odd}: {:?}", changed.body);
        assert_eq!(caller.call(http::Method::DELETE, &path, bytes::Bytes::new()).await.unwrap().status, 204, "{odd}");
        let test = format!(r#"{{"filter": {{"data.a": {odd}}}, "event": {{"type": "a", "data": {{"a": {odd}}}}}}}"#);
        let tested = caller.call(http::Method::POST, "/v1/filters/test", test.into()).await.unwrap();
        assert_eq!((tested.status, &tested.json()["matches"]), (200, &Value::Bool(true)), "{odd}");
    }
    assert_eq!(caller.get("/v1/audit").await.unwrap().status, 200);
    let metrics = caller.get("/metrics").await.unwrap();
    assert!(String::from_utf8_lossy(&metrics.body).contains("posthaste_request_panics_total 0"));
}

#[tokio::test]
async fn what_says_nothing_is_refused_and_names_its_field() {
    let server = Server::start("empty").await;
    let mut caller = server.caller();
    for path in ["/v1/events", "/v1/deliveries", "/v1/audit", "/v1/dead-letters"] {
        let range = format!("{path}?from=2026-02-01T00:00:00Z&to=2026-01-01T00:00:00Z");
        let answer = caller.get(&range).await.unwrap();
        assert_eq!((answer.status, &answer.json()["errors"][0]["field"]), (422, &json!("to")), "{path}");
    }
    let endpoint = json!({"url": "https://example.com/", "retry": {"strategy": "schedule", "delays_seconds": []}});
    let answer = caller.post("/v1/endpoints", &endpoint).await.unwrap();
    assert_eq!((answer.status, &answer.json()["errors"][0]["field"]), (422, &json!("retry.delays_seconds")));
    let mut odd = server.caller().with_header("content-type", "application/json;;;");
    let answer = odd.post("/v1/events", &json!({"type": "a", "data": 1})).await.unwrap();
    assert_eq!(answer.status, 415);
}
