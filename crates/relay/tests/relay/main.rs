//! A real relay between a real application's database and a real store.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

mod faults;
mod installing;
mod moving;
mod world;
