//! Places of `/v1/stream`: each open stream asks the store once a second, so that there are only so many, and nobody has them all.
//!
//! One key has an eighth of the places at most, one tenant a quarter, and all tenants together three quarters: the rest is for those who
//! run the server, whose keys are bound to no tenant.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use posthaste_core::id::TenantId;

use crate::credentials::Caller;
use crate::problem::Problem;

#[derive(Debug)]
pub(crate) struct Streams {
    places: usize,
    taken: Mutex<OpenStreams>,
}

#[derive(Default, Debug)]
struct OpenStreams {
    all: usize,
    of_tenants: usize,
    tenants: HashMap<TenantId, usize>,
    keys: HashMap<Arc<str>, usize>,
}

/// One place, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct StreamPermit {
    streams: Arc<Streams>,
    tenant: Option<(TenantId, Arc<str>)>,
}

impl Streams {
    pub(crate) fn new(places: usize) -> Arc<Streams> {
        Arc::new(Streams { places, taken: Mutex::default() })
    }

    pub(crate) fn take(self: &Arc<Streams>, caller: &Caller) -> Result<StreamPermit, Problem> {
        let mut taken = self.taken.lock();
        let share = |divisor: usize| (self.places / divisor).max(1);
        let refuse =
            |whose: &str| Err(Problem::unavailable(format!("As many streams {whose} are open as may be. Try again later.")));
        if taken.all >= self.places {
            return refuse("of everybody");
        }
        let tenant = match &caller.tenant {
            None => None,
            Some(tenant) => {
                if taken.of_tenants >= (self.places - self.places / 4).max(1) {
                    return refuse("of all tenants");
                }
                if taken.tenants.get(tenant).copied().unwrap_or(0) >= share(4) {
                    return refuse("of this tenant");
                }
                if taken.keys.get(&caller.actor).copied().unwrap_or(0) >= share(8) {
                    return refuse("of this key");
                }
                taken.of_tenants += 1;
                *taken.tenants.entry(tenant.clone()).or_default() += 1;
                *taken.keys.entry(Arc::clone(&caller.actor)).or_default() += 1;
                Some((tenant.clone(), Arc::clone(&caller.actor)))
            }
        };
        taken.all += 1;
        Ok(StreamPermit { streams: Arc::clone(self), tenant })
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut taken = self.streams.taken.lock();
        taken.all -= 1;
        let Some((tenant, key)) = &self.tenant else { return };
        taken.of_tenants -= 1;
        give_back(&mut taken.tenants, tenant);
        give_back(&mut taken.keys, key);
    }
}

fn give_back<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, of: &K) {
    if let Some(count) = counts.get_mut(of) {
        *count -= 1;
        if *count == 0 {
            counts.remove(of);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_all_places_and_operators_find_one() {
        let streams = Streams::new(64);
        let take = |tenant: &str, key: &str, count: usize| -> Vec<StreamPermit> {
            let caller = Caller::of_tenant_for_tests(tenant, key);
            (0..count).map_while(|_| streams.take(&caller).ok()).collect()
        };
        let one_key = take("a", "key-1", 64);
        assert_eq!(one_key.len(), 8);
        let other_keys: Vec<StreamPermit> = (2..9).flat_map(|n| take("a", &format!("key-{n}"), 64)).collect();
        assert_eq!(one_key.len() + other_keys.len(), 16, "a quarter for one tenant");
        let others: Vec<StreamPermit> = (0..20).flat_map(|n| take(&format!("t{n}"), &format!("of-{n}"), 64)).collect();
        assert_eq!(one_key.len() + other_keys.len() + others.len(), 48, "three quarters for all tenants");
        let operators: Vec<StreamPermit> = (0..64).map_while(|_| streams.take(&Caller::nobody()).ok()).collect();
        assert_eq!(operators.len(), 16);
        drop((one_key, other_keys, others, operators));
        assert_eq!(take("a", "key-1", 64).len(), 8, "all places were given back");
        assert!(streams.taken.lock().tenants.is_empty() && streams.taken.lock().keys.is_empty());
    }
}
