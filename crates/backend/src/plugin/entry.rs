//! The plug-in's side: what stands behind its one C symbol.
//!
//! Invariant: everything here is compiled into the plug-in, so a panic is caught by the copy of the standard library
//! that threw it and never crosses into the host.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::registry::Registry;

/// Version of the layout of [`Entry`]; changes when that changes.
pub const API_VERSION: u32 = 1;

/// Name of the symbol, a function without arguments that returns `*const Entry`.
pub const ENTRY_POINT: &str = "oxcart_backend_entry";

/// What this build is: two builds with the same text have the same Rust types and can call each other.
pub const ABI: &str =
    concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"), ", ", env!("OXCART_ABI"));

/// First field of an [`Entry`], so that an unrelated symbol of the same name is recognized.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"oxcart\0\x01");

/// A text that lives as long as the program, in a form that C could read.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct StaticText {
    pub(super) start: *const u8,
    pub(super) len: usize,
}

impl StaticText {
    const fn new(text: &'static str) -> StaticText {
        StaticText { start: text.as_ptr(), len: text.len() }
    }
}

impl fmt::Debug for StaticText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StaticText({} bytes)", self.len)
    }
}

/// What starting a plug-in gives: a registry, or a text that says why not.
#[derive(Debug)]
#[repr(C)]
pub struct InitReply {
    /// A boxed `Arc<dyn Registry>`, or null.
    pub(super) registry: *mut c_void,
    /// Why not.
    pub(super) message: StaticText,
}

/// The part of an [`Entry`] that is the same in every version.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Head {
    pub(super) magic: u64,
    pub(super) api_version: u32,
}

/// What a plug-in shows of itself.
#[derive(Debug)]
#[repr(C)]
pub struct Entry {
    pub(super) head: Head,
    pub(super) abi: StaticText,
    pub(super) score: extern "C" fn() -> u32,
    pub(super) init: extern "C" fn() -> InitReply,
}

#[expect(unsafe_code, reason = "an Entry is a static, and its raw pointers point to constants")]
// SAFETY: the only pointer in an entry is that of `ABI`, a constant; no field can be changed from outside.
unsafe impl Sync for Entry {}

impl Entry {
    /// The entry of this build.
    pub const fn new(score: extern "C" fn() -> u32, init: extern "C" fn() -> InitReply) -> Entry {
        Entry::with_version(API_VERSION, score, init)
    }

    /// An entry that claims another version; for tests of the refusal.
    pub const fn with_version(
        api_version: u32,
        score: extern "C" fn() -> u32,
        init: extern "C" fn() -> InitReply,
    ) -> Entry {
        Entry { head: Head { magic: MAGIC, api_version }, abi: StaticText::new(ABI), score, init }
    }
}

/// Calls a plug-in's score function; a panic counts as zero.
pub fn guard_score(score: fn() -> u32) -> u32 {
    catch_unwind(score).unwrap_or_else(|panic| {
        panic_text(panic);
        0
    })
}

/// Calls a plug-in's init function; a panic becomes a message.
pub fn guard_init(init: fn() -> Result<Arc<dyn Registry>, String>) -> InitReply {
    // The host copies the message and cannot free it, so it is leaked: a few bytes for a plug-in that failed.
    let failed = |message: String| InitReply {
        registry: std::ptr::null_mut(),
        message: StaticText::new(Box::leak(message.into_boxed_str())),
    };
    match catch_unwind(AssertUnwindSafe(init)) {
        Ok(Ok(registry)) => {
            InitReply { registry: Box::into_raw(Box::new(registry)).cast(), message: StaticText::new("") }
        }
        Ok(Err(message)) => failed(message),
        Err(panic) => failed(format!("it panicked: {}", panic_text(panic))),
    }
}

/// What a panic says. The payload itself is leaked, because dropping it could panic again.
fn panic_text(panic: Box<dyn Any + Send>) -> &'static str {
    let panic: &'static (dyn Any + Send) = Box::leak(panic);
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

/// Makes a `cdylib` an Oxcart plug-in. `score` is a `fn() -> u32` (zero: cannot run here), `init` a
/// `fn() -> Result<Arc<dyn Registry>, String>`.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use oxcart_backend::{Device, Registry};
/// #[derive(Debug)]
/// struct Family;
///
/// impl Registry for Family {
///     fn name(&self) -> &str {
///         "mine"
///     }
///
///     fn devices(&self) -> Vec<Arc<dyn Device>> {
///         Vec::new()
///     }
/// }
///
/// fn score() -> u32 {
///     1
/// }
///
/// fn init() -> Result<Arc<dyn Registry>, String> {
///     Ok(Arc::new(Family))
/// }
///
/// oxcart_backend::export_plugin! { score: score, init: init }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! export_plugin {
    (score: $score:path, init: $init:path $(,)?) => {
        $crate::export_plugin! {
            version: $crate::plugin::API_VERSION,
            score: $score,
            init: $init,
        }
    };
    (version: $version:expr, score: $score:path, init: $init:path $(,)?) => {
        /// The one symbol of this plug-in.
        // SAFETY: the name is this interface's own; defining it twice is an error of the linker.
        #[unsafe(no_mangle)]
        pub extern "C" fn oxcart_backend_entry() -> *const $crate::plugin::Entry {
            // Names of functions are not hygienic; these must differ from whatever the plug-in calls its own.
            extern "C" fn oxcart_guarded_score() -> u32 {
                $crate::plugin::guard_score($score)
            }
            extern "C" fn oxcart_guarded_init() -> $crate::plugin::InitReply {
                $crate::plugin::guard_init($init)
            }
            static OXCART_ENTRY: $crate::plugin::Entry =
                $crate::plugin::Entry::with_version($version, oxcart_guarded_score, oxcart_guarded_init);
            &OXCART_ENTRY
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_in_score_is_zero() {
        assert_eq!(guard_score(|| 7), 7);
        assert_eq!(guard_score(|| panic!("no such instruction")), 0);
    }

    #[test]
    fn the_build_is_described() {
        for part in [env!("CARGO_PKG_VERSION"), "rustc", "panic=", "sources "] {
            assert!(ABI.contains(part), "{ABI}");
        }
    }
}
