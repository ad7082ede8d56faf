//! Where deliveries may go, against an account of the same rules that shares no code with it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use posthaste_core::destination::{Destination, Host, Policy, Scheme};
use proptest::prelude::{Just, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};
use proptest::test_runner::Config;

/// What is refused of IPv4, first and last address, in the order of the numbers: the registry of special-purpose addresses,
/// multicast, and one cloud's metadata service. Neighbours are merged.
const REFUSED_IPV4: [(&str, &str); 17] = [
    ("0.0.0.0", "0.255.255.255"),
    ("10.0.0.0", "10.255.255.255"),
    ("100.64.0.0", "100.127.255.255"),
    ("127.0.0.0", "127.255.255.255"),
    ("168.63.129.16", "168.63.129.16"),
    ("169.254.0.0", "169.254.255.255"),
    ("172.16.0.0", "172.31.255.255"),
    ("192.0.0.0", "192.0.0.255"),
    ("192.0.2.0", "192.0.2.255"),
    ("192.31.196.0", "192.31.196.255"),
    ("192.52.193.0", "192.52.193.255"),
    ("192.88.99.0", "192.88.99.255"),
    ("192.168.0.0", "192.168.255.255"),
    ("192.175.48.0", "192.175.48.255"),
    ("198.18.0.0", "198.19.255.255"),
    ("198.51.100.0", "198.51.100.255"),
    ("203.0.113.0", "203.0.113.255"),
];
/// Multicast, reserved, broadcast: everything from here on.
const REFUSED_FROM: &str = "224.0.0.0";

fn number(text: &str) -> u32 {
    text.split('.').fold(0, |number, part| number << 8 | part.parse::<u32>().unwrap())
}

fn permitted_by_intervals(intervals: &[(u32, u32)], address: u32) -> bool {
    let next = intervals.partition_point(|(first, _)| *first <= address);
    next == 0 || intervals[next - 1].1 < address
}

fn judge(policy: &Policy, address: impl Into<IpAddr>) -> bool {
    // Any public name will do: what is asked is about the address.
    let destination = Destination::parse("https://hooks.example.com/").unwrap();
    policy.judge(&destination, address.into()).is_ok()
}

#[test]
fn i43_every_ipv4_address_is_judged_as_the_registry_has_it() {
    let mut intervals: Vec<(u32, u32)> = REFUSED_IPV4.iter().map(|(first, last)| (number(first), number(last))).collect();
    intervals.push((number(REFUSED_FROM), u32::MAX));
    assert!(intervals.is_sorted() && intervals.iter().all(|(first, last)| first <= last));
    let policy = Policy::default();
    let destination = Destination::parse("https://hooks.example.com/").unwrap();
    let check = |address: u32| {
        let judged = policy.judge(&destination, IpAddr::V4(Ipv4Addr::from(address))).is_ok();
        assert_eq!(judged, permitted_by_intervals(&intervals, address), "{}", Ipv4Addr::from(address));
    };
    // Both ends and the middle of every block of 256, which is finer than any rule but one ...
    for block in 0..1_u32 << 24 {
        for last in [0, 1, 128, 254, 255] {
            check(block << 8 | last);
        }
    }
    // ... every address around both ends of every interval, and every address of the block that has the one exception.
    for (first, last) in &intervals {
        for offset in 0..1024 {
            check(first.saturating_sub(512) + offset);
            check(last.saturating_sub(512).saturating_add(offset));
        }
    }
    (number("168.63.0.0")..=number("168.63.255.255")).for_each(check);
}

/// The same rules for IPv6, told from the text of an address written out in full.
fn ipv6_is_permitted(address: Ipv6Addr) -> bool {
    let text = format!("{:032x}", u128::from(address));
    let starts = |prefix: &str| text.starts_with(prefix);
    let first = text.as_bytes()[0];
    if first != b'2' && first != b'3' {
        return false;
    }
    let refused = starts("20010") && matches!(text.as_bytes()[5], b'0' | b'1')
        || starts("20010db8")
        || starts("2002")
        || starts("2620004f8000")
        || starts("3fff0")
        || &text[16..24] == "00005efe"
        || &text[16..24] == "02005efe";
    !refused
}

fn any_ipv6() -> impl Strategy<Value = Ipv6Addr> {
    // Near the edges of everything that has a rule, and anywhere.
    let edges = prop::sample::select(vec![
        "::",
        "::1",
        "::ffff:0:0",
        "64:ff9b::",
        "64:ff9b:1::",
        "100::",
        "2000::",
        "2001::",
        "2001:1::",
        "2001:2::",
        "2001:10::",
        "2001:1ff::",
        "2001:200::",
        "2001:db8::",
        "2001:db9::",
        "2002::",
        "2003::",
        "2620:4f:8000::",
        "2620:4f:8001::",
        "3ffe::",
        "3fff::",
        "3fff:fff::",
        "3fff:1000::",
        "4000::",
        "5f00::",
        "fc00::",
        "fe80::",
        "fec0::",
        "ff00::",
    ]);
    let near = (edges, any::<u128>(), 0_u32..=127).prop_map(|(edge, noise, keep)| {
        let edge = u128::from(edge.parse::<Ipv6Addr>().unwrap());
        Ipv6Addr::from(edge ^ noise >> keep)
    });
    let below = any_public().prop_map(|address| Ipv6Addr::from(u128::from(address).wrapping_sub(1)));
    let isatap = (any::<u128>(), prop::bool::ANY).prop_map(|(noise, global)| {
        let marker = if global { 0x0200_5efe_u128 } else { 0x5efe };
        Ipv6Addr::from(noise & !(0xffff_ffff << 32) & !(0xe << 124) | 1 << 125 | marker << 32)
    });
    prop_oneof![near, below, isatap, any_public(), any::<u128>().prop_map(Ipv6Addr::from)]
}

fn any_public() -> impl Strategy<Value = Ipv6Addr> {
    any::<u128>().prop_map(|noise| Ipv6Addr::from(noise >> 3 | 1 << 125))
}

/// Pieces of which troublesome URLs are made.
fn any_url() -> impl Strategy<Value = String> {
    let scheme =
        prop::sample::select(vec!["https://", "http://", "HTTPS://", "https:/", "https:", "ftp://", "//", "", "https://https://"]);
    let host = prop_oneof![
        prop::sample::select(vec![
            "example.com",
            "localhost",
            "a.localhost",
            "127.0.0.1",
            "0x7f.1",
            "2130706433",
            "[::1]",
            "[::ffff:10.0.0.1]",
            "10.0.0.1",
            "169.254.169.254",
            "metadata.google.internal",
            "EXAMPLE.com.",
            "xn--bcher-kva.com",
            "bücher.com",
            "①.②",
            "127。0。0。1",
            "a..b",
            "-a.b",
            "[::1%25lo]",
            "user@host.com",
            "a:b@c.com",
            "host.com:22",
            "host.com:99999",
            "host.com:",
            "ex%61mple.com",
            "x\u{200d}y.com",
            "\u{ad}.com",
            "a_b.com",
            "[2606:4700::1111]",
            "",
        ])
        .prop_map(str::to_owned),
        "[a-zA-Z0-9.:@%\\[\\]_\u{ad}\u{3002}é-]{0,24}",
        any::<String>(),
    ];
    let rest = prop_oneof!["[/?#][ -~]{0,20}", any::<String>(), Just(String::new())];
    (scheme, host, rest).prop_map(|(scheme, host, rest)| format!("{scheme}{host}{rest}"))
}

proptest! {
    #![proptest_config(searched())]

    #[test]
    fn i43_ipv6_addresses_are_judged_as_the_registry_has_it(address in any_ipv6()) {
        prop_assert_eq!(judge(&Policy::default(), address), ipv6_is_permitted(address), "{}", address);
    }

    /// Whatever is written, it is refused, or it means one thing to everybody who reads it.
    #[test]
    fn i43_a_url_that_is_accepted_has_one_meaning(text in any_url()) {
        let Ok(destination) = Destination::parse(&text) else { return Ok(()) };
        let policy = Policy { allow_http: true, ..Policy::default() };
        let spelling = destination.as_str();
        prop_assert!(spelling.is_ascii() && !spelling.contains([' ', '\\', '#']) && !spelling.bytes().any(|byte| byte.is_ascii_control()));
        let authority = spelling.split("://").nth(1).unwrap().split('/').next().unwrap();
        prop_assert!(!authority.contains('@') && !authority.contains('%'), "{}", spelling);
        let again = Destination::parse(spelling);
        prop_assert_eq!(again.as_ref(), Ok(&destination), "reading it again changes nothing");
        prop_assert!(destination.port() != 0);
        prop_assert_eq!(destination.scheme() == Scheme::Https, spelling.starts_with("https://"));
        if policy.check(&destination).is_err() {
            return Ok(());
        }
        match destination.host() {
            Host::Address(IpAddr::V4(four)) => prop_assert!(judge(&Policy::default(), *four) && text.contains(&four.to_string())),
            Host::Address(IpAddr::V6(six)) => prop_assert!(ipv6_is_permitted(*six)),
            Host::Name(name) => {
                prop_assert!(name.contains('.') && name.len() <= 253);
                let letters = |label: &str| (1..=63).contains(&label.len())
                    && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
                prop_assert!(name.split('.').all(letters), "{}", name);
                let last = name.rsplit('.').next().unwrap();
                prop_assert!(!["localhost", "local", "internal", "arpa", "test"].contains(&last));
                prop_assert!(last.parse::<u32>().is_err(), "nobody can take it for an address: {}", name);
            }
        }
    }
}

/// `PROPTEST_CASES=100000000` searches for as long as one likes.
fn searched() -> Config {
    crate::cases(Config::default().cases.max(50_000))
}
