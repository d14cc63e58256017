//! Join lines of a machine that runs: the pairing's state machine with random numbers and a clock, which goes on while the machine sleeps.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::join_line::{JoinLine, Secret};
use super::key::Key;
use super::name::MachineName;
use super::pairing::{Host, HostAction, HostEvent};
use crate::client::Endpoint;
use crate::os::clock;

/// A line that has just been opened.
#[derive(Clone, Debug)]
pub struct Invitation {
    /// The line.
    pub line: JoinLine,
    /// How long it is good for.
    pub lasts: Duration,
}

/// The lines that are open.
#[derive(Debug)]
pub struct Invitations {
    key: Key,
    host: Mutex<Host>,
    endpoints: Mutex<Vec<Endpoint>>,
}

impl Invitations {
    /// None yet, of a machine with this key and name.
    pub fn new(key: Key, name: MachineName) -> Invitations {
        Invitations { key, host: Mutex::new(Host::new(name)), endpoints: Mutex::default() }
    }

    /// Where others can find this machine, the likeliest first.
    pub fn set_endpoints(&self, endpoints: Vec<Endpoint>) {
        *self.endpoints.lock().unwrap_or_else(PoisonError::into_inner) = endpoints;
    }

    fn host(&self) -> MutexGuard<'_, Host> {
        self.host.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a line; `None` where there are no random numbers, or no address to put into it.
    pub fn open(&self) -> Option<Invitation> {
        let secret = Secret::make()?;
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner).clone();
        endpoints.retain(JoinLine::can_hold);
        if endpoints.is_empty() {
            return None;
        }
        self.handle(HostEvent::Shown(secret.clone()));
        let line = JoinLine { worker: self.key, secret, endpoints };
        Some(Invitation { line, lasts: super::limits::INVITATION })
    }

    /// Something happens now.
    pub(crate) fn handle(&self, event: HostEvent) -> Vec<HostAction> {
        // The lock first: time must not go back for the host.
        let mut host = self.host();
        host.handle(event, clock::now())
    }

    /// Whether a line is open.
    pub fn is_open(&self) -> bool {
        self.host().is_open()
    }
}
