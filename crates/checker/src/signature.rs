//! Standard Webhooks, the verifying side, written from the specification: the signature is the base64 of HMAC-SHA256 over
//! `id.timestamp.body`, keyed with the bytes behind `whsec_`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// What is wrong with it, if anything.
pub fn problem(secret: &str, id: &str, timestamp: &str, signatures: &str, body: &[u8]) -> Option<&'static str> {
    let Some(Ok(key)) = secret.strip_prefix("whsec_").map(|key| STANDARD.decode(key)) else {
        return Some("the secret is not one");
    };
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("any length will do");
    for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
        mac.update(part);
    }
    let expected = STANDARD.encode(mac.finalize().into_bytes());
    let is_there = signatures.split(' ').any(|one| one.strip_prefix("v1,") == Some(expected.as_str()));
    if is_there { None } else { Some("no signature matches") }
}

#[cfg(test)]
mod tests {
    use super::problem;

    /// The example of the specification's own libraries.
    #[test]
    fn the_known_example_is_valid_and_anything_else_is_not() {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let (id, timestamp, body) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", br#"{"test": 2432232314}"#.as_slice());
        let signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(problem(secret, id, timestamp, signature, body), None);
        assert_eq!(problem(secret, id, timestamp, &format!("v1a,x {signature}"), body), None);
        assert!(problem(secret, id, "1614265331", signature, body).is_some());
        assert!(problem(secret, "msg_x", timestamp, signature, body).is_some());
        assert!(problem(secret, id, timestamp, signature, b"{}").is_some());
        assert!(problem(secret, id, timestamp, "", body).is_some());
    }
}
