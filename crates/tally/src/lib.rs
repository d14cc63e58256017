//! An allocator that counts, for tests of what code allocates and holds.
//!
//! A test that uses anything of this crate has it as its allocator; there is nothing else to declare, and so nothing to
//! forget. Counts are exact, unlike the resident size of a process, which also holds what the allocator keeps for later.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

/// The most that was ever live since it was set back.
static PEAK: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

/// How often this thread has allocated, or made an allocation larger or smaller.
pub fn allocations() -> usize {
    COUNT.get()
}

/// The bytes that all threads hold, with what the system's allocator adds to each block.
pub fn live_bytes() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// The most bytes that all threads together hold while something is done, beyond those before. Only one thread of a program may
/// measure at a time.
pub fn peak_bytes(act: impl FnOnce()) -> usize {
    let before = live_bytes();
    PEAK.store(before, Ordering::Relaxed);
    act();
    PEAK.load(Ordering::Relaxed).saturating_sub(before)
}

fn add(bytes: usize) {
    let before = LIVE.fetch_add(bytes, Ordering::Relaxed);
    PEAK.fetch_max(before + bytes, Ordering::Relaxed);
}

/// What a block takes: eight bytes of administration, in steps of sixteen, and no less than two steps.
fn taken(size: usize) -> usize {
    (size + 8).next_multiple_of(16).max(32)
}

// SAFETY: everything is done by the system's allocator; counting touches only an atomic and a thread-local without a
// destructor, neither of which allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        add(taken(layout.size()));
        // SAFETY: the caller keeps the contract of this very function.
        unsafe { System.alloc(layout) }
    }

    // The default one writes zeros, and so makes memory resident that was not used yet.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        add(taken(layout.size()));
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    // The default one copies, where the system can often move pages or grow in place.
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        let new = taken(size);
        add(new);
        // SAFETY: as above.
        let moved = unsafe { System.realloc(pointer, layout, size) };
        // If there is no room, the old block stays.
        LIVE.fetch_sub(if moved.is_null() { new } else { taken(layout.size()) }, Ordering::Relaxed);
        moved
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(taken(layout.size()), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_counted() {
        const LARGE: usize = 1 << 24;
        // Other threads of the test allocate and free as well, but little.
        const LITTLE: usize = 1 << 20;
        let (count, live) = (allocations(), live_bytes());
        let mut list = Vec::<u8>::with_capacity(LARGE);
        assert_eq!(allocations(), count + 1);
        assert!(live_bytes() + LITTLE >= live + LARGE);
        list.reserve_exact(2 * LARGE);
        assert_eq!(allocations(), count + 2);
        drop(list);
        assert!(live_bytes() < live + LITTLE);
        let peak = peak_bytes(|| drop(Vec::<u8>::with_capacity(LARGE)));
        assert!(peak + LITTLE >= LARGE && peak < LARGE + LITTLE, "{peak}");
    }
}
