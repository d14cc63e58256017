//! Programs that a system starts by itself for a user.

/// Why the system cannot start a worker by a systemd unit, if it cannot.
#[cfg(target_os = "linux")]
pub(crate) fn refused() -> Option<&'static str> {
    None
}

/// Why the system cannot start a worker by a systemd unit, if it cannot.
#[cfg(windows)]
pub(crate) fn refused() -> Option<&'static str> {
    Some("Windows has no systemd; have Task Scheduler run oxcart worker when you log on")
}

/// Why the system cannot start a worker by a systemd unit, if it cannot.
#[cfg(not(any(target_os = "linux", windows)))]
pub(crate) fn refused() -> Option<&'static str> {
    Some("this system has no systemd; have launchd, or what it uses instead, run oxcart worker at the start")
}
