//! Passes the deliveries of our own commits to the engine, so that it does not read them back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use posthaste_core::event::Event;
use posthaste_core::id::{EndpointId, TenantId};
use posthaste_core::scheduler::Entry;
use tokio::sync::mpsc;

use crate::Partition;

/// A delivery that this process just committed.
#[derive(Clone, Debug)]
pub struct CommittedDelivery {
    pub endpoint: EndpointId,
    pub tenant: TenantId,
    pub partition: Partition,
    pub entry: Entry,
    pub event: Arc<Event>,
}

/// Bytes that may be queued, payloads included. The engine finds the rest by a scan.
const FEED_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Bytes counted per delivery in addition to the payload, which deliveries of one event share.
const DELIVERY_BYTES: usize = 512;

/// The receiving end of the feed.
#[derive(Debug)]
pub struct Feed {
    inbox: mpsc::UnboundedReceiver<Group>,
    buffer: Arc<FeedBuffer>,
}

/// The deliveries of one commit.
#[derive(Debug)]
struct Group {
    deliveries: Vec<CommittedDelivery>,
    bytes: usize,
}

impl Group {
    fn new(deliveries: Vec<CommittedDelivery>) -> Group {
        // Deliveries of one event come one after the other, and share its payload.
        let own_payload_bytes = |(before, this): (Option<&CommittedDelivery>, &CommittedDelivery)| {
            before.is_none_or(|before| !Arc::ptr_eq(&before.event, &this.event)).then_some(this.event.data.as_str().len())
        };
        let befores = std::iter::once(None).chain(deliveries.iter().map(Some));
        let payloads: usize = befores.zip(&deliveries).filter_map(own_payload_bytes).sum();
        Group { bytes: payloads + DELIVERY_BYTES * deliveries.len(), deliveries }
    }
}

#[derive(Debug, Default)]
struct FeedBuffer {
    bytes: AtomicUsize,
    has_overflowed: AtomicBool,
}

impl Feed {
    /// The deliveries of the next commit, or `None` once the store is closed.
    pub async fn next(&mut self) -> Option<Vec<CommittedDelivery>> {
        let Group { deliveries, bytes } = self.inbox.recv().await?;
        self.buffer.bytes.fetch_sub(bytes, Ordering::Relaxed);
        Some(deliveries)
    }

    /// Whether rows were dropped since the last call. Resets the flag; the caller scans for them.
    pub fn take_overflow(&self) -> bool {
        self.buffer.has_overflowed.swap(false, Ordering::Relaxed)
    }
}

/// The sending end of the feed. There may be no receiver.
#[derive(Debug, Default)]
pub(crate) struct FeedSender(parking_lot::Mutex<Option<Listener>>);

#[derive(Debug)]
struct Listener {
    sender: mpsc::UnboundedSender<Group>,
    buffer: Arc<FeedBuffer>,
}

impl FeedSender {
    pub(crate) fn subscribe(&self) -> Feed {
        let (sender, inbox) = mpsc::unbounded_channel();
        let buffer: Arc<FeedBuffer> = Arc::default();
        *self.0.lock() = Some(Listener { sender, buffer: Arc::clone(&buffer) });
        Feed { inbox, buffer }
    }

    pub(crate) fn send_group(&self, deliveries: Vec<CommittedDelivery>) {
        if deliveries.is_empty() {
            return;
        }
        let mut listener = self.0.lock();
        let Some(Listener { sender, buffer }) = listener.as_ref() else { return };
        let group = Group::new(deliveries);
        let bytes = group.bytes;
        let before = buffer.bytes.fetch_add(bytes, Ordering::Relaxed);
        // One alone always fits: a group is bounded by who writes it.
        if before > 0 && before + bytes > FEED_BYTES_MAX {
            buffer.bytes.fetch_sub(bytes, Ordering::Relaxed);
            buffer.has_overflowed.store(true, Ordering::Relaxed);
        } else if sender.send(group).is_err() {
            *listener = None;
        }
    }

    /// Something was committed that could not be sent: the receiver has to scan.
    pub(crate) fn mark_overflow(&self) {
        if let Some(listener) = self.0.lock().as_ref() {
            listener.buffer.has_overflowed.store(true, Ordering::Relaxed);
        }
    }

    /// Ends the feed for its receiver.
    pub(crate) fn close(&self) {
        *self.0.lock() = None;
    }

    pub(crate) fn has_listener(&self) -> bool {
        self.0.lock().is_some()
    }
}
