//! Bytes that may be given out, and what of them is.
//!
//! Invariant: the leases that exist never add up to more than the budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number of bytes to share.
#[derive(Debug)]
pub(crate) struct Budget {
    total: usize,
    used: AtomicUsize,
}

/// Some bytes of a budget; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    pub(crate) fn new(total: usize) -> Arc<Budget> {
        Arc::new(Budget { total, used: AtomicUsize::new(0) })
    }

    pub(crate) const fn total(&self) -> usize {
        self.total
    }

    /// Bytes that are not given out.
    pub(crate) fn left(&self) -> usize {
        self.total.saturating_sub(self.used.load(Ordering::Relaxed))
    }

    /// Takes bytes, if so many are left.
    pub(crate) fn lease(self: &Arc<Self>, bytes: usize) -> Option<Lease> {
        self.take(bytes).then(|| Lease { budget: Arc::clone(self), bytes })
    }

    fn take(&self, bytes: usize) -> bool {
        let more = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= self.total);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}

impl Lease {
    /// Makes it larger, if so many bytes are left.
    #[must_use]
    pub(crate) fn grow(&mut self, more: usize) -> bool {
        let grown = self.budget.take(more);
        self.bytes += if grown { more } else { 0 };
        grown
    }

    /// Makes it smaller, if it is larger.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        self.bytes -= less;
        self.budget.used.fetch_sub(less, Ordering::Relaxed);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_more_than_there_is() {
        let budget = Budget::new(100);
        let mut most = budget.lease(60).unwrap();
        assert!(budget.lease(41).is_none());
        assert!(budget.lease(usize::MAX).is_none());
        let rest = budget.lease(39).unwrap();
        assert!(most.grow(1) && !most.grow(1));
        assert_eq!(budget.left(), 0);
        drop(rest);
        assert_eq!(budget.left(), 39);
        most.shrink_to(70);
        assert_eq!(budget.left(), 39);
        most.shrink_to(10);
        assert_eq!(budget.left(), 90);
        drop(most);
        assert_eq!(budget.left(), 100);
    }
}
