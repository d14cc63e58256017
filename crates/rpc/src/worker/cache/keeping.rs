//! An upload whose content is to be kept, from its announcement on.
//!
//! Invariant: an announcement takes nothing that others could use. A place among those who write, a thread and a file come
//! with the first bytes.

use std::sync::Arc;

use super::WeightCache;
use super::domain::Domain;
use super::pipe::Feed;

/// Content on its way into a cache. Dropped before it is [complete](Keeping::complete), it is not kept.
#[derive(Debug)]
pub struct Keeping {
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Nothing has come of it.
    Announced { cache: Arc<WeightCache>, domain: Domain, len: u64 },
    /// It is being written.
    Coming(Feed),
    /// There was no place for it.
    TurnedAway,
}

impl Keeping {
    pub(super) fn announced(cache: Arc<WeightCache>, domain: Domain, len: u64) -> Keeping {
        Keeping { stage: Stage::Announced { cache, domain, len } }
    }

    /// The next bytes of the content. The first wait a moment for a place if their share has none left.
    pub fn add(&mut self, bytes: &[u8]) {
        if let Stage::Announced { cache, domain, len } = &self.stage {
            self.stage = cache.start(domain, *len).map_or(Stage::TurnedAway, Stage::Coming);
        }
        if let Stage::Coming(feed) = &mut self.stage {
            feed.add(bytes);
        }
    }

    /// That was all of it.
    pub fn complete(self) {
        if let Stage::Coming(feed) = self.stage {
            feed.complete();
        }
    }
}
