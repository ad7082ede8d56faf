//! Whole worlds from a seed.
//!
//! The core decides; here is the world that it decides about: receivers with moods, outages, time that passes. The
//! same seed makes the same world, so that what was seen once can be seen again.

pub mod fleet;
