//! What signs and what verifies. None of it is ever shown by accident.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::Signer;
use hmac::{Hmac, KeyInit};
use sha2::Sha256;
use zeroize::Zeroizing;

/// A shared secret of Standard Webhooks: `whsec_` and base64 of 24 to 64 bytes.
#[derive(Clone)]
pub struct Secret {
    text: Zeroizing<String>,
    /// Keyed once; a signature starts from a copy.
    pub(crate) mac: Hmac<Sha256>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SecretError {
    #[error("a secret is `whsec_` and the base64 of 24 to 64 bytes")]
    Shared,
    #[error("a secret for the timestamp-hex scheme is 16 to 256 visible ASCII characters")]
    Hex,
    #[error("an Ed25519 key is `whsk_` and the base64 of its 32-byte seed, or of the seed and the public key")]
    Signing,
    #[error("an Ed25519 public key is `whpk_` and the base64 of 32 bytes")]
    Public,
}

impl Secret {
    const PREFIX: &'static str = "whsec_";
    const BYTES_MIN: usize = 24;
    const BYTES_MAX: usize = 64;

    pub fn parse(text: &str) -> Result<Secret, SecretError> {
        let key = decode(Self::PREFIX, text).ok_or(SecretError::Shared)?;
        if (Self::BYTES_MIN..=Self::BYTES_MAX).contains(&key.len()) {
            Ok(Secret::keyed(text.to_owned(), &key))
        } else {
            Err(SecretError::Shared)
        }
    }

    /// Makes a new one of random bytes.
    pub fn from_random(bytes: [u8; 32]) -> Secret {
        let bytes = Zeroizing::new(bytes);
        Secret::keyed(format!("{}{}", Self::PREFIX, STANDARD.encode(*bytes)), &*bytes)
    }

    fn keyed(text: String, key: &[u8]) -> Secret {
        let mac = Hmac::new_from_slice(key).expect("HMAC takes keys of any length");
        Secret { text: Zeroizing::new(text), mac }
    }

    /// For storing it encrypted and for showing it the one time.
    pub fn reveal(&self) -> &str {
        &self.text
    }
}

/// A shared secret of the timestamp-hex scheme: the key is the text itself, as shown.
#[derive(Clone)]
pub struct HexSecret {
    pub(crate) mac: Hmac<Sha256>,
}

impl HexSecret {
    pub fn parse(text: &str) -> Result<HexSecret, SecretError> {
        if (16..=256).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(HexSecret { mac: Hmac::new_from_slice(text.as_bytes()).expect("HMAC takes keys of any length") })
        } else {
            Err(SecretError::Hex)
        }
    }
}

/// The private half of an Ed25519 key.
#[derive(Clone)]
pub struct SigningKey(ed25519_dalek::SigningKey);

impl SigningKey {
    const PREFIX: &'static str = "whsk_";

    /// Takes a bare seed, and also seed and public key together, as libsodium keeps them.
    pub fn parse(text: &str) -> Result<SigningKey, SecretError> {
        let bytes = decode(Self::PREFIX, text).ok_or(SecretError::Signing)?;
        let key = match bytes.len() {
            32 => ed25519_dalek::SigningKey::from_bytes(bytes.as_slice().try_into().expect("just measured")),
            64 => ed25519_dalek::SigningKey::from_keypair_bytes(bytes.as_slice().try_into().expect("just measured"))
                .map_err(|_| SecretError::Signing)?,
            _ => return Err(SecretError::Signing),
        };
        Ok(SigningKey(key))
    }

    /// Makes a new one of random bytes.
    pub fn from_random(seed: [u8; 32]) -> SigningKey {
        SigningKey(ed25519_dalek::SigningKey::from_bytes(&Zeroizing::new(seed)))
    }

    /// For storing it encrypted and for showing it the one time.
    pub fn reveal(&self) -> Zeroizing<String> {
        let pair = Zeroizing::new(self.0.to_keypair_bytes());
        Zeroizing::new(format!("{}{}", Self::PREFIX, STANDARD.encode(*pair)))
    }

    pub fn public_key(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    pub(crate) fn sign(&self, content: &[u8]) -> [u8; 64] {
        self.0.sign(content).to_bytes()
    }
}

/// The public half, which receivers verify with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(ed25519_dalek::VerifyingKey);

impl PublicKey {
    const PREFIX: &'static str = "whpk_";

    pub fn parse(text: &str) -> Result<PublicKey, SecretError> {
        let bytes = decode(Self::PREFIX, text).ok_or(SecretError::Public)?;
        let bytes: &[u8; 32] = bytes.as_slice().try_into().map_err(|_| SecretError::Public)?;
        ed25519_dalek::VerifyingKey::from_bytes(bytes).map(PublicKey).map_err(|_| SecretError::Public)
    }

    pub(crate) fn verifies(&self, content: &[u8], signature: &[u8]) -> bool {
        ed25519_dalek::Signature::from_slice(signature).is_ok_and(|signature| self.0.verify_strict(content, &signature).is_ok())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Self::PREFIX, STANDARD.encode(self.0.as_bytes()))
    }
}

/// One key of Standard Webhooks, for signing or for verifying.
#[derive(Clone, Copy, Debug)]
pub enum Key<'a> {
    /// Signs and verifies.
    Shared(&'a Secret),
    /// Signs, and verifies as its public half.
    Signing(&'a SigningKey),
}

fn decode(prefix: &str, text: &str) -> Option<Zeroizing<Vec<u8>>> {
    STANDARD.decode(text.strip_prefix(prefix)?).ok().map(Zeroizing::new)
}

macro_rules! shows_nothing {
    ($($name:ident),*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "(…)"))
            }
        }
    )*};
}

shows_nothing!(Secret, HexSecret, SigningKey);

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_survives_being_shown_and_read() {
        let secret = Secret::from_random([7; 32]);
        assert_eq!(secret.reveal(), "whsec_BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=");
        assert_eq!(Secret::parse(secret.reveal()).unwrap().reveal(), secret.reveal());
        let key = SigningKey::from_random([7; 32]);
        assert_eq!(SigningKey::parse(&key.reveal()).unwrap().public_key(), key.public_key());
        assert_eq!(PublicKey::parse(&key.public_key().to_string()).unwrap(), key.public_key());
        let seed_only = format!("whsk_{}", STANDARD.encode([7; 32]));
        assert_eq!(SigningKey::parse(&seed_only).unwrap().public_key(), key.public_key());
    }

    #[test]
    fn what_is_not_a_secret_is_refused() {
        let encoded = |prefix: &str, length: usize| format!("{prefix}{}", STANDARD.encode(vec![1; length]));
        for bad in [
            "",
            "whsec_",
            "whsec_!!!!",
            "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            &encoded("whsec_", 23),
            &encoded("whsec_", 65),
            &encoded("whsk_", 32),
        ] {
            assert_eq!(Secret::parse(bad).unwrap_err(), SecretError::Shared, "{bad}");
        }
        assert!(Secret::parse(&encoded("whsec_", 24)).is_ok());
        assert!(Secret::parse(&encoded("whsec_", 64)).is_ok());
        for bad in ["", "whsk_", &encoded("whsk_", 31), &encoded("whsk_", 64), &encoded("whsec_", 32)] {
            assert!(SigningKey::parse(bad).is_err(), "{bad}");
        }
        assert!(PublicKey::parse(&encoded("whpk_", 33)).is_err());
        for bad in ["fifteen-chars-x", "with a space in it", "ümlaut-is-not-visible-ascii", &"x".repeat(257)] {
            assert!(HexSecret::parse(bad).is_err(), "{bad}");
        }
        assert!(HexSecret::parse("an-old-secret-of-theirs").is_ok());
    }

    #[test]
    fn nothing_secret_is_shown_by_debug_output() {
        let secret = Secret::from_random([7; 32]);
        let key = SigningKey::from_random([7; 32]);
        let shown = format!("{secret:?} {key:?} {:?} {:?}", Key::Shared(&secret), HexSecret::parse(secret.reveal()).unwrap());
        assert_eq!(shown, "Secret(…) SigningKey(…) Shared(Secret(…)) HexSecret(…)");
    }
}
