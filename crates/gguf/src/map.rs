//! Mapped files, and the only unsafe code of the crate.
//!
//! Reading a mapped page that its file no longer has raises SIGBUS, which ends the process unless it is handled.
//! Here, a handler looks the faulting address up in a table of our mappings. If it is one of ours, the lost part
//! of that mapping is replaced by zeros, the mapping is marked as lost and the thread goes on; the user of the
//! mapping learns of it from [`Mapping::check`] and refuses that one model. Any other address is left to the handler
//! that was there before.
//!
//! Invariants:
//! - A slot of the table is live from after its file is mapped until before it is unmapped, so an address found in a
//!   live slot belongs to that mapping.
//! - The handler takes no lock and allocates nothing; it reads atomics and makes one system call.
//!
//! What this cannot promise: a library that later installs a handler of its own and passes nothing on takes the
//! protection away. And a process that writes into the file in place changes what [`Mapping::bytes`] shows.
//! So nothing that was checked lives in a mapping (the header is a private copy), and its bytes are only ever data,
//! for which every pattern is as good as any other. A caller that cannot accept even that uses
//! [`Gguf::read_tensor`](crate::Gguf::read_tensor).

use std::fs::File;

use crate::error::{Error, Result};

/// The bytes of a file, read by the system when they are touched.
///
/// On systems without the signal that this is built around, the file is read into memory instead, all of it at once.
#[derive(Debug)]
pub struct Mapping {
    inner: system::Mapping,
}

impl Mapping {
    pub(crate) fn new(file: &File, len: u64) -> Result<Mapping> {
        if file.metadata().map_err(Error::io("read"))?.len() < len {
            return Err(Error::Shrunk);
        }
        let len = usize::try_from(len).map_err(|_| Error::OutOfMemory { bytes: len })?;
        Ok(Mapping { inner: system::Mapping::new(file, len)? })
    }

    /// All bytes of the file. Those that were lost read as zero; see [`check`](Mapping::check).
    pub fn bytes(&self) -> &[u8] {
        self.inner.bytes()
    }

    /// Fails if the file has become shorter than it was when it was mapped: what was read since then may be wrong.
    /// To be called after every use whose result matters; costs one system call.
    pub fn check(&self) -> Result<()> {
        if self.inner.is_lost() { Err(Error::Shrunk) } else { Ok(()) }
    }
}

// Tested wherever tests run.
#[cfg(any(not(unix), test))]
mod copied;
#[cfg(not(unix))]
use copied as system;

#[cfg(unix)]
#[allow(unsafe_code, reason = "maps files and handles a signal; see the module's header")]
mod system {
    use std::ffi::{c_int, c_void};
    use std::fs::File;
    use std::io;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
    use std::sync::{Mutex, OnceLock, PoisonError};

    use memmap2::{Mmap, MmapOptions};

    use crate::cursor::len_u64;
    use crate::error::{Error, Result};
    use crate::limits::MAX_MAPPINGS;

    #[derive(Debug)]
    pub(super) struct Mapping {
        // Fields are dropped in this order: the slot is given back before the memory is.
        slot: Registered,
        map: Mmap,
        file: File,
    }

    impl Mapping {
        pub(super) fn new(file: &File, len: usize) -> Result<Mapping> {
            install_handler().map_err(Error::io("handle SIGBUS"))?;
            let file = file.try_clone().map_err(Error::io("map"))?;
            // SAFETY: the mapping is read-only and lives as long as the borrows of `bytes`. That others may write
            // into the file, or cut it, is dealt with in the module's header.
            let map = unsafe { MmapOptions::new().len(len).map(&file) }.map_err(Error::io("map"))?;
            let slot = Registered::new(&map).ok_or(Error::TooManyMappings)?;
            Ok(Mapping { slot, map, file })
        }

        pub(super) fn bytes(&self) -> &[u8] {
            &self.map
        }

        /// A cut inside the last page that is left raises no signal, so the length is asked for too.
        pub(super) fn is_lost(&self) -> bool {
            let len_now = self.file.metadata().map_or(0, |metadata| metadata.len());
            self.slot.0.lost.load(Ordering::SeqCst) || len_now < len_u64(self.map.len())
        }
    }

    /// The addresses of one mapping, for the handler.
    #[derive(Debug)]
    struct Slot {
        /// Who holds the slot may change it.
        taken: AtomicBool,
        /// Odd while the addresses are valid; each change of owner adds two. The handler reads it before and after
        /// the addresses to know that they belong together.
        generation: AtomicUsize,
        start: AtomicUsize,
        end: AtomicUsize,
        lost: AtomicBool,
    }

    static SLOTS: [Slot; MAX_MAPPINGS] = [const { Slot::empty() }; MAX_MAPPINGS];

    impl Slot {
        const fn empty() -> Slot {
            Slot {
                taken: AtomicBool::new(false),
                generation: AtomicUsize::new(0),
                start: AtomicUsize::new(0),
                end: AtomicUsize::new(0),
                lost: AtomicBool::new(false),
            }
        }

        /// The mapping's end, if it is live and has this address.
        fn end_if_contains(&self, address: usize) -> Option<usize> {
            let before = self.generation.load(Ordering::Acquire);
            let start = self.start.load(Ordering::Relaxed);
            let end = self.end.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            let live = before % 2 == 1 && self.generation.load(Ordering::Relaxed) == before;
            (live && (start..end).contains(&address)).then_some(end)
        }
    }

    /// A slot that is ours until dropped.
    #[derive(Debug)]
    struct Registered(&'static Slot);

    impl Registered {
        fn new(bytes: &[u8]) -> Option<Registered> {
            let start = bytes.as_ptr().addr();
            let end = start.saturating_add(bytes.len()).checked_next_multiple_of(page_size())?;
            let slot = SLOTS.iter().find(|slot| !slot.taken.swap(true, Ordering::Acquire))?;
            slot.lost.store(false, Ordering::Relaxed);
            // Release: a handler that sees one of these also sees that the old generation has ended.
            slot.start.store(start, Ordering::Release);
            slot.end.store(end, Ordering::Release);
            slot.generation.fetch_add(1, Ordering::Release);
            Some(Registered(slot))
        }
    }

    impl Drop for Registered {
        fn drop(&mut self) {
            self.0.generation.fetch_add(1, Ordering::Release);
            self.0.taken.store(false, Ordering::Release);
        }
    }

    /// The action that was there before ours.
    static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

    fn page_size() -> usize {
        static PAGE: OnceLock<usize> = OnceLock::new();
        *PAGE.get_or_init(|| {
            // SAFETY: asks for a constant of the system.
            let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
            usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
        })
    }

    /// Puts the handler in place, once per process.
    fn install_handler() -> io::Result<()> {
        static INSTALLED: Mutex<bool> = Mutex::new(false);
        let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
        if *installed {
            return Ok(());
        }
        page_size(); // Known from now on; the handler only reads it.
        // SAFETY: all zeros is a valid `sigaction`, and asking for the current action changes nothing.
        let previous = unsafe {
            let mut previous: libc::sigaction = std::mem::zeroed();
            succeeded(libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut previous))?;
            previous
        };
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_sigbus;
        let mut action = *PREVIOUS.get_or_init(|| previous);
        #[expect(clippy::as_conversions, reason = "the field for a function pointer is an integer")]
        {
            action.sa_sigaction = handler as usize;
        }
        // On the alternate stack, because some systems report stack overflow with this signal.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler has the signature that SA_SIGINFO asks for and is async-signal-safe (see there).
        unsafe { succeeded(libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()))? };
        *installed = true;
        Ok(())
    }

    fn succeeded(status: c_int) -> io::Result<()> {
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Async-signal-safe: no allocation and no lock (both `OnceLock`s are full before this is installed, so they are
    /// a load each). `errno` stays as it was: `mmap` changes it only on failure, and then the process is about to end.
    extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: with SA_SIGINFO, the system passes a valid `info`; for SIGBUS it holds the address.
        let (address, from_kernel) = unsafe { ((*info).si_addr().addr(), (*info).si_code > 0) };
        if from_kernel && replace_lost(address) {
            return;
        }
        // SAFETY: we are the handler of this signal and pass on what we were given.
        unsafe { pass_on(signal, info, context, from_kernel) }
    }

    /// Replaces the mapping that has `address`, from that page on, by zeros. All of the rest and not only the page:
    /// what lies behind a cut is lost too, and one replacement cannot run into the limit on the number of mappings.
    fn replace_lost(address: usize) -> bool {
        let Some((slot, end)) = SLOTS.iter().find_map(|slot| Some((slot, slot.end_if_contains(address)?)))
        else {
            return false;
        };
        let page = address & !page_size().wrapping_sub(1);
        slot.lost.store(true, Ordering::SeqCst);
        // SAFETY: `page..end` is inside the live mapping of `slot`: its owner cannot be dropped while the thread we
        // interrupted reads from it. It cannot be written, before or after, so no data of ours is lost.
        let zeros = unsafe {
            let (at, len) = (std::ptr::without_provenance_mut(page), end.wrapping_sub(page));
            let flags = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED;
            libc::mmap(at, len, libc::PROT_READ, flags, -1, 0)
        };
        zeros != libc::MAP_FAILED
    }

    /// Does what would have happened without us.
    ///
    /// # Safety
    ///
    /// To be called by the handler of `signal` with the handler's arguments.
    unsafe fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, from_kernel: bool) {
        let previous = PREVIOUS.get();
        let handler = previous.map_or(libc::SIG_DFL, |previous| previous.sa_sigaction);
        let takes_info = previous.is_some_and(|previous| previous.sa_flags & libc::SA_SIGINFO != 0);
        match handler {
            // A fault cannot be ignored: the instruction would fault again, for ever.
            libc::SIG_IGN if !from_kernel => {}
            libc::SIG_DFL | libc::SIG_IGN => {
                // SAFETY: all zeros is the default action; both calls are async-signal-safe. A fault repeats when
                // the handler returns; a signal that was sent has to be sent again.
                unsafe {
                    let mut default: libc::sigaction = std::mem::zeroed();
                    default.sa_sigaction = libc::SIG_DFL;
                    libc::sigaction(signal, &raw const default, std::ptr::null_mut());
                    if !from_kernel {
                        libc::raise(signal);
                    }
                }
            }
            // SAFETY: an action that is neither of the two above holds a function of the kind its flags say.
            _ if takes_info => unsafe {
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            },
            // SAFETY: as above.
            _ => unsafe {
                let handler: extern "C" fn(c_int) = std::mem::transmute(handler);
                handler(signal);
            },
        }
    }

    /// For tests.
    #[cfg(test)]
    pub(super) fn slots_in_use() -> usize {
        SLOTS.iter().filter(|slot| slot.taken.load(Ordering::Relaxed)).count()
    }
}

#[cfg(test)]
mod tests;
