//! Makes one request to a stranger, safely.
//!
//! Nothing else in Posthaste opens a connection to a receiver. What a receiver does, however strange, is an `Outcome`
//! and never an error of ours; and the address is judged where the connection is made, after DNS, every time.
//!
//! Today it speaks plain HTTP/1.1 and reaches only networks that the operator allows.

pub mod address;
pub mod client;
mod connector;
pub mod request;

pub use client::{Client, Posted};
