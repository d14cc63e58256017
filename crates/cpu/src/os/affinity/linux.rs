//! Linux: sets of processors.

/// What keeps threads from being pinned on this system.
pub(crate) const CANNOT: Option<&str> = None;

/// Pins the calling thread. A processor that does not exist is ignored: the thread then runs where it is put.
pub(crate) fn pin(cpu: usize) {
    if cpu >= libc::CPU_SETSIZE as usize {
        return;
    }
    // SAFETY: the set is plain data, zero is an empty one, and `cpu` is inside it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// The processor that the calling thread runs on.
#[cfg(test)]
pub(super) fn current() -> usize {
    // SAFETY: asks for a number.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap()
}
