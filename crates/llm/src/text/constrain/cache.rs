//! Grammars that were compiled lately.
//!
//! Invariant: at most so many, the ones used last. Nothing is compiled while the lock is held.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use llguidance::Matcher;

use super::grammar::Source;
use crate::text::limits::MAX_CACHED_GRAMMARS;

/// A grammar that is ready for answers.
pub(super) struct Compiled {
    pub(super) source: Source,
    /// At the beginning of an answer; every answer has a copy, and all copies share what was found out about the grammar.
    pub(super) matcher: Matcher,
    /// The same as the compiler left it. No answer uses it, so nothing can have spoiled it.
    untouched: Matcher,
}

impl Compiled {
    pub(super) fn new(source: Source, matcher: Matcher) -> Compiled {
        Compiled { source, untouched: matcher.deep_clone(), matcher }
    }

    /// One that shares nothing with any answer, at the beginning. Copying takes far less time than compiling.
    pub(super) fn alone(&self) -> Matcher {
        self.untouched.deep_clone()
    }
}

/// The one used last stands last.
#[derive(Default)]
pub(super) struct Cache(Mutex<Vec<Arc<Compiled>>>);

impl Cache {
    pub(super) fn find(&self, source: &Source) -> Option<Arc<Compiled>> {
        let mut entries = self.lock();
        let at = entries.iter().position(|entry| entry.source == *source)?;
        let found = entries.remove(at);
        entries.push(found.clone());
        Some(found)
    }

    /// Keeps a grammar. Where the same one has come first, that is used.
    pub(super) fn insert(&self, compiled: Arc<Compiled>) -> Arc<Compiled> {
        if let Some(first) = self.find(&compiled.source) {
            return first;
        }
        let mut entries = self.lock();
        if entries.len() >= MAX_CACHED_GRAMMARS {
            entries.remove(0);
        }
        entries.push(compiled.clone());
        compiled
    }

    /// Forgets a grammar that has failed.
    pub(super) fn remove(&self, compiled: &Arc<Compiled>) {
        self.lock().retain(|entry| !Arc::ptr_eq(entry, compiled));
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Compiled>>> {
        // Nothing that could panic is done half.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
