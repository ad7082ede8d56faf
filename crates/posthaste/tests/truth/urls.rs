//! History shows where an attempt was sent, whatever the endpoint's URL is now.

use serde_json::{Value, json};

use crate::server::{Client, Database, Receiver, Server};

const FLAGS: &[&str] = &["--allow-http", "--allow-networks", "127.0.0.0/8"];

async fn delivered(client: &mut Client, receiver: &Receiver, path: &str) -> String {
    let event = client.publish(json!({"type": "order.paid", "data": {}})).await;
    let delivery = receiver.wait_for(path, &event).await.header("posthaste-delivery").to_owned();
    client.wait_for(&format!("/v1/deliveries/{delivery}"), |delivery| delivery["status"] == "delivered").await;
    delivery
}

/// What the one attempt of a delivery was sent with.
async fn sent_with(client: &mut Client, delivery: &str) -> Value {
    let attempts = client.get(&format!("/v1/deliveries/{delivery}/attempts")).await;
    let attempt = &attempts["data"][0];
    json!([attempt["endpoint_version"], attempt["url"], attempt["payload_format"], attempt["header_names"]])
}

async fn a_delivery_keeps_the_url_that_was_used(database: Database) {
    let server = Server::start("urls", database, FLAGS).await;
    let (receiver, mut client) = (Receiver::start().await, Client::of(&server));
    let headers = json!({"x-canary": "value"});
    let endpoint = client.endpoint(json!({"url": receiver.url("old"), "headers": headers})).await;
    let old = delivered(&mut client, &receiver, "/old").await;
    let path = format!("/v1/endpoints/{endpoint}");
    client.patch(&path, json!({"url": receiver.url("new"), "payload_format": "data", "headers": null})).await;
    let new = delivered(&mut client, &receiver, "/new").await;
    for (delivery, url) in [(&old, receiver.url("old")), (&new, receiver.url("new"))] {
        assert_eq!(client.get(&format!("/v1/deliveries/{delivery}")).await["endpoint_url"], url);
    }
    let listed = client.get(&format!("/v1/deliveries?endpoint={endpoint}")).await;
    let urls: Vec<&Value> = listed["data"].as_array().unwrap().iter().map(|delivery| &delivery["endpoint_url"]).collect();
    assert_eq!(urls, [&receiver.url("new"), &receiver.url("old")]);
    assert_eq!(sent_with(&mut client, &old).await, json!([1, receiver.url("old"), "envelope", ["x-canary"]]));
    assert_eq!(sent_with(&mut client, &new).await, json!([2, receiver.url("new"), "data", []]));
    let tested = client.post(&format!("{path}/test"), json!({})).await;
    assert_eq!((&tested["endpoint_version"], &tested["url"]), (&json!(2), &json!(receiver.url("new"))));
}

mod sqlite {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn i53_a_delivery_keeps_the_url_that_was_used() {
        super::a_delivery_keeps_the_url_that_was_used(super::Database::Sqlite).await;
    }
}

mod postgres {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn i53_a_delivery_keeps_the_url_that_was_used() {
        super::a_delivery_keeps_the_url_that_was_used(super::Database::Postgres).await;
    }
}
