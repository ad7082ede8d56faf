//! What the kernel says about its clocks: how long the machine has been up, and whether a time server keeps its wall clock.
//!
//! The one crate with `unsafe` code, because no library that we use makes these two calls. It reads and sets nothing.

use std::time::Duration;

/// Since the machine was started, suspension included; a clock that nobody can set. `None` where there is none.
pub fn boottime() -> Option<Duration> {
    kernel::boottime()
}

/// Whether the kernel reports the wall clock as synchronised. `None` where it does not say.
pub fn is_synchronised() -> Option<bool> {
    kernel::is_synchronised()
}

#[cfg(target_os = "linux")]
mod kernel {
    use std::mem::zeroed;
    use std::time::Duration;

    #[expect(unsafe_code, reason = "std has no clock that counts suspension")]
    pub(super) fn boottime() -> Option<Duration> {
        // SAFETY: a `timespec` is two numbers, which may be zero.
        let mut time: libc::timespec = unsafe { zeroed() };
        // SAFETY: it writes into `time`, which is ours and lives until it returns.
        let answer = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
        let (seconds, nanos) = (u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
        (answer == 0).then(|| Duration::new(seconds, nanos))
    }

    #[expect(unsafe_code, reason = "no library that we use makes this call")]
    pub(super) fn is_synchronised() -> Option<bool> {
        // SAFETY: a `timex` has only numbers, which may be zero; zero `modes` means that nothing is set.
        let mut status: libc::timex = unsafe { zeroed() };
        // SAFETY: it writes into `status`, which is ours and lives until it returns.
        let answer = unsafe { libc::adjtimex(&raw mut status) };
        (answer >= 0).then_some(status.status & libc::STA_UNSYNC == 0)
    }
}

#[cfg(not(target_os = "linux"))]
mod kernel {
    use std::time::Duration;

    pub(super) fn boottime() -> Option<Duration> {
        None
    }

    pub(super) fn is_synchronised() -> Option<bool> {
        None
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #[test]
    fn the_machine_has_been_up_for_as_long_as_the_kernel_says_elsewhere() {
        let uptime = std::fs::read_to_string("/proc/uptime").expect("Linux has it");
        let seconds: f64 = uptime.split(' ').next().and_then(|seconds| seconds.parse().ok()).expect("a number");
        let boottime = super::boottime().expect("Linux has it").as_secs_f64();
        assert!((boottime - seconds).abs() < 5.0, "{boottime} {seconds}");
        // Whatever it says, it says something.
        assert!(super::is_synchronised().is_some());
    }
}
