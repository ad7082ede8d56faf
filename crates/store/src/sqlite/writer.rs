//! The one thread that writes. Callers that arrive during a commit share the next one.

use std::panic::AssertUnwindSafe;
use std::sync::mpsc;

use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::Error;

/// Enough to make a flush cheap, few enough that nobody waits long.
const GROUP_MAX: usize = 512;

#[derive(Debug)]
pub(super) struct Writer {
    jobs: mpsc::Sender<Job>,
}

/// Does its part of the transaction, if there is one, and answers once it is known whether the whole was committed.
type Job = Box<dyn FnOnce(Option<&Connection>) -> Answer + Send>;
type Answer = Box<dyn FnOnce(Committed) + Send>;

/// `Err` carries what the commit said.
type Committed = Result<(), String>;

impl Writer {
    /// The thread ends when the last handle is gone and everything before it is written.
    pub(super) fn start(connection: Connection) -> Writer {
        let (jobs, inbox) = mpsc::channel();
        std::thread::Builder::new()
            .name("posthaste-writer".to_owned())
            .spawn(move || write_groups(&connection, &inbox))
            .expect("the system starts a thread");
        Writer { jobs }
    }

    /// Runs `verb` in the next group. If it fails, its own changes are undone and those of its neighbours stay.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        verb: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |connection| {
            let result = connection.map(|connection| in_savepoint(connection, verb));
            Box::new(move |committed| {
                let result = match (committed, result) {
                    (Ok(()), Some(result)) => result,
                    (Ok(()), None) => Err(Error::Unavailable("there was no transaction".into())),
                    (Err(problem), _) => Err(Error::Unavailable(problem.into())),
                };
                // Whoever asked may have gone; what was committed stays.
                let _ = answer.send(result);
            })
        });
        self.jobs.send(job).map_err(|_| Error::Unavailable("the writer has stopped".into()))?;
        answered.await.map_err(|_| Error::Unavailable("the writer has stopped".into()))?
    }
}

fn write_groups(connection: &Connection, inbox: &mpsc::Receiver<Job>) {
    while let Ok(first) = inbox.recv() {
        let began = connection.execute_batch("BEGIN IMMEDIATE");
        let jobs = std::iter::once(first).chain(inbox.try_iter()).take(GROUP_MAX);
        // SQLite may roll a whole transaction back by itself, on a full disk say. Whatever ran after that would be
        // written outside of any transaction, so it does not run.
        let answers: Vec<Answer> = jobs.map(|job| job((!connection.is_autocommit()).then_some(connection))).collect();
        let committed = began.and_then(|()| connection.execute_batch("COMMIT")).map_err(|error| {
            tracing::error!(%error, "a group of writes was not committed");
            if !connection.is_autocommit() {
                let _ = connection.execute_batch("ROLLBACK");
            }
            error.to_string()
        });
        for answer in answers {
            answer(committed.clone());
        }
    }
}

fn in_savepoint<T>(connection: &Connection, verb: impl FnOnce(&Connection) -> Result<T, Error>) -> Result<T, Error> {
    connection.execute_batch("SAVEPOINT verb")?;
    // A verb that panics must not take the only writer with it.
    let result = std::panic::catch_unwind(AssertUnwindSafe(|| verb(connection)))
        .unwrap_or_else(|_| Err(Error::Unavailable("a write panicked".into())));
    if result.is_err() {
        connection.execute_batch("ROLLBACK TO verb")?;
    }
    connection.execute_batch("RELEASE verb")?;
    result
}
