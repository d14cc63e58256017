//! What all requests share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bodies::Bodies;
use crate::cluster::{Machine, Machines};
use crate::keys::Keys;
use crate::limits::PREPARING_THREADS;
use crate::models::Models;
use crate::origin::Origins;
use crate::turns::Places;

pub(crate) struct App {
    pub(crate) models: Models,
    pub(crate) keys: Keys,
    pub(crate) origins: Origins,
    machines: Option<Machines>,
    pub(crate) bodies: Arc<Bodies>,
    /// Threads that prepare requests.
    pub(crate) preparing: Arc<Places>,
    pub(crate) started: Instant,
    /// How long a stream may say nothing.
    pub(crate) silence: Duration,
    /// How long a body may take.
    pub(crate) body_time: Duration,
}

impl App {
    pub(crate) fn new(
        models: Models,
        keys: Keys,
        origins: Origins,
        machines: Option<Machines>,
        silence: Duration,
        body_time: Duration,
    ) -> App {
        let bodies = Bodies::new(!keys.is_empty());
        App {
            models,
            keys,
            origins,
            machines,
            bodies,
            preparing: Places::new(PREPARING_THREADS),
            started: Instant::now(),
            silence,
            body_time,
        }
    }

    /// How machines are now.
    pub(crate) fn machines(&self) -> Vec<Machine> {
        self.machines.as_ref().map(|machines| machines()).unwrap_or_default()
    }
}
