//! How much of a processor's time a thread has used.

use std::time::Duration;

/// What the calling thread has used so far; nothing where the system does not say.
#[cfg(any(target_os = "linux", target_os = "macos"))]
pub(crate) fn thread_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(used).unwrap_or_default()
}

/// What the calling thread has used so far; nothing where the system does not say.
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub(crate) fn thread_time() -> Duration {
    Duration::ZERO
}
