//! How much memory this program may use: the machine's, or less where a container or a control group says so.

use oxcart_backend::Memory;

// Files can be read on any system, so its tests run wherever tests do.
#[cfg(any(target_os = "linux", test))]
mod linux;
#[cfg(windows)]
mod windows;

/// Memory now; `None` when the system does not tell.
#[cfg(target_os = "linux")]
pub(crate) fn memory() -> Option<Memory> {
    linux::memory(std::path::Path::new("/"))
}

/// Memory now; `None` when the system does not tell.
#[cfg(windows)]
pub(crate) fn memory() -> Option<Memory> {
    windows::memory()
}

/// Memory now; `None` when the system does not tell.
#[cfg(not(any(target_os = "linux", windows)))]
pub(crate) fn memory() -> Option<Memory> {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let bytes = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    let (free, total) = (bytes(system.available_memory()), bytes(system.total_memory()));
    (total > 0).then_some(Memory { free, total })
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_machine_has_memory_and_some_of_it_is_free() {
        let memory = super::memory().unwrap();
        assert!(0 < memory.free && memory.free <= memory.total, "{memory:?}");
        assert!(memory.total > 64 << 20, "{memory:?}");
    }
}
