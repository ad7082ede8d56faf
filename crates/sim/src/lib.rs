//! Whole worlds from a seed.
//!
//! The core decides; here is the world that it decides about: receivers with moods, outages, time that passes. The
//! same seed makes the same world, so that what was seen once can be seen again.

pub mod bench;
mod checker;
mod draw;
pub mod fleet;
pub mod seeds;
pub mod world;

pub use checker::Violation;
