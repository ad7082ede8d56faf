//! Answers of name servers, mutated: they are read without a panic, and no forbidden address gets through. `cargo xtask fuzz` runs
//! this for longer.

use std::net::IpAddr;

use hickory_resolver::proto::op::Message;
use posthaste_core::destination::{Destination, Policy};
use posthaste_fuzzing::{Inputs, fuzz};

/// Every character of an example is one byte.
#[test]
fn fuzz_dns_answers() {
    let inputs = Inputs {
        examples: &[
            "\u{12}4\u{81}\u{80}\0\x01\0\x01\0\0\0\0\x01a\x07example\0\0\x01\0\x01\u{c0}\x0c\0\x01\0\x01\0\0\0<\0\x04]\u{b8}\u{d8}\"",
            "\u{12}4\u{81}\u{80}\0\x01\0\x02\0\0\0\0\x01a\x07example\0\0\x1c\0\x01\u{c0}\x0c\0\x05\0\x01\0\0\0<\0\x04\x01b\u{c0}\x0e\
             \x01b\u{c0}\x0e\0\x1c\0\x01\0\0\0<\0\x10 \x01\r\u{b8}\0\0\0\0\0\0\0\0\0\0\0\x01",
            "\u{12}4\u{81}\u{83}\0\x01\0\0\0\x01\0\0\x01a\x07example\0\0\x01\0\x01",
        ],
        dictionary: &[
            "\u{c0}\x0c",
            "\u{c0}\0",
            "\0\x01\0\x01",
            "\0\x1c\0\x01",
            "\0\x05\0\x01",
            "\u{ff}\u{ff}",
            "?",
            "\0",
            "\0\0)\x10\0",
        ],
    };
    fuzz("dns-answers", inputs, |input| {
        let bytes: Vec<u8> = match std::str::from_utf8(input) {
            Ok(text) => text.chars().map(|letter| u8::try_from(letter).unwrap_or(b'?')).collect(),
            Err(_) => input.to_vec(),
        };
        let Ok(message) = Message::from_vec(&bytes) else { return None };
        let addresses = message.answers.iter().filter_map(|record| record.data.ip_addr());
        let judged: Vec<bool> = addresses.map(judge).collect();
        Some((message.answers.len(), judged))
    });
}

/// Whether a delivery may go to an address, with the rules of a server without any allowance.
fn judge(address: IpAddr) -> bool {
    let destination = Destination::parse("https://receiver.example.com/").unwrap();
    let is_allowed = Policy::default().judge(&destination, address).is_ok();
    assert!(!(is_allowed && (address.is_loopback() || address.is_multicast() || address.is_unspecified())), "{address}");
    is_allowed
}
