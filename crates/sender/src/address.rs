//! Which addresses a delivery may go to.

use std::net::IpAddr;

use ipnet::IpNet;

/// What the operator allows. Whatever is not named here is refused.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Egress {
    pub allowed_networks: Vec<IpNet>,
}

impl Egress {
    /// An IPv4 address written inside an IPv6 one is judged as what it is, and is refused: nobody needs that spelling.
    pub fn permits(&self, address: IpAddr) -> bool {
        let is_disguised = matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
        !is_disguised && self.allowed_networks.iter().any(|network| network.contains(&address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_allowed_may_be_reached() {
        let egress = Egress { allowed_networks: vec!["127.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()] };
        for good in ["127.0.0.1", "127.255.255.255", "::1"] {
            assert!(egress.permits(good.parse().unwrap()), "{good}");
        }
        for bad in ["10.0.0.1", "169.254.169.254", "93.184.216.34", "0.0.0.0", "::", "::ffff:127.0.0.1", "::2", "fe80::1"] {
            assert!(!egress.permits(bad.parse().unwrap()), "{bad}");
        }
        assert!(!Egress::default().permits("127.0.0.1".parse().unwrap()));
    }
}
