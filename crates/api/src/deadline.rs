//! How long a request may take before it is answered with 503, whatever the store does.
//!
//! Time in which we wait for the client's body does not count: that has a limit of its own (`body.rs`).

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// A limit that is nearly reached when a body begins to be read is looked at again after this time at the earliest.
const LOOKED_AT_AFTER: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Deadline {
    length: Duration,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Running {
        ends_at: Instant,
    },
    /// The client's turn. What is left when it is ours again.
    Paused {
        left: Duration,
    },
}

impl Deadline {
    pub(crate) fn new(length: Duration) -> Deadline {
        Deadline { length, state: Mutex::new(State::Running { ends_at: Instant::now() + length }) }
    }

    /// From now on we wait for the client.
    pub(crate) fn pause(&self) {
        let mut state = self.state.lock();
        if let State::Running { ends_at } = *state {
            *state = State::Paused { left: ends_at.saturating_duration_since(Instant::now()) };
        }
    }

    /// From now on the client waits for us.
    pub(crate) fn resume(&self) {
        let mut state = self.state.lock();
        if let State::Paused { left } = *state {
            *state = State::Running { ends_at: Instant::now() + left };
        }
    }

    /// Part of the work is done and cannot be taken back: the rest has the whole time again.
    pub(crate) fn restart(&self) {
        *self.state.lock() = State::Running { ends_at: Instant::now() + self.length };
    }

    pub(crate) async fn passed(&self) {
        loop {
            let look_at = match *self.state.lock() {
                State::Running { ends_at } if ends_at <= Instant::now() => return,
                State::Running { ends_at } => ends_at,
                // Not before this, even if the client were done now.
                State::Paused { left } => Instant::now() + left.max(LOOKED_AT_AFTER),
            };
            sleep_until(look_at).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_time_in_which_a_body_arrives_does_not_count() {
        let deadline = Deadline::new(Duration::from_secs(4));
        let began = Instant::now();
        let body = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            deadline.pause();
            tokio::time::sleep(Duration::from_secs(20)).await;
            deadline.resume();
        };
        tokio::join!(deadline.passed(), body);
        let took = began.elapsed();
        assert!((Duration::from_secs(24)..Duration::from_millis(24_100)).contains(&took), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_done_in_parts_has_the_whole_time_for_each() {
        let deadline = Deadline::new(Duration::from_secs(4));
        let began = Instant::now();
        let parts = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            deadline.restart();
        };
        tokio::join!(deadline.passed(), parts);
        assert_eq!(began.elapsed().as_secs(), 7);
    }
}
