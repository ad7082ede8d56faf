//! `posthaste verify` on webhooks that a real server has sent.

use crate::server::{Receiver, Run, Server};

#[test]
fn webhooks_of_every_scheme_are_verified_and_what_is_wrong_is_named() {
    let server = Server::start("verify");
    let body = server.directory.join("body");
    let body = body.to_str().unwrap();
    for scheme in ["standard", "standard-ed25519", "timestamp-hex"] {
        let receiver = Receiver::start("204 No Content", b"");
        let endpoint = server.json(&["endpoints", "create", &receiver.url(), "--signing", scheme, "--event-types", scheme]);
        server.ok(&["events", "publish", scheme, "--data", r#"{"amount": 4999}"#]);
        let arrival = receiver.first();
        std::fs::write(body, &arrival.body).unwrap();
        let prefix = if scheme == "timestamp-hex" { "x-webhook-" } else { "webhook-" };
        let header = |name: &str| arrival.header(&format!("{prefix}{name}"));
        let (timestamp, signature) = (header("timestamp"), header("signature"));
        let id = server.json(&["events", "list", "--type", scheme])["data"][0]["id"].as_str().unwrap().to_owned();
        let secret = endpoint["secret"].as_str().unwrap();
        let key = endpoint["public_key"].as_str().map_or(["--secret", secret], |public| ["--public-key", public]);
        let whole = ["--id", &id, "--timestamp", &timestamp, "--signature", &signature, "--body", body];
        let verify = |more: &[&str]| server.run(&[&["verify"][..], &key, &whole, more].concat());
        let check = |run: &Run, code: i32, words: &str| {
            assert_eq!(run.code, code, "{scheme}: {run:?}");
            assert!(run.out.contains(words), "{scheme}: {run:?}");
        };
        check(&verify(&[]), 0, "valid: ");
        check(&verify(&["--now", "2099-01-01T00:00:00Z"]), 1, "the signature itself is right");
        check(&verify(&["--now", "2001-01-01T00:00:00Z"]), 1, "ahead of this clock");
        check(&verify(&["--now", "2099-01-01T00:00:00Z", "--tolerance", "9999999999"]), 0, "valid");
        check(&verify(&["--json"]), 0, r#""valid":true"#);
        // As headers, pasted.
        let pasted = [
            &["verify", "--body", body][..],
            &key,
            &["-H", &format!("Webhook-Id: {id}"), "-H", &format!("{prefix}timestamp: {timestamp}")],
            &["-H", &format!("{prefix}signature: {signature}")],
        ];
        check(&server.run(&pasted.concat()), 0, "valid");
        let other = match scheme {
            "standard" => ["--secret", "whsec_BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc="],
            "standard-ed25519" => ["--public-key", "whpk_6kpsY+KcUgq+9VB7Ey7F+ZVHdq6+vnuSQh7qaRRG0iw="],
            _ => ["--secret", "another-secret-of-theirs"],
        };
        check(&server.run(&[&["verify"][..], &other, &whole].concat()), 1, "the secret is another one, or the body");
        std::fs::write(body, [&arrival.body[..], b"\n"].concat()).unwrap();
        check(&verify(&[]), 1, "the body was changed on its way");
        check(&verify(&["--json"]), 1, r#""code":"body_changed""#);
        std::fs::write(body, b"{}").unwrap();
        check(&verify(&[]), 1, "not byte for byte");
    }
}

#[test]
fn what_verify_cannot_use_is_wrong_usage_and_no_secret_is_repeated() {
    let server = Server::start("verify-usage");
    let tried: [&[&str]; 5] = [
        &["--secret", "-", "--timestamp", "1", "--signature", "v1=00"],
        &["--secret", "whsec_canary", "--timestamp", "1", "--signature", "v1,AAAA", "--body", "/dev/null"],
        &["--public-key", "whpk_canary", "--timestamp", "1", "--signature", "v1,AAAA", "--body", "/dev/null"],
        &["--secret", "a-canary-of-enough-length", "--signature", "v1,AAAA", "--body", "/dev/null"],
        &["--secret", "a-canary-of-enough-length", "--timestamp", "1", "--signature", "v1=00", "--body", "/nowhere/at/all"],
    ];
    for arguments in tried {
        let run = server.run(&[&["verify"], arguments].concat());
        assert!(run.code == 2 && !run.err.contains("canary"), "{arguments:?}: {run:?}");
    }
}
