//! Which notifications tenants and operators get about endpoints, how often, and when dead letters are more than usual.
//!
//! An owner notices; what it has noticed is true and on disk. How often it is told is decided here: of each kind about each
//! endpoint once in a while, and what happened meanwhile is told at the end of it, once, as it was last. So an endpoint that
//! comes and goes does not flood anybody, and how it ended up is always told.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::circuit::Transition;
use crate::health::{HealthChange, Warning};
use crate::id::{EndpointId, TenantId};
use crate::time::Timestamp;

/// Something that has happened to an endpoint, or to what was on its way there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Noticed {
    pub at: Timestamp,
    pub endpoint: EndpointId,
    pub tenant: TenantId,
    pub what: NoticeKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoticeKind {
    /// It is on its way to being disabled.
    Failing {
        warning: Warning,
        failures: u32,
        since: Timestamp,
    },
    /// By us: because it was given up, or has asked for it (410).
    Disabled,
    Recovered,
    CircuitOpened,
    CircuitClosed,
    /// One more dead letter.
    Died,
}

impl NoticeKind {
    /// What a change of an endpoint's health is worth telling as. That it is given up is told by its being disabled.
    pub fn of_news(news: HealthChange, failures: u32, since: Timestamp) -> Option<NoticeKind> {
        match news {
            HealthChange::Failing(warning) => Some(NoticeKind::Failing { warning, failures, since }),
            HealthChange::Recovered => Some(NoticeKind::Recovered),
            HealthChange::GiveUp => None,
        }
    }

    /// A probe that failed changes nothing: the circuit was open before.
    pub fn of_transition(transition: Transition) -> Option<NoticeKind> {
        match transition {
            Transition::Opened => Some(NoticeKind::CircuitOpened),
            Transition::Closed => Some(NoticeKind::CircuitClosed),
            Transition::Reopened => None,
        }
    }
}

/// Passes the first notice on, holds back further ones for a while, and then passes the last of them on.
#[derive(Debug)]
pub struct Debounce<K, T> {
    pause: Duration,
    told: BTreeMap<K, Muted<T>>,
}

#[derive(Debug)]
struct Muted<T> {
    until: Timestamp,
    held: Option<Notice<T>>,
}

/// A notice to send now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notice<T> {
    pub what: T,
    /// How many notices of its kind were left out before it.
    pub left_out: u32,
}

impl<K: Ord + Clone, T> Debounce<K, T> {
    pub fn new(pause: Duration) -> Debounce<K, T> {
        Debounce { pause, told: BTreeMap::new() }
    }

    /// Whether a notice about this key would be sent now.
    pub fn is_open(&self, now: Timestamp, key: &K) -> bool {
        self.told.get(key).is_none_or(|silence| silence.until <= now && silence.held.is_none())
    }

    /// Returns the notice if it is to be sent now; holds it back otherwise.
    pub fn take(&mut self, now: Timestamp, key: K, what: T) -> Option<Notice<T>> {
        let pause = self.pause;
        match self.told.get_mut(&key) {
            Some(silence) if now < silence.until || silence.held.is_some() => {
                let left_out = silence.held.as_ref().map_or(0, |held| held.left_out + 1);
                silence.held = Some(Notice { what, left_out });
                None
            }
            Some(_) | None => {
                self.told.insert(key, Muted { until: now + pause, held: None });
                Some(Notice { what, left_out: 0 })
            }
        }
    }

    /// Returns the notices that were held back and may be sent now, and drops keys without new ones.
    pub fn due(&mut self, now: Timestamp) -> Vec<Notice<T>> {
        let (mut due, pause) = (Vec::new(), self.pause);
        self.told.retain(|_, silence| {
            if now < silence.until {
                return true;
            }
            let held = silence.held.take();
            silence.until = now + pause;
            let has_told = held.is_some();
            due.extend(held);
            has_told
        });
        due
    }
}

/// Deaths of one tenant's deliveries, minute by minute: those of the last hour, and those of the day before it.
#[derive(Debug, Default)]
struct Deaths {
    recent: VecDeque<(i64, u64)>,
    earlier: VecDeque<(i64, u64)>,
    recent_sum: u64,
    earlier_sum: u64,
}

/// Notices when more deliveries die than usual.
#[derive(Debug)]
pub struct DeathWatch {
    deaths_min: u64,
    tenants: BTreeMap<TenantId, Deaths>,
}

/// More of a tenant's deliveries have died in the last hour than in other hours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Growing {
    pub in_the_last_hour: u64,
    /// The mean of the hours before, as far as they are known.
    pub usual_per_hour: u64,
}

/// So many times as many as usual.
const GROWING_FACTOR: u64 = 2;
const HOURS_BEFORE: i64 = 23;

impl DeathWatch {
    /// Fewer than `deaths_min` in an hour are never worth a word.
    pub fn new(deaths_min: u64) -> DeathWatch {
        DeathWatch { deaths_min, tenants: BTreeMap::new() }
    }

    pub fn died(&mut self, now: Timestamp, tenant: &TenantId) -> Option<Growing> {
        let minute = now.as_millis().div_euclid(60_000);
        let deaths = self.tenants.entry(tenant.clone()).or_default();
        deaths.move_on(minute);
        match deaths.recent.back_mut() {
            Some((last, count)) if *last == minute => *count += 1,
            Some(_) | None => deaths.recent.push_back((minute, 1)),
        }
        deaths.recent_sum += 1;
        let usual_per_hour = deaths.earlier_sum / u64::try_from(HOURS_BEFORE).expect("a positive number");
        let is_growing = deaths.recent_sum >= self.deaths_min && deaths.recent_sum > usual_per_hour * GROWING_FACTOR;
        is_growing.then_some(Growing { in_the_last_hour: deaths.recent_sum, usual_per_hour })
    }

    /// Forgets tenants of whom nothing has died for a day.
    pub fn forget(&mut self, now: Timestamp) {
        let minute = now.as_millis().div_euclid(60_000);
        self.tenants.retain(|_, deaths| {
            deaths.move_on(minute);
            deaths.recent_sum + deaths.earlier_sum > 0
        });
    }
}

impl Deaths {
    fn move_on(&mut self, minute: i64) {
        while let Some((at, count)) = self.recent.front().copied().filter(|(at, _)| *at <= minute - 60) {
            self.recent.pop_front();
            self.recent_sum -= count;
            self.earlier.push_back((at, count));
            self.earlier_sum += count;
        }
        while let Some((_, count)) = self.earlier.front().copied().filter(|(at, _)| *at <= minute - 60 * (HOURS_BEFORE + 1)) {
            self.earlier.pop_front();
            self.earlier_sum -= count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    #[test]
    fn what_flaps_is_told_once_and_then_how_it_ended_up() {
        let mut debounce = Debounce::new(Duration::from_mins(1));
        let told = |what, left_out| Some(Notice { what, left_out });
        assert_eq!(debounce.take(at(0), "circuit", "open 1"), told("open 1", 0));
        assert_eq!(debounce.take(at(1), "circuit", "open 2"), None);
        assert_eq!(debounce.take(at(2), "circuit", "open 3"), None);
        assert_eq!(debounce.take(at(3), "other", "open 1"), told("open 1", 0), "each for itself");
        assert!(!debounce.is_open(at(59), &"circuit"));
        assert_eq!(debounce.due(at(59)), []);
        assert_eq!(debounce.due(at(60)), [Notice { what: "open 3", left_out: 1 }]);
        assert_eq!(debounce.take(at(61), "circuit", "open 4"), None, "it was told a moment ago");
        assert_eq!(debounce.due(at(120)).len(), 1);
        assert_eq!(debounce.due(at(180)).len(), 0);
        assert_eq!(debounce.take(at(181), "circuit", "open 5"), told("open 5", 0));
        debounce.due(at(1000));
        assert!(debounce.told.is_empty(), "nothing is kept for ever");
    }

    #[test]
    fn a_pause_of_nothing_tells_everything() {
        let mut debounce = Debounce::new(Duration::ZERO);
        for second in 0..5 {
            assert!(debounce.take(at(second), (), second).is_some());
        }
    }

    #[test]
    fn deaths_grow_when_they_are_many_and_more_than_usual() {
        let tenant = TenantId::parse("acme").expect("a name");
        let mut watch = DeathWatch::new(3);
        assert_eq!(watch.died(at(0), &tenant), None);
        assert_eq!(watch.died(at(60), &tenant), None);
        assert_eq!(watch.died(at(120), &tenant), Some(Growing { in_the_last_hour: 3, usual_per_hour: 0 }));
        // Ten in each of the hours after that become what is usual: 230 in the 23 hours before the last.
        for hour in 1..24 {
            for minute in 0..10 {
                watch.died(at(hour * 3600 + minute * 60), &tenant);
            }
        }
        let mut seen = Vec::new();
        for minute in 0..25 {
            seen.push(watch.died(at(24 * 3600 + minute * 60), &tenant).is_some());
        }
        assert_eq!(seen.iter().position(|is_growing| *is_growing), Some(20), "the first that is more than twice ten");
        watch.forget(at(60 * 3600));
        assert!(watch.tenants.is_empty());
    }
}
