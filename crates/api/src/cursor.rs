//! Where the next page begins, as callers see it: a token of ours, to be handed back as it is.
//!
//! A cursor holds the position of a row, which counts the rows of all tenants. So the position is encrypted and padded, with a
//! key that every node derives from the master key, and bound to the list, the caller's tenant and the filters that it was made
//! for. Everything else is refused.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use hmac::{Hmac, Mac};
use posthaste_core::id::TenantId;
use sha2::Sha256;

use crate::SealingKey;
use crate::problem::Problem;

const NONCE_BYTES: usize = 24;
/// Positions are padded to a multiple of this, so that their length does not tell how large a number is.
const BLOCK_BYTES: usize = 64;

/// Seals and opens cursors.
pub(crate) struct Cursors {
    cipher: XChaCha20Poly1305,
    /// Makes the nonce from what is sealed, so that the same place has the same cursor each time.
    nonces: Hmac<Sha256>,
}

impl fmt::Debug for Cursors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cursors(…)")
    }
}

/// What a cursor is good for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope<'a> {
    pub(crate) list: &'a str,
    /// The tenant that the caller is bound to.
    pub(crate) tenant: Option<&'a TenantId>,
    /// The filters of the list, by name and value, in any order.
    pub(crate) filter: &'a [(&'a str, &'a str)],
}

impl Scope<'_> {
    /// Every part with its length, so that no two scopes look alike.
    fn to_bytes(self) -> Vec<u8> {
        let mut filter = self.filter.to_vec();
        filter.sort_unstable();
        let tenant = self.tenant.map_or("", TenantId::as_str);
        let parts = [self.list, tenant].into_iter().chain(filter.into_iter().flat_map(|(name, value)| [name, value]));
        let mut bytes = Vec::new();
        for part in parts {
            bytes.extend_from_slice(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        bytes
    }
}

impl Cursors {
    pub(crate) fn new(key: &SealingKey) -> Cursors {
        let hmac = |key: &[u8]| <Hmac<Sha256> as hmac::KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
        let derived = |purpose: &[u8]| hmac(&key.0).chain_update(purpose).finalize().into_bytes();
        let cipher = XChaCha20Poly1305::new_from_slice(&derived(b"posthaste cursor 2"));
        let cipher = cipher.expect("a digest has the length that the cipher takes");
        Cursors { cipher, nonces: hmac(&derived(b"posthaste cursor 2, nonces")) }
    }

    pub(crate) fn seal(&self, scope: Scope<'_>, position: &str) -> String {
        let mut plain = position.as_bytes().to_vec();
        // As in ISO/IEC 7816-4: a mark, then zeros.
        plain.push(0x80);
        plain.resize(plain.len().next_multiple_of(BLOCK_BYTES), 0);
        let scope = scope.to_bytes();
        let digest = self.nonces.clone().chain_update((scope.len() as u64).to_be_bytes()).chain_update(&scope).chain_update(&plain);
        let nonce: [u8; NONCE_BYTES] = *digest.finalize().into_bytes().first_chunk().expect("a digest is longer");
        let sealed = self.cipher.encrypt(&XNonce::from(nonce), Payload { msg: &plain, aad: &scope });
        let sealed = sealed.expect("a position is shorter than the 256 GiB that the cipher takes");
        URL_SAFE_NO_PAD.encode([nonce.as_slice(), &sealed].concat())
    }

    pub(crate) fn open(&self, scope: Scope<'_>, text: &str) -> Result<String, Problem> {
        self.try_open(scope, text).ok_or_else(refusal)
    }

    fn try_open(&self, scope: Scope<'_>, text: &str) -> Option<String> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_BYTES>()?;
        let plain = self.cipher.decrypt(&XNonce::from(*nonce), Payload { msg: sealed, aad: &scope.to_bytes() }).ok()?;
        let end = plain.iter().rposition(|byte| *byte != 0).filter(|at| plain[*at] == 0x80)?;
        String::from_utf8(plain[..end].to_vec()).ok()
    }
}

pub(crate) fn refusal() -> Problem {
    Problem::unreadable(
        "the cursor is not one of ours for this list; use `next_cursor` of the page before as it is, with the same filters",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursors() -> Cursors {
        Cursors::new(&SealingKey([7; 32]))
    }

    #[test]
    fn a_cursor_works_for_its_own_list_tenant_and_filter_and_only_as_it_was_given() {
        let (acme, globex) = (TenantId::parse("acme").unwrap(), TenantId::parse("globex").unwrap());
        let filter = [("status", "dead"), ("endpoint", "ep_1")];
        let scope = Scope { list: "events", tenant: Some(&acme), filter: &filter };
        let cursor = cursors().seal(scope, "12345");
        assert_eq!(cursors().open(scope, &cursor).unwrap(), "12345", "on every node with this key");
        let reordered = [filter[1], filter[0]];
        assert_eq!(cursors().open(Scope { filter: &reordered, ..scope }, &cursor).unwrap(), "12345");
        for other in [
            Scope { list: "deliveries", ..scope },
            Scope { tenant: Some(&globex), ..scope },
            Scope { tenant: None, ..scope },
            Scope { filter: &[], ..scope },
            Scope { filter: &[("status", "deadendpoint"), ("", "ep_1")], ..scope },
        ] {
            assert_eq!(cursors().open(other, &cursor).unwrap_err().status(), 400, "{other:?}");
        }
        assert!(Cursors::new(&SealingKey([8; 32])).open(scope, &cursor).is_err(), "another server's");
        for at in 0..cursor.len() {
            let mut changed = cursor.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert!(cursors().open(scope, std::str::from_utf8(&changed).unwrap()).is_err(), "changed at {at}");
        }
        for other in ["", "AA", "12345", "ä", &cursor[1..], &"A".repeat(500)] {
            assert_eq!(cursors().open(scope, other).unwrap_err().status(), 400, "{other}");
        }
    }

    #[test]
    fn a_cursor_does_not_show_how_large_its_number_is() {
        let scope = Scope { list: "events", tenant: None, filter: &[] };
        let lengths = ["1", "18446744073709551615", &u128::MAX.to_string()].map(|number| cursors().seal(scope, number).len());
        assert!(lengths.iter().all(|length| *length == lengths[0]), "{lengths:?}");
        assert_eq!(cursors().seal(scope, "1"), cursors().seal(scope, "1"));
        assert_ne!(cursors().seal(scope, "1")[..32], cursors().seal(scope, "2")[..32], "neighbours do not look alike");
    }
}
