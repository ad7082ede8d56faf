//! A private PostgreSQL for tests: a [`Server`] of its own for each test, started from the installed binaries and thrown
//! away afterwards, and a [`Proxy`] in front of it that loses connections at the worst moment.
//!
//! It needs Linux, because it finds the processes of a server in `/proc`. It is for tests only: it panics with a sentence
//! where anything goes wrong, and it trusts everybody on this machine.

mod installation;
mod port;
mod proxy;
mod server;

pub use installation::is_installed;
pub use proxy::{Cut, Proxy};
pub use server::Server;
