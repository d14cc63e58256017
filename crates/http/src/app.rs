//! What all requests share.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Semaphore;

use crate::call;
use crate::keys::Keys;
use crate::models::Models;
use crate::origin::Origins;

/// What went over the line to one worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Which worker.
    pub worker: String,
    /// Bytes sent to it.
    pub sent_bytes: u64,
    /// Bytes received from it.
    pub received_bytes: u64,
    /// Answers that were waited for.
    pub round_trips: u64,
}

/// Says what went over the lines to workers so far.
pub type Links = Arc<dyn Fn() -> Vec<Link> + Send + Sync>;

pub(crate) struct App {
    pub(crate) models: Models,
    pub(crate) keys: Keys,
    pub(crate) origins: Origins,
    pub(crate) links: Option<Links>,
    /// Room for bodies, in units.
    pub(crate) bodies: Arc<Semaphore>,
    pub(crate) started: Instant,
}

impl App {
    pub(crate) fn new(models: Models, keys: Keys, origins: Origins, links: Option<Links>) -> App {
        App {
            models,
            keys,
            origins,
            links,
            bodies: Arc::new(Semaphore::new(call::UNITS)),
            started: Instant::now(),
        }
    }
}
