//! News of our own commits, so that what was just written need not be read back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use posthaste_core::event::Event;
use posthaste_core::id::{EndpointId, TenantId};
use posthaste_core::scheduler::Entry;
use tokio::sync::mpsc;

use crate::Partition;

/// A delivery that was just committed.
#[derive(Clone, Debug)]
pub struct Fed {
    pub endpoint: EndpointId,
    pub tenant: TenantId,
    pub partition: Partition,
    pub entry: Entry,
    pub event: Arc<Event>,
}

/// How much may wait here, payloads included. What does not fit is found by the sweep.
const FEED_BYTES_MAX: usize = 32 * 1024 * 1024;
/// What a delivery weighs beside the payload, which it shares with others of its event.
const FED_BYTES: usize = 512;

/// The receiving end.
#[derive(Debug)]
pub struct Feed {
    inbox: mpsc::UnboundedReceiver<Group>,
    waiting: Arc<Waiting>,
}

/// What one commit has brought.
#[derive(Debug)]
struct Group {
    fed: Vec<Fed>,
    bytes: usize,
}

impl Group {
    fn new(fed: Vec<Fed>) -> Group {
        // Deliveries of one event come one after the other, and share its payload.
        let own_payload_bytes = |(before, this): (Option<&Fed>, &Fed)| {
            before.is_none_or(|before| !Arc::ptr_eq(&before.event, &this.event)).then_some(this.event.data.as_str().len())
        };
        let befores = std::iter::once(None).chain(fed.iter().map(Some));
        let payloads: usize = befores.zip(&fed).filter_map(own_payload_bytes).sum();
        Group { bytes: payloads + FED_BYTES * fed.len(), fed }
    }
}

#[derive(Debug, Default)]
struct Waiting {
    bytes: AtomicUsize,
    has_overflowed: AtomicBool,
}

impl Feed {
    /// What came next, or `None` once the store is closed.
    pub async fn next(&mut self) -> Option<Vec<Fed>> {
        let Group { fed, bytes } = self.inbox.recv().await?;
        self.waiting.bytes.fetch_sub(bytes, Ordering::Relaxed);
        Some(fed)
    }

    /// Whether something was left out since this was last asked: sweep.
    pub fn has_overflowed(&self) -> bool {
        self.waiting.has_overflowed.swap(false, Ordering::Relaxed)
    }
}

/// The sending end. There may be nobody who listens.
#[derive(Debug, Default)]
pub(crate) struct Feeder(parking_lot::Mutex<Option<Listener>>);

#[derive(Debug)]
struct Listener {
    sender: mpsc::UnboundedSender<Group>,
    waiting: Arc<Waiting>,
}

impl Feeder {
    pub(crate) fn subscribe(&self) -> Feed {
        let (sender, inbox) = mpsc::unbounded_channel();
        let waiting: Arc<Waiting> = Arc::default();
        *self.0.lock() = Some(Listener { sender, waiting: Arc::clone(&waiting) });
        Feed { inbox, waiting }
    }

    pub(crate) fn tell(&self, fed: Vec<Fed>) {
        if fed.is_empty() {
            return;
        }
        let mut listener = self.0.lock();
        let Some(Listener { sender, waiting }) = listener.as_ref() else { return };
        let group = Group::new(fed);
        let bytes = group.bytes;
        let before = waiting.bytes.fetch_add(bytes, Ordering::Relaxed);
        // One alone always fits: a group is bounded by who writes it.
        if before > 0 && before + bytes > FEED_BYTES_MAX {
            waiting.bytes.fetch_sub(bytes, Ordering::Relaxed);
            waiting.has_overflowed.store(true, Ordering::Relaxed);
        } else if sender.send(group).is_err() {
            *listener = None;
        }
    }

    /// Something was committed that could not be told.
    pub(crate) fn has_left_something_out(&self) {
        if let Some(listener) = self.0.lock().as_ref() {
            listener.waiting.has_overflowed.store(true, Ordering::Relaxed);
        }
    }

    /// Whoever listens hears that nothing more will come.
    pub(crate) fn close(&self) {
        *self.0.lock() = None;
    }

    pub(crate) fn has_listener(&self) -> bool {
        self.0.lock().is_some()
    }
}
