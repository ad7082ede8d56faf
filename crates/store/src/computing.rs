//! Work that users cause and that takes the processor: reading large payloads, asking filters and schemas.
//!
//! Nothing of it may hold a thread that serves everybody. What is small is done in place; what is not goes to a few threads
//! of its own ([`run`]). Those are given out by turns between tenants, so that one that sends nothing but costly events waits
//! for itself, and the jobs of one tenant that may wait are counted. A job is bounded by the steps that its work may take
//! ([`posthaste_core::filter::STEPS_MAX`], [`crate::catalogue::STEPS_MAX`]).
//!
//! There is one queue in a process, because there is one set of processors.

use std::collections::{HashMap, VecDeque};
use std::sync::LazyLock;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::Error;

/// Payloads up to this are read in place: under a millisecond, however odd they are.
pub const INLINE_BYTES_MAX: usize = 16 * 1024;
/// Filters that need no more are asked in place: some tenths of a millisecond.
pub const INLINE_STEPS_MAX: u64 = 10_000;
/// Jobs of one tenant that may wait. Their payloads are in memory, which has a limit of its own; this one is for the time: beyond it nobody
/// would still wait for the answer.
const WAITING_PER_TENANT_MAX: usize = 256;

static QUEUE: LazyLock<Queue> = LazyLock::new(|| {
    // Half of the processors: the rest goes on serving everybody.
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    Queue::new((processors / 2).max(1))
});

/// Does `work` on a thread where it holds up nobody, in the turn of whoever it is for. What panics there panics here.
pub async fn run<T: Send + 'static>(tenant: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    QUEUE.run(tenant, work).await
}

/// The same at once, for what everybody waits for and what no tenant can cause to be large.
pub async fn run_for_all<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    returned(tokio::task::spawn_blocking(work).await)
}

fn returned<T>(done: Result<T, tokio::task::JoinError>) -> Result<T, Error> {
    match done {
        Ok(done) => Ok(done),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(error) => Err(Error::unavailable(error)),
    }
}

#[derive(Debug)]
struct Queue {
    state: Mutex<State>,
    places: usize,
}

#[derive(Default, Debug)]
struct State {
    running: usize,
    waiting: HashMap<String, VecDeque<oneshot::Sender<()>>>,
    /// Tenants with jobs that wait, each once; the first is next.
    turns: VecDeque<String>,
}

impl Queue {
    fn new(places: usize) -> Queue {
        Queue { state: Mutex::default(), places }
    }

    async fn run<T: Send + 'static>(&'static self, tenant: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
        let place = self.place(tenant).await?;
        let done = tokio::task::spawn_blocking(move || {
            let _place = place;
            work()
        });
        returned(done.await)
    }

    async fn place(&'static self, tenant: &str) -> Result<RunPermit, Error> {
        let turn = {
            let mut state = self.state.lock();
            if state.running < self.places {
                state.running += 1;
                return Ok(RunPermit(self));
            }
            let waiting = state.waiting.entry(tenant.to_owned()).or_default();
            // Those that gave up waiting need no turn.
            waiting.retain(|turn| !turn.is_closed());
            if waiting.len() >= WAITING_PER_TENANT_MAX {
                return Err(Error::Overloaded { retry_after: std::time::Duration::from_secs(1) });
            }
            let (sender, turn) = oneshot::channel();
            waiting.push_back(sender);
            if waiting.len() == 1 && !state.turns.iter().any(|known| known == tenant) {
                state.turns.push_back(tenant.to_owned());
            }
            turn
        };
        // Kept from here on, so that it is given back if the caller goes away between two lines.
        let turn = QueuedRun { queue: self, turn };
        turn.come().await
    }

    /// A place is free: it goes to the next tenant whose job still waits.
    fn free(&self) {
        let mut state = self.state.lock();
        while let Some(tenant) = state.turns.pop_front() {
            let Some(waiting) = state.waiting.get_mut(&tenant) else { continue };
            let mut was_taken = false;
            while let Some(turn) = waiting.pop_front() {
                if turn.send(()).is_ok() {
                    was_taken = true;
                    break;
                }
            }
            if waiting.is_empty() {
                state.waiting.remove(&tenant);
            } else {
                state.turns.push_back(tenant);
            }
            if was_taken {
                return;
            }
        }
        state.running -= 1;
    }
}

/// The right to run, given back when it is dropped.
#[derive(Debug)]
struct RunPermit(&'static Queue);

impl Drop for RunPermit {
    fn drop(&mut self) {
        self.0.free();
    }
}

/// A turn that was asked for.
struct QueuedRun {
    queue: &'static Queue,
    turn: oneshot::Receiver<()>,
}

impl QueuedRun {
    async fn come(mut self) -> Result<RunPermit, Error> {
        match (&mut self.turn).await {
            Ok(()) => Ok(RunPermit(self.queue)),
            Err(_) => Err(Error::unavailable("the queue is gone")),
        }
    }
}

impl Drop for QueuedRun {
    fn drop(&mut self) {
        self.turn.close();
        // A turn that came and was not heard of is passed on.
        if self.turn.try_recv().is_ok() {
            self.queue.free();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;

    use super::*;

    fn queue(places: usize) -> &'static Queue {
        Box::leak(Box::new(Queue::new(places)))
    }

    async fn until(is_so: impl Fn() -> bool) {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn tenants_take_turns() {
        let queue = queue(1);
        let (open, gate) = mpsc::channel::<()>();
        let first = tokio::spawn(queue.run("noisy", move || gate.recv()));
        until(|| queue.state.lock().running == 1).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut jobs = Vec::new();
        for (place, tenant) in ["noisy", "noisy", "noisy", "quiet"].into_iter().enumerate() {
            let order = Arc::clone(&order);
            jobs.push(tokio::spawn(queue.run(tenant, move || order.lock().push(tenant))));
            until(|| queue.state.lock().waiting.values().map(VecDeque::len).sum::<usize>() == place + 1).await;
        }
        open.send(()).unwrap();
        first.await.unwrap().unwrap().unwrap();
        for job in jobs {
            job.await.unwrap().unwrap();
        }
        assert_eq!(*order.lock(), ["noisy", "quiet", "noisy", "noisy"]);
        until(|| queue.state.lock().running == 0).await;
    }

    #[tokio::test]
    async fn a_caller_that_gives_up_leaves_no_place_taken() {
        let queue = queue(1);
        let (open, gate) = mpsc::channel::<()>();
        let first = tokio::spawn(queue.run("a", move || gate.recv()));
        until(|| queue.state.lock().running == 1).await;
        let given_up = tokio::spawn(queue.run("b", || ()));
        until(|| queue.state.lock().turns.len() == 1).await;
        given_up.abort();
        let _ = given_up.await;
        open.send(()).unwrap();
        first.await.unwrap().unwrap().unwrap();
        until(|| queue.state.lock().running == 0).await;
        assert_eq!(queue.run("c", || 5).await.unwrap(), 5);
    }

    #[tokio::test]
    async fn one_tenant_has_so_many_jobs_waiting_and_no_more() {
        let queue = queue(1);
        let (open, gate) = mpsc::channel::<()>();
        let first = tokio::spawn(queue.run("a", move || gate.recv()));
        until(|| queue.state.lock().running == 1).await;
        let jobs: Vec<_> = (0..WAITING_PER_TENANT_MAX).map(|_| tokio::spawn(queue.run("noisy", || ()))).collect();
        until(|| queue.state.lock().waiting.get("noisy").is_some_and(|waiting| waiting.len() == WAITING_PER_TENANT_MAX)).await;
        assert!(matches!(queue.run("noisy", || ()).await, Err(Error::Overloaded { .. })));
        let other = tokio::spawn(queue.run("other", || ()));
        until(|| queue.state.lock().turns.len() == 2).await;
        open.send(()).unwrap();
        first.await.unwrap().unwrap().unwrap();
        other.await.unwrap().unwrap();
        for job in jobs {
            job.await.unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn a_panic_comes_back_to_the_caller_and_frees_the_place() {
        let queue = queue(1);
        let failed = tokio::spawn(queue.run("a", || panic!("a bug"))).await;
        assert!(failed.unwrap_err().is_panic());
        assert_eq!(queue.run("a", || 5).await.unwrap(), 5);
    }
}
