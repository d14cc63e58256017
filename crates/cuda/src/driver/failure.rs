//! What the driver says when a call fails, and what that means for the card.

use std::fmt;

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {text} (error {code})")]
pub(crate) struct DriverFailure {
    /// The function that was called.
    pub(crate) call: &'static str,
    /// NVIDIA's number for what went wrong.
    pub(crate) code: i32,
    /// NVIDIA's words for it.
    pub(crate) text: String,
}

/// What a failure means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// There is not enough memory; all else goes on.
    OutOfMemory,
    /// The card, or this program's part of it, is broken: every call from now on fails.
    Lost,
    /// This one call failed.
    Call,
}

/// Numbers of errors that take everything with them: kernels that ran astray, memory that cannot be trusted, a card that is gone.
const STICKY: [i32; 19] =
    [4, 46, 201, 214, 220, 226, 227, 700, 702, 709, 710, 711, 714, 715, 716, 717, 718, 719, 999];

/// Not enough memory, on the card or in the host.
pub(crate) const OUT_OF_MEMORY: i32 = 2;

impl DriverFailure {
    pub(crate) fn new(call: &'static str, code: i32, text: impl fmt::Display) -> DriverFailure {
        DriverFailure { call, code, text: text.to_string() }
    }

    /// What it means for the card.
    pub(crate) fn kind(&self) -> Kind {
        match self.code {
            OUT_OF_MEMORY => Kind::OutOfMemory,
            code if STICKY.contains(&code) => Kind::Lost,
            _ => Kind::Call,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_apart() {
        let kind = |code| DriverFailure::new("cuMemAlloc", code, "?").kind();
        assert_eq!(
            (kind(2), kind(700), kind(719), kind(1)),
            (Kind::OutOfMemory, Kind::Lost, Kind::Lost, Kind::Call)
        );
        let shown = DriverFailure::new("cuLaunchKernelEx", 700, "an illegal memory access was encountered");
        assert_eq!(
            shown.to_string(),
            "cuLaunchKernelEx: an illegal memory access was encountered (error 700)"
        );
    }
}
