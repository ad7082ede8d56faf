//! Secrets that are planted everywhere, and looked for everywhere.

use std::io::Write;
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::owner::Owner;
use crate::server::{ADMIN, Server, path, text};

const SECRET: &str = "whsec_Y2FuYXJ5LWNhbmFyeS1jYW5hcnktY2FuYXJ5LWNhbmFyeQ==";
const HEADER: &str = "Bearer canary-header-credential";
const PAYLOAD: &str = "canary-payload";

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn i45_secrets_appear_nowhere_but_in_the_answer_that_makes_them() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let server = Server::new("canaries");
    let body = format!(
        r#"{{"url": "http://127.0.0.1:8080/", "tenant": "acme", "uid": "crm", "secret": "{SECRET}", "headers": {{"authorization": "{HEADER}"}}}}"#
    );
    let endpoint = server.endpoint(&body).await;
    assert!(endpoint.to_string().contains(SECRET) && endpoint.to_string().contains(HEADER), "the one answer");
    let key = server.key(Some("acme"), &["admin"]).await;
    let link: Value = server.post("/v1/portal-links", r#"{"tenant": "acme", "permissions": ["view"]}"#).await.expect(201);
    let code = text(&link["url"]).split_once("#code=").unwrap().1.to_owned();
    let exchange = serde_json::json!({"code": code}).to_string();
    let token = text(&server.call("", "POST", "/v1/portal-sessions", exchange).await.expect(201)["token"]);
    let event = server.post("/v1/events", format!(r#"{{"type": "a", "tenant": "acme", "data": "{PAYLOAD}"}}"#)).await.expect(202);
    let delivery = server.deliveries().await.remove(0);
    let owner = Owner::of(&server.store).await;
    owner.attempt(&delivery, 404).await;
    owner.obey(vec![]).await;
    let rotated = server.post(&format!("{}/rotate-secret", path("endpoints", &endpoint)), "").await.expect(200);
    let new_secret = text(&rotated["secret"]);
    let mut canaries: Vec<String> = vec![SECRET.into(), HEADER.into(), key.clone(), code, token.clone(), ADMIN.into(), new_secret];
    // Also without what surrounds them.
    canaries.extend(["canary-header-credential".to_owned(), SECRET.trim_start_matches("whsec_").to_owned()]);

    let ids = [text(&endpoint["id"]), text(&event["id"]), delivery.id.to_string(), "acme".to_owned(), "nonsense".to_owned()];
    let mut asked = 0;
    for route in posthaste_api::routes().into_iter().filter(|route| route.operation != "stream") {
        let bodies: &[&str] =
            if route.takes_body { &["{}", "{", r#"{"url": "http://127.0.0.1:8080/", "description": "x"}"#] } else { &[""] };
        for id in &ids {
            for body in bodies {
                // Nothing is made or taken away while we look.
                if ["deleteEndpoint", "deleteTenant", "createKey", "createPortalLink", "rotateEndpointSecret"]
                    .contains(&route.operation)
                {
                    continue;
                }
                for credential in [ADMIN, &key, &token] {
                    let path = route.path.split('{').next().unwrap().to_owned();
                    let path = if route.path.contains('{') {
                        format!("{path}{id}{}", route.path.split('}').nth(1).unwrap_or_default())
                    } else {
                        path
                    };
                    let answer = server.call(credential, route.method.as_str(), &path, body.to_string()).await;
                    asked += 1;
                    for canary in &canaries {
                        let is_new_secret =
                            ["createEndpoint", "putEndpoint"].contains(&route.operation) && answer.status.as_u16() == 201;
                        let found = answer.text().contains(canary) || format!("{:?}", answer.headers).contains(canary);
                        assert!(!found, "{canary} in {} {path} ({is_new_secret}): {}", route.method, answer.text());
                    }
                }
            }
        }
    }
    assert!(asked > 500, "{asked}");
    let logged = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(logged.contains("answered"), "something is logged");
    canaries.push(PAYLOAD.to_owned());
    for canary in &canaries {
        assert!(!logged.contains(canary), "{canary} in the log");
    }
    let audit = server.store.audit(None, None, 1000).await.unwrap();
    assert!(audit.iter().any(|row| row.audit.action == "endpoint.create"));
    let audit = format!("{audit:?}");
    for canary in &canaries {
        assert!(!audit.contains(canary), "{canary} in the audit log");
    }
}
