//! Callers that arrive during a commit share the next one.
//!
//! A committer takes what waits and writes it in one transaction. If that fails for a reason that is a row's own, the group
//! is halved until the culprit stands alone, so that whoever cannot be written is refused alone.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;

use super::connection::{Problem, Remedy};
use crate::{Commits, Error};

/// Enough to make a flush cheap, few enough that nobody waits long.
const GROUP_CALLERS_MAX: usize = 512;
const GROUP_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How many have to wait before a second group is written beside the first.
const OVERLAPPING_MIN: usize = 64;
/// From this size on, whoever was in the last group is waited for.
const GATHERED_MIN: usize = 8;
/// And for this part of the time that it took to write, because that is what a second group would cost.
const GATHERING_PART: u32 = 4;
const GATHERING_MAX: Duration = Duration::from_millis(3);
/// How a group is written.
pub(super) trait Writing: Send + Sync + 'static {
    /// What one caller wants written.
    type Call: Send + Sync;
    type Answer: Send;

    /// Writes all calls in one transaction, or none. Answers one for each.
    fn write(&self, calls: &mut [Self::Call]) -> impl Future<Output = Result<Vec<Self::Answer>, Problem>> + Send;
}

#[derive(Debug)]
pub(super) struct Committer<W: Writing> {
    queue: Mutex<Option<mpsc::UnboundedSender<Job<W>>>>,
    waiting_bytes: Arc<AtomicUsize>,
    waiting_bytes_max: usize,
    /// A caller is answered within this time, whatever becomes of its group.
    answer_max: Duration,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

struct Job<W: Writing> {
    call: W::Call,
    bytes: usize,
    /// Set by whoever is first: the committer that writes it, or the caller who waits no longer.
    is_taken: Arc<AtomicBool>,
    answer: oneshot::Sender<Result<W::Answer, Error>>,
}

impl<W: Writing> Committer<W> {
    /// As many tasks as there may be commits in flight. They end when everything that waits is written and nobody can send
    /// any more.
    pub(super) fn start(
        writing: &Arc<W>,
        tasks: usize,
        waiting_bytes_max: usize,
        answer_max: Duration,
        commits: &Arc<Commits>,
    ) -> Committer<W> {
        let (queue, inbox) = mpsc::unbounded_channel();
        let waiting_bytes = Arc::new(AtomicUsize::new(0));
        let shared = Arc::new(Queue {
            inbox: tokio::sync::Mutex::new(inbox),
            waiting_bytes: Arc::clone(&waiting_bytes),
            in_flight: AtomicUsize::new(0),
            has_landed: Notify::new(),
            last: Mutex::new((0, Duration::ZERO)),
            commits: Arc::clone(commits),
        });
        let tasks = (0..tasks).map(|_| tokio::spawn(run(Arc::clone(writing), Arc::clone(&shared)))).collect();
        Committer { queue: Mutex::new(Some(queue)), waiting_bytes, waiting_bytes_max, answer_max, tasks: Mutex::new(tasks) }
    }

    /// Has it written in the next group. `bytes` is about what it weighs.
    pub(super) async fn write(&self, bytes: usize, call: W::Call) -> Result<W::Answer, Error> {
        if self.waiting_bytes.load(Ordering::Relaxed) > self.waiting_bytes_max {
            return Err(Error::Overloaded { retry_after: Duration::from_secs(1) });
        }
        let (answer, mut answered) = oneshot::channel();
        let is_taken = Arc::new(AtomicBool::new(false));
        let job = Job { call, bytes, is_taken: Arc::clone(&is_taken), answer };
        let closed = || Error::unavailable("the store is closed");
        let queue = self.queue.lock().clone().ok_or_else(closed)?;
        self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        if queue.send(job).is_err() {
            self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(closed());
        }
        drop(queue);
        let abandoned = Abandoned(is_taken);
        match tokio::time::timeout(self.answer_max, &mut answered).await {
            Ok(answer) => answer.map_err(|_| closed())?,
            // It was not taken and now never will be: nothing was written, and that is the truth.
            Err(_) if abandoned.was_not_taken() => Err(Error::unavailable("the database cannot keep up")),
            // Its group is being written, and may well be committed later.
            Err(_) => Err(Error::CommitInDoubt),
        }
    }

    /// Comes back when everything that waits is written.
    pub(super) async fn close(&self) {
        *self.queue.lock() = None;
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            // One that has panicked has nothing left to write.
            let _ = task.await;
        }
    }
}

/// A caller that has gone, because it has waited long enough or because its request was dropped: what was not taken by then
/// is never written.
struct Abandoned(Arc<AtomicBool>);

impl Abandoned {
    fn was_not_taken(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// What the tasks of one committer share.
struct Queue<W: Writing> {
    inbox: tokio::sync::Mutex<mpsc::UnboundedReceiver<Job<W>>>,
    waiting_bytes: Arc<AtomicUsize>,
    /// Groups that are being written.
    in_flight: AtomicUsize,
    has_landed: Notify,
    /// How many callers the last group had, and how long it took.
    last: Mutex<(usize, Duration)>,
    commits: Arc<Commits>,
}

/// Where one caller waits for its answer.
type ReplySender<W> = oneshot::Sender<Result<<W as Writing>::Answer, Error>>;

/// What is written together.
struct Group<W: Writing> {
    calls: Vec<W::Call>,
    answers: Vec<Option<ReplySender<W>>>,
    bytes: usize,
}

impl<W: Writing> Group<W> {
    fn take(&mut self, job: Job<W>, waiting_bytes: &AtomicUsize) {
        waiting_bytes.fetch_sub(job.bytes, Ordering::Relaxed);
        // Whoever has given up must not find that it was written.
        let is_wanted = !job.is_taken.swap(true, Ordering::AcqRel);
        if is_wanted {
            self.bytes += job.bytes;
            self.calls.push(job.call);
            self.answers.push(Some(job.answer));
        }
    }

    fn has_room(&self) -> bool {
        self.calls.len() < GROUP_CALLERS_MAX && self.bytes < GROUP_BYTES_MAX
    }
}

impl<W: Writing> Queue<W> {
    /// The next group, or `None` when everything is written and nobody can send any more.
    async fn next(&self) -> Option<Group<W>> {
        // Held while it waits: the other task is writing, or is next.
        let mut inbox = self.inbox.lock().await;
        let mut group = Group { calls: Vec::new(), answers: Vec::new(), bytes: 0 };
        group.take(inbox.recv().await?, &self.waiting_bytes);
        // Those who were answered just now are about to come back. Without them the next group would be a small one, and they
        // would wait for it.
        let (expected, took) = *self.last.lock();
        let patience = if expected >= GATHERED_MIN { (took / GATHERING_PART).min(GATHERING_MAX) } else { Duration::ZERO };
        let gathered_by = tokio::time::Instant::now() + patience;
        loop {
            while group.has_room()
                && let Ok(job) = inbox.try_recv()
            {
                group.take(job, &self.waiting_bytes);
            }
            if !group.has_room() {
                break;
            }
            let has_landed = self.has_landed.notified();
            if self.in_flight.load(Ordering::Acquire) > 0 && group.calls.len() < OVERLAPPING_MIN {
                // Two small groups at once would cost more than one that is twice as large.
                tokio::select! {
                    job = inbox.recv() => match job {
                        Some(job) => group.take(job, &self.waiting_bytes),
                        None => break,
                    },
                    () = has_landed => {}
                }
            } else if group.calls.len() < expected && tokio::time::Instant::now() < gathered_by {
                match tokio::time::timeout_at(gathered_by, inbox.recv()).await {
                    Ok(Some(job)) => group.take(job, &self.waiting_bytes),
                    Ok(None) | Err(_) => break,
                }
            } else {
                break;
            }
        }
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        Some(group)
    }
}

/// Lands also if the writing panics, so that the other task does not wait for it.
struct InFlight<'a, W: Writing> {
    queue: &'a Queue<W>,
    callers: usize,
    began_at: Instant,
}

impl<W: Writing> Drop for InFlight<'_, W> {
    fn drop(&mut self) {
        *self.queue.last.lock() = (self.callers, self.began_at.elapsed());
        self.queue.in_flight.fetch_sub(1, Ordering::AcqRel);
        self.queue.has_landed.notify_waiters();
    }
}

async fn run<W: Writing>(writing: Arc<W>, queue: Arc<Queue<W>>) {
    while let Some(Group { mut calls, mut answers, .. }) = queue.next().await {
        let _in_flight = InFlight { queue: &queue, callers: calls.len(), began_at: Instant::now() };
        let mut answer = |place: usize, result: Result<W::Answer, Error>| {
            if let Some(waiting) = answers[place].take() {
                // Whoever asked may have gone; what was committed stays.
                let _ = waiting.send(result);
            }
        };
        if !calls.is_empty() {
            let (callers, began_at) = (calls.len(), Instant::now());
            let is_written = write_or_halve(writing.as_ref(), &mut calls, &mut answer).await;
            queue.commits.group(callers, began_at.elapsed(), is_written);
        }
    }
}

/// Answers whether all of them could be written.
async fn write_or_halve<W: Writing>(
    writing: &W,
    calls: &mut [W::Call],
    answer: &mut impl FnMut(usize, Result<W::Answer, Error>),
) -> bool {
    let mut is_written = true;
    let all = 0..calls.len();
    let mut rest: Vec<Range<usize>> = vec![all];
    while let Some(range) = rest.pop() {
        match writing.write(&mut calls[range.clone()]).await {
            Ok(written) => {
                range.zip(written).for_each(|(place, one)| answer(place, Ok(one)));
            }
            Err(problem) if problem.remedy() == Remedy::LeaveItOut && range.len() > 1 => {
                let middle = range.start + range.len() / 2;
                // The first half first.
                rest.push(middle..range.end);
                rest.push(range.start..middle);
            }
            Err(problem) if range.len() == 1 => {
                is_written = false;
                answer(range.start, Err(problem.into()));
            }
            Err(problem) => {
                is_written = false;
                let why = match Error::from(problem) {
                    Error::CommitInDoubt => {
                        range.for_each(|place| answer(place, Err(Error::CommitInDoubt)));
                        continue;
                    }
                    Error::Unavailable(why) => why.to_string(),
                    other @ (Error::Overloaded { .. } | Error::Corrupt { .. } | Error::Unusable(_) | Error::TooNew) => {
                        other.to_string()
                    }
                };
                range.for_each(|place| answer(place, Err(Error::unavailable(why.clone()))));
            }
        }
    }
    is_written
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER_MAX: Duration = Duration::from_secs(4);

    /// Never answers, as a server that hangs.
    struct Hangs;

    impl Writing for Hangs {
        type Call = i32;
        type Answer = i32;

        async fn write(&self, _: &mut [i32]) -> Result<Vec<i32>, Problem> {
            std::future::pending().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn i37_every_caller_is_answered_in_time_and_hears_whether_it_may_have_been_written() {
        let committer = Committer::start(&Arc::new(Hangs), 1, 1_000, ANSWER_MAX, &Arc::default());
        let began = tokio::time::Instant::now();
        let second = async {
            tokio::time::sleep(Duration::from_millis(2)).await;
            committer.write(1, 2).await
        };
        let (first, second) = tokio::join!(committer.write(1, 1), second);
        assert!(matches!(first, Err(Error::CommitInDoubt)), "{first:?}: it was taken");
        assert!(matches!(second, Err(Error::Unavailable(_))), "{second:?}: it was not, and never will be");
        assert!(began.elapsed() < ANSWER_MAX + Duration::from_millis(10), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_caller_wanted_who_has_gone_before_it_was_taken_is_not_written() {
        let numbers = Arc::new(Numbers { groups: Mutex::default() });
        let committer = Committer::start(&numbers, 1, 1_000, ANSWER_MAX, &Arc::default());
        let gone = async {
            tokio::time::sleep(Duration::from_millis(2)).await;
            assert!(tokio::time::timeout(Duration::from_millis(1), committer.write(1, 2)).await.is_err());
        };
        let (first, ()) = tokio::join!(committer.write(1, 1), gone);
        assert_eq!(first.expect("written"), 2);
        committer.close().await;
        assert_eq!(*numbers.groups.lock(), [1], "only the first");
    }

    /// Refuses a group that has a number below zero in it.
    struct Numbers {
        groups: Mutex<Vec<usize>>,
    }

    impl Writing for Numbers {
        type Call = i32;
        type Answer = i32;

        async fn write(&self, calls: &mut [i32]) -> Result<Vec<i32>, Problem> {
            tokio::time::sleep(Duration::from_millis(5)).await;
            self.groups.lock().push(calls.len());
            if calls.iter().any(|call| *call < 0) {
                Err(Problem::Overtaken)
            } else {
                Ok(calls.iter().map(|call| call * 2).collect())
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_arrive_during_a_commit_share_the_next_one_and_get_their_own_answers() {
        let numbers = Arc::new(Numbers { groups: Mutex::default() });
        let committer = Arc::new(Committer::start(&numbers, 1, 1_000, ANSWER_MAX, &Arc::default()));
        let calls: Vec<_> = (0..20)
            .map(|number| {
                let committer = Arc::clone(&committer);
                tokio::spawn(async move { committer.write(1, number).await })
            })
            .collect();
        for (number, call) in (0..).zip(calls) {
            assert_eq!(call.await.expect("no panic").expect("written"), number * 2);
        }
        assert!(numbers.groups.lock().len() <= 3, "{:?}", numbers.groups);
        committer.close().await;
        assert!(matches!(committer.write(1, 1).await, Err(Error::Unavailable(_))), "closed");
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_is_bounded() {
        let numbers = Arc::new(Numbers { groups: Mutex::default() });
        let committer = Committer::start(&numbers, 1, 10, ANSWER_MAX, &Arc::default());
        // The first is being written, the second waits, and there is no room for a third.
        let third = async {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let second = committer.write(11, 2);
            let third = async {
                tokio::task::yield_now().await;
                committer.write(1, 3).await
            };
            tokio::join!(second, third)
        };
        let (first, (second, third)) = tokio::join!(committer.write(1, 1), third);
        assert_eq!((first.expect("written"), second.expect("written")), (2, 4));
        assert!(matches!(third, Err(Error::Overloaded { .. })));
    }
}
