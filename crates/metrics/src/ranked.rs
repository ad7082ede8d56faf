//! Labels that users choose, bounded: the busiest have a series of their own, the rest are counted together.
//!
//! While there are few, each is admitted at once. Beyond that, whoever had much more traffic than somebody inside takes that
//! one's place when the ranking is next looked at; what the one who leaves had counted goes to the rest. So the sum over all
//! series is always exact and never falls. A newcomer begins at zero: what it did before is in the rest already.

use std::collections::HashMap;
use std::hash::Hash;

/// Something that is counted for each key.
pub trait Counts: Default {
    fn add(&mut self, other: &Self);
    /// What keys are ranked by.
    fn traffic(&self) -> u64;
}

impl Counts for u64 {
    fn add(&mut self, other: &u64) {
        *self += other;
    }

    fn traffic(&self) -> u64 {
        *self
    }
}

#[derive(Debug)]
pub struct Ranked<K, V> {
    max: usize,
    inside: HashMap<K, Inside<V>>,
    rest: V,
    /// Whoever is outside, and its traffic since the ranking was last looked at.
    outside: HashMap<K, u64>,
}

#[derive(Debug)]
struct Inside<V> {
    counts: V,
    /// Traffic at the last look.
    before: u64,
}

/// Of those outside so many are watched at once; more are seen at the next look.
const OUTSIDE_MAX: usize = 16_384;
/// By how much somebody outside has to be busier to take a place: two of about the same size must not change places for ever.
const BUSIER: u64 = 2;

impl<K: Eq + Hash + Ord + Clone, V: Counts> Ranked<K, V> {
    pub fn new(max: usize) -> Ranked<K, V> {
        Ranked { max, inside: HashMap::new(), rest: V::default(), outside: HashMap::new() }
    }

    pub fn add(&mut self, key: &K, counts: &V) {
        if let Some(inside) = self.inside.get_mut(key) {
            inside.counts.add(counts);
        } else if self.inside.len() < self.max {
            let mut own = V::default();
            own.add(counts);
            self.inside.insert(key.clone(), Inside { counts: own, before: 0 });
        } else {
            self.rest.add(counts);
            if let Some(traffic) = self.outside.get_mut(key) {
                *traffic += counts.traffic();
            } else if self.outside.len() < OUTSIDE_MAX {
                self.outside.insert(key.clone(), counts.traffic());
            }
        }
    }

    /// Lets those in who have been busier, and begins to watch anew.
    pub fn rank(&mut self) {
        let mut outside: Vec<(u64, K)> =
            std::mem::take(&mut self.outside).into_iter().map(|(key, traffic)| (traffic, key)).collect();
        if !outside.is_empty() {
            outside.sort_unstable_by(|one, other| other.cmp(one));
            let since = |inside: &Inside<V>| inside.counts.traffic() - inside.before;
            let mut inside: Vec<(u64, K)> = self.inside.iter().map(|(key, inside)| (since(inside), key.clone())).collect();
            inside.sort_unstable();
            for ((theirs, newcomer), (own, leaver)) in outside.into_iter().zip(inside) {
                if theirs <= own.saturating_mul(BUSIER) {
                    break;
                }
                if let Some(left) = self.inside.remove(&leaver) {
                    self.rest.add(&left.counts);
                }
                self.inside.insert(newcomer, Inside { counts: V::default(), before: 0 });
            }
        }
        for inside in self.inside.values_mut() {
            inside.before = inside.counts.traffic();
        }
    }

    /// In the order of keys; `None` is the rest, if there is any.
    pub fn shown(&self) -> Vec<(Option<&K>, &V)> {
        let mut shown: Vec<(Option<&K>, &V)> = self.inside.iter().map(|(key, inside)| (Some(key), &inside.counts)).collect();
        shown.sort_unstable_by_key(|(key, _)| *key);
        if self.rest.traffic() > 0 {
            shown.push((None, &self.rest));
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(ranked: &Ranked<u32, u64>) -> u64 {
        ranked.shown().iter().map(|(_, count)| **count).sum()
    }

    #[test]
    fn few_are_all_inside_from_their_first_count_on() {
        let mut ranked: Ranked<u32, u64> = Ranked::new(3);
        for key in [1, 2, 2, 3, 1] {
            ranked.add(&key, &1);
        }
        assert_eq!(ranked.shown(), [(Some(&1), &2), (Some(&2), &2), (Some(&3), &1)]);
    }

    #[test]
    fn whoever_is_busier_takes_a_place_and_nothing_is_lost_or_counted_twice() {
        let mut ranked: Ranked<u32, u64> = Ranked::new(2);
        for key in [1, 1, 1, 2, 3] {
            ranked.add(&key, &1);
        }
        assert_eq!(ranked.shown(), [(Some(&1), &3), (Some(&2), &1), (None, &1)]);
        (0..5).for_each(|_| ranked.add(&3, &1));
        ranked.rank();
        assert_eq!(ranked.shown(), [(Some(&1), &3), (Some(&3), &0), (None, &7)]);
        ranked.add(&3, &1);
        ranked.add(&2, &1);
        assert_eq!(total(&ranked), 12);
    }

    #[test]
    fn two_of_the_same_size_do_not_change_places_for_ever() {
        let mut ranked: Ranked<u32, u64> = Ranked::new(1);
        for _ in 0..10 {
            (0..10).for_each(|_| ranked.add(&1, &1));
            (0..15).for_each(|_| ranked.add(&2, &1));
            ranked.rank();
        }
        assert_eq!(ranked.shown(), [(Some(&1), &100), (None, &150)]);
    }

    #[test]
    fn ten_thousand_keys_make_no_more_series_than_there_may_be() {
        let mut ranked: Ranked<u32, u64> = Ranked::new(100);
        for round in 0..5 {
            (0..10_000).for_each(|key| ranked.add(&key, &u64::from(key % (round + 7))));
            ranked.rank();
            assert_eq!(ranked.shown().len(), 101);
        }
        let expected: u64 = (0..5).map(|round| (0..10_000).map(|key: u64| key % (round + 7)).sum::<u64>()).sum();
        assert_eq!(total(&ranked), expected);
    }
}
