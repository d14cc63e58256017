//! Giving large memory back to the system, a part at a time.
//!
//! A process has one map of its memory. Unmapping gigabytes at once holds it for as long as that takes, 86 ms a gigabyte on Linux,
//! and all who allocate or start a thread meanwhile wait. Emptied in parts before, a mapping is gone in an instant.
#![cfg_attr(
    unix,
    expect(unsafe_code, reason = "the system is told to drop bytes; the block says why no one misses them")
)]

use memmap2::MmapMut;

/// Bytes given back at a time: one or two milliseconds.
#[cfg(unix)]
const PART_BYTES: usize = 16 << 20;

/// Empties a mapping of anonymous memory that is about to go, if it is large. If that fails, or where systems have no such call, it
/// goes at once and whole.
#[cfg(unix)]
pub(crate) fn give_back(mapping: &mut MmapMut) {
    let len = mapping.len();
    if len <= PART_BYTES {
        return;
    }
    for start in (0..len).step_by(PART_BYTES) {
        let part = PART_BYTES.min(len - start);
        // SAFETY: the mapping is borrowed exclusively, so no reference to its bytes exists, and every later one sees either what was
        // there or zeros, both of which are bytes.
        let _ = unsafe { mapping.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, part) };
    }
}

/// Nothing can be given back before the whole.
#[cfg(not(unix))]
pub(crate) fn give_back(_mapping: &mut MmapMut) {}

// Elsewhere bytes may stay until the mapping goes.
#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn large_mappings_are_emptied_whole_and_small_ones_left_alone() {
        for (len, is_large) in [(PART_BYTES, false), (2 * PART_BYTES + 5 * 4096 + 7, true)] {
            let mut mapping = MmapMut::map_anon(len).unwrap();
            mapping.fill(7);
            give_back(&mut mapping);
            let left = if is_large { 0 } else { 7 };
            assert!(mapping.iter().all(|&byte| byte == left), "{len} bytes");
        }
    }
}
