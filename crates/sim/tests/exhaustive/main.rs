//! Thousands of worlds and a million histories. `cargo xtask check --fast` leaves this binary out.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

mod fifo;
mod worlds;
