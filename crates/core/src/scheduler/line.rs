//! A sorted map for what mostly comes at one end and leaves at the other.
//!
//! Rows arrive about in the order in which they leave, so a sorted ring buffer is all it takes: one allocation for a
//! whole queue, where a tree has one for every few rows. With a hundred thousand lanes that is the difference between
//! one cache miss and several.

use std::collections::VecDeque;

/// Keys in order, each once.
#[derive(Clone, Debug)]
pub(super) struct Line<K, V>(VecDeque<(K, V)>);

impl<K, V> Default for Line<K, V> {
    fn default() -> Line<K, V> {
        Line(VecDeque::new())
    }
}

impl<K: Ord + Copy, V> Line<K, V> {
    pub(super) fn new() -> Line<K, V> {
        Line::default()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.0 = VecDeque::new();
    }

    /// Where it is, or where it would be. The ends are looked at first.
    fn place(&self, key: K) -> Result<usize, usize> {
        match (self.0.front(), self.0.back()) {
            (None, _) | (_, None) => Err(0),
            (_, Some((last, _))) if *last < key => Err(self.0.len()),
            (_, Some((last, _))) if *last == key => Ok(self.0.len() - 1),
            (Some((first, _)), _) if key < *first => Err(0),
            (Some((first, _)), _) if *first == key => Ok(0),
            _ => self.0.binary_search_by(|(other, _)| other.cmp(&key)),
        }
    }

    /// Whether it was not there before. If it was, nothing changes.
    pub(super) fn insert(&mut self, key: K, value: V) -> bool {
        match self.place(key) {
            Ok(_) => false,
            Err(place) => {
                self.0.insert(place, (key, value));
                true
            }
        }
    }

    pub(super) fn contains(&self, key: K) -> bool {
        self.place(key).is_ok()
    }

    pub(super) fn get(&self, key: K) -> Option<&V> {
        self.place(key).ok().map(|place| &self.0[place].1)
    }

    pub(super) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        self.place(key).ok().map(|place| &mut self.0[place].1)
    }

    pub(super) fn remove(&mut self, key: K) -> Option<V> {
        self.place(key).ok().and_then(|place| self.0.remove(place)).map(|(_, value)| value)
    }

    pub(super) fn first(&self) -> Option<(K, &V)> {
        self.0.front().map(|(key, value)| (*key, value))
    }

    pub(super) fn last(&self) -> Option<(K, &V)> {
        self.0.back().map(|(key, value)| (*key, value))
    }

    pub(super) fn pop_first(&mut self) -> Option<V> {
        self.0.pop_front().map(|(_, value)| value)
    }

    pub(super) fn pop_last(&mut self) -> Option<V> {
        self.0.pop_back().map(|(_, value)| value)
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> {
        self.0.iter().map(|(key, value)| (*key, value))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::Line;

    proptest! {
        #[test]
        fn it_is_a_sorted_map(steps in prop::collection::vec((0u8..5, 0u16..40), 0..200)) {
            let (mut line, mut map) = (Line::new(), BTreeMap::new());
            for (step, key) in steps {
                match step {
                    0 | 1 => {
                        prop_assert_eq!(line.insert(key, u32::from(key)), !map.contains_key(&key));
                        map.entry(key).or_insert(u32::from(key));
                    }
                    2 => prop_assert_eq!(line.remove(key), map.remove(&key)),
                    3 => prop_assert_eq!(line.pop_first(), map.pop_first().map(|(_, value)| value)),
                    _ => prop_assert_eq!(line.pop_last(), map.pop_last().map(|(_, value)| value)),
                }
                prop_assert_eq!(line.contains(key), map.contains_key(&key));
                prop_assert_eq!(line.get(key), map.get(&key));
                prop_assert_eq!(line.first(), map.first_key_value().map(|(key, value)| (*key, value)));
                prop_assert_eq!(line.last(), map.last_key_value().map(|(key, value)| (*key, value)));
                prop_assert!(line.iter().eq(map.iter().map(|(key, value)| (*key, value))));
                prop_assert_eq!((line.len(), line.is_empty()), (map.len(), map.is_empty()));
            }
        }
    }
}
