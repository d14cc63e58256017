//! The plug-in's side: what stands behind its one C symbol.

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

/// First field of an [`Entry`], so that an unrelated symbol of the same name is recognized.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"oxcart\0\x01");

/// A string that lives as long as the program.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Abi {
    pub(super) start: *const u8,
    pub(super) len: usize,
}

impl Abi {
    /// What this build is: two builds with the same text have the same types.
    pub const TEXT: &str =
        concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"), ", ", env!("OXCART_ABI"));

    const fn of(text: &'static str) -> Abi {
        Abi { start: text.as_ptr(), len: text.len() }
    }
}

impl fmt::Debug for Abi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Abi({} bytes)", self.len)
    }
}

/// What [`Entry::init`] returns: a registry, or a text that says why not.
#[derive(Debug)]
#[repr(C)]
pub struct InitReply {
    /// A boxed `Arc<dyn Registry>`, or null.
    pub(super) registry: *mut c_void,
    /// Why not.
    pub(super) message: Abi,
}

/// What a plug-in shows of itself. The first two fields never move.
#[derive(Debug)]
#[repr(C)]
pub struct Entry {
    pub(super) magic: u64,
    pub(super) api_version: u32,
    pub(super) abi: Abi,
    pub(super) score: extern "C" fn() -> u32,
    pub(super) init: extern "C" fn() -> InitReply,
}

// An entry holds pointers to constants only; nothing can be changed through it.
#[expect(unsafe_code, reason = "an Entry is a static, and its raw pointers point to constants")]
// SAFETY: `Entry::new` takes `'static` text and functions, and no field can be changed from outside.
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
        Entry { magic: MAGIC, api_version, abi: Abi::of(Abi::TEXT), score, init }
    }
}

/// Calls a plug-in's score function; a panic counts as zero.
pub fn guard_score(score: fn() -> u32) -> u32 {
    catch_unwind(score).unwrap_or(0)
}

/// Calls a plug-in's init function; a panic becomes a message.
pub fn guard_init(init: fn() -> Result<Arc<dyn Registry>, String>) -> InitReply {
    let failed = |message: String| InitReply {
        registry: std::ptr::null_mut(),
        message: Abi::of(Box::leak(message.into_boxed_str())),
    };
    match catch_unwind(AssertUnwindSafe(init)) {
        Ok(Ok(registry)) => {
            InitReply { registry: Box::into_raw(Box::new(registry)).cast(), message: Abi::of("") }
        }
        Ok(Err(message)) => failed(message),
        Err(panic) => failed(format!("it panicked: {}", panic_text(&*panic))),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

/// Makes a `cdylib` an Oxcart plug-in. `score` is a `fn() -> u32` (zero: cannot run here), `init` a
/// `fn() -> Result<Arc<dyn Registry>, String>`.
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
        #[unsafe(no_mangle)]
        pub extern "C" fn oxcart_backend_entry() -> *const $crate::plugin::Entry {
            extern "C" fn score() -> u32 {
                $crate::plugin::guard_score($score)
            }
            extern "C" fn init() -> $crate::plugin::InitReply {
                $crate::plugin::guard_init($init)
            }
            static ENTRY: $crate::plugin::Entry = $crate::plugin::Entry::with_version($version, score, init);
            &ENTRY
        }
    };
}
