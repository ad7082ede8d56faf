//! What the store has to be told.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::endpoint::Policies;
use posthaste_core::tenant::Retention;

use crate::{ClockSource, Commits, Keyring, SystemClock};

#[derive(Clone, Debug)]
pub struct Options {
    /// Opens and seals the secrets of endpoints.
    pub keyring: Keyring,
    /// What applies where neither tenant nor endpoint says anything.
    pub policies: Policies,
    /// How long events and deliveries of a tenant are kept that does not set its own retention. The same on every node.
    pub retention: Retention,
    pub idempotency_keys_kept: Duration,
    /// Bytes that may wait to be written.
    pub commit_queue_bytes_max: usize,
    /// Counts them; whoever wants to see it keeps a handle.
    pub commits: Arc<Commits>,
    /// The clocks of this machine, unless a test has its own.
    pub clock: Arc<dyn ClockSource>,
}

impl Options {
    pub fn new(keyring: Keyring) -> Options {
        Options {
            keyring,
            policies: Policies::default(),
            retention: Retention::default(),
            idempotency_keys_kept: Duration::from_hours(24),
            commit_queue_bytes_max: 32 * 1024 * 1024,
            commits: Arc::default(),
            clock: Arc::new(SystemClock::default()),
        }
    }
}
