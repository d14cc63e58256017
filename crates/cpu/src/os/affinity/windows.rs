//! Windows: processors are counted through groups of up to 64.

use windows_sys::Win32::System::SystemInformation::GROUP_AFFINITY;
use windows_sys::Win32::System::Threading::{
    GetActiveProcessorCount, GetActiveProcessorGroupCount, GetCurrentThread, SetThreadGroupAffinity,
};

/// What keeps threads from being pinned on this system.
pub(crate) const CANNOT: Option<&str> = None;

/// Pins the calling thread. A processor that does not exist is ignored: the thread then runs where it is put.
pub(crate) fn pin(cpu: usize) {
    let mut inside = cpu;
    // SAFETY: asks for a number.
    for group in 0..unsafe { GetActiveProcessorGroupCount() } {
        // SAFETY: the same.
        let processors = unsafe { GetActiveProcessorCount(group) } as usize;
        if inside < processors {
            let place = GROUP_AFFINITY { Mask: 1 << inside, Group: group, ..Default::default() };
            // SAFETY: `place` can be read, and the handle is this thread's own, which needs no closing.
            unsafe { SetThreadGroupAffinity(GetCurrentThread(), &raw const place, std::ptr::null_mut()) };
            return;
        }
        inside -= processors;
    }
}

/// The processor that the calling thread runs on.
#[cfg(test)]
pub(super) fn current() -> usize {
    use windows_sys::Win32::System::Kernel::PROCESSOR_NUMBER;
    use windows_sys::Win32::System::Threading::GetCurrentProcessorNumberEx;
    let mut place = PROCESSOR_NUMBER::default();
    // SAFETY: `place` can be written.
    unsafe { GetCurrentProcessorNumberEx(&raw mut place) };
    // SAFETY: asks for a number.
    let before = (0..place.Group).map(|group| unsafe { GetActiveProcessorCount(group) } as usize);
    before.sum::<usize>() + usize::from(place.Number)
}
