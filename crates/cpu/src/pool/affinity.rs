//! Pinning a thread to a processor, where the system can.

/// Pins the calling thread; does nothing without a processor, or where the system has no such call. A processor that
/// does not exist is ignored: the thread then runs where it is put.
#[cfg(target_os = "linux")]
pub(super) fn pin(cpu: Option<usize>) {
    let Some(cpu) = cpu.filter(|&cpu| cpu < libc::CPU_SETSIZE as usize) else { return };
    // SAFETY: the set is plain data, zero is an empty one, and `cpu` is inside it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn pin(_cpu: Option<usize>) {}
