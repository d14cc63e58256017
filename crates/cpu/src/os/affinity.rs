//! Pinning a thread to a processor.

#[cfg(target_os = "linux")]
#[path = "affinity/linux.rs"]
mod system;
#[cfg(windows)]
#[path = "affinity/windows.rs"]
mod system;
#[cfg(not(any(target_os = "linux", windows)))]
#[path = "affinity/refused.rs"]
mod system;

pub(crate) use system::{CANNOT, pin};

#[cfg(test)]
mod tests {
    #[cfg(any(target_os = "linux", windows))]
    #[test]
    fn a_pinned_thread_stays_where_it_is() {
        use super::system::{current, pin};
        assert_eq!(super::CANNOT, None);
        // In a thread of its own: others are not to be pinned.
        let stays = std::thread::spawn(|| {
            let here = current();
            pin(here);
            (0..1000).all(|_| {
                std::thread::yield_now();
                current() == here
            })
        });
        assert!(stays.join().unwrap());
    }

    #[cfg(not(any(target_os = "linux", windows)))]
    #[test]
    fn a_system_without_it_says_so() {
        assert!(super::CANNOT.is_some());
    }
}
