//! Times and processor seconds.

use std::time::Duration;

/// The value below which so many percent of them are. `None` of nothing.
pub(super) fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// Milliseconds, for tables and for JSON.
pub(super) fn millis(duration: Option<Duration>) -> f64 {
    duration.map_or(f64::NAN, |duration| (duration.as_secs_f64() * 1e6).round() / 1e3)
}

/// What the threads of this process have used so far whose names begin otherwise than `not`. Zero where there is no `/proc`.
pub(super) fn processor_time_except(not: &str) -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks
        .filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| !name.starts_with(not)))
        .filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|line| line.split(' ').next()?.parse().ok())
        .map(Duration::from_nanos)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let values: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(percentile(&values, 50), Some(Duration::from_millis(50)));
        assert_eq!(percentile(&values, 99), Some(Duration::from_millis(99)));
        assert_eq!(percentile(&values[..1], 99), Some(Duration::from_millis(1)));
        assert_eq!(percentile(&[], 50), None);
    }
}
