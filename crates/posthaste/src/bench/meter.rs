//! Times, processor seconds, memory and bytes: what everything else is told in.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the machine's own clock, which is the same in every process on it and never set back.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let [seconds, nanos] = [now.tv_sec, now.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    seconds * 1_000_000_000 + nanos
}

/// How long something took, each time it was done.
#[derive(Clone, Default, Debug)]
pub(super) struct Spread {
    sorted: Vec<Duration>,
}

impl Spread {
    pub(super) fn of(durations: impl IntoIterator<Item = Duration>) -> Spread {
        let mut sorted: Vec<Duration> = durations.into_iter().collect();
        sorted.sort_unstable();
        Spread { sorted }
    }

    pub(super) fn count(&self) -> usize {
        self.sorted.len()
    }

    /// The value that so many of a thousand do not exceed. `None` of nothing.
    pub(super) fn at(&self, per_mille: usize) -> Option<Duration> {
        let rank = (self.sorted.len() * per_mille).div_ceil(1000).max(1);
        self.sorted.get(rank - 1).copied()
    }

    /// The same in milliseconds, not a number where there is none.
    pub(super) fn millis_at(&self, per_mille: usize) -> f64 {
        millis(self.at(per_mille))
    }

    /// From the median to the slowest, for a picture: percent and milliseconds.
    pub(super) fn curve(&self) -> Vec<(f64, f64)> {
        const PERCENTS: [f64; 12] = [0.0, 25.0, 50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.8, 99.9, 99.99];
        // A percentile that is finer than the number of values says nothing.
        let finest = 100.0 - 100.0 / (self.sorted.len().max(1) as f64);
        let percents = PERCENTS.into_iter().filter(|percent| *percent <= finest.max(50.0));
        percents.map(|percent| (percent, self.at_percent(percent))).filter(|(_, millis)| millis.is_finite()).collect()
    }

    fn at_percent(&self, percent: f64) -> f64 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place in a list that is in memory")]
        let rank = (self.sorted.len() as f64 * percent / 100.0).ceil() as usize;
        millis(self.sorted.get(rank.max(1) - 1).copied())
    }
}

/// Milliseconds, for tables and for JSON.
pub(super) fn millis(duration: Option<Duration>) -> f64 {
    duration.map_or(f64::NAN, |duration| (duration.as_secs_f64() * 1e6).round() / 1e3)
}

pub(super) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}

/// What the kernel counts processor time in, for everybody who asks: `USER_HZ` is 100 on every machine that Linux is common on.
const TICKS_PER_SECOND: f64 = 100.0;

/// Whose processor time is counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Metered {
    pub(super) process: u32,
    /// The first process of PostgreSQL, where it runs on this machine.
    pub(super) postmaster: Option<u32>,
}

/// Processor seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Used {
    pub(super) server: f64,
    pub(super) database: Option<f64>,
}

/// Nothing is done any more when no processor time was used for so long.
const STANDS_STILL_FOR: Duration = Duration::from_millis(100);
/// Something always goes on in a database; it is not waited for without end.
const SETTLED_MAX: Duration = Duration::from_secs(2);

impl Metered {
    /// Up to now.
    pub(super) fn used(&self) -> Used {
        Used { server: of_process(self.process).unwrap_or(0.0), database: self.postmaster.map(of_postgres) }
    }

    /// When what was begun is done: the last answer of a receiver has still to be written down after it came.
    pub(super) async fn used_when_settled(&self) -> Used {
        let began = Instant::now();
        let mut used = self.used();
        loop {
            tokio::time::sleep(STANDS_STILL_FOR).await;
            let now = self.used();
            // The clock ticks every ten milliseconds, and an idle server is not quite idle.
            let grown = now.server - used.server + now.database.zip(used.database).map_or(0.0, |(now, then)| now - then);
            if grown < 0.015 || began.elapsed() > SETTLED_MAX {
                return now;
            }
            used = now;
        }
    }
}

impl Used {
    pub(super) fn since(&self, before: &Used) -> Used {
        Used { server: self.server - before.server, database: self.database.zip(before.database).map(|(now, before)| now - before) }
    }
}

/// A process and its children that have ended.
fn of_process(process: u32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    ticks(&stat).map(|ticks| ticks as f64 / TICKS_PER_SECOND)
}

/// The postmaster with those of its processes that have ended, and those that live.
fn of_postgres(postmaster: u32) -> f64 {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|process| process.file_name().to_str()?.parse::<u32>().ok());
    let children = numbers.filter(|process| parent(*process) == Some(postmaster));
    children.chain([postmaster]).filter_map(of_process).sum()
}

/// Who has started it.
pub(super) fn parent(process: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    after_name(&stat)?.split(' ').nth(1)?.parse().ok()
}

/// What the kernel calls it.
pub(super) fn name(process: u32) -> Option<String> {
    Some(std::fs::read_to_string(format!("/proc/{process}/comm")).ok()?.trim().to_owned())
}

/// Own and waited-for children's, user and system: the fields 14 to 17.
fn ticks(stat: &str) -> Option<u64> {
    let fields: Vec<&str> = after_name(stat)?.split(' ').collect();
    fields.get(11..15)?.iter().map(|field| field.parse::<u64>().ok()).sum()
}

/// From the third field on. A name may have spaces and parentheses in it.
fn after_name(stat: &str) -> Option<&str> {
    stat.rsplit_once(") ").map(|(_, rest)| rest)
}

/// The most that it has had in memory at once.
pub(super) fn peak_memory_bytes(process: u32) -> u64 {
    memory(process, "VmHWM:")
}

/// What it has in memory.
pub(super) fn resident_bytes(process: u32) -> u64 {
    memory(process, "VmRSS:")
}

fn memory(process: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).map_or(0, |kibibytes| kibibytes * 1024)
}

/// Everything in it.
pub(super) fn directory_bytes(path: &Path) -> u64 {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        Some(if metadata.is_dir() { directory_bytes(&entry.path()) } else { metadata.len() })
    });
    sizes.sum()
}

const FLUSHES: u64 = 100;
const PAGE: [u8; 4096] = [b'x'; 4096];
const PAGES: u64 = 64;

/// How long this disk takes to make four kibibytes safe, in a file that does not grow, one time after the other.
pub(super) fn flush_times(directory: &Path) -> anyhow::Result<Spread> {
    flush_times_at(directory, FLUSHES, Duration::ZERO)
}

/// The same for so many, or as many as there are otherwise, with so much time before each, in which the disk and the way there may fall
/// asleep.
pub(super) fn flush_times_at(directory: &Path, flushes: u64, pause: Duration) -> anyhow::Result<Spread> {
    let path = directory.join("flush");
    let file = File::create(&path).with_context(|| format!("cannot write to {}", directory.display()))?;
    let write = |page: u64| file.write_all_at(&PAGE, page % PAGES * PAGE.len() as u64);
    (0..PAGES).try_for_each(write)?;
    file.sync_all()?;
    let mut times = Vec::new();
    for page in 0..flushes.min(FLUSHES) {
        std::thread::sleep(pause);
        let began = Instant::now();
        write(page)?;
        file.sync_data()?;
        times.push(began.elapsed());
    }
    std::fs::remove_file(&path)?;
    Ok(Spread::of(times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let spread = Spread::of((1..=100).rev().map(Duration::from_millis));
        assert_eq!(spread.at(500), Some(Duration::from_millis(50)));
        assert_eq!(spread.at(990), Some(Duration::from_millis(99)));
        assert_eq!(spread.at(999), Some(Duration::from_millis(100)));
        assert_eq!(Spread::of([Duration::from_millis(1)]).at(990), Some(Duration::from_millis(1)));
        assert_eq!(Spread::default().at(500), None);
    }

    #[test]
    fn a_curve_ends_where_there_are_no_values_left_to_tell_apart() {
        let curve = Spread::of((1..=100).map(Duration::from_millis)).curve();
        assert_eq!(curve.first(), Some(&(0.0, 1.0)));
        assert_eq!(curve.last(), Some(&(99.0, 99.0)));
        assert!(Spread::default().curve().is_empty());
    }

    #[test]
    fn processor_time_is_found_whatever_the_process_is_called() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 1 2 3 4 10 20 300 4000 20 0 5 0 1";
        assert_eq!(ticks(stat), Some(4330));
        assert_eq!(after_name(stat).and_then(|rest| rest.split(' ').nth(1)), Some("1"));
        let us = std::process::id();
        assert!(of_process(us).is_some() && parent(us).is_some());
        // The kernel adds them up at its leisure, so that one may lag behind the other.
        assert!(peak_memory_bytes(us) > 0 && resident_bytes(us) > 0);
    }
}
