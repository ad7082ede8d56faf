//! Where the next page begins, as callers see it: a word of ours, to be handed back as it is.
//!
//! It carries a checksum over its content and the list that it belongs to, so that a mistyped, shortened or borrowed one
//! is refused instead of leading somewhere. It is no secret and grants nothing: what a page shows follows from the
//! caller.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use crate::problem::Problem;

const CHECKSUM_BYTES: usize = 6;

pub(crate) fn write(list: &str, position: &str) -> String {
    let mut bytes = checksum(list, position.as_bytes()).to_vec();
    bytes.extend_from_slice(position.as_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

pub(crate) fn read(list: &str, text: &str) -> Result<String, Problem> {
    let refuse = || Problem::unreadable("the cursor is not one of ours; use `next_cursor` of the page before as it is");
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| refuse())?;
    let (shown, position) = bytes.split_first_chunk::<CHECKSUM_BYTES>().ok_or_else(refuse)?;
    if *shown != checksum(list, position) {
        return Err(refuse());
    }
    String::from_utf8(position.to_vec()).map_err(|_| refuse())
}

fn checksum(list: &str, position: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut hash = Sha256::new();
    hash.update(b"posthaste cursor 1\0");
    hash.update(list.as_bytes());
    hash.update([0]);
    hash.update(position);
    *hash.finalize().first_chunk().expect("a digest is longer")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_works_for_its_own_list_and_only_as_it_was_given() {
        let cursor = write("events", "12345");
        assert_eq!(read("events", &cursor).unwrap(), "12345");
        assert_eq!(read("deliveries", &cursor).unwrap_err().status(), 400);
        for at in 0..cursor.len() {
            let mut changed = cursor.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert!(read("events", std::str::from_utf8(&changed).unwrap()).is_err());
        }
        for other in ["", "AA", "12345", "ä", &cursor[1..], &"A".repeat(500)] {
            assert_eq!(read("events", other).unwrap_err().status(), 400, "{other}");
        }
    }
}
