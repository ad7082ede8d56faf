//! Which addresses a delivery may go to.
//!
//! Of IPv4 everything but the registry of special-purpose addresses, multicast, and one address that a cloud answers its
//! guests at. Of IPv6 only what is handed out to the public, less the special-purpose blocks inside it. An IPv4 address
//! written inside an IPv6 one is refused whatever is allowed: nobody needs that spelling but those who want to get around
//! the rules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Policy;

/// Where the machines of clouds read their credentials and settings. Only an allowance of exactly such an address opens it.
const METADATA: [IpAddr; 9] = [
    // Most clouds; Amazon's containers and pods.
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 23)),
    // Azure's platform, Alibaba, Oracle.
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    // Amazon, its pods, and Google over IPv6.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// Why an address is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("deliveries do not go to this address: it is {0} (an operator can allow a network)")]
pub struct AddressRule(&'static str);

/// First address, bits that count, what it is.
const IPV4_SPECIAL: [([u8; 4], u8, &str); 19] = [
    ([0, 0, 0, 0], 8, "this network's own"),
    ([10, 0, 0, 0], 8, "in a private network"),
    ([100, 64, 0, 0], 10, "in a carrier's private network"),
    ([127, 0, 0, 0], 8, "this machine's own"),
    ([168, 63, 129, 16], 32, "a cloud's metadata service"),
    ([169, 254, 0, 0], 16, "on the local link"),
    ([172, 16, 0, 0], 12, "in a private network"),
    ([192, 0, 0, 0], 24, "reserved for protocols"),
    ([192, 0, 2, 0], 24, "for documentation"),
    ([192, 31, 196, 0], 24, "a sink for private names"),
    ([192, 52, 193, 0], 24, "a relay for multicast"),
    ([192, 88, 99, 0], 24, "a relay between protocols"),
    ([192, 168, 0, 0], 16, "in a private network"),
    ([192, 175, 48, 0], 24, "a sink for private names"),
    ([198, 18, 0, 0], 15, "for benchmarks"),
    ([198, 51, 100, 0], 24, "for documentation"),
    ([203, 0, 113, 0], 24, "for documentation"),
    ([224, 0, 0, 0], 4, "for multicast"),
    ([240, 0, 0, 0], 4, "reserved"),
];

/// All that is handed out to the public.
const IPV6_PUBLIC: (Ipv6Addr, u8) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// What inside of that is not for everybody.
const IPV6_SPECIAL: [(Ipv6Addr, u8, &str); 4] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, "reserved for protocols"),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, "for documentation"),
    (Ipv6Addr::new(0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0), 48, "a sink for private names"),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, "for documentation"),
];

/// Ways to write an IPv4 address as an IPv6 one.
const IPV4_INSIDE: [(Ipv6Addr, u8); 6] = [
    // Compatible, and mapped.
    (Ipv6Addr::UNSPECIFIED, 96),
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96),
    // Translated (NAT64), everybody's prefix and local ones.
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96),
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48),
    // 6to4, and Teredo.
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32),
];

impl Policy {
    pub(super) fn permits(&self, address: IpAddr) -> Result<(), AddressRule> {
        if let Some(never) = never(address) {
            return Err(AddressRule(never));
        }
        let is_allowed = if METADATA.contains(&address) {
            self.allowed_networks
                .iter()
                .any(|network| network.prefix_len() == network.max_prefix_len() && network.addr() == address)
        } else {
            self.allows(address)
        };
        match special(address) {
            Some(special) if !is_allowed => Err(AddressRule(special)),
            Some(_) | None => Ok(()),
        }
    }
}

/// What no allowance opens.
fn never(address: IpAddr) -> Option<&'static str> {
    match address {
        // It would reach this machine, by an address that was never judged.
        _ if address.is_unspecified() => Some("no address at all"),
        IpAddr::V6(Ipv6Addr::LOCALHOST) | IpAddr::V4(_) => None,
        IpAddr::V6(v6) => IPV4_INSIDE
            .iter()
            .any(|(network, bits)| is_in_v6(v6, *network, *bits))
            .then_some("an IPv4 address inside an IPv6 address"),
    }
}

fn special(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(v4) => {
            let is_in = |network: [u8; 4], bits: u8| (u32::from(v4) ^ u32::from_be_bytes(network)) >> (32 - bits) == 0;
            IPV4_SPECIAL.iter().find(|(network, bits, _)| is_in(*network, *bits)).map(|(_, _, what)| *what)
        }
        IpAddr::V6(Ipv6Addr::LOCALHOST) => Some("this machine's own"),
        IpAddr::V6(v6) if !is_in_v6(v6, IPV6_PUBLIC.0, IPV6_PUBLIC.1) => Some("not a public one"),
        IpAddr::V6(v6) if is_isatap(v6) => Some("an IPv4 address inside an IPv6 address"),
        IpAddr::V6(v6) => IPV6_SPECIAL.iter().find(|(network, bits, _)| is_in_v6(v6, *network, *bits)).map(|(_, _, what)| *what),
    }
}

fn is_in_v6(address: Ipv6Addr, network: Ipv6Addr, bits: u8) -> bool {
    (u128::from(address) ^ u128::from(network)) >> (128 - bits) == 0
}

/// Its interface id is `0000:5efe` or `0200:5efe` and an IPv4 address, which a router inside would unpack.
fn is_isatap(address: Ipv6Addr) -> bool {
    let [_, _, _, _, flags, marker, _, _] = address.segments();
    marker == 0x5efe && flags & !0x0200 == 0
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;

    use super::*;

    fn permits(networks: &[&str], address: &str) -> bool {
        let allowed_networks = networks.iter().map(|network| network.parse().unwrap()).collect();
        Policy { allowed_networks, ..Policy::default() }.permits(address.parse().unwrap()).is_ok()
    }

    #[test]
    fn public_addresses_are_permitted_and_special_ones_are_not() {
        for good in ["1.1.1.1", "8.8.8.8", "93.184.216.34", "172.32.0.0", "100.128.0.0", "192.0.1.0", "223.255.255.255"] {
            assert!(permits(&[], good), "{good}");
        }
        for good in ["2606:4700:4700::1111", "2001:200::1", "2a00:1450::1", "2620:4f:8001::1"] {
            assert!(permits(&[], good), "{good}");
        }
        for bad in ["0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "127.0.0.1", "169.254.169.254", "172.31.255.255", "192.0.0.9"] {
            assert!(!permits(&[], bad), "{bad}");
        }
        for bad in ["192.168.1.1", "198.19.0.1", "203.0.113.9", "224.0.0.1", "240.0.0.1", "255.255.255.255", "168.63.129.16"] {
            assert!(!permits(&[], bad), "{bad}");
        }
        for bad in
            ["::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1", "3fff::1", "4000::1", "2001:10::1"]
        {
            assert!(!permits(&[], bad), "{bad}");
        }
        assert!(!permits(&[], "2a00::5efe:10.0.0.1") && !permits(&[], "2a00::200:5efe:8.8.8.8"), "ISATAP");
    }

    #[test]
    fn an_allowed_network_opens_itself_and_nothing_else() {
        assert!(permits(&["10.1.0.0/16"], "10.1.2.3"));
        assert!(!permits(&["10.1.0.0/16"], "10.2.0.1"));
        assert!(permits(&["::1/128"], "::1"));
        assert!(!permits(&["127.0.0.0/8"], "::1"));
        assert!(permits(&["fd00::/8"], "fd12::1"));
    }

    #[test]
    fn disguised_ipv4_is_refused_whatever_is_allowed() {
        let everything = ["0.0.0.0/0", "::/0"];
        for bad in [
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "::8.8.8.8",
            "::2",
            "64:ff9b::8.8.8.8",
            "64:ff9b:1::8.8.8.8",
            "2002:0808:0808::1",
            "2001:0:808:808::1",
            "::",
            "0.0.0.0",
        ] {
            assert!(!permits(&everything, bad), "{bad}");
        }
        assert!(permits(&everything, "::1"));
    }

    #[test]
    fn metadata_is_opened_by_its_own_name_only() {
        for network in ["0.0.0.0/0", "169.254.0.0/16", "169.254.169.254/31"] {
            assert!(!permits(&[network], "169.254.169.254"), "{network}");
            assert!(permits(&[network], "169.254.169.255"), "{network}");
        }
        assert!(permits(&["169.254.169.254/32"], "169.254.169.254"));
        let everything = ["0.0.0.0/0", "::/0", "169.254.0.0/16", "fd00::/8", "fd00:ec2::/64", "168.63.129.16/31"];
        for address in METADATA {
            let exactly = IpNet::from(address).to_string();
            assert!(!permits(&everything, &address.to_string()), "{address}");
            assert!(permits(&[&exactly], &address.to_string()), "{exactly}");
            for other in METADATA.into_iter().filter(|other| *other != address) {
                assert!(!permits(&[&exactly], &other.to_string()), "{exactly} and {other}");
            }
        }
    }
}
