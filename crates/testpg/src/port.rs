//! Ports on this machine that nobody else uses, neither now nor soon.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};

/// Linux takes the near ends of connections from 32768 upwards. Below that, a port that is free for a moment while a server
/// restarts is not taken by somebody's connection; nor can a client that tries it meanwhile be connected to itself.
const FIRST: u64 = 20_000;
const COUNT: u64 = 12_000;

const ATTEMPTS: usize = 1000;

pub(crate) fn listen_anywhere() -> TcpListener {
    (0..ATTEMPTS)
        .find_map(|_| listen(u16::try_from(FIRST + random() % COUNT).expect("all of them are below 32768")).ok())
        .expect("one port of a thousand is free")
}

pub(crate) fn listen(port: u16) -> std::io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))
}

/// Different in each process: tests that run at once shall not try the same ports in the same order.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
