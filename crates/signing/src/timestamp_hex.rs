//! The older style: hex HMAC-SHA256 over `timestamp.body`, behind a prefix such as `v1=` or `sha256=`.
//!
//! The key is the secret's text as it was shown, prefix and all, because that is what people paste into their
//! verifier. While a secret is being rotated the header has one signature for each, newest first, separated by commas.

use std::fmt::Write;
use std::time::Duration;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::{HexSecret, Received, SIGNATURES_MAX, VerifyError, timely};

/// The value of the signature header: one signature per secret, in their order.
pub fn sign(secrets: &[HexSecret], prefix: &str, timestamp: i64, body: &[u8]) -> String {
    let mut header = String::with_capacity(secrets.len() * (prefix.len() + 65));
    for secret in secrets {
        if !header.is_empty() {
            header.push(',');
        }
        header.push_str(prefix);
        for byte in mac(secret, timestamp, body).finalize().into_bytes() {
            write!(header, "{byte:02x}").expect("a String takes everything");
        }
    }
    header
}

pub fn verify(
    received: &Received<'_>,
    prefix: &str,
    now: i64,
    tolerance: Duration,
    secrets: &[HexSecret],
) -> Result<(), VerifyError> {
    let timestamp = timely(received.timestamp, now, tolerance)?;
    let matches = received
        .signature
        .split([',', ' '])
        .take(SIGNATURES_MAX)
        .filter_map(|entry| unhex(entry.strip_prefix(prefix)?))
        // Compares in constant time.
        .any(|signature| secrets.iter().any(|secret| mac(secret, timestamp, received.body).verify_slice(&signature).is_ok()));
    if matches { Ok(()) } else { Err(VerifyError::NoMatch) }
}

fn mac(secret: &HexSecret, timestamp: i64, body: &[u8]) -> Hmac<Sha256> {
    let mut mac = secret.mac.clone();
    mac.update(timestamp.to_string().as_bytes());
    mac.update(b".");
    mac.update(body);
    mac
}

/// Hexadecimal in either case: receivers and proxies are not consistent about it.
fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> =
        text.chars().map(|digit| digit.to_digit(16).and_then(|value| u8::try_from(value).ok())).collect::<Option<_>>()?;
    let (pairs, []) = digits.as_chunks::<2>() else { return None };
    Some(pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TOLERANCE;

    const NOW: i64 = 1_800_000_000;

    fn secret(text: &str) -> HexSecret {
        HexSecret::parse(text).unwrap()
    }

    fn check(header: &str, prefix: &str, body: &[u8], secret: &HexSecret) -> Result<(), VerifyError> {
        let received = Received { timestamp: "1800000000", signature: header, body };
        verify(&received, prefix, NOW, TOLERANCE, std::slice::from_ref(secret))
    }

    #[test]
    fn it_is_hmac_over_timestamp_dot_body_keyed_with_the_text() {
        // printf '1800000000.{}' | openssl dgst -sha256 -hmac whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw
        let header = sign(&[secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")], "v1=", NOW, b"{}");
        assert_eq!(header, "v1=e29814ad5279e56c8b46022cb5a8bfb72c23403cd390256aa7389377ebcd0023");
    }

    #[test]
    fn either_of_two_secrets_verifies_during_a_rotation() {
        let (old, new) = (secret("the-secret-of-yesterday"), secret("the-secret-of-today-and-on"));
        let header = sign(&[new.clone(), old.clone()], "sha256=", NOW, b"body");
        for one in [&old, &new] {
            assert_eq!(check(&header, "sha256=", b"body", one), Ok(()));
            assert_eq!(check(&header.to_uppercase().replace("SHA256=", "sha256="), "sha256=", b"body", one), Ok(()));
        }
        assert_eq!(check(&header, "sha256=", b"Body", &old), Err(VerifyError::NoMatch));
        assert_eq!(check(&header, "v1=", b"body", &old), Err(VerifyError::NoMatch), "another prefix is another scheme");
        assert_eq!(check(&header, "sha256=", b"body", &secret("somebody-elses-secret")), Err(VerifyError::NoMatch));
    }

    #[test]
    fn a_header_that_makes_no_sense_verifies_nothing() {
        let one = secret("the-secret-of-yesterday");
        for header in ["", "v1=", "v1=abc", "v1=zz", "v1=é", "abcdef", ",,,"] {
            assert_eq!(check(header, "v1=", b"body", &one), Err(VerifyError::NoMatch), "{header}");
        }
    }
}
