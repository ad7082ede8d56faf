//! Standard Webhooks: `v1,<base64>` for shared secrets, `v1a,<base64>` for Ed25519, over `id.timestamp.body`.
//!
//! While a secret is being rotated a request carries one signature for each, separated by spaces, and a receiver is
//! content with any of them.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::{Key, PublicKey, Received, SIGNATURES_MAX, Secret, VerifyError, timely};

/// The value of `webhook-signature`: one signature per key, in their order.
pub fn sign(keys: &[Key<'_>], id: &str, timestamp: i64, body: &[u8]) -> String {
    let mut header = String::with_capacity(keys.len() * 92);
    for key in keys {
        if !header.is_empty() {
            header.push(' ');
        }
        match key {
            Key::Shared(secret) => {
                header.push_str("v1,");
                STANDARD.encode_string(mac(secret, id, timestamp, body).finalize().into_bytes(), &mut header);
            }
            Key::Signing(key) => {
                header.push_str("v1a,");
                STANDARD.encode_string(key.sign(&content(id, timestamp, body)), &mut header);
            }
        }
    }
    header
}

/// Checks that somebody who has one of the keys signed this body, under this id, at about this time.
pub fn verify(id: &str, received: &Received<'_>, now: i64, tolerance: Duration, keys: &[Key<'_>]) -> Result<(), VerifyError> {
    let timestamp = timely(received.timestamp, now, tolerance)?;
    let matches = signatures(received.signature).any(|(version, signature)| {
        keys.iter().any(|key| match key {
            // Compares in constant time.
            Key::Shared(secret) => version == "v1" && mac(secret, id, timestamp, received.body).verify_slice(&signature).is_ok(),
            Key::Signing(key) => version == "v1a" && key.public_key().verifies(&content(id, timestamp, received.body), &signature),
        })
    });
    if matches { Ok(()) } else { Err(VerifyError::NoMatch) }
}

/// The same for a receiver that has only the public half of a key.
pub fn verify_public(
    id: &str,
    received: &Received<'_>,
    now: i64,
    tolerance: Duration,
    keys: &[PublicKey],
) -> Result<(), VerifyError> {
    let timestamp = timely(received.timestamp, now, tolerance)?;
    let content = content(id, timestamp, received.body);
    let matches = signatures(received.signature)
        .any(|(version, signature)| version == "v1a" && keys.iter().any(|key| key.verifies(&content, &signature)));
    if matches { Ok(()) } else { Err(VerifyError::NoMatch) }
}

fn mac(secret: &Secret, id: &str, timestamp: i64, body: &[u8]) -> Hmac<Sha256> {
    let mut mac = secret.mac.clone();
    mac.update(id.as_bytes());
    mac.update(b".");
    mac.update(timestamp.to_string().as_bytes());
    mac.update(b".");
    mac.update(body);
    mac
}

fn content(id: &str, timestamp: i64, body: &[u8]) -> Vec<u8> {
    [id.as_bytes(), b".", timestamp.to_string().as_bytes(), b".", body].concat()
}

/// What is well-formed in the header; the rest may be of a later version, and is passed over.
fn signatures(header: &str) -> impl Iterator<Item = (&str, Vec<u8>)> {
    header.split(' ').take(SIGNATURES_MAX).filter_map(|entry| {
        let (version, encoded) = entry.split_once(',')?;
        Some((version, STANDARD.decode(encoded).ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SigningKey, TOLERANCE};

    const ID: &str = "evt_1";
    const NOW: i64 = 1_800_000_000;
    const BODY: &[u8] = br#"{"amount":4999}"#;

    fn check(header: &str, body: &[u8], timestamp: i64, keys: &[Key<'_>]) -> Result<(), VerifyError> {
        verify(ID, &Received { timestamp: &timestamp.to_string(), signature: header, body }, NOW, TOLERANCE, keys)
    }

    #[test]
    fn during_a_rotation_either_secret_verifies_and_afterwards_only_the_new_one() {
        let (old, new) = (Secret::from_random([1; 32]), Secret::from_random([2; 32]));
        let both = sign(&[Key::Shared(&new), Key::Shared(&old)], ID, NOW, BODY);
        assert_eq!(check(&both, BODY, NOW, &[Key::Shared(&old)]), Ok(()));
        assert_eq!(check(&both, BODY, NOW, &[Key::Shared(&new)]), Ok(()));
        let after = sign(&[Key::Shared(&new)], ID, NOW, BODY);
        assert_eq!(check(&after, BODY, NOW, &[Key::Shared(&old)]), Err(VerifyError::NoMatch));
        assert_eq!(check(&after, BODY, NOW, &[Key::Shared(&old), Key::Shared(&new)]), Ok(()));
    }

    #[test]
    fn a_changed_byte_anywhere_is_noticed() {
        let secret = Secret::from_random([1; 32]);
        let key = SigningKey::from_random([3; 32]);
        for keys in [[Key::Shared(&secret)], [Key::Signing(&key)]] {
            let header = sign(&keys, ID, NOW, BODY);
            assert_eq!(check(&header, BODY, NOW, &keys), Ok(()));
            assert_eq!(check(&header, br#"{"amount":4998}"#, NOW, &keys), Err(VerifyError::NoMatch));
            assert_eq!(check(&header, BODY, NOW + 1, &keys), Err(VerifyError::NoMatch));
            let other_id =
                verify("evt_2", &Received { timestamp: &NOW.to_string(), signature: &header, body: BODY }, NOW, TOLERANCE, &keys);
            assert_eq!(other_id, Err(VerifyError::NoMatch));
        }
    }

    #[test]
    fn one_scheme_does_not_pass_for_the_other() {
        let secret = Secret::from_random([1; 32]);
        let key = SigningKey::from_random([3; 32]);
        let shared = sign(&[Key::Shared(&secret)], ID, NOW, BODY);
        let asymmetric = sign(&[Key::Signing(&key)], ID, NOW, BODY);
        assert_eq!(check(&shared, BODY, NOW, &[Key::Signing(&key)]), Err(VerifyError::NoMatch));
        assert_eq!(
            check(&shared.replace("v1,", "v1a,"), BODY, NOW, &[Key::Signing(&key), Key::Shared(&secret)]),
            Err(VerifyError::NoMatch)
        );
        assert_eq!(check(&format!("{shared} {asymmetric}"), BODY, NOW, &[Key::Signing(&key)]), Ok(()));
        let received = Received { timestamp: &NOW.to_string(), signature: &asymmetric, body: BODY };
        assert_eq!(verify_public(ID, &received, NOW, TOLERANCE, &[key.public_key()]), Ok(()));
        let received = Received { signature: &shared, ..received };
        assert_eq!(verify_public(ID, &received, NOW, TOLERANCE, &[key.public_key()]), Err(VerifyError::NoMatch));
    }

    #[test]
    fn old_and_future_requests_are_refused() {
        let secret = Secret::from_random([1; 32]);
        let keys = [Key::Shared(&secret)];
        for (offset, expected) in [(-301, Err(VerifyError::TooOld)), (-300, Ok(())), (300, Ok(())), (301, Err(VerifyError::TooNew))]
        {
            let header = sign(&keys, ID, NOW + offset, BODY);
            assert_eq!(check(&header, BODY, NOW + offset, &keys), expected, "{offset}");
        }
    }

    #[test]
    fn a_header_that_makes_no_sense_verifies_nothing() {
        let secret = Secret::from_random([1; 32]);
        let keys = [Key::Shared(&secret)];
        let good = sign(&keys, ID, NOW, BODY);
        for header in [
            "",
            " ",
            "v1",
            "v1,",
            "v1,!!!",
            ",",
            "v2,AAAA",
            &good[..good.len() - 2],
            &good.to_uppercase(),
            &format!("{}{good}", "v1,AAAA ".repeat(16)),
        ] {
            assert_eq!(check(header, BODY, NOW, &keys), Err(VerifyError::NoMatch), "{header}");
        }
        assert_eq!(check(&format!("v2,AAAA v1, {good}"), BODY, NOW, &keys), Ok(()), "what is unknown is passed over");
        for timestamp in ["", "-1", "+1800000000", "1.8e9", " 1800000000", "99999999999999999999"] {
            let received = Received { timestamp, signature: &good, body: BODY };
            assert_eq!(verify(ID, &received, NOW, TOLERANCE, &keys), Err(VerifyError::Timestamp), "{timestamp:?}");
        }
    }
}
