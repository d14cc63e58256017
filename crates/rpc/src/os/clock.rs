//! A clock that cannot be set, and that goes on while the machine sleeps.

use std::time::Duration;

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
/// Elsewhere the ordinary one counts sleep, too.
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

/// Time since some moment, sleep included.
#[cfg(unix)]
pub(crate) fn now() -> Duration {
    Duration::try_from(rustix::time::clock_gettime(CLOCK)).unwrap_or_default()
}

/// Time since some moment, sleep included: the system's counter of performance goes on in sleep.
#[cfg(windows)]
pub(crate) fn now() -> Duration {
    use std::sync::LazyLock;
    use std::time::Instant;
    static SINCE: LazyLock<Instant> = LazyLock::new(Instant::now);
    SINCE.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_of_join_lines_goes_on_in_sleep() {
        let before = now();
        std::thread::sleep(Duration::from_millis(20));
        assert!(now() >= before + Duration::from_millis(20));
        // It is never behind the one that stops in sleep.
        #[cfg(target_os = "linux")]
        {
            let awake = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            assert!(now() >= Duration::try_from(awake).unwrap());
            assert_eq!(CLOCK, rustix::time::ClockId::Boottime);
        }
    }
}
