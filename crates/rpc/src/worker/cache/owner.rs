//! Whose the other end of a connection is, as far as the system says.

#[cfg(target_os = "linux")]
mod linux;
// Tested wherever tests run.
#[cfg(any(not(target_os = "linux"), test))]
mod untold;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use untold as system;

pub(super) use system::{UNTOLD, owner};

/// Whose the other end of a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A user's of this machine.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "other systems do not say"))]
    User(u32),
    /// Another machine's.
    Elsewhere,
    /// It is not certain.
    Uncertain,
}
