//! Drives the real server through faults and checks the promises from outside. Tests only.
//!
//! It knows the server as a stranger would: by its program, its API and the requests that it makes. A publisher, a receiver
//! with moods and whoever does harm write down what they did and saw, all by one clock ([`evidence`]); when everything has
//! calmed down, [`verdict`] asks whether the promises of `docs/promises.md` were kept. Nothing of the server's own code
//! takes part in judging: signatures are verified by the few lines of [`signature`].
//!
//! | question | file |
//! |---|---|
//! | What was done and seen? | `evidence.rs` |
//! | Which promises were kept? | `verdict.rs`; those about order, pace and number in `shape.rs` |
//! | What time is it elsewhere? | `wall.rs` |
//! | How is the server started, killed and asked? | `server.rs`, `caller.rs` |
//! | Who publishes, who receives? | `publisher.rs`, `receiver.rs` |
//! | How does it all come together? | `world.rs`; `crash.rs`, `soak.rs` and `dashboard.rs` are courses of events |
//! | What can one caller do to another? | `attack.rs` |

pub mod attack;
pub mod caller;
pub mod crash;
pub mod dashboard;
pub mod draw;
pub mod evidence;
pub mod publisher;
pub mod receiver;
pub mod server;
pub mod shape;
pub mod signature;
pub mod soak;
pub mod verdict;
pub mod wall;
pub mod world;
