//! Having the allocator give memory back.

/// Has the allocator give large blocks back to the system the moment they are freed, and keep few pools of small ones. By
/// default glibc's remembers the largest block that a program has freed and keeps about as much from then on, in up to eight
/// pools for every processor: a server would hold as much memory as its most demanding client ever used. Other
/// allocators are left as they are.
pub fn return_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        /// From here on, blocks have pages of their own; the default at the start of a program.
        const LARGE: libc::c_int = 128 << 10;
        /// At most so many of them: the system allows a process 65530 pieces of memory, and ends one that needs more.
        const MOST: libc::c_int = 8192;
        /// Pools; threads share them. Each keeps pages that nothing gets back.
        const POOLS: libc::c_int = 16;
        // SAFETY: these set numbers of the allocator, at any time and from any thread. Setting them also keeps them.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
            libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE);
            libc::mallopt(libc::M_MMAP_MAX, MOST);
            libc::mallopt(libc::M_ARENA_MAX, POOLS);
        }
    }
}

/// Has the allocator give back what it keeps of freed memory, wherever it lies. Takes about as long as looking at every page;
/// for moments when there is nothing else to do.
pub fn return_kept_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: may be called at any time and from any thread; memory in use is not touched.
    unsafe {
        libc::malloc_trim(0);
    }
}
