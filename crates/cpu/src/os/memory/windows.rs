//! Windows tells with one call. Limits of a job that this process may be in are not looked at; an allocation beyond them
//! fails, and that is an error like any other.

use oxcart_backend::Memory;
use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX};

pub(crate) fn memory() -> Option<Memory> {
    let mut status = MEMORYSTATUSEX { dwLength: size_of::<MEMORYSTATUSEX>() as u32, ..Default::default() };
    // SAFETY: `status` is writable and says how long it is.
    if unsafe { GlobalMemoryStatusEx(&raw mut status) } == 0 {
        return None;
    }
    let bytes = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    // Nothing is handed out that neither memory nor the page file could take, whatever is free.
    let free = status.ullAvailPhys.min(status.ullAvailPageFile);
    Some(Memory { free: bytes(free), total: bytes(status.ullTotalPhys) })
}
