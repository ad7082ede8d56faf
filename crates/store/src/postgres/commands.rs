//! What owners are asked to do by other nodes, and what they show of their lanes.
//!
//! A command is a row that its owner takes, once, and answers in the same row. `NOTIFY` says that there is something to look at;
//! one that is lost costs a quarter of a second, because everybody also looks by themselves.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use posthaste_core::id::{EndpointId, TenantId};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::connection::Use;
use super::row::{self, storable};
use super::{Database, cluster};
use crate::columns::{corrupt, limit, millis};
use crate::commands::ANSWER_MAX;
use crate::commands::{COMMANDS_MAX, Queued, channel, question};
use crate::{
    APPLY_MAX, ApplyResult, COMMAND_MAX, Command, CommandOutcome, Commands, Error, LaneSnapshot, NodeId, Partition,
    command_document, document, partition_of,
};

/// How often everybody looks without having been told.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A caller is answered within five seconds although the database hangs: it has to be sent and, if it is not answered, withdrawn.
const SENT_WITHIN: Duration = Duration::from_secs(2);
const WITHDRAWN_WITHIN: Duration = Duration::from_secs(1);
/// For how long the database may be away while an answer is waited for.
const AWAY_MAX: Duration = Duration::from_secs(3);

type CommandId = [u8; 16];

impl Database {
    pub(super) async fn command(&self, partition: Partition, command: Command) -> Result<CommandOutcome, Error> {
        let id = rand::random::<CommandId>();
        self.news.wanted();
        let deadline = Instant::now() + command.wait_max();
        let document = storable(&command_document::command(&command)).into_owned();
        let (document, owner) = (&document, &i16::try_from(partition).map_err(corrupt("partition"))?);
        let asked = self.run(Use::Verb, |connection| async move {
            connection.query(INSERT_COMMAND, &[&id.as_slice(), owner, document]).await?;
            Ok(())
        });
        let was_sent = matches!(timeout(SENT_WITHIN, asked).await, Ok(Ok(())));
        if was_sent && let Ok(answer) = timeout(deadline.saturating_duration_since(Instant::now()), self.answer_to(id)).await {
            return answer;
        }
        // It is withdrawn, unless it was taken. One whose insertion seemed to fail may be there too.
        let withdrawn =
            self.run(Use::Verb, |connection| async move { connection.query_opt(DELETE_COMMAND, &[&id.as_slice()]).await });
        let withdrawn = timeout(WITHDRAWN_WITHIN, withdrawn).await.map_err(|_| Error::CommitInDoubt)?;
        let Some(row) = withdrawn.map_err(|_| Error::CommitInDoubt)? else {
            return Err(if was_sent { Error::CommitInDoubt } else { Error::unavailable("the database does not answer") });
        };
        match row::optional_text(&row, "answer")? {
            Some(answer) => read_answer(answer),
            None if row::column(&row, "is_taken")? => Err(Error::CommitInDoubt),
            None => Err(Error::unavailable("whoever owns it does not answer")),
        }
    }

    /// The owner in this process is asked directly. If it is another node's, that one is told by a notification.
    pub(super) async fn apply(&self, tenant: TenantId, endpoint: Option<EndpointId>) -> Result<ApplyResult, Error> {
        let asked = async {
            let partition = partition_of(&tenant);
            let command = Command::Apply { tenant, endpoint };
            if let Some(Ok(commanded)) = self.ask_here(partition, command.clone()).await {
                return ApplyResult::of(&Ok(commanded));
            }
            match self.is_owned(partition).await {
                Ok(false) => ApplyResult::Now,
                Ok(true) => ApplyResult::of(&self.command(partition, command).await),
                Err(_) => ApplyResult::Unconfirmed,
            }
        };
        Ok(timeout(APPLY_MAX, asked).await.unwrap_or(ApplyResult::Unconfirmed))
    }

    /// `None` if no one listens in this process; an error if whoever does is not the owner.
    async fn ask_here(&self, partition: Partition, command: Command) -> Option<Result<CommandOutcome, oneshot::error::RecvError>> {
        let listener = self.listener.lock().as_ref().and_then(Weak::upgrade)?;
        let (asked, answered) = question(partition, command);
        listener.try_send(asked).ok()?;
        drop(listener);
        Some(answered.await)
    }

    async fn is_owned(&self, partition: Partition) -> Result<bool, Error> {
        let partition = &i16::try_from(partition).map_err(corrupt("partition"))?;
        self.read(|connection| async move { Ok(connection.query_opt(SELECT_IS_OWNED, &[partition]).await?.is_some()) }).await
    }

    async fn answer_to(&self, id: CommandId) -> Result<CommandOutcome, Error> {
        let mut reached_at = Instant::now();
        loop {
            let news = self.news.next();
            let ask = self.read(|connection| async move { connection.query_opt(SELECT_ANSWER, &[&id.as_slice()]).await });
            match timeout(AWAY_MAX.saturating_sub(reached_at.elapsed()), ask).await {
                Ok(Ok(Some(row))) => return read_answer(row::text(&row, "answer")?),
                Ok(Ok(None)) => reached_at = Instant::now(),
                // What cannot be asked now can be asked in a moment: it was sent, and is answered or withdrawn in the end.
                Ok(Err(_)) if reached_at.elapsed() < AWAY_MAX => {}
                Ok(Err(_)) | Err(_) => return Err(Error::CommitInDoubt),
            }
            let _ = timeout(LOOK_EVERY, news).await;
        }
    }

    pub(super) async fn publish_lanes(&self, lanes: Vec<LaneSnapshot>) -> Result<(), Error> {
        // The last word about each, because one statement writes a row once; in order, so that two nodes never wait in a circle.
        let lanes: BTreeMap<EndpointId, (i64, String)> =
            lanes.iter().map(|lane| (lane.endpoint, (lane.at.as_millis(), document::shown_lane(lane)))).collect();
        if lanes.is_empty() {
            return Ok(());
        }
        let endpoints = &lanes.keys().map(|endpoint| endpoint.to_bytes().to_vec()).collect::<Vec<_>>();
        let times = &lanes.values().map(|(at, _)| *at).collect::<Vec<_>>();
        let documents = &lanes.values().map(|(_, document)| storable(document)).collect::<Vec<_>>();
        self.run(Use::Verb, |connection| async move {
            connection.execute(SHOW_LANES, &[endpoints, times, documents]).await?;
            Ok(())
        })
        .await
    }

    pub(super) async fn lane_snapshots(&self, endpoints: Vec<EndpointId>) -> Result<Vec<LaneSnapshot>, Error> {
        let endpoints = &endpoints.iter().map(|endpoint| endpoint.to_bytes().to_vec()).collect::<Vec<_>>();
        self.read(|connection| async move {
            let rows = connection.query(SELECT_LANES_SHOWN, &[endpoints]).await?;
            let lane = |row| {
                let endpoint = EndpointId::from_bytes(row::bytes(row, "endpoint")?);
                document::read_shown_lane(endpoint, row::timestamp(row, "at_ms")?, row::text(row, "document")?)
            };
            Ok(rows.iter().map(lane).collect::<Result<_, Error>>()?)
        })
        .await
    }
}

/// Starts to listen in the name of a node. Has to be called where tasks can be started.
pub(super) fn listen(database: &Arc<Database>, node: NodeId) -> Commands {
    let (outbox, commands) = channel();
    let listener = Arc::new(outbox);
    *database.listener.lock() = Some(Arc::downgrade(&listener));
    database.news.wanted();
    tokio::spawn(take_commands(Arc::downgrade(database), node, listener));
    commands
}

/// Until nobody listens any more, or the store is closed.
async fn take_commands(database: Weak<Database>, node: NodeId, listener: Arc<mpsc::Sender<Queued>>) {
    loop {
        let Some(open) = database.upgrade() else { return };
        let is_ours = open.listener.lock().as_ref().is_some_and(|last| last.ptr_eq(&Arc::downgrade(&listener)));
        if listener.is_closed() || open.connections.are_closed() || !is_ours {
            return;
        }
        let news = open.news.next();
        // As many as there is room for: what is taken has to be handed on.
        let room = listener.capacity().min(COMMANDS_MAX);
        match open.take(node, room).await {
            Ok(taken) => {
                for (id, asked, answered) in taken {
                    let _ = listener.try_send(asked);
                    tokio::spawn(answer(Weak::clone(&database), id, answered));
                }
            }
            Err(error) => tracing::debug!(%error, "commands cannot be looked for now"),
        }
        drop(open);
        tokio::select! {
            () = listener.closed() => return,
            _ = timeout(LOOK_EVERY, news) => {}
        }
    }
}

type Taken = (CommandId, Queued, oneshot::Receiver<CommandOutcome>);

impl Database {
    async fn take(&self, node: NodeId, rows_max: usize) -> Result<Vec<Taken>, Error> {
        self.run(Use::Verb, |connection| async move {
            let rows = connection.query(TAKE_COMMANDS, &[&cluster::bytes(node), &seconds(COMMAND_MAX), &limit(rows_max)]).await?;
            let mut taken = Vec::new();
            for row in &rows {
                let partition = Partition::try_from(row::column::<i16>(row, "partition")?).map_err(corrupt("partition"))?;
                let id = row::bytes(row, "id")?;
                match command_document::read_command(row::text(row, "document")?) {
                    Ok(command) => {
                        let (asked, answered) = question(partition, command);
                        taken.push((id, asked, answered));
                    }
                    // Of a newer version, perhaps. Whoever asked hears that nothing was done.
                    Err(error) => {
                        tracing::warn!(%error, "a command that cannot be read is left undone");
                        connection.query(ANSWER, &[&id.as_slice(), &command_document::dropped()]).await?;
                    }
                }
            }
            Ok(taken)
        })
        .await
    }
}

/// Waits for an owner's answer, and writes it where the asker looks.
async fn answer(database: Weak<Database>, id: CommandId, answered: oneshot::Receiver<CommandOutcome>) {
    let Ok(commanded) = timeout(ANSWER_MAX, answered).await else { return };
    let document = commanded.map_or_else(|_| command_document::dropped(), |commanded| command_document::commanded(&commanded));
    let Some(database) = database.upgrade() else { return };
    let document = &storable(&document);
    let written = database.run(Use::Verb, |connection| async move {
        connection.query(ANSWER, &[&id.as_slice(), document]).await?;
        Ok(())
    });
    if let Err(error) = written.await {
        tracing::warn!(%error, "an answer to a command could not be written; whoever asked hears that it is not known");
    }
}

fn read_answer(document: &str) -> Result<CommandOutcome, Error> {
    command_document::read_commanded(document)?.ok_or_else(|| Error::unavailable("whoever owns it has stopped"))
}

fn seconds(duration: Duration) -> f64 {
    millis(duration) as f64 / 1000.0
}

/// Old answers, and commands that nobody has withdrawn because their askers have died.
pub(super) const DELETE_OLD_COMMANDS: &str = "DELETE FROM commands WHERE id IN (
       SELECT id FROM commands WHERE created_at < clock_timestamp() - interval '1 minute' ORDER BY created_at LIMIT $1)";

const SELECT_IS_OWNED: &str =
    "SELECT 1 FROM partitions p JOIN nodes n ON n.id = p.owner WHERE p.id = $1 AND n.expires_at > clock_timestamp()";
const INSERT_COMMAND: &str = "WITH made AS (
       INSERT INTO commands (id, partition, document, created_at) VALUES ($1, $2, $3, clock_timestamp())
       ON CONFLICT (id) DO NOTHING RETURNING id)
     SELECT pg_notify('posthaste_commands', '') FROM made";
const TAKE_COMMANDS: &str = "UPDATE commands SET is_taken = TRUE WHERE id IN (
       SELECT c.id FROM partitions p JOIN commands c ON c.partition = p.id
       WHERE p.owner = $1 AND NOT c.is_taken AND c.created_at > clock_timestamp() - $2::float8 * interval '1 second'
       ORDER BY c.created_at LIMIT $3 FOR UPDATE OF c SKIP LOCKED)
     RETURNING id, partition, document";
const ANSWER: &str = "WITH answered AS (UPDATE commands SET answer = $2 WHERE id = $1 RETURNING id)
     SELECT pg_notify('posthaste_commands', '') FROM answered";
const SELECT_ANSWER: &str = "SELECT answer FROM commands WHERE id = $1 AND answer IS NOT NULL";
const DELETE_COMMAND: &str = "DELETE FROM commands WHERE id = $1 RETURNING is_taken, answer";
const SHOW_LANES: &str = "INSERT INTO lanes_shown (endpoint, at_ms, document)
     SELECT endpoint, at_ms, document FROM unnest($1::bytea[], $2::bigint[], $3::text[]) AS shown (endpoint, at_ms, document)
     ON CONFLICT (endpoint) DO UPDATE SET at_ms = excluded.at_ms, document = excluded.document
       WHERE lanes_shown.at_ms <= excluded.at_ms";
const SELECT_LANES_SHOWN: &str = "SELECT endpoint, at_ms, document FROM lanes_shown WHERE endpoint = ANY($1)";
