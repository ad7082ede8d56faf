//! What the operating system says of this process, under the names that everybody's dashboards know.

use crate::page::Page;

/// Linux counts processor time in these, whatever the machine.
const TICKS_PER_SECOND: f64 = 100.0;
const PAGE_BYTES: f64 = 4096.0;

/// Leaves out what cannot be read, as on a system that has no `/proc`.
pub(crate) fn show(page: &mut Page) {
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else { return };
    // The name comes second, in brackets, and may have anything in it.
    let Some((_, rest)) = stat.rsplit_once(") ") else { return };
    let fields: Vec<f64> = rest.split(' ').skip(1).map(|field| field.trim().parse().unwrap_or(0.0)).collect();
    // Numbered from the field after the state, which is the fourth of all.
    let field = |number: usize| fields.get(number - 4).copied().unwrap_or(0.0);
    let processor_seconds = (field(14) + field(15)) / TICKS_PER_SECOND;
    page.family("process_cpu_seconds_total", crate::page::Kind::Counter, "Processor time spent, in seconds.")
        .sample(&[], processor_seconds);
    page.gauge("process_threads", "Threads.", field(20));
    page.gauge("process_virtual_memory_bytes", "Virtual memory, in bytes.", field(23));
    page.gauge("process_resident_memory_bytes", "Memory that is resident, in bytes.", field(24) * PAGE_BYTES);
    if let Some(booted_at) = booted_at() {
        let started_at = booted_at + field(22) / TICKS_PER_SECOND;
        page.gauge("process_start_time_seconds", "When the process started, in seconds since 1970.", started_at);
    }
    if let Ok(descriptors) = std::fs::read_dir("/proc/self/fd") {
        page.gauge("process_open_fds", "Open file descriptors.", descriptors.count() as f64);
    }
    if let Some(max) = descriptors_max() {
        page.gauge("process_max_fds", "File descriptors that may be open.", max);
    }
}

fn booted_at() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

fn descriptors_max() -> Option<f64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Format;

    #[test]
    fn memory_time_and_descriptors_are_those_of_this_process() {
        let mut page = Page::new(Format::Text);
        show(&mut page);
        let text = page.end();
        let value = |name: &str| -> f64 {
            let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap_or_else(|| panic!("{name}: {text}"));
            line.rsplit_once(' ').unwrap().1.parse().unwrap()
        };
        assert!(value("process_resident_memory_bytes") > 100_000.0);
        assert!(value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes"));
        assert!(value("process_open_fds") >= 3.0 && value("process_open_fds") <= value("process_max_fds"));
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        assert!((now - value("process_start_time_seconds")).abs() < 600.0);
    }
}
