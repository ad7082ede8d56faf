//! Makes one request to a stranger, safely.
//!
//! Nothing else in Posthaste opens a connection to a receiver. What a receiver does, however strange, is an `Outcome`
//! and never an error of ours; and the address is judged where the connection is made, after DNS, every time.
//!
//! | question | file |
//! |---|---|
//! | What does a receiver get? | [`request`] |
//! | What came of it, and how long may it take? | [`client`] |
//! | Where may it go? | `posthaste_core::destination` decides; `connector.rs` asks it and dials what was judged |
//! | Which connections are kept? | `pool.rs`; `connection.rs` is one of them, `meter.rs` bounds what it may read |
//! | What of an answer is kept? | `preview.rs`, `redact.rs` |
//! | What can an operator set? | [`options`] |

pub mod client;
mod connection;
mod connector;
mod meter;
mod names;
pub mod options;
mod pool;
mod preview;
mod proxy;
mod redact;
pub mod request;
mod tls;

pub use client::{Client, Posted, RESPONSE_PREVIEW_BYTES_MAX, Reached};
pub use connection::MaySend;
pub use options::{NameServers, Options, OptionsError, Proxy, Roots};
pub use pool::ConnectionCounts;
pub use posthaste_core::destination::Policy;
pub use request::Address;
