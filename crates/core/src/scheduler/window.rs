//! What a lane has in memory of its backlog: a bounded part of each of three queues.
//!
//! One window over one order goes blind: rows that are not yet due, a key that is blocked, or a million events that
//! wait for morning would stand in front of what could go. So there are three queues, each in its own order:
//!
//! - **fresh**: never tried, not scheduled, no key; by (timestamp, seq), apart for each [`Class`];
//! - **later**: due at a time of its own, after a failure or by `deliver_at`; by (due, seq), apart for each class;
//! - **keyed**: only the head of each ordering key can run, so only heads are here.
//!
//! A window holds the beginning of a queue and says when it wants more. Refills start at the front of the queue, where
//! the store's index has only what is unfinished, so that no position has to be kept.

use std::collections::{BTreeMap, BTreeSet};

use crate::event::EventType;
use crate::id::DeliveryId;
use crate::plant::{self, Plant};
use crate::quiet_hours::QuietHours;
use crate::text::OrderingKey;
use crate::time::Timestamp;

use super::line::Line;

/// The order of acceptance, given by the database.
pub type Seq = u64;

/// Where a row can be seen. Whether it may go is asked of the present configuration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    Priority,
    /// Not held by quiet hours.
    Exempt,
    Rest,
}

impl Class {
    pub const ALL: [Class; 3] = [Class::Priority, Class::Exempt, Class::Rest];

    pub fn of(event_type: &EventType, is_priority: bool, schedule: Option<&QuietHours>) -> Class {
        if is_priority {
            Class::Priority
        } else if schedule.is_some_and(|schedule| schedule.holds(event_type, false)) {
            Class::Rest
        } else {
            Class::Exempt
        }
    }
}

/// A delivery that waits, as far as scheduling has to know it.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    pub delivery: DeliveryId,
    pub seq: Seq,
    /// When it happened, or for a replay when that was asked for: a backlog drains in this order.
    pub timestamp: Timestamp,
    /// Not before.
    pub due: Timestamp,
    /// How often it was tried.
    pub attempts: u32,
    /// Its due time was set by a failure or by `deliver_at`: it belongs to *later*.
    pub is_later: bool,
    pub event_type: EventType,
    pub is_priority: bool,
    /// As it is stamped in the store: where it is read from.
    pub class: Class,
    pub ordering_key: Option<OrderingKey>,
    pub expires_at: Option<Timestamp>,
}

impl Entry {
    fn age(&self) -> (Timestamp, Seq) {
        (self.timestamp, self.seq)
    }

    fn turn(&self) -> (Timestamp, Seq) {
        (self.due, self.seq)
    }

    fn queue(&self) -> Queue {
        if self.ordering_key.is_some() {
            Queue::Keyed
        } else if self.is_later {
            Queue::Later
        } else {
            Queue::Fresh
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Queue {
    Fresh,
    Later,
    Keyed,
}

/// What a window would like to be read from the store.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum WindowQuery {
    /// The first rows of *fresh* of this class.
    Fresh(Class),
    /// The first rows of *later* of this class.
    Later(Class),
    /// The heads of the keys after this one.
    Heads { after: Option<OrderingKey> },
    /// The head of this key, if it has one.
    Head(OrderingKey),
}

/// How much may leave a lane while a read is under way, for each row that a queue holds.
const GONE_PER_ROW_MAX: usize = 4;

/// Rows by age or by turn.
type Rows = Line<(Timestamp, Seq), Box<Entry>>;

/// What is in memory of one lane's backlog.
#[derive(Clone, Debug)]
pub(super) struct Window {
    size: usize,
    /// Most lanes have rows of one class only.
    classes: [Option<Box<ClassWindow>>; 3],
    /// Heads that are not yet due.
    keyed_waiting: Rows,
    /// The keys whose head is in memory, and its number.
    heads: BTreeMap<OrderingKey, Seq>,
    /// Keys of which a delivery is on its way or not yet recorded.
    busy_keys: BTreeSet<OrderingKey>,
    scan: KeyScan,
    /// Keys whose head is to be read.
    heads_wanted: BTreeSet<OrderingKey>,
    /// Reads under way, each with the number it was asked under.
    asked: BTreeMap<WindowQuery, u64>,
    ask_number: u64,
    /// Reads up to this one looked before everything was forgotten: where they have found a row it may not be any more.
    forgotten: u64,
    /// What has left while a read was under way, and must not come back with it: under which number it left.
    gone: BTreeMap<DeliveryId, u64>,
    /// What is here of *later* and *keyed*.
    known: Line<DeliveryId, ()>,
    /// Rows up to this one are not taken from a commit any more: a read has looked since, or somebody else has.
    seen: Option<Seq>,
}

#[derive(Clone, Default, Debug)]
struct ClassWindow {
    fresh: Rows,
    /// The store has rows behind the last one here.
    fresh_more: bool,
    /// The store may have rows anywhere: read again, however many are here. The number of the last read that had been
    /// asked for when this became known; only a later one can have seen them.
    fresh_unread: Option<u64>,
    /// Up to which row a read of this queue has seen everything.
    fresh_seen: Option<Seq>,
    /// Of *later* and *keyed*: due, and in the order in which they go.
    ripe: Rows,
    /// How many of `ripe` are heads of keys.
    ripe_heads: usize,
    later_waiting: Rows,
    /// In memory, ripe or waiting.
    later_count: usize,
    later_more: bool,
    later_unread: Option<u64>,
    later_seen: Option<Seq>,
}

impl ClassWindow {
    fn take_youngest_head(&mut self) -> Option<Box<Entry>> {
        let (age, _) = self.ripe.iter().rfind(|(_, entry)| entry.queue() == Queue::Keyed)?;
        self.ripe_heads -= 1;
        self.ripe.remove(age)
    }
}

/// The scan for heads: all keys in their order, a page at a time, for as long as too few heads that can go are here.
///
/// A head for which there is no room is left out, and the scan starts over once it could go. It always goes on to the
/// last key first: otherwise busy keys at the beginning would hide those at the end.
#[derive(Clone, Default, Debug)]
struct KeyScan {
    /// There may be keys behind `after` that were not read.
    is_running: bool,
    after: Option<OrderingKey>,
    /// Heads may have appeared among the keys that this scan has passed.
    starts_over: bool,
    /// Of each class: the earliest due time of the heads that were left out.
    left_out_due: [Option<Timestamp>; 3],
}

impl KeyScan {
    fn started() -> KeyScan {
        KeyScan { is_running: true, ..KeyScan::default() }
    }

    /// Every key has to be looked at, by reads that are asked for from now on.
    fn request(&mut self, is_being_read: bool) {
        if !self.is_running {
            *self = KeyScan::started();
        } else if is_being_read || self.after.is_some() {
            self.starts_over = true;
        }
    }

    /// The next page was read: up to this key, or up to the end.
    fn page_read(&mut self, up_to: Option<OrderingKey>) {
        self.is_running = up_to.is_some();
        self.after = up_to;
        if !self.is_running && self.starts_over {
            *self = KeyScan::started();
        }
    }

    fn left_out(&mut self, class: Class, due: Timestamp) {
        let earliest = &mut self.left_out_due[class as usize];
        *earliest = Some(earliest.map_or(due, |earliest| earliest.min(due)));
    }

    /// Starts over if something that was left out could go by now.
    fn wake(&mut self, now: Timestamp, rest_may_go: bool) {
        let [priority, exempt, rest] = self.left_out_due;
        let could_go = [priority, exempt, rest.filter(|_| rest_may_go)].into_iter().flatten().any(|due| due <= now);
        if could_go && !self.is_running {
            *self = KeyScan::started();
        }
    }

    fn may_find_more(&self) -> bool {
        self.is_running || self.left_out_due.iter().any(Option::is_some)
    }
}

/// Which entry of a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EntryPlace {
    class: Class,
    is_fresh: bool,
    age: (Timestamp, Seq),
}

impl Window {
    /// Knows nothing yet and wants everything.
    pub(super) fn new(size: usize) -> Window {
        let unread = ClassWindow { fresh_unread: Some(0), later_unread: Some(0), ..ClassWindow::default() };
        Window {
            classes: [Some(Box::new(unread.clone())), Some(Box::new(unread.clone())), Some(Box::new(unread))],
            scan: KeyScan::started(),
            ..Window::empty(size)
        }
    }

    /// For an endpoint that has just been made: the store has nothing either.
    pub(super) fn empty(size: usize) -> Window {
        Window {
            size,
            classes: [None, None, None],
            keyed_waiting: Line::new(),
            heads: BTreeMap::new(),
            busy_keys: BTreeSet::new(),
            scan: KeyScan::default(),
            heads_wanted: BTreeSet::new(),
            asked: BTreeMap::new(),
            ask_number: 0,
            forgotten: 0,
            gone: BTreeMap::new(),
            known: Line::new(),
            seen: None,
        }
    }

    /// There may be rows in the store that are not here, and that go before those that are.
    pub(super) fn mark_unread(&mut self) {
        for class in &mut self.classes {
            let class = class.get_or_insert_default();
            class.fresh_unread = Some(self.ask_number);
            class.later_unread = Some(self.ask_number);
        }
        self.scan_keys();
    }

    /// Rows up to this one are not taken from a commit any more.
    pub(super) fn rows_seen(&mut self, seq: Seq) {
        self.seen = self.seen.max(Some(seq));
    }

    /// A row that was just committed, straight from the commit. A read may have been faster: what it has seen is here, or
    /// gone already, or behind the window.
    pub(super) fn offer(&mut self, entry: Entry) {
        if self.note_unread(&entry) && !plant::is(Plant::OfferedTwice) {
            return;
        }
        match entry.queue() {
            Queue::Keyed if plant::is(Plant::KeyedFromFeed) => self.insert_head(entry),
            Queue::Keyed
                if plant::is(Plant::RetryOvertakesInKey)
                    && entry.ordering_key.as_ref().is_some_and(|key| self.heads.contains_key(key)) =>
            {
                self.known.insert(entry.delivery, ());
                self.keyed_waiting.insert(entry.turn(), Box::new(entry));
            }
            // Never sent from here: its head is read from the store.
            Queue::Keyed => {
                let key = entry.ordering_key.expect("keyed");
                let is_before_head = self.heads.get(&key).is_none_or(|head| entry.seq < *head);
                if is_before_head && !self.busy_keys.contains(&key) {
                    self.await_head(key);
                }
            }
            Queue::Fresh => {
                let (size, class) = (self.size, entry.class);
                let window = self.classes[class as usize].get_or_insert_default();
                let is_inside = !window.fresh_more || window.fresh.last().is_some_and(|(last, _)| entry.age() < last);
                if is_inside {
                    window.fresh.insert(entry.age(), Box::new(entry));
                }
                if !is_inside || window.fresh.len() > size {
                    if is_inside {
                        window.fresh.pop_last();
                    }
                    window.fresh_more = true;
                    // A read that is under way does not know of it.
                    if self.asked.contains_key(&WindowQuery::Fresh(class)) {
                        window.fresh_unread = Some(self.ask_number);
                    }
                }
            }
            Queue::Later => self.insert_later(Box::new(entry)),
        }
        debug_assert!(self.is_bounded() || plant::is(Plant::RetryGrowsWindow), "{self:?}");
    }

    /// Nothing is here twice, although a row may be stamped anew and then be read from elsewhere.
    fn is_here(&self, row: &Entry) -> bool {
        self.known.contains(row.delivery) || self.classes.iter().flatten().any(|window| window.fresh.contains(row.age()))
    }

    /// Whether a row from a commit is not to be taken from there. If its queue may not have been read since the row was
    /// committed, it will be.
    fn note_unread(&mut self, entry: &Entry) -> bool {
        let is_known = self.is_here(entry);
        let window = self.classes[entry.class as usize].get_or_insert_default();
        let (seen, unread) = match entry.queue() {
            Queue::Fresh => (window.fresh_seen, &mut window.fresh_unread),
            Queue::Later => (window.later_seen, &mut window.later_unread),
            Queue::Keyed => return is_known,
        };
        if seen >= Some(entry.seq) || is_known {
            return true;
        }
        // Perhaps it was in another queue before it was stamped anew, and has been sent since; or it was withdrawn.
        let was_seen = self.seen >= Some(entry.seq);
        if was_seen || unread.is_some() {
            *unread = Some(self.ask_number);
        }
        was_seen || unread.is_some()
    }

    fn want_head(&mut self, key: OrderingKey) {
        if self.heads_wanted.len() + self.asked.len() < self.size {
            self.heads_wanted.insert(key);
        } else {
            self.scan_keys();
        }
    }

    /// A key may have a new head. While other keys wait for the scan this one waits with them: busy keys would otherwise fill
    /// the window and keep the rest out of it for ever.
    fn await_head(&mut self, key: OrderingKey) {
        if self.scan.is_running {
            self.scan_keys();
        } else {
            self.want_head(key);
        }
    }

    /// Any key may have a head that is not here.
    fn scan_keys(&mut self) {
        let page = WindowQuery::Heads { after: self.scan.after.clone() };
        self.scan.request(self.asked.contains_key(&page));
    }

    fn insert_later(&mut self, entry: Box<Entry>) {
        let class = entry.class;
        let window = self.classes[class as usize].get_or_insert_default();
        let last = window.later_waiting.last().map(|(last, _)| last);
        let is_inside = !window.later_more || last.is_some_and(|last| entry.turn() < last);
        if is_inside {
            self.known.insert(entry.delivery, ());
            window.later_waiting.insert(entry.turn(), entry);
            window.later_count += 1;
        }
        if !is_inside || window.later_count > self.size {
            if is_inside && let Some(behind) = window.later_waiting.pop_last() {
                self.known.remove(behind.delivery);
                window.later_count -= 1;
            }
            window.later_more = true;
            // A read that is under way does not know of it.
            if self.asked.contains_key(&WindowQuery::Later(class)) {
                window.later_unread = Some(self.ask_number);
            }
        }
    }

    /// What a read that was asked for has found. `more` says that it was cut off at its limit.
    /// `seen` is the last row that was committed when it looked; `is_in_flight` are those that were taken and not yet settled.
    pub(super) fn refilled(
        &mut self,
        want: &WindowQuery,
        rows: Vec<Entry>,
        more: bool,
        seen: Seq,
        is_in_flight: impl Fn(DeliveryId) -> bool,
    ) {
        // A read that nobody asked for any more: whatever it says is old.
        let Some(asked_under) = self.asked.remove(want) else { return };
        if asked_under <= self.forgotten {
            if let WindowQuery::Head(key) = want
                && !self.heads.contains_key(key)
                && !self.busy_keys.contains(key)
            {
                self.want_head(key.clone());
            }
            self.tidy_gone();
            return;
        }
        self.seen = self.seen.max(Some(seen));
        let mut more = more;
        let last = rows.last().cloned();
        let mut overtaken_keys = Vec::new();
        let mut rows: Vec<Entry> = rows
            .into_iter()
            .filter(|row| {
                let came_back = self.gone.get(&row.delivery).is_some_and(|left_under| asked_under <= *left_under)
                    && !plant::is(Plant::StaleReadComesBack);
                if came_back {
                    overtaken_keys.extend(row.ordering_key.clone());
                }
                !came_back && !is_in_flight(row.delivery)
            })
            .collect();
        rows.retain(|row| !self.is_here(row));
        match want {
            WindowQuery::Fresh(class) => {
                let window = self.classes[*class as usize].get_or_insert_default();
                // Between the last row that was read and whatever lies behind it there may be others.
                if let Some(last) = last.filter(|_| more) {
                    while window.fresh.last().is_some_and(|(age, _)| age > last.age()) {
                        window.fresh.pop_last();
                    }
                }
                window.fresh_more = more && !plant::is(Plant::WindowHidesRows);
                window.fresh_unread = window.fresh_unread.filter(|known_under| asked_under <= *known_under);
                window.fresh_seen = window.fresh_seen.max(Some(seen));
                for row in rows {
                    window.fresh.insert(row.age(), Box::new(row));
                }
                while window.fresh.len() > self.size {
                    window.fresh.pop_last();
                    window.fresh_more = true;
                }
            }
            WindowQuery::Later(class) => {
                let window = self.classes[*class as usize].get_or_insert_default();
                if let Some(last) = last.filter(|_| more) {
                    while window.later_waiting.last().is_some_and(|(turn, _)| turn > last.turn())
                        && let Some(behind) = window.later_waiting.pop_last()
                    {
                        self.known.remove(behind.delivery);
                        window.later_count -= 1;
                    }
                }
                for row in &rows {
                    self.known.insert(row.delivery, ());
                }
                window.later_unread = window.later_unread.filter(|known_under| asked_under <= *known_under);
                window.later_seen = window.later_seen.max(Some(seen));
                for row in rows {
                    window.later_waiting.insert(row.turn(), Box::new(row));
                    window.later_count += 1;
                }
                while window.later_count > self.size
                    && let Some(behind) = window.later_waiting.pop_last()
                {
                    self.known.remove(behind.delivery);
                    window.later_count -= 1;
                    more = true;
                }
                window.later_more = more;
            }
            WindowQuery::Heads { .. } => {
                self.scan.page_read(last.and_then(|row| row.ordering_key).filter(|_| more));
                self.insert_heads(rows);
            }
            WindowQuery::Head(_) => self.insert_heads(rows),
        }
        // This read has found what is not the head of its key any more, and not what is.
        for key in overtaken_keys {
            if !self.heads.contains_key(&key) && !self.busy_keys.contains(&key) {
                self.want_head(key);
            }
        }
        self.tidy_gone();
        debug_assert!(self.is_bounded() || plant::is(Plant::RetryGrowsWindow), "{self:?}");
    }

    /// What no read that is under way can bring back.
    fn tidy_gone(&mut self) {
        match self.asked.values().min().copied() {
            None => self.gone.clear(),
            Some(oldest) => self.gone.retain(|_, left_under| oldest <= *left_under),
        }
    }

    fn insert_heads(&mut self, rows: Vec<Entry>) {
        for row in rows {
            self.insert_head(row);
        }
    }

    fn insert_head(&mut self, row: Entry) {
        let key = row.ordering_key.clone().expect("a head has a key");
        if plant::is(Plant::BlockedKeyBlocksAll) && !self.keyed_waiting.is_empty() {
            return;
        }
        if self.busy_keys.contains(&key) || self.is_here(&row) {
            return;
        }
        match self.heads.get(&key).copied() {
            None => {}
            // Numbers are taken before a commit: a lower one can become visible after a higher one, and then goes before it.
            Some(head) if row.seq < head && !plant::is(Plant::LateHeadStaysOut) => self.drop_head(head),
            Some(_) => return,
        }
        self.keep_head(key, Box::new(row));
    }

    /// This is not the head of its key any more. It is read again when it is.
    fn drop_head(&mut self, seq: Seq) {
        let place_in = |queue: &Rows| queue.iter().find(|(_, entry)| entry.seq == seq).map(|(place, _)| place);
        if let Some(place) = place_in(&self.keyed_waiting) {
            let head = self.keyed_waiting.remove(place).expect("just found");
            self.known.remove(head.delivery);
            return;
        }
        for window in self.classes.iter_mut().flatten() {
            if let Some(place) = place_in(&window.ripe) {
                let head = window.ripe.remove(place).expect("just found");
                window.ripe_heads -= 1;
                self.known.remove(head.delivery);
            }
        }
    }

    /// Keeps the head of a key, and leaves out the one that is due last if there are too many.
    fn keep_head(&mut self, key: OrderingKey, head: Box<Entry>) {
        if plant::is(Plant::DueHeadStaysOut) && self.keyed_waiting.len() >= self.size {
            return;
        }
        self.heads.insert(key, head.seq);
        self.known.insert(head.delivery, ());
        self.keyed_waiting.insert(head.turn(), head);
        let grows = plant::is(Plant::RetryGrowsWindow) && self.keyed_waiting.iter().any(|(_, head)| head.attempts > 0);
        if self.keyed_waiting.len() > self.size
            && !grows
            && let Some(last) = self.keyed_waiting.pop_last()
        {
            self.leave_out(&last);
        }
    }

    /// This head has no room here. A later scan reads it again.
    fn leave_out(&mut self, head: &Entry) {
        self.heads.remove(head.ordering_key.as_ref().expect("a head has a key"));
        self.known.remove(head.delivery);
        self.scan.left_out(head.class, head.due);
    }

    /// Moves what has become due to where it can go. `rest_may_go` is false while it is quiet.
    pub(super) fn ripen(&mut self, now: Timestamp, rest_may_go: bool) {
        for window in self.classes.iter_mut().flatten() {
            while let Some(((due, _), first)) = window.later_waiting.first() {
                let is_asked_for = plant::is(Plant::DeliverAtIgnored) && first.attempts == 0;
                if due > now && !is_asked_for {
                    break;
                }
                let entry = window.later_waiting.pop_first().expect("the first");
                window.ripe.insert(entry.age(), entry);
            }
        }
        while self.keyed_waiting.first().is_some_and(|((due, _), _)| due <= now)
            && let Some(entry) = self.keyed_waiting.pop_first()
        {
            let window = self.classes[entry.class as usize].get_or_insert_default();
            window.ripe.insert(entry.age(), entry);
            window.ripe_heads += 1;
            if window.ripe_heads > self.size
                && let Some(youngest) = window.take_youngest_head()
            {
                self.leave_out(&youngest);
            }
        }
        self.scan.wake(now, rest_may_go);
    }

    /// The next to go: priority first, then the oldest. `rest_may_go` is false while it is quiet; `may_go` is asked of
    /// each candidate, because a row's class may be older than the present configuration.
    pub(super) fn best(&self, rest_may_go: bool, may_go: impl Fn(&Entry) -> bool) -> Option<EntryPlace> {
        if plant::is(Plant::PriorityIgnored) {
            return self.oldest(if rest_may_go { &Class::ALL } else { &[Class::Priority, Class::Exempt] }, &may_go);
        }
        self.oldest(&[Class::Priority], &may_go).or_else(|| {
            let others: &[Class] = if rest_may_go { &[Class::Exempt, Class::Rest] } else { &[Class::Exempt] };
            self.oldest(others, &may_go)
        })
    }

    /// The oldest of these classes, whatever its priority.
    pub(super) fn oldest(&self, classes: &[Class], may_go: impl Fn(&Entry) -> bool) -> Option<EntryPlace> {
        classes
            .iter()
            .filter_map(|class| Some((class, self.classes[*class as usize].as_ref()?)))
            .flat_map(|(class, window)| {
                let first = |queue: &Rows, is_fresh| {
                    let first = queue.iter().find(|(_, entry)| may_go(entry));
                    let last = || queue.iter().rfind(|(_, entry)| may_go(entry));
                    let (age, _) = if plant::is(Plant::YoungestFirst) { last() } else { first }?;
                    Some(EntryPlace { class: *class, is_fresh, age })
                };
                [first(&window.fresh, true), first(&window.ripe, false)]
            })
            .flatten()
            .min_by_key(|place| place.age)
    }

    pub(super) fn get(&self, place: EntryPlace) -> &Entry {
        let window = self.classes[place.class as usize].as_ref().expect("a place is used before anything changes");
        let queue = if place.is_fresh { &window.fresh } else { &window.ripe };
        queue.get(place.age).expect("a place is used before anything changes")
    }

    /// Takes an entry out, to be sent or ended. Its key is busy until [`Window::settled`].
    #[expect(clippy::unnecessary_box_returns, reason = "it stays in the box that it was offered in")]
    pub(super) fn take(&mut self, place: EntryPlace) -> Box<Entry> {
        let window = self.classes[place.class as usize].as_mut().expect("a place is used before anything changes");
        let queue = if place.is_fresh { &mut window.fresh } else { &mut window.ripe };
        let entry = queue.remove(place.age).expect("a place is used before anything changes");
        if !place.is_fresh {
            self.known.remove(entry.delivery);
        }
        if entry.queue() == Queue::Later {
            window.later_count -= 1;
        }
        if let Some(key) = &entry.ordering_key {
            window.ripe_heads -= 1;
            self.heads.remove(key);
            self.busy_keys.insert(key.clone());
        }
        entry
    }

    /// A taken entry has been recorded: it has ended, or it waits again.
    pub(super) fn settled(&mut self, entry: Box<Entry>, waits_again: bool) {
        self.left(entry.delivery);
        if let Some(key) = entry.ordering_key.clone() {
            self.busy_keys.remove(&key);
            if waits_again {
                self.keep_head(key.clone(), entry);
            }
            // While this one was sent, a row with a lower number may have become visible: then that is the head.
            self.await_head(key);
        } else if waits_again {
            self.insert_later(entry);
        }
        debug_assert!(self.is_bounded() || plant::is(Plant::RetryGrowsWindow), "{self:?}");
    }

    /// Somebody else has ended it, or taken it away.
    pub(super) fn remove(&mut self, delivery: DeliveryId, seq: Seq) {
        self.left(delivery);
        // Its commit may not have been heard of yet: from here on only a read brings it.
        self.seen = self.seen.max(Some(seq));
        let mut found = None;
        for window in self.classes.iter_mut().flatten() {
            for queue in [&mut window.fresh, &mut window.ripe, &mut window.later_waiting] {
                let place = queue.iter().find(|(_, entry)| entry.delivery == delivery).map(|(place, _)| place);
                if let Some(place) = place {
                    let entry = queue.remove(place).expect("just found");
                    window.later_count -= usize::from(entry.queue() == Queue::Later);
                    window.ripe_heads -= usize::from(entry.queue() == Queue::Keyed);
                    found = Some(entry);
                }
            }
        }
        let place = self.keyed_waiting.iter().find(|(_, entry)| entry.delivery == delivery).map(|(place, _)| place);
        if let Some(place) = place {
            found = self.keyed_waiting.remove(place);
        }
        self.known.remove(delivery);
        if let Some(key) = found.as_ref().and_then(|entry| entry.ordering_key.clone()) {
            self.heads.remove(&key);
            self.want_head(key);
        } else if found.is_none() && self.scan.may_find_more() {
            // Perhaps it was a head that was left out: what comes after it in its key may be due sooner.
            self.scan_keys();
        }
    }

    /// A delivery of this key is in flight elsewhere.
    pub(super) fn mark_key_busy(&mut self, key: OrderingKey) {
        self.busy_keys.insert(key);
    }

    pub(super) fn mark_key_free(&mut self, key: OrderingKey) {
        self.busy_keys.remove(&key);
        self.want_head(key);
    }

    /// It is not where a read that is under way may have seen it.
    pub(super) fn left(&mut self, delivery: DeliveryId) {
        if self.asked.is_empty() {
            return;
        }
        self.gone.insert(delivery, self.ask_number);
        // The store is slow and much has left since it was asked: its answer is of no use, and is asked for again.
        if self.gone.len() > GONE_PER_ROW_MAX * self.size {
            self.forgotten = self.ask_number;
            self.gone.clear();
        }
    }

    /// The lists that decide over classes have changed, or rows were stamped anew: everything is read again.
    pub(super) fn forget(&mut self) {
        self.classes = [None, None, None];
        self.keyed_waiting.clear();
        self.heads.clear();
        self.known.clear();
        self.forgotten = self.ask_number;
        self.scan = KeyScan::started();
        self.mark_unread();
    }

    /// What should be read from the store now. Each is asked for once until it is answered.
    /// Call after [`Window::ripen`], with the same `rest_may_go`.
    pub(super) fn wants(&mut self, low_water: usize, rest_may_go: bool) -> Vec<WindowQuery> {
        let mut wants = Vec::new();
        for class in Class::ALL {
            let Some(window) = &self.classes[class as usize] else { continue };
            if window.fresh_unread.is_some() || window.fresh_more && window.fresh.len() < low_water {
                wants.push(WindowQuery::Fresh(class));
            }
            if window.later_unread.is_some() || window.later_more && window.later_count < low_water {
                wants.push(WindowQuery::Later(class));
            }
        }
        // Heads that cannot go yet do not count: behind them there may be some that can.
        let open: &[Class] = if rest_may_go { &Class::ALL } else { &[Class::Priority, Class::Exempt] };
        let open_heads: usize =
            open.iter().filter_map(|class| self.classes[*class as usize].as_ref()).map(|window| window.ripe_heads).sum();
        if self.scan.is_running && open_heads < low_water {
            wants.push(WindowQuery::Heads { after: self.scan.after.clone() });
        }
        wants.extend(self.heads_wanted.iter().cloned().map(WindowQuery::Head));
        wants.retain(|want| !self.asked.contains_key(want));
        // A key whose head is being read has had news since: it is read once more.
        self.heads_wanted.retain(|key| self.asked.contains_key(&WindowQuery::Head(key.clone())));
        for want in &wants {
            self.ask_number += 1;
            self.asked.insert(want.clone(), self.ask_number);
        }
        debug_assert!(self.is_bounded() || plant::is(Plant::RetryGrowsWindow), "{self:?}");
        wants
    }

    /// Whether every part of this window is within its bound, whatever the backlog.
    pub(super) fn is_bounded(&self) -> bool {
        let reads_max = self.size + Class::ALL.len() * 2 + 1;
        let classes = self.classes.iter().flatten();
        let mut largest_queues = classes.map(|window| window.fresh.len().max(window.later_count).max(window.ripe_heads));
        // A planted bug keeps more than the head of a key.
        let waiting = if plant::is(Plant::RetryOvertakesInKey) { 0 } else { self.keyed_waiting.len() };
        largest_queues.all(|rows| rows <= self.size)
            && waiting <= self.size
            && self.heads_wanted.len() <= self.size
            && self.asked.len() <= reads_max
            && self.gone.len() <= GONE_PER_ROW_MAX * self.size
    }

    /// The store has been asked and has not answered.
    pub(super) fn is_being_read(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Everything of *fresh* and *later* that waits is here, and nothing waits under a key.
    pub(super) fn is_whole(&self) -> bool {
        let has_keys = self.scan.may_find_more()
            || !(self.heads.is_empty()
                && self.busy_keys.is_empty()
                && self.heads_wanted.is_empty()
                && self.keyed_waiting.is_empty());
        let is_whole = |window: &ClassWindow| {
            !window.fresh_more && !window.later_more && window.fresh_unread.is_none() && window.later_unread.is_none()
        };
        !has_keys && self.classes.iter().flatten().all(|window| is_whole(window))
    }

    /// Everything that is here.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        let classes = self.classes.iter().flatten();
        let rows = classes.flat_map(|window| window.fresh.iter().chain(window.ripe.iter()).chain(window.later_waiting.iter()));
        rows.chain(self.keyed_waiting.iter()).map(|(_, entry)| &**entry)
    }

    /// A queue has rows in the store and none here: whatever is here may not be the next to go. The read is under way.
    pub(super) fn is_blind(&self) -> bool {
        let classes = self.classes.iter().flatten().any(|window| {
            let fresh = window.fresh_unread.is_some() || window.fresh_more && window.fresh.is_empty();
            fresh || window.later_unread.is_some() || window.later_more && window.later_count == 0
        });
        classes || self.scan.is_running && self.heads.is_empty()
    }

    /// When something that is not yet due will be.
    pub(super) fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        let waiting = self.classes.iter().flatten().filter_map(|window| window.later_waiting.first());
        let keyed = self.keyed_waiting.first();
        let left_out = self.scan.left_out_due.iter().flatten().copied();
        waiting.chain(keyed).map(|((due, _), _)| due).chain(left_out).filter(|due| now < *due).min()
    }

    /// Nothing here, nothing in the store, nothing being read.
    pub(super) fn is_empty(&self) -> bool {
        let is_empty = |window: &ClassWindow| {
            window.fresh.is_empty()
                && window.ripe.is_empty()
                && window.later_waiting.is_empty()
                && !window.fresh_more
                && window.fresh_unread.is_none()
                && !window.later_more
                && window.later_unread.is_none()
        };
        self.classes.iter().flatten().all(|window| is_empty(window))
            && self.keyed_waiting.is_empty()
            && self.busy_keys.is_empty()
            && !self.scan.may_find_more()
            && self.heads_wanted.is_empty()
            && self.asked.is_empty()
    }
}
