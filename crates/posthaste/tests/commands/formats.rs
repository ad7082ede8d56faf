//! What a receiver gets, in each payload format, from the real binary on both databases.

use posthaste_testpg::Server as Database;
use serde_json::json;

use crate::server::{Arrival, Receiver, Server};

const MASTER_KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

#[test]
fn each_payload_format_carries_what_the_guide_says() {
    let database = Database::start();
    let url = database.url();
    for flags in [vec![], vec!["--database-url", &url, "--master-key", MASTER_KEY]] {
        let local = ["--allow-http", "--allow-networks", "127.0.0.0/8"];
        let server = Server::start_bare(&format!("formats-{}", flags.len()), &[&local[..], &flags].concat());
        let receivers = ["envelope", "data", "cloudevents"].map(|format| {
            let receiver = Receiver::start("200 OK", b"");
            server.good(
                "POST",
                "/v1/endpoints",
                &json!({"url": receiver.url(), "payload_format": format, "tenant": "acme"}).to_string(),
            );
            receiver
        });
        let data = r#"{ "amount": 1.00 }"#;
        let event = |more: &str| {
            format!(
                r#"{{"type": "invoice.paid", "tenant": "acme", "timestamp": "2026-04-08T10:15:30.250Z", {more}"data": {data}}}"#
            )
        };
        server.good("POST", "/v1/events", &event(r#""labels": ["eu", "a \"quoted\" one"], "#));
        let [enveloped, alone, cloud] = receivers.each_ref().map(|receiver: &Receiver| receiver.first());
        let body = |arrival: &Arrival| String::from_utf8(arrival.body.clone()).unwrap();
        let end = format!(r#""timestamp":"2026-04-08T10:15:30.250Z","labels":["eu","a \"quoted\" one"],"data":{data}}}"#);
        assert!(body(&enveloped).ends_with(&end), "{}", body(&enveloped));
        assert_eq!(body(&alone), data);
        assert_eq!(alone.header("posthaste-event-type"), "invoice.paid");
        assert_eq!(alone.header("posthaste-event-timestamp"), "2026-04-08T10:15:30.250Z");
        assert_eq!(alone.header("posthaste-tenant"), "acme");
        assert_eq!(cloud.header("content-type"), "application/cloudevents+json");
        assert!(body(&cloud).ends_with(&format!(r#""data":{data}}}"#)), "{}", body(&cloud));
        // Without labels there is no field for them.
        server.good("POST", "/v1/events", &event(""));
        server.wait_until("/v1/deliveries?status=delivered", |seen| seen["data"].as_array().unwrap().len() == 6);
        assert!(!body(receivers[0].arrivals.lock().unwrap().last().unwrap()).contains("labels"));
    }
}
