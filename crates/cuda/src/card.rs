//! One card: the driver, the card's number, what is known about it, the kernels it has loaded, and whether it is lost.
//!
//! Concurrency: shared by its device, streams, buffers and plans, which may be used from any thread.
//!
//! Invariant: after the first failure that a card does not recover from, every call through [`Card::tell`] is an
//! [`Error::DeviceLost`] with the cause.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use oxcart_backend::Error;

use crate::driver::{CardInfo, Driver, DriverFailure, Function, Kind, Module, Queue};
use crate::images::{self, Family};

/// Streams that copy for buffers: so many copies are under way at a time.
const COPY_QUEUES: usize = 2;

/// A card.
#[derive(Debug)]
pub(crate) struct Card {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) number: u32,
    pub(crate) name: String,
    pub(crate) info: CardInfo,
    /// Whether kernels may begin before those before them have ended.
    pub(crate) overlaps: bool,
    lost: OnceLock<String>,
    loaded: Mutex<Loaded>,
    queues: Mutex<Vec<Queue>>,
}

/// Modules and functions by name.
#[derive(Debug, Default)]
struct Loaded {
    modules: HashMap<Family, Module>,
    functions: HashMap<(Family, String), (Function, u32)>,
}

/// The first version of the driver whose recordings keep what overlaps.
const OVERLAP_IN_RECORDINGS: i32 = 12_040;

impl Card {
    pub(crate) fn new(driver: Arc<dyn Driver>, number: u32) -> Result<Card, DriverFailure> {
        let info = driver.card_info(number)?;
        let overlaps = info.capability >= (9, 0) && driver.version() >= OVERLAP_IN_RECORDINGS;
        Ok(Card {
            driver,
            number,
            name: format!("CUDA{number}"),
            info,
            overlaps,
            lost: OnceLock::new(),
            loaded: Mutex::default(),
            queues: Mutex::default(),
        })
    }

    /// What a failure is to the users of the card.
    pub(crate) fn tell(&self, failure: &DriverFailure) -> Error {
        if failure.kind() == Kind::Lost {
            let _ = self.lost.set(failure.to_string());
        }
        match self.check() {
            Err(lost) => lost,
            Ok(()) => Error::DeviceFailed { device: self.name.clone(), reason: failure.to_string() },
        }
    }

    /// An error if the card is lost.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.lost.get() {
            Some(reason) => Err(Error::DeviceLost { device: self.name.clone(), reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Does something with the driver.
    pub(crate) fn with<T>(
        &self,
        call: impl FnOnce(&dyn Driver, u32) -> Result<T, DriverFailure>,
    ) -> Result<T, Error> {
        self.check()?;
        call(&*self.driver, self.number).map_err(|failure| self.tell(&failure))
    }

    /// A kernel by name, loaded with its family when it is first asked for, and able to have `shared` bytes of dynamic shared
    /// memory.
    pub(crate) fn function(&self, family: Family, name: &str, shared: u32) -> Result<Function, Error> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((function, allowed)) = loaded.functions.get_mut(&(family, name.to_owned())) {
            let function = *function;
            if shared > *allowed {
                self.with(|driver, card| driver.allow_shared(card, function, shared))?;
                *allowed = shared;
            }
            return Ok(function);
        }
        let module = match loaded.modules.get(&family) {
            Some(&module) => module,
            None => {
                let own = self.driver.has_kernels().then(Vec::new);
                let image = own.or_else(|| images::image(family, self.info.capability));
                let image = image.ok_or_else(|| Error::Unsupported {
                    device: self.name.clone(),
                    what: format!("kernels of the family {family:?}: there are none for its capability"),
                })?;
                let module = self.with(|driver, card| driver.load(card, &image))?;
                loaded.modules.insert(family, module);
                module
            }
        };
        let function = self.with(|driver, card| driver.function(card, module, name))?;
        /// What a block may have without asking: less than the limit, which counts what kernels have of their own, too.
        const DEFAULT_SHARED: u32 = 32 << 10;
        if shared > DEFAULT_SHARED {
            self.with(|driver, card| driver.allow_shared(card, function, shared))?;
        }
        loaded.functions.insert((family, name.to_owned()), (function, shared.max(DEFAULT_SHARED)));
        Ok(function)
    }

    /// The kernels that were asked for so far, which is done to launch them.
    #[cfg(test)]
    pub(crate) fn launched(&self) -> std::collections::BTreeSet<String> {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.functions.keys().map(|(_, name)| name.clone()).collect()
    }

    /// Lends a queue for copies, and takes it back afterwards.
    pub(crate) fn with_queue<T>(&self, work: impl FnOnce(Queue) -> Result<T, Error>) -> Result<T, Error> {
        let kept = self.queues.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let queue = match kept {
            Some(queue) => queue,
            None => self.with(|driver, card| driver.open_queue(card))?,
        };
        let done = work(queue);
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if queues.len() < COPY_QUEUES {
            queues.push(queue);
        } else {
            drop(queues);
            let _ = self.driver.close_queue(self.number, queue);
        }
        done
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        let queues = std::mem::take(self.queues.get_mut().unwrap_or_else(PoisonError::into_inner));
        let loaded = self.loaded.get_mut().unwrap_or_else(PoisonError::into_inner);
        // What fails here fails because the card is lost, and then there is nothing left to give back.
        for queue in queues {
            let _ = self.driver.close_queue(self.number, queue);
        }
        for &module in loaded.modules.values() {
            let _ = self.driver.unload(self.number, module);
        }
    }
}
