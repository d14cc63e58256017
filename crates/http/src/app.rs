//! What all requests share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use crate::call;
use crate::cluster::{Machine, Machines};
use crate::keys::Keys;
use crate::models::Models;
use crate::origin::Origins;

pub(crate) struct App {
    pub(crate) models: Models,
    pub(crate) keys: Keys,
    pub(crate) origins: Origins,
    machines: Option<Machines>,
    /// Room for bodies, in units.
    pub(crate) bodies: Arc<Semaphore>,
    pub(crate) started: Instant,
    /// How long a stream may say nothing.
    pub(crate) silence: Duration,
}

impl App {
    pub(crate) fn new(
        models: Models,
        keys: Keys,
        origins: Origins,
        machines: Option<Machines>,
        silence: Duration,
    ) -> App {
        App {
            models,
            keys,
            origins,
            machines,
            bodies: Arc::new(Semaphore::new(call::UNITS)),
            started: Instant::now(),
            silence,
        }
    }

    /// How machines are now.
    pub(crate) fn machines(&self) -> Vec<Machine> {
        self.machines.as_ref().map(|machines| machines()).unwrap_or_default()
    }
}
