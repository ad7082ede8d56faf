//! The keys of a server, encrypted with a passphrase.
//!
//! The key is derived with PBKDF2-HMAC-SHA256, 600,000 iterations and a random salt of 16 bytes, and encrypts with
//! XChaCha20-Poly1305. The number of iterations is in the file, so that a later version can raise it.

use anyhow::{anyhow, bail};
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use hmac::{Hmac, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use zeroize::Zeroizing;

/// The recommendation of OWASP for PBKDF2-HMAC-SHA256 (2023): some tenths of a second for each try.
const ITERATIONS: u32 = 600_000;
/// A file that asks for more would keep a restore busy for minutes.
const ITERATIONS_MAX: u32 = 10_000_000;
const MAGIC: &[u8; 8] = b"phkeys1\n";
const SALT: usize = 16;
const NONCE: usize = 24;
const HEAD: usize = MAGIC.len() + 4 + SALT;

// No `Debug`: they are keys.
pub(super) struct Keys {
    /// Base64, as `master.key` has it.
    pub(super) master: String,
    /// From before a rotation that was not finished.
    pub(super) previous: Vec<String>,
    pub(super) admin: String,
}

impl Keys {
    pub(super) fn seal(&self, passphrase: &str) -> anyhow::Result<Vec<u8>> {
        let plain = json!({"master_key": self.master, "previous_master_keys": self.previous, "admin_key": self.admin});
        let plain = Zeroizing::new(plain.to_string());
        let (salt, nonce): ([u8; SALT], [u8; NONCE]) = (rand::random(), rand::random());
        let mut file = [MAGIC.as_slice(), &ITERATIONS.to_be_bytes(), &salt].concat();
        let cipher = XChaCha20Poly1305::new(&Key::from(*derive(passphrase.as_bytes(), &salt, ITERATIONS)));
        let payload = Payload { msg: plain.as_bytes(), aad: &file };
        let sealed = cipher.encrypt(&XNonce::from(nonce), payload).map_err(|_| anyhow!("the keys cannot be encrypted"))?;
        file.extend(nonce);
        file.extend(sealed);
        Ok(file)
    }

    pub(super) fn open(file: &[u8], passphrase: &str) -> anyhow::Result<Keys> {
        if !file.starts_with(MAGIC) || file.len() < HEAD + NONCE {
            bail!("it is not a file of keys that this version knows");
        }
        let (head, rest) = file.split_at(HEAD);
        let (nonce, sealed) = rest.split_at(NONCE);
        let iterations = u32::from_be_bytes(head[MAGIC.len()..MAGIC.len() + 4].try_into().expect("four bytes"));
        if !(1..=ITERATIONS_MAX).contains(&iterations) {
            bail!("it asks for {iterations} iterations, and at most {ITERATIONS_MAX} are made");
        }
        let cipher = XChaCha20Poly1305::new(&Key::from(*derive(passphrase.as_bytes(), &head[MAGIC.len() + 4..], iterations)));
        let nonce: [u8; NONCE] = nonce.try_into().expect("split there");
        let plain = cipher
            .decrypt(&XNonce::from(nonce), Payload { msg: sealed, aad: head })
            .map_err(|_| anyhow!("the passphrase is not the one that it was made with, or the file was changed"))?;
        let plain = Zeroizing::new(plain);
        let keys: Value = serde_json::from_slice(&plain)?;
        let text = |name: &str| keys[name].as_str().map(str::to_owned).ok_or_else(|| anyhow!("it has no {name}"));
        let previous = keys["previous_master_keys"].as_array().into_iter().flatten();
        let previous = previous.filter_map(|key| key.as_str().map(str::to_owned)).collect();
        Ok(Keys { master: text("master_key")?, previous, admin: text("admin_key")? })
    }
}

/// PBKDF2 (RFC 8018) with HMAC-SHA256, the first block, which is as long as the key.
fn derive(passphrase: &[u8], salt: &[u8], iterations: u32) -> Zeroizing<[u8; 32]> {
    let keyed = <Hmac<Sha256> as hmac::KeyInit>::new_from_slice(passphrase).expect("keys of any length");
    let mut round: [u8; 32] = keyed.clone().chain_update(salt).chain_update(1_u32.to_be_bytes()).finalize().into_bytes().into();
    let mut derived = Zeroizing::new(round);
    for _ in 1..iterations {
        round = keyed.clone().chain_update(round).finalize().into_bytes().into();
        derived.iter_mut().zip(round).for_each(|(sum, byte)| *sum ^= byte);
    }
    derived
}

#[cfg(test)]
mod tests {
    use super::super::hex;
    use super::*;

    /// Vectors of RFC 7914, section 11: the first 32 bytes of each.
    #[test]
    fn keys_are_derived_as_the_standard_says() {
        let derived = |passphrase: &str, salt: &str, iterations| hex(&*derive(passphrase.as_bytes(), salt.as_bytes(), iterations));
        assert_eq!(derived("passwd", "salt", 1), "55ac046e56e3089fec1691c22544b605f94185216dde0465e68b9d57c20dacbc");
        assert_eq!(derived("Password", "NaCl", 80_000), "4ddcd8f60b98be21830cee5ef22701f9641a4418d04c0414aeff08876b34ab56");
    }

    #[test]
    fn keys_open_with_their_passphrase_alone_and_only_unchanged() {
        let keys = Keys { master: "m".into(), previous: vec!["p".into()], admin: "a".into() };
        let mut file = keys.seal("correct horse battery").unwrap();
        assert!(!file.windows(10).any(|window| window == b"master_key"), "nothing is readable");
        let opened = Keys::open(&file, "correct horse battery").unwrap();
        assert_eq!((opened.master, opened.previous, opened.admin), (keys.master, keys.previous, keys.admin));
        assert!(Keys::open(&file, "correct horse batterY").is_err());
        assert!(Keys::open(&file[..HEAD], "correct horse battery").is_err());
        // Fewer iterations than it was made with.
        file[11] ^= 1;
        assert!(Keys::open(&file, "correct horse battery").is_err());
    }
}
