//! Numbers that look random and follow from a seed: the same seed draws the same.

/// A stream of draws.
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    pub fn new(seed: u64) -> Draw {
        Draw(seed)
    }

    /// Splitmix64: short, and good enough to scatter faults.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0)
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.number() % (high - low + 1)
    }
}

/// One number from two, always the same.
pub fn scattered(one: u64, other: u64) -> u64 {
    mixed(one.rotate_left(32) ^ other.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
