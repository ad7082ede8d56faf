//! What this node has read of the configuration and keeps in memory: keys and the catalogue of event types.
//!
//! A copy is trusted only while the configuration's number is the one it was read under. The number is asked for at most
//! every [`ASKED_EVERY`], by whichever request comes then; if it cannot be confirmed for [`TRUSTED_FOR`], nothing from
//! memory is used: a revoked key is refused on every node within a second, or the node says that it cannot serve.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use posthaste_store::catalogue::Catalogue;
use posthaste_store::computing;
use posthaste_store::{Key, KeyHash, Store};
use subtle::ConstantTimeEq;

use crate::credentials::Caller;
use crate::problem::Problem;

const ASKED_EVERY: Duration = Duration::from_millis(250);
const TRUSTED_FOR: Duration = Duration::from_secs(1);

/// Beyond this many it begins anew. One has a few hundred bytes.
const KEYS_MAX: usize = 10_000;

#[derive(Debug)]
pub(crate) struct CachedKey {
    pub(crate) key: Key,
    pub(crate) caller: Caller,
}

#[derive(Debug)]
pub(crate) struct ConfigCache {
    store: Arc<dyn Store>,
    copies: RwLock<CachedConfig>,
    started: Instant,
    /// Milliseconds after `started` at which the number was last confirmed, and one; 0 if it has to be asked for.
    confirmed: AtomicU64,
    asking: tokio::sync::Mutex<()>,
    /// How often something was changed here. What was asked for before a change confirms nothing after it.
    changes: Mutex<u64>,
}

#[derive(Debug, Default)]
struct CachedConfig {
    number: u64,
    keys: HashMap<[u8; 32], Arc<CachedKey>>,
    catalogue: Option<Arc<Catalogue>>,
    /// The one before the last change, whose schemas need not be made ready again.
    old_catalogue: Option<Arc<Catalogue>>,
}

impl ConfigCache {
    pub(crate) fn new(store: Arc<dyn Store>) -> ConfigCache {
        ConfigCache {
            store,
            copies: RwLock::default(),
            started: Instant::now(),
            confirmed: AtomicU64::new(0),
            asking: tokio::sync::Mutex::new(()),
            changes: Mutex::new(0),
        }
    }

    /// Something was changed here: whatever comes next has to ask.
    pub(crate) fn forget(&self) {
        let mut changes = self.changes.lock();
        *changes += 1;
        self.confirmed.store(0, Ordering::Release);
    }

    pub(crate) async fn key(&self, hash: KeyHash) -> Result<Option<Arc<CachedKey>>, Problem> {
        self.confirm().await?;
        let number = {
            let copies = self.copies.read();
            if let Some(known) = copies.keys.get(&hash.0).filter(|known| known.key.hash.0.ct_eq(&hash.0).into()) {
                return Ok(Some(Arc::clone(known)));
            }
            copies.number
        };
        let Some(key) = self.store.key(hash).await? else { return Ok(None) };
        let known = Arc::new(CachedKey { caller: Caller::of_key(&key), key });
        let mut copies = self.copies.write();
        // Read under a number that has passed meanwhile, it may have been revoked since.
        if copies.number == number {
            if copies.keys.len() >= KEYS_MAX {
                copies.keys.clear();
            }
            copies.keys.insert(hash.0, Arc::clone(&known));
        }
        Ok(Some(known))
    }

    pub(crate) async fn catalogue(&self) -> Result<Arc<Catalogue>, Problem> {
        self.confirm().await?;
        let (number, before) = {
            let copies = self.copies.read();
            if let Some(catalogue) = &copies.catalogue {
                return Ok(Arc::clone(catalogue));
            }
            (copies.number, copies.old_catalogue.clone())
        };
        let entries = self.store.event_types().await?;
        let is_quick = Catalogue::is_quick(&entries, before.as_deref());
        let make = move || Arc::new(Catalogue::renewed(entries, before.as_deref()));
        let catalogue = if is_quick { make() } else { computing::run_for_all(make).await? };
        let mut copies = self.copies.write();
        if copies.number == number {
            copies.catalogue = Some(Arc::clone(&catalogue));
        }
        Ok(catalogue)
    }

    /// Sees to it that the copies are of the present number.
    async fn confirm(&self) -> Result<(), Problem> {
        match self.age() {
            Some(age) if age < ASKED_EVERY => Ok(()),
            // One asks; the others go on with what is young enough.
            Some(age) if age < TRUSTED_FOR => match self.asking.try_lock() {
                Ok(_asking) => {
                    if let Err(problem) = self.ask().await
                        && self.age().is_none_or(|age| age >= TRUSTED_FOR)
                    {
                        return Err(problem);
                    }
                    Ok(())
                }
                Err(_) => Ok(()),
            },
            Some(_) | None => {
                let _asking = self.asking.lock().await;
                if self.age().is_some_and(|age| age < ASKED_EVERY) {
                    return Ok(());
                }
                self.ask().await
            }
        }
    }

    async fn ask(&self) -> Result<(), Problem> {
        // What is confirmed is the state at the time of asking, not of the answer.
        let (asked, changes) = (self.stamp(), *self.changes.lock());
        let number = self.store.configuration_number().await?;
        let mut copies = self.copies.write();
        if copies.number != number {
            let old_catalogue = copies.catalogue.take().or(copies.old_catalogue.take());
            *copies = CachedConfig { number, old_catalogue, ..CachedConfig::default() };
        }
        drop(copies);
        let present = self.changes.lock();
        if *present == changes {
            self.confirmed.store(asked, Ordering::Release);
        }
        Ok(())
    }

    fn stamp(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    fn age(&self) -> Option<Duration> {
        match self.confirmed.load(Ordering::Acquire) {
            0 => None,
            confirmed => Some(Duration::from_millis(self.stamp().saturating_sub(confirmed))),
        }
    }
}
