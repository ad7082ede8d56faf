//! Identifiers: a prefix that says what it is, and 128 bits that sort by time.
//!
//! The bits are a version 7 UUID (48 bits of milliseconds, then randomness), written
//! as 26 characters of Crockford's base 32 in lower case: `dlv_01k9…`. Every id has
//! exactly one spelling, so a stored id, a logged id and a typed id compare as text.
//!
//! Randomness comes from the caller; [`Sequence`] makes ids of one process strictly
//! increasing even within one millisecond.

use std::fmt;

use crate::text::{TextError, is_word, is_word_byte, text_type};
use crate::time::Timestamp;

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// 26 × 5 bits hold 128 with two to spare.
const ENCODED_LEN: usize = 26;

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            pub const PREFIX: &'static str = $prefix;

            /// Takes the next id of a sequence.
            pub fn from_unique(unique: Unique) -> $name {
                $name(unique.0)
            }

            /// For the store, which keeps the 16 bytes.
            pub fn to_bytes(self) -> [u8; 16] {
                self.0.to_be_bytes()
            }

            pub fn from_bytes(bytes: [u8; 16]) -> $name {
                $name(u128::from_be_bytes(bytes))
            }

            pub fn as_u128(self) -> u128 {
                self.0
            }

            pub fn parse(text: &str) -> Result<$name, TextError> {
                const RULE: TextError =
                    TextError { rule: concat!("expected `", $prefix, "` and 26 characters of the id alphabet") };
                text.strip_prefix(Self::PREFIX).and_then(decode).map($name).ok_or(RULE)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(Self::PREFIX)?;
                f.write_str(encode(self.0, &mut [0; ENCODED_LEN]))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

id_type!(
    /// One place that a tenant wants events sent to.
    EndpointId, "ep_");
id_type!(
    /// One event on its way to one endpoint.
    DeliveryId, "dlv_");
id_type!(
    /// One try of one delivery.
    AttemptId, "att_");
id_type!(
    /// One request to send again what was sent or missed before.
    ReplayId, "rpl_");
id_type!(
    /// One person's time in the dashboard or in the portal.
    SessionId, "ses_");
id_type!(
    /// One credential. The id may be shown; the key itself only once.
    KeyId, "key_");

text_type!(
    /// An event's id: ours (`evt_…`), or of the publisher's choosing, unique within its tenant.
    /// It is signed as `id.timestamp.body`, so it has no dot.
    EventId,
    "an event id is 1 to 128 letters, digits, `_` or `-`",
    |text| text.len() <= 128 && is_word(text)
);

impl EventId {
    pub const PREFIX: &'static str = "evt_";

    pub fn from_unique(unique: Unique) -> EventId {
        let mut buffer = [0; ENCODED_LEN];
        EventId(format!("{}{}", Self::PREFIX, encode(unique.0, &mut buffer)).into())
    }

    /// When it was given out, if it is one of ours or looks like one.
    pub fn made_at(&self) -> Option<Timestamp> {
        let bits = decode(self.0.strip_prefix(Self::PREFIX)?)?;
        let is_version_7 = bits & (0xf << 76) == VERSION_7 && bits & (0b11 << 62) == VARIANT;
        is_version_7.then(|| Timestamp::from_millis(i64::try_from(bits >> 80).expect("48 bits")))
    }
}

text_type!(
    /// A tenant's id, of the user's choosing.
    TenantId,
    "a tenant id is 1 to 128 letters, digits, `_` or `-`, with `.` and `:` allowed inside",
    |text| {
        let bytes = text.as_bytes();
        let is_word_at = |byte: Option<&u8>| byte.is_some_and(|&byte| is_word_byte(byte));
        bytes.len() <= 128
            && is_word_at(bytes.first())
            && is_word_at(bytes.last())
            && bytes.iter().all(|&byte| is_word_byte(byte) || byte == b'.' || byte == b':')
    }
);

text_type!(
    /// The user's own name for an endpoint, unique per tenant.
    EndpointUid,
    "a uid is 1 to 128 letters, digits, `_` or `-`",
    |text| text.len() <= 128 && is_word(text)
);

/// A value that no other call of the same [`Sequence`] has given out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Unique(u128);

/// Gives out ids that increase strictly, even when the clock stands still or goes back.
#[derive(Clone, Default, Debug)]
pub struct Sequence {
    last: u128,
}

impl Sequence {
    /// All that it gives out is above this one.
    pub fn after(last: DeliveryId) -> Sequence {
        Sequence { last: last.as_u128() }
    }

    /// `random` is 74 bits or more of fresh randomness; the rest of it is ignored.
    pub fn next(&mut self, now: Timestamp, random: u128) -> Unique {
        let fresh = version_7(now, random);
        self.last = if fresh > self.last { fresh } else { successor(self.last) };
        Unique(self.last)
    }
}

const VERSION_7: u128 = 0x7 << 76;
const VARIANT: u128 = 0b10 << 62;
const RANDOM_LOW: u128 = (1 << 62) - 1;
const RANDOM_HIGH: u128 = 0xfff << 64;

fn version_7(now: Timestamp, random: u128) -> u128 {
    let millis = u128::try_from(now.as_millis()).unwrap_or(0) & 0xffff_ffff_ffff;
    millis << 80 | VERSION_7 | (random & RANDOM_HIGH) | VARIANT | (random & RANDOM_LOW)
}

/// The next value that still has version and variant where they belong.
fn successor(last: u128) -> u128 {
    if last & RANDOM_LOW != RANDOM_LOW {
        return last + 1;
    }
    // The low randomness is used up: carry over the variant bits into the high part, and from there over the version.
    let cleared = last & !RANDOM_LOW;
    if cleared & RANDOM_HIGH == RANDOM_HIGH { (((cleared >> 80) + 1) << 80) | VERSION_7 | VARIANT } else { cleared + (1 << 64) }
}

fn encode(bits: u128, buffer: &mut [u8; ENCODED_LEN]) -> &str {
    let mut rest = bits;
    for place in buffer.iter_mut().rev() {
        *place = ALPHABET[(rest & 31) as usize];
        rest >>= 5;
    }
    std::str::from_utf8(buffer).expect("the alphabet is ASCII")
}

fn decode(text: &str) -> Option<u128> {
    let bytes = text.as_bytes();
    // Two of the 130 bits do not exist: a first character above 7 would be a second spelling.
    if bytes.len() != ENCODED_LEN || bytes[0] > b'7' {
        return None;
    }
    bytes.iter().try_fold(0u128, |bits, byte| {
        let digit = ALPHABET.iter().position(|letter| letter == byte)?;
        Some(bits << 5 | digit as u128)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_id_reads_like_this() {
        let unique = Sequence::default().next(Timestamp::from_millis(1_775_643_330_000), 0x1234_5678_9abc_def0);
        assert_eq!(DeliveryId::from_unique(unique).to_string(), "dlv_01knp9e1ege0094d2pf2dbsqqg");
        assert_eq!(EventId::from_unique(unique).as_str(), "evt_01knp9e1ege0094d2pf2dbsqqg");
    }

    #[test]
    fn an_event_id_of_ours_tells_when_it_was_given_out() {
        let at = Timestamp::from_millis(1_775_643_330_123);
        let ours = EventId::from_unique(Sequence::default().next(at, u128::MAX));
        assert_eq!(ours.made_at(), Some(at));
        for of_others in ["evt_1", "order-17", "dlv_01knp9e1ege0094d2pf2dbsqqg", "evt_00000000000000000000000000"] {
            assert_eq!(EventId::parse(of_others).unwrap().made_at(), None, "{of_others}");
        }
    }

    #[test]
    fn only_the_one_spelling_is_read() {
        let good = "dlv_01knp9e1ege0094d2pf2dbsqqg";
        assert!(DeliveryId::parse(good).is_ok());
        for bad in [
            "",
            "dlv_",
            "01knp9e1ege0094d2pf2dbsqqg",
            "ep_01knp9e1ege0094d2pf2dbsqqg",
            "dlv-01knp9e1ege0094d2pf2dbsqqg",
            "DLV_01knp9e1ege0094d2pf2dbsqqg",
            "dlv_01KNP9E1EGE0094D2PF2DBSQQG",
            "dlv_01knp9e1ege0094d2pf2dbsqq",
            "dlv_01knp9e1ege0094d2pf2dbsqqg0",
            "dlv_81knp9e1ege0094d2pf2dbsqqg",
            "dlv_01knp9e1ege0094d2pf2dbsqqo",
            "dlv_01knp9e1ege0094d2pf2dbsqq\u{e9}",
            " dlv_01knp9e1ege0094d2pf2dbsqqg",
            "dlv_01knp9e1ege0094d2pf2dbsqqg\n",
        ] {
            assert!(DeliveryId::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn tenants_may_have_dots_and_colons_inside_only() {
        for good in ["a", "acme", "org:42", "eu.acme-1", "A_b", &"x".repeat(128)] {
            assert!(TenantId::parse(good).is_ok(), "{good}");
        }
        for bad in ["", ".", ":a", "a.", "a b", "ä", "a/b", "a\n", &"x".repeat(129)] {
            assert!(TenantId::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_event_id_has_no_character_that_could_break_a_signature_or_a_header() {
        for bad in ["a.b", "a\r\nb", "a b", "a:b", "", &"x".repeat(129)] {
            assert!(EventId::parse(bad).is_err(), "{bad:?}");
        }
        assert!(EventId::parse("order_42-paid").is_ok());
    }

    proptest! {
        #[test]
        fn every_id_survives_being_written_and_read(bits: u128) {
            let id = EndpointId(bits);
            prop_assert_eq!(EndpointId::parse(&id.to_string()).unwrap(), id);
            prop_assert_eq!(EndpointId::from_bytes(id.to_bytes()), id);
        }

        #[test]
        fn text_order_is_id_order(a: u128, b: u128) {
            prop_assert_eq!(a.cmp(&b), DeliveryId(a).to_string().cmp(&DeliveryId(b).to_string()));
        }

        #[test]
        fn what_is_read_is_written_the_same(text in "(ep_)?[0-9a-zA-Z_]{20,30}") {
            if let Ok(id) = EndpointId::parse(&text) {
                prop_assert_eq!(id.to_string(), text);
            }
        }

        #[test]
        fn a_sequence_never_repeats_or_falls(times in prop::collection::vec((0i64..5, prop_oneof![Just(0u128), Just(u128::MAX), any::<u128>()]), 1..50)) {
            let mut sequence = Sequence::default();
            let mut last = None;
            for (millis, random) in times {
                let next = sequence.next(Timestamp::from_millis(1_800_000_000_000 + millis), random);
                prop_assert!(last < Some(next));
                prop_assert_eq!((next.0 >> 76) & 0xf, 7, "version 7");
                prop_assert_eq!((next.0 >> 62) & 0b11, 0b10, "variant 10");
                last = Some(next);
            }
        }
    }
}
