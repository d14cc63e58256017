//! A worker as a family of devices.

use std::any::{Any, TypeId};
use std::io;
use std::sync::Arc;

use oxcart_backend::{Device, Registry};

use super::connection::Connection;
use super::device::RemoteDevice;
use super::endpoint::Endpoint;
use super::failure::{About, ConnectError, WorkerFailure};
use super::handshake::greet;
use super::limits::MAX_DEVICES;
use super::line::Line;
use super::message::{Head, Message};
use super::options::Options;
use super::pulse;
use super::traffic::Traffic;
use crate::wire::{Command, Dialect};

/// What a worker can do beyond ggml's protocol, as it says itself. A worker of this version of Oxcart can do all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// It computes the operations that only Oxcart has: attention over pages.
    pub own_ops: bool,
    /// It sends what it has computed directly to the next worker.
    pub introductions: bool,
    /// It answers heartbeats.
    pub heartbeats: bool,
    /// It takes weights that it has already, by their digests.
    pub known_weights: bool,
    /// It keeps graphs, so that a step is described once.
    pub kept_graphs: bool,
}

impl Abilities {
    fn of(line: &Line) -> Abilities {
        Abilities {
            own_ops: !line.dialect.own_ops.is_empty(),
            introductions: line.can_be_introduced,
            heartbeats: line.has_pulse,
            known_weights: line.has.takes,
            kept_graphs: line.kept_graph_bytes.is_some(),
        }
    }
}

/// The devices of one worker, over one connection. A lost worker stays lost; connect anew to use it again.
///
/// ```no_run
/// use oxcart_backend::Registry;
/// use oxcart_rpc::client::{Options, RemoteRegistry};
///
/// let worker = RemoteRegistry::connect("127.0.0.1:50052", &Options::default())?;
/// for device in worker.devices() {
///     println!("{} has {} bytes", device.name(), device.memory()?.total);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RemoteRegistry {
    name: String,
    called: String,
    endpoint: String,
    connection: Arc<Connection>,
    devices: Vec<Arc<RemoteDevice>>,
    abilities: Abilities,
    heartbeat_error: Option<io::Error>,
}

impl RemoteRegistry {
    /// Connects to the worker at `host:port` and asks what it has.
    pub fn connect(endpoint: &str, options: &Options) -> Result<Arc<RemoteRegistry>, ConnectError> {
        let endpoint: Endpoint = endpoint.parse()?;
        let traffic = Arc::new(Traffic::default());
        let mut line = greet(&endpoint, options, &traffic)?;
        let abilities = Abilities::of(&line);
        let begun = pulse::begin(&mut line, &endpoint, options).map_err(Arc::new)?;
        let (pulse, heartbeat_error) = match begun {
            Ok(pulse) => (pulse, None),
            Err(error) => (None, Some(error)),
        };
        let connection = Connection::new(line, pulse, options.place_of(&endpoint), traffic, options)
            .map_err(|error| ConnectError::Thread { endpoint: endpoint.to_string(), error })?;
        let count = match connection.dialect.has_devices {
            true => device_count(&connection)?,
            false => 1,
        };
        if count == 0 || count > MAX_DEVICES {
            return Err(ConnectError::DeviceCount { endpoint: endpoint.to_string(), count });
        }
        let called = options.name_of(&endpoint);
        let ask = |index| RemoteDevice::ask(Arc::clone(&connection), index, &called);
        let devices = (0..count).map(ask).collect::<Result<_, _>>()?;
        let (name, endpoint) = (format!("RPC[{called}]"), endpoint.to_string());
        Ok(Arc::new(RemoteRegistry {
            name,
            called,
            endpoint,
            connection,
            devices,
            abilities,
            heartbeat_error,
        }))
    }

    /// The dialect spoken.
    pub fn dialect(&self) -> &'static Dialect {
        self.connection.dialect
    }

    /// What the worker can do beyond ggml's protocol.
    pub fn abilities(&self) -> Abilities {
        self.abilities
    }

    /// Where the worker is.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// What the worker is called: [its name](Options::called), or where it is.
    pub fn called(&self) -> &str {
        &self.called
    }

    /// Messages, bytes and waits so far.
    pub fn traffic(&self) -> &Arc<Traffic> {
        &self.connection.traffic
    }

    /// Whether heartbeats tell that the worker is alive, as they no longer do once they have ended. Other workers are lost after [`Timeouts`](super::Timeouts) alone.
    pub fn has_heartbeats(&self) -> bool {
        self.connection.has_pulse()
    }

    /// Why the worker is used without the heartbeats that it has, if they could not be begun.
    pub fn heartbeat_error(&self) -> Option<&io::Error> {
        self.heartbeat_error.as_ref()
    }

    /// Why the worker cannot be used any more, if it cannot. A worker that closed an idle connection is noticed here; nothing is
    /// sent to it, and nothing waited for.
    pub fn failure(&self) -> Option<Arc<WorkerFailure>> {
        self.connection.look()
    }
}

fn device_count(connection: &Connection) -> Result<u32, Arc<WorkerFailure>> {
    let command = Command::DeviceCount;
    let head = Head::new(command).whole();
    let message = Message { command, head: &head, payload: &[], about: &About::Nothing, work: 0 };
    connection.ask(&message).map(u32::from_le_bytes)
}

impl Registry for RemoteRegistry {
    fn name(&self) -> &str {
        &self.name
    }

    fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect()
    }

    /// The [`Traffic`] of the connection.
    fn extension(&self, wanted: TypeId) -> Option<Arc<dyn Any + Send + Sync>> {
        (wanted == TypeId::of::<Traffic>()).then(|| Arc::clone(self.traffic()) as _)
    }
}
