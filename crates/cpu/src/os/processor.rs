//! What the processor calls itself, where the system passes it on.

/// The name of the processor.
#[cfg(target_os = "linux")]
pub(crate) fn name() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.trim().strip_prefix(':'))?;
    Some(name.trim().to_owned())
}

/// The name of the processor, from the registry.
#[cfg(windows)]
pub(crate) fn name() -> Option<String> {
    use windows_sys::Win32::System::Registry::{HKEY_LOCAL_MACHINE, RRF_RT_REG_SZ, RegGetValueW};
    use windows_sys::w;
    let mut text = [0_u16; 128];
    let mut bytes = size_of_val(&text) as u32;
    // SAFETY: both names end with a zero; `text` can be written for as long as `bytes` says.
    let status = unsafe {
        RegGetValueW(
            HKEY_LOCAL_MACHINE,
            w!("HARDWARE\\DESCRIPTION\\System\\CentralProcessor\\0"),
            w!("ProcessorNameString"),
            RRF_RT_REG_SZ,
            std::ptr::null_mut(),
            text.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    let text = text.split(|&unit| unit == 0).next()?;
    let name = String::from_utf16_lossy(text).trim().to_owned();
    (status == 0 && !name.is_empty()).then_some(name)
}

/// The name of the processor.
#[cfg(not(any(target_os = "linux", windows)))]
pub(crate) fn name() -> Option<String> {
    let mut system = sysinfo::System::new();
    system.refresh_cpu_list(sysinfo::CpuRefreshKind::nothing());
    let name = system.cpus().first()?.brand().trim().to_owned();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_name_is_one_line_that_says_something() {
        // Not every system passes it on.
        let name = super::name().unwrap_or("x".to_owned());
        assert!(!name.trim().is_empty() && !name.contains(['\n', '\0']), "{name:?}");
    }
}
