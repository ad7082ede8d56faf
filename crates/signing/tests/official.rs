//! `v1` against the official `standardwebhooks` crate, both ways.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use posthaste_signing::{Key, Received, Secret, TOLERANCE, standard};
use proptest::prelude::*;

fn now() -> i64 {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since_1970.as_secs()).unwrap()
}

proptest! {
    #[test]
    fn we_sign_what_the_official_library_signs_and_each_accepts_the_other(
        key in any::<[u8; 32]>(),
        id in "[A-Za-z0-9_-]{1,64}",
        body in any::<String>(), // the library signs nothing that is not UTF-8
        age in -200i64..200,
    ) {
        let body = body.as_bytes();
        let secret = Secret::from_random(key);
        let theirs = standardwebhooks::Webhook::new(secret.reveal()).unwrap();
        let timestamp = now() + age;
        let ours = standard::sign(&[Key::Shared(&secret)], &id, timestamp, body);
        prop_assert_eq!(&ours, &theirs.sign(&id, timestamp, body).unwrap());

        let mut headers = http::HeaderMap::new();
        headers.insert("webhook-id", id.parse().unwrap());
        headers.insert("webhook-timestamp", timestamp.to_string().parse().unwrap());
        headers.insert("webhook-signature", ours.parse().unwrap());
        theirs.verify(body, &headers).unwrap();

        let received = Received { timestamp: &timestamp.to_string(), signature: &ours, body };
        standard::verify(&id, &received, now(), TOLERANCE, &[Key::Shared(&secret)]).unwrap();
    }
}
