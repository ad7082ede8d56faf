//! The engine with everything that it works with.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

mod attempts;
mod controls;
mod faults;
mod faulty_store;
mod postgres;
mod world;
