//! Names for what is sent back, and when it was made.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// A name that nothing else has: `chatcmpl-…`. It is no secret.
pub(crate) fn fresh(prefix: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}{:016x}{:08x}", RandomState::new().hash_one(count), count as u32)
}

/// Seconds since 1970.
pub(crate) fn unix(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Seconds since 1970, now.
pub(crate) fn now() -> u64 {
    unix(SystemTime::now())
}

/// A time as `2026-01-31T12:00:00Z`.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).map_or_else(|_| String::new(), |time| time.to_string())
}
