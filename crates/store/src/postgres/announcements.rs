//! Tells the owners of other partitions which endpoints have new deliveries.
//!
//! The first announcement goes out at once; what is committed within the next 20 ms shares the one after it. They are sent
//! outside the transactions that publish, and nothing depends on them: each owner also sweeps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use posthaste_core::id::EndpointId;
use tokio::sync::Notify;

use super::Database;
use super::connection::Use;
use crate::Partition;

pub(super) const CHANNEL: &str = "posthaste_deliveries";
const COALESCED_FOR: Duration = Duration::from_millis(20);
/// Endpoints that may wait to be announced. A partition that does not fit is announced as a whole.
const ENDPOINTS_MAX: usize = 4096;
/// Of 22 characters each; PostgreSQL takes payloads of up to 8,000 bytes.
const ENDPOINTS_PER_MESSAGE: usize = 300;
/// In the place of endpoints: look at the whole partition.
const ALL: &str = "*";

/// What is committed and not announced yet.
#[derive(Debug, Default)]
pub(super) struct Announcer {
    pending: Mutex<Pending>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    partitions: BTreeMap<Partition, News>,
    endpoints: usize,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum News {
    Endpoints(BTreeSet<EndpointId>),
    All,
}

impl Announcer {
    pub(super) fn add(&self, committed: impl IntoIterator<Item = (Partition, EndpointId)>) {
        let mut pending = self.pending.lock();
        for (partition, endpoint) in committed {
            pending.add(partition, endpoint);
        }
        if !pending.partitions.is_empty() {
            self.wake.notify_one();
        }
    }

    fn take(&self) -> Vec<String> {
        let Pending { partitions, .. } = std::mem::take(&mut *self.pending.lock());
        partitions.into_iter().flat_map(|(partition, news)| messages(partition, news)).collect()
    }
}

impl Pending {
    fn add(&mut self, partition: Partition, endpoint: EndpointId) {
        let has_room = self.endpoints < ENDPOINTS_MAX;
        match self.partitions.entry(partition).or_insert_with(|| News::Endpoints(BTreeSet::new())) {
            News::All => {}
            News::Endpoints(endpoints) if has_room || endpoints.contains(&endpoint) => {
                self.endpoints += usize::from(endpoints.insert(endpoint));
            }
            news @ News::Endpoints(_) => *news = News::All,
        }
    }
}

fn messages(partition: Partition, news: News) -> Vec<String> {
    match news {
        News::All => vec![format!("{partition}:{ALL}")],
        News::Endpoints(endpoints) => {
            let endpoints: Vec<String> =
                endpoints.into_iter().map(|endpoint| BASE64_URL_SAFE_NO_PAD.encode(endpoint.to_bytes())).collect();
            endpoints.chunks(ENDPOINTS_PER_MESSAGE).map(|chunk| format!("{partition}:{}", chunk.concat())).collect()
        }
    }
}

/// `None` for a message that this version does not understand: the sweep finds what it was about.
pub(super) fn read(message: &str) -> Option<(Partition, News)> {
    let (partition, endpoints) = message.split_once(':')?;
    let partition = partition.parse().ok()?;
    if endpoints == ALL {
        return Some((partition, News::All));
    }
    let mut found = BTreeSet::new();
    for chunk in endpoints.as_bytes().chunks(22) {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(chunk).ok()?;
        found.insert(EndpointId::from_bytes(bytes.try_into().ok()?));
    }
    Some((partition, News::Endpoints(found)))
}

/// Announces what is committed until the store is closed.
pub(super) async fn run(announcer: Arc<Announcer>, database: Weak<Database>) {
    loop {
        announcer.wake.notified().await;
        let messages = &announcer.take();
        let Some(database) = database.upgrade() else { return };
        let sent = database.run(Use::Verb, |connection| async move {
            connection.query(ANNOUNCE, &[&CHANNEL, messages]).await?;
            Ok(())
        });
        if let Err(error) = sent.await {
            tracing::debug!(%error, "new deliveries could not be announced; their owners find them by sweeping");
        }
        drop(database);
        tokio::time::sleep(COALESCED_FOR).await;
    }
}

const ANNOUNCE: &str = "SELECT pg_notify($1, message) FROM unnest($2::text[]) AS given (message)";

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(number: usize) -> EndpointId {
        EndpointId::from_bytes((number as u128).to_be_bytes())
    }

    #[test]
    fn announcements_name_each_endpoint_once_and_fit_into_a_notification() {
        let announcer = Announcer::default();
        announcer.add((0..700).chain(0..700).map(|number| (7, endpoint(number))));
        announcer.add([(8, endpoint(1))]);
        let messages = announcer.take();
        assert_eq!(messages.len(), 4, "three of partition 7, one of partition 8");
        assert!(messages.iter().all(|message| message.len() < 8000));
        let mut read_again = BTreeSet::new();
        for message in &messages[..3] {
            let Some((7, News::Endpoints(endpoints))) = read(message) else { panic!("{message}") };
            read_again.extend(endpoints);
        }
        assert_eq!(read_again, (0..700).map(endpoint).collect());
        assert!(announcer.take().is_empty());
    }

    #[test]
    fn more_endpoints_than_fit_are_announced_as_their_whole_partition() {
        let announcer = Announcer::default();
        announcer.add((0..=ENDPOINTS_MAX).map(|number| (7, endpoint(number))));
        announcer.add([(9, endpoint(1))]);
        let read: Vec<_> = announcer.take().iter().map(|message| read(message)).collect();
        assert_eq!(read[0], Some((7, News::All)));
        assert_eq!(read.len(), 2);
    }

    #[test]
    fn messages_of_another_version_are_ignored() {
        for message in ["", "7", "x:*", "7:abc", "7:!!!!!!!!!!!!!!!!!!!!!!"] {
            assert_eq!(read(message), None, "{message}");
        }
    }
}
