//! A customer of the people who run Posthaste: the unit of fairness and of what a key may see.

use std::time::Duration;

use crate::bucket::RateLimit;
use crate::endpoint::PolicyOverrides;
use crate::id::TenantId;
use crate::text::TextError;

#[derive(Clone, PartialEq, Debug)]
pub struct Tenant {
    pub id: TenantId,
    pub share: ShareOverrides,
    /// Over all its endpoints together.
    pub rate_limit: Option<RateLimit>,
    /// `None`: the server's default.
    pub retention: Option<Retention>,
    /// What its endpoints inherit.
    pub defaults: PolicyOverrides,
}

impl Tenant {
    /// As a tenant comes into being with its first event or endpoint.
    pub fn new(id: TenantId) -> Tenant {
        Tenant { id, share: ShareOverrides::default(), rate_limit: None, retention: None, defaults: PolicyOverrides::default() }
    }
}

/// The server's settings for tenants that do not have their own.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TenantDefaults {
    pub share: Share,
    pub retention: Retention,
}

/// What a tenant sets of its share; the rest it inherits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShareOverrides {
    weight: u32,
    /// `None`: the server's default.
    max_in_flight: Option<u32>,
}

impl ShareOverrides {
    pub fn new(weight: u32, max_in_flight: Option<u32>) -> Result<ShareOverrides, TextError> {
        Share::new(weight, max_in_flight.unwrap_or(1))?;
        Ok(ShareOverrides { weight, max_in_flight })
    }

    pub fn weight(self) -> u32 {
        self.weight
    }

    pub fn max_in_flight(self) -> Option<u32> {
        self.max_in_flight
    }

    /// What applies under these defaults.
    #[must_use]
    pub fn over(self, defaults: Share) -> Share {
        Share { weight: self.weight, max_in_flight: self.max_in_flight.unwrap_or(defaults.max_in_flight) }
    }
}

impl Default for ShareOverrides {
    fn default() -> ShareOverrides {
        ShareOverrides { weight: Share::default().weight, max_in_flight: None }
    }
}

impl From<Share> for ShareOverrides {
    fn from(share: Share) -> ShareOverrides {
        ShareOverrides { weight: share.weight, max_in_flight: Some(share.max_in_flight) }
    }
}

/// Its part of the machine beside other tenants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    weight: u32,
    max_in_flight: u32,
}

impl Share {
    /// Zero of either would mean never, which is what pausing is for.
    pub fn new(weight: u32, max_in_flight: u32) -> Result<Share, TextError> {
        if !(1..=1000).contains(&weight) {
            return Err(TextError { rule: "weight is 1 to 1,000" });
        }
        if !(1..=100_000).contains(&max_in_flight) {
            return Err(TextError { rule: "max_in_flight is 1 to 100,000" });
        }
        Ok(Share { weight, max_in_flight })
    }

    /// One with weight 2 gets twice as much as one with 1.
    pub fn weight(self) -> u32 {
        self.weight
    }

    pub fn max_in_flight(self) -> u32 {
        self.max_in_flight
    }
}

impl Default for Share {
    fn default() -> Share {
        Share { weight: 1, max_in_flight: 256 }
    }
}

/// How long what has ended is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retention(u32);

impl Retention {
    pub fn days(days: u32) -> Result<Retention, TextError> {
        if (1..=365).contains(&days) { Ok(Retention(days)) } else { Err(TextError { rule: "retention_days is 1 to 365" }) }
    }

    /// For the store, which keeps what was said.
    pub fn as_days(self) -> u32 {
        self.0
    }

    pub fn as_duration(self) -> Duration {
        Duration::from_hours(u64::from(self.0) * 24)
    }
}

impl Default for Retention {
    fn default() -> Retention {
        Retention(30)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_inherits_what_the_tenant_does_not_set() {
        let server = Share::new(1, 7).unwrap();
        assert_eq!(ShareOverrides::new(3, None).unwrap().over(server), Share::new(3, 7).unwrap());
        assert_eq!(ShareOverrides::new(3, Some(2)).unwrap().over(server), Share::new(3, 2).unwrap());
    }

    #[test]
    fn nobody_can_be_given_a_share_of_nothing() {
        assert!(Share::new(0, 1).is_err());
        assert!(Share::new(1, 0).is_err());
        assert!(Share::new(1000, 100_000).is_ok());
        assert!(ShareOverrides::new(1, Some(0)).is_err());
        assert!(ShareOverrides::new(0, None).is_err());
        assert!(Retention::days(0).is_err());
        assert_eq!(Retention::default().as_duration(), Duration::from_hours(720));
    }
}
