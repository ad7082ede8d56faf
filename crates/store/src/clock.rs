//! The one `now()`: the wall clock as far as it can be believed, never backwards within a process, and never standing still.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use posthaste_core::clock_guard::{ClockGuard, Reading, Suspicion};
use posthaste_core::time::Timestamp;

/// The kernel is asked so often whether the wall clock is synchronised.
const SYNCHRONISED_ASKED_EVERY: Duration = Duration::from_millis(500);

/// How the clocks stand, for `/readyz`, metrics and people.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ClockStatus {
    /// How far the wall clock of this machine is off from the database's, where that has one of its own.
    pub skew: Option<Duration>,
    /// The wall clock has jumped, and time goes on from where it was until that is confirmed.
    pub suspicion: Option<Suspicion>,
}

/// The clocks of a machine. A test has its own.
pub trait ClockSource: fmt::Debug + Send + Sync {
    /// What the wall clock shows, since 1970.
    fn wall(&self) -> Duration;
    /// Since the machine was started, suspension included.
    fn boottime(&self) -> Duration;
    /// Whether the kernel reports the wall clock as synchronised; `None` where it does not say.
    fn is_synchronised(&self) -> Option<bool>;
    /// The name of this start of the machine.
    fn boot_id(&self) -> String;
}

/// Those of this machine.
#[derive(Debug)]
pub struct SystemClock {
    started: Instant,
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock { started: Instant::now() }
    }
}

impl ClockSource for SystemClock {
    fn wall(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    fn boottime(&self) -> Duration {
        // Where there is no such clock, the next best: a suspension is taken for a jump then.
        posthaste_kernel_clock::boottime().unwrap_or_else(|| self.started.elapsed())
    }

    fn is_synchronised(&self) -> Option<bool> {
        posthaste_kernel_clock::is_synchronised()
    }

    fn boot_id(&self) -> String {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        id.trim().to_owned()
    }
}

/// What is kept of a clock that was suspect, so that a restart does not forget it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KeptSuspicion {
    pub(crate) boot_id: String,
    /// The wall clock less the time since the start of the machine, as it was trusted.
    pub(crate) trusted_offset_ms: i64,
    /// What time was believed when this was written.
    pub(crate) believed: Timestamp,
    pub(crate) jumped_by: Duration,
}

impl KeptSuspicion {
    pub(crate) fn to_text(&self) -> String {
        let KeptSuspicion { boot_id, trusted_offset_ms, believed, jumped_by } = self;
        format!("{trusted_offset_ms} {} {} {boot_id}", believed.as_millis(), jumped_by.as_millis())
    }

    pub(crate) fn parse(text: &str) -> Option<KeptSuspicion> {
        let mut words = text.splitn(4, ' ');
        let mut number = || words.next()?.parse::<i64>().ok();
        let (trusted_offset_ms, believed, jumped_by) = (number()?, number()?, number()?);
        Some(KeptSuspicion {
            trusted_offset_ms,
            believed: Timestamp::from_millis(believed),
            jumped_by: Duration::from_millis(jumped_by.unsigned_abs()),
            boot_id: words.next().unwrap_or_default().to_owned(),
        })
    }
}

/// Follows the wall clock as far as it can be believed. When that is set back, it goes on at half speed until the wall has caught
/// up: what is due still comes due, and no time is seen twice.
#[derive(Debug)]
pub struct Clock {
    source: Arc<dyn ClockSource>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    guard: ClockGuard,
    shown: Shown,
    /// What the kernel last said about synchronisation, and when.
    synchronised: (Duration, Option<bool>),
}

#[derive(Clone, Copy, Debug)]
struct Shown {
    boottime: Duration,
    /// Since 1970, to the microsecond so that halves add up.
    time: Duration,
}

impl Clock {
    /// Believes what the source shows first.
    pub fn starting(source: Arc<dyn ClockSource>) -> Clock {
        Clock::new(source, None)
    }

    /// Goes on with what an earlier process suspected, if it did.
    pub(crate) fn new(source: Arc<dyn ClockSource>, kept: Option<KeptSuspicion>) -> Clock {
        let (wall, boottime, is_synchronised) = (source.wall(), source.boottime(), source.is_synchronised());
        let reading = Reading { wall: timestamp(wall), boottime, is_synchronised };
        let guard = match kept {
            None => ClockGuard::new(&reading),
            Some(kept) if kept.boot_id == source.boot_id() => ClockGuard::trusting(kept.trusted_offset_ms),
            // The machine was started again: nobody knows how long it was off, but it is later than it was.
            Some(kept) => {
                let believed = Reading { wall: kept.believed, ..reading };
                ClockGuard::new(&believed)
            }
        };
        let state = State { guard, shown: Shown { boottime, time: Duration::ZERO }, synchronised: (boottime, is_synchronised) };
        let clock = Clock { source, state: Mutex::new(state) };
        clock.now();
        clock
    }

    pub fn now(&self) -> Timestamp {
        let mut state = self.state.lock();
        let (wall, boottime) = (self.source.wall(), self.source.boottime());
        if boottime.abs_diff(state.synchronised.0) >= SYNCHRONISED_ASKED_EVERY {
            state.synchronised = (boottime, self.source.is_synchronised());
        }
        let reading = Reading { wall: timestamp(wall), boottime, is_synchronised: state.synchronised.1 };
        let before = state.guard.suspicion();
        let believed = state.guard.read(&reading);
        let suspicion = state.guard.suspicion();
        tell(before, suspicion);
        let time = if suspicion.is_some() { since_1970(believed) } else { wall };
        state.shown = state.shown.followed_by(boottime, time);
        timestamp(state.shown.time)
    }

    /// What the wall shows, jumps and all: what a receiver compares a signature with.
    pub(crate) fn wall(&self) -> Timestamp {
        timestamp(self.source.wall())
    }

    pub(crate) fn status(&self) -> ClockStatus {
        self.now();
        ClockStatus { skew: None, suspicion: self.state.lock().guard.suspicion() }
    }

    /// An operator says that it is right.
    pub(crate) fn accept(&self) {
        let mut state = self.state.lock();
        let before = state.guard.suspicion();
        state.guard.accept();
        tell(before, None);
    }

    /// What has to be kept while it is suspect.
    pub(crate) fn suspicion_to_keep(&self) -> Option<KeptSuspicion> {
        let believed = self.now();
        let state = self.state.lock();
        let suspicion = state.guard.suspicion()?;
        Some(KeptSuspicion {
            boot_id: self.source.boot_id(),
            trusted_offset_ms: state.guard.trusted_offset_ms(),
            believed,
            jumped_by: suspicion.jumped_by,
        })
    }
}

/// Once for each change.
fn tell(before: Option<Suspicion>, suspicion: Option<Suspicion>) {
    match (before, suspicion) {
        (before, Some(suspicion)) if before != Some(suspicion) => tracing::error!(
            jumped_by_seconds = suspicion.jumped_by.as_secs(),
            "the wall clock has jumped ahead: publishing and delivering go on by the time before, and nothing expires or is \
             deleted by the new one until it is synchronised, was consistent for an hour, or `posthaste doctor --accept-clock` is run"
        ),
        (Some(_), None) => tracing::warn!("the wall clock is believed again"),
        (_, _) => {}
    }
}

impl Shown {
    fn followed_by(self, boottime: Duration, time: Duration) -> Shown {
        let crept = self.time + boottime.saturating_sub(self.boottime) / 2;
        Shown { boottime, time: if time > self.time { time } else { crept } }
    }
}

fn timestamp(since_1970: Duration) -> Timestamp {
    Timestamp::from_millis(i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX))
}

fn since_1970(timestamp: Timestamp) -> Duration {
    Duration::from_millis(u64::try_from(timestamp.as_millis()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_back_goes_on_slowly_until_the_wall_has_caught_up() {
        let hours = |hours: u64| Duration::from_hours(hours);
        let mut shown = Shown { boottime: hours(1), time: hours(100) };
        // Set forward by two hours, and back again a moment later.
        shown = shown.followed_by(hours(1), hours(102));
        assert_eq!(shown.time, hours(102));
        let mut last = shown.time;
        for passed in 1..=10 {
            shown = shown.followed_by(hours(1 + passed), hours(100 + passed));
            assert!(last < shown.time, "it neither stands still nor goes back");
            last = shown.time;
        }
        assert_eq!(shown.time, hours(110), "after four hours both agree again");
    }

    #[test]
    fn what_is_kept_of_a_suspicion_can_be_read_again() {
        let kept = KeptSuspicion {
            boot_id: "6f9b".to_owned(),
            trusted_offset_ms: -5,
            believed: Timestamp::from_millis(1_800_000_000_000),
            jumped_by: Duration::from_hours(9_600),
        };
        assert_eq!(KeptSuspicion::parse(&kept.to_text()), Some(kept));
        assert_eq!(KeptSuspicion::parse("nonsense"), None);
    }
}
