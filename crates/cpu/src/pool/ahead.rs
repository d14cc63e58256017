//! What memory is asked for while a thread waits.
//!
//! Where one thread does what is too little for two, memory has nothing to do, and right behind it all threads want more than
//! memory can give. A thread that waits knows what it will read then, and asks for the beginning of it.

use crate::simd::prefetch_line;

/// Bytes to ask for, line by line. They are only asked for, never read, so they need not exist any more.
#[derive(Debug)]
pub(crate) struct Ahead {
    next: *const u8,
    /// Lines.
    left: usize,
}

impl Default for Ahead {
    /// Nothing.
    fn default() -> Ahead {
        Ahead { next: std::ptr::null(), left: 0 }
    }
}

/// Bytes of a line.
const LINE: usize = 64;

impl Ahead {
    /// Some bytes.
    pub(crate) const fn new(start: *const u8, bytes: usize) -> Ahead {
        Ahead { next: start, left: bytes.div_ceil(LINE) }
    }

    /// Asks for a line; says whether there was one to ask for.
    pub(super) fn ask(&mut self) -> bool {
        let is_some = self.left > 0;
        if is_some {
            prefetch_line(self.next);
            (self.next, self.left) = (self.next.wrapping_add(LINE), self.left - 1);
        }
        is_some
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_asked_for_once() {
        let bytes = [0u8; 200];
        let mut ahead = Ahead::new(bytes.as_ptr(), bytes.len());
        assert_eq!(std::iter::from_fn(|| ahead.ask().then_some(())).count(), 4);
        assert!(!ahead.ask() && !Ahead::default().ask());
    }
}
