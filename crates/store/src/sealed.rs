//! Encryption at rest, for what must not be read from a stolen disk or backup: the secrets and headers of endpoints.
//!
//! A sealed value is `1 ‖ key id (8) ‖ nonce (24) ‖ ciphertext and tag`, by XChaCha20-Poly1305. Its nonce is long
//! enough to be drawn at random for any number of values. What stands before the ciphertext is authenticated with it,
//! and so is a context that the caller names: a value that was moved to another row or column does not open.
//!
//! Values name the master key that sealed them, so that a new key can take over while the old one still opens what has
//! not been sealed again. Without the right key nothing opens; there is no second way in.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::Error;

const KEY_BYTES: usize = 32;
const KEY_ID_BYTES: usize = 8;
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
/// The version, the key id and the nonce.
const HEADER_BYTES: usize = 1 + KEY_ID_BYTES + NONCE_BYTES;

/// Says how the rest is laid out and by what it is sealed.
const VERSION: u8 = 1;

/// Keeps the digest that names a key from being of use anywhere else.
const KEY_ID_LABEL: &[u8] = b"posthaste master key id, version 1\0";

const DERIVED_LABEL: &[u8] = b"posthaste derived key, version 1\0";

/// Seals everything; whoever has it and the database has every secret. It is not shown, and wiped when it goes.
#[derive(Clone)]
pub struct MasterKey {
    bytes: Zeroizing<[u8; KEY_BYTES]>,
    id: KeyId,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MasterKeyError {
    #[error("the master key is not base64; it is the base64 of 32 random bytes, as `head -c 32 /dev/urandom | base64` prints it")]
    NotBase64,
    #[error("the master key has {bytes} bytes instead of 32; `head -c 32 /dev/urandom | base64` makes one of the right length")]
    WrongLength { bytes: usize },
}

impl MasterKey {
    /// Reads standard base64 of exactly 32 bytes. A line break at the end, as files have it, does not matter.
    pub fn from_base64(text: &str) -> Result<MasterKey, MasterKeyError> {
        let decoded = STANDARD.decode(text.trim()).map(Zeroizing::new).map_err(|_| MasterKeyError::NotBase64)?;
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        if decoded.len() != bytes.len() {
            return Err(MasterKeyError::WrongLength { bytes: decoded.len() });
        }
        bytes.copy_from_slice(&decoded);
        Ok(MasterKey::new(bytes))
    }

    pub fn generate() -> MasterKey {
        MasterKey::new(Zeroizing::new(rand::random()))
    }

    fn new(bytes: Zeroizing<[u8; KEY_BYTES]>) -> MasterKey {
        let digest: [u8; 32] = Sha256::new().chain_update(KEY_ID_LABEL).chain_update(*bytes).finalize().into();
        let mut id = [0; KEY_ID_BYTES];
        id.copy_from_slice(&digest[..KEY_ID_BYTES]);
        MasterKey { bytes, id: KeyId(id) }
    }

    /// For writing it where the operator keeps it. Nothing else should ask.
    pub fn reveal_base64(&self) -> Zeroizing<String> {
        Zeroizing::new(STANDARD.encode(*self.bytes))
    }

    /// A key for another purpose, that says nothing about this one. The same on every node, and after a restart.
    pub fn derive(&self, purpose: &str) -> [u8; KEY_BYTES] {
        let digest = Sha256::new().chain_update(DERIVED_LABEL).chain_update(purpose).chain_update([0]).chain_update(*self.bytes);
        digest.finalize().into()
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new_from_slice(&*self.bytes).expect("the key has the length that the cipher takes")
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey(…)")
    }
}

/// Says which master key sealed a value, and nothing about the key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyId([u8; KEY_ID_BYTES]);

impl KeyId {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The master key that seals, and those before it, which only open.
#[derive(Clone, Debug)]
pub struct Keyring {
    current: MasterKey,
    previous: Vec<MasterKey>,
}

/// Sorted by what an operator can do: find the key, or find a backup.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("sealed with the master key {key}, which is not configured; configure it as a previous key")]
    UnknownKey { key: KeyId },
    /// Not what was sealed, or not where it was sealed.
    #[error("the sealed value is damaged or belongs elsewhere")]
    Damaged,
}

impl Keyring {
    pub fn new(current: MasterKey, previous: Vec<MasterKey>) -> Keyring {
        Keyring { current, previous }
    }

    /// Whether one of its keys has this id, as it is written down.
    pub(crate) fn knows(&self, id: &str) -> bool {
        std::iter::once(&self.current).chain(&self.previous).any(|key| key.id.to_string() == id)
    }

    pub(crate) fn has_previous(&self) -> bool {
        !self.previous.is_empty()
    }

    pub(crate) fn current_id(&self) -> KeyId {
        self.current.id
    }

    /// `context` says what this is and whose, such as `endpoint-secret` and the endpoint's id; opening takes the same.
    pub(crate) fn seal(&self, context: &[u8], plain: &[u8]) -> Vec<u8> {
        let header = Header { key: self.current.id, nonce: rand::random() };
        let associated = header.associated_with(context);
        let sealed = self
            .current
            .cipher()
            .encrypt(&XNonce::from(header.nonce), Payload { msg: plain, aad: &associated })
            .expect("a value is shorter than the 256 GiB that the cipher takes");
        [header.to_bytes().as_slice(), &sealed].concat()
    }

    pub(crate) fn open(&self, context: &[u8], sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, OpenError> {
        let (header, ciphertext) = Header::split(sealed).ok_or(OpenError::Damaged)?;
        let key = std::iter::once(&self.current)
            .chain(&self.previous)
            .find(|key| key.id == header.key)
            .ok_or(OpenError::UnknownKey { key: header.key })?;
        let associated = header.associated_with(context);
        key.cipher()
            .decrypt(&XNonce::from(header.nonce), Payload { msg: ciphertext, aad: &associated })
            .map(Zeroizing::new)
            .map_err(|_| OpenError::Damaged)
    }

    /// Whether the present key sealed it. If not, it wants to be sealed again, so that the key before can be retired.
    pub(crate) fn is_current(&self, sealed: &[u8]) -> bool {
        Header::split(sealed).is_some_and(|(header, _)| header.key == self.current.id)
    }
}

/// How many sealed values there are, by the master key that opens them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SealedValues {
    pub total: u64,
    /// Sealed with a previous key: they are sealed again in the background, and that key is needed until then.
    pub under_previous_keys: u64,
    /// Sealed with a key that was not given: by what names it, and how many.
    pub under_unknown_keys: Vec<(String, u64)>,
}

impl SealedValues {
    /// From the key ids that stand before the values, each with how many there are.
    pub(crate) fn count(keyring: &Keyring, by_key: impl IntoIterator<Item = (Vec<u8>, u64)>) -> SealedValues {
        let mut values = SealedValues::default();
        for (key, count) in by_key {
            let name =
                <[u8; KEY_ID_BYTES]>::try_from(key.as_slice()).map_or_else(|_| "(none)".to_owned(), |id| KeyId(id).to_string());
            values.total += count;
            if name == keyring.current.id.to_string() {
                continue;
            }
            if keyring.knows(&name) {
                values.under_previous_keys += count;
            } else {
                values.under_unknown_keys.push((name, count));
            }
        }
        values
    }

    pub fn unreadable(&self) -> u64 {
        self.under_unknown_keys.iter().map(|(_, count)| count).sum()
    }

    /// Refused at the start: a server without these keys would take events and deliver nothing.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Some((key, _)) = self.under_unknown_keys.first() else { return Ok(()) };
        Err(Error::Unusable(format!(
            "{} of {} sealed values in the database still need the master key {key}, which was not given; name it in \
             POSTHASTE_PREVIOUS_MASTER_KEYS until the log says that every value is sealed with the present key",
            self.unreadable(),
            self.total
        )))
    }
}

/// What stands before the ciphertext, without the version.
struct Header {
    key: KeyId,
    nonce: [u8; NONCE_BYTES],
}

impl Header {
    fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [VERSION; HEADER_BYTES];
        let (key, nonce) = bytes[1..].split_at_mut(KEY_ID_BYTES);
        key.copy_from_slice(&self.key.0);
        nonce.copy_from_slice(&self.nonce);
        bytes
    }

    /// `None` if this is too short to be a sealed value, or not of our version.
    fn split(sealed: &[u8]) -> Option<(Header, &[u8])> {
        let (version, rest) = sealed.split_first()?;
        let (key, rest) = rest.split_first_chunk()?;
        let (nonce, ciphertext) = rest.split_first_chunk()?;
        let is_whole = *version == VERSION && ciphertext.len() >= TAG_BYTES;
        is_whole.then_some((Header { key: KeyId(*key), nonce: *nonce }, ciphertext))
    }

    /// The header has a fixed length, so that no two pairs of header and context look the same.
    fn associated_with(&self, context: &[u8]) -> Vec<u8> {
        [self.to_bytes().as_slice(), context].concat()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

    use super::*;
    use proptest::prelude::*;

    const CONTEXT: &[u8] = b"endpoint-secret:ep_1";
    const PLAIN: &[u8] = b"whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

    fn key(byte: u8) -> MasterKey {
        MasterKey::new(Zeroizing::new([byte; KEY_BYTES]))
    }

    fn keyring() -> Keyring {
        Keyring::new(key(7), vec![])
    }

    #[test]
    fn two_seals_of_the_same_differ_and_hide_it() {
        let (one, other) = (keyring().seal(CONTEXT, PLAIN), keyring().seal(CONTEXT, PLAIN));
        assert_ne!(one, other);
        assert_ne!(one[HEADER_BYTES..], other[HEADER_BYTES..], "not only the nonce");
        assert_eq!(one.len(), HEADER_BYTES + PLAIN.len() + TAG_BYTES);
        assert!(!one.windows(6).any(|window| window == &PLAIN[..6]));
    }

    /// Sealed by another implementation, in Python. If this fails, nothing that is stored opens any more.
    #[test]
    fn the_format_stays_what_it_is() {
        assert_eq!(key(7).id.to_string(), "b6720f2d217e03a1");
        let sealed = hex(
            "01b6720f2d217e03a1000102030405060708090a0b0c0d0e0f1011121314151617d87bcaec943c2fc05db310f66ddcd5e669277b638e26a7f04319",
        );
        assert_eq!(keyring().open(b"context", &sealed).unwrap().as_slice(), b"plain text");
    }

    #[test]
    fn a_value_opens_only_where_it_was_sealed() {
        let sealed = keyring().seal(CONTEXT, PLAIN);
        assert_eq!(keyring().open(CONTEXT, &sealed).unwrap().as_slice(), PLAIN);
        for context in [b"".as_slice(), b"endpoint-secret:ep_2", b"endpoint-headers:ep_1", b"endpoint-secret:ep_10"] {
            assert_eq!(keyring().open(context, &sealed), Err(OpenError::Damaged));
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_is_noticed() {
        let sealed = keyring().seal(CONTEXT, PLAIN);
        for at in 0..sealed.len() {
            for bit in 0..8 {
                let mut damaged = sealed.clone();
                damaged[at] ^= 1 << bit;
                let error = keyring().open(CONTEXT, &damaged).unwrap_err();
                let is_in_key_id = (1..=KEY_ID_BYTES).contains(&at);
                assert_eq!(matches!(error, OpenError::UnknownKey { .. }), is_in_key_id, "bit {bit} of byte {at}: {error}");
            }
        }
    }

    #[test]
    fn a_key_id_that_was_exchanged_is_noticed_even_if_both_keys_are_known() {
        let mut sealed = keyring().seal(CONTEXT, PLAIN);
        sealed[1..=KEY_ID_BYTES].copy_from_slice(&key(8).id.0);
        assert_eq!(Keyring::new(key(7), vec![key(8)]).open(CONTEXT, &sealed), Err(OpenError::Damaged));
    }

    #[test]
    fn what_is_too_short_or_too_long_is_damaged() {
        let sealed = keyring().seal(CONTEXT, PLAIN);
        for length in 0..sealed.len() {
            assert_eq!(keyring().open(CONTEXT, &sealed[..length]), Err(OpenError::Damaged), "{length} bytes");
        }
        assert_eq!(keyring().open(CONTEXT, &[sealed.as_slice(), b"x"].concat()), Err(OpenError::Damaged));
        assert!(!keyring().is_current(&sealed[..HEADER_BYTES + TAG_BYTES - 1]));
        assert!(!keyring().is_current(&[]));
    }

    #[test]
    fn a_previous_key_opens_and_the_present_one_seals() {
        let old = keyring().seal(CONTEXT, PLAIN);
        let rotated = Keyring::new(key(9), vec![key(8), key(7)]);
        assert!(keyring().is_current(&old));
        assert!(!rotated.is_current(&old));
        assert_eq!(rotated.open(CONTEXT, &old).unwrap().as_slice(), PLAIN);
        let new = rotated.seal(CONTEXT, PLAIN);
        assert!(rotated.is_current(&new));
        assert_eq!(rotated.current_id(), key(9).id);
        assert_eq!(Keyring::new(key(9), vec![]).open(CONTEXT, &new).unwrap().as_slice(), PLAIN);
    }

    #[test]
    fn a_key_that_is_not_there_is_named() {
        let sealed = keyring().seal(CONTEXT, PLAIN);
        let error = Keyring::new(key(9), vec![key(8)]).open(CONTEXT, &sealed).unwrap_err();
        assert_eq!(error, OpenError::UnknownKey { key: key(7).id });
        assert!(error.to_string().contains(&key(7).id.to_string()), "{error}");
    }

    #[test]
    fn a_master_key_survives_being_written_down() {
        let made = MasterKey::generate();
        let read = MasterKey::from_base64(&made.reveal_base64()).unwrap();
        assert_eq!(read.bytes, made.bytes);
        assert_eq!(read.id, made.id);
        assert_ne!(MasterKey::generate().bytes, made.bytes);
        let line = format!("{}\n", *made.reveal_base64());
        assert_eq!(MasterKey::from_base64(&line).unwrap().bytes, made.bytes, "as a file has it");
    }

    #[test]
    fn what_is_not_a_master_key_is_refused_and_not_repeated() {
        for (text, error) in [
            (String::new(), MasterKeyError::WrongLength { bytes: 0 }),
            (STANDARD.encode([1; 31]), MasterKeyError::WrongLength { bytes: 31 }),
            (STANDARD.encode([1; 33]), MasterKeyError::WrongLength { bytes: 33 }),
            ("correct horse battery staple".to_owned(), MasterKeyError::NotBase64),
            ("07".repeat(32) + "=", MasterKeyError::NotBase64),
        ] {
            assert_eq!(MasterKey::from_base64(&text).unwrap_err(), error, "{text}");
            assert!(error.to_string().contains("head -c 32 /dev/urandom | base64"), "{error}");
        }
    }

    #[test]
    fn nothing_is_shown_by_debug_output() {
        assert_eq!(format!("{:?}", key(7)), "MasterKey(…)");
        let shown = format!("{:?}", Keyring::new(key(7), vec![key(8)]));
        assert_eq!(shown, "Keyring { current: MasterKey(…), previous: [MasterKey(…)] }");
    }

    proptest! {
        #[test]
        fn what_is_sealed_opens(context in prop::collection::vec(any::<u8>(), 0..50), plain in prop::collection::vec(any::<u8>(), 0..500)) {
            let sealed = keyring().seal(&context, &plain);
            prop_assert_eq!(keyring().open(&context, &sealed).unwrap(), Zeroizing::new(plain));
        }

        #[test]
        fn anything_else_is_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(keyring().open(CONTEXT, &bytes).is_err());
        }
    }

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }
}
