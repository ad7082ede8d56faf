//! One request to receivers of every kind: good, slow, broken and hostile. What each does is an outcome of its class, within its
//! time; nothing of it is an error of ours.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

mod answers;
mod certificates;
mod hostile;
mod http2;
mod name_server;
mod names;
mod policies;
mod pooling;
mod proxies;
mod receiver;
mod tls;
