//! News of our own commits, so that what was just written need not be read back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// How much may wait here. What does not fit is found by the sweep.
const FEED_MAX: usize = 16_384;

/// The receiving end.
#[derive(Debug)]
pub struct Feed {
    inbox: mpsc::Receiver<Vec<Fed>>,
    overflow: Arc<AtomicBool>,
}

impl Feed {
    /// What came next, or `None` once the store is closed.
    pub async fn next(&mut self) -> Option<Vec<Fed>> {
        self.inbox.recv().await
    }

    /// Whether something was left out since this was last asked: sweep.
    pub fn has_overflowed(&self) -> bool {
        self.overflow.swap(false, Ordering::Relaxed)
    }
}

/// The sending end. There may be nobody who listens.
#[derive(Debug, Default)]
pub(crate) struct Feeder(parking_lot::Mutex<Option<Listener>>);

#[derive(Debug)]
struct Listener {
    outbox: mpsc::Sender<Vec<Fed>>,
    overflow: Arc<AtomicBool>,
}

impl Feeder {
    pub(crate) fn subscribe(&self) -> Feed {
        let (outbox, inbox) = mpsc::channel(FEED_MAX / 64);
        let overflow = Arc::new(AtomicBool::new(false));
        *self.0.lock() = Some(Listener { outbox, overflow: Arc::clone(&overflow) });
        Feed { inbox, overflow }
    }

    pub(crate) fn tell(&self, fed: Vec<Fed>) {
        if fed.is_empty() {
            return;
        }
        let mut listener = self.0.lock();
        let Some(Listener { outbox, overflow }) = listener.as_ref() else { return };
        match outbox.try_send(fed) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => overflow.store(true, Ordering::Relaxed),
            Err(mpsc::error::TrySendError::Closed(_)) => *listener = None,
        }
    }

    /// Something was committed that could not be told.
    pub(crate) fn has_left_something_out(&self) {
        if let Some(listener) = self.0.lock().as_ref() {
            listener.overflow.store(true, Ordering::Relaxed);
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
