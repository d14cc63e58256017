//! One device of a worker.

use std::sync::Arc;

use oxcart_backend::{
    Arithmetic, BufferType, Caps, Device, DeviceKind, Error, Memory, Stream, StreamOptions, same_buffer_type,
};
use oxcart_tensor::TensorRef;

use super::buffer_type::{RemoteBufferType, ask_device};
use super::connection::Connection;
use super::failure::WorkerFailure;
use super::stream::RemoteStream;
use super::support::can_encode;
use crate::wire::{Command, Dialect};

/// One device of a worker.
#[derive(Debug)]
pub struct RemoteDevice {
    connection: Arc<Connection>,
    index: u32,
    name: String,
    description: String,
    buffer_type: Arc<dyn BufferType>,
}

impl RemoteDevice {
    /// Asks a worker, which is called so, about one of its devices.
    pub(super) fn ask(
        connection: Arc<Connection>,
        index: u32,
        worker: &str,
    ) -> Result<Arc<RemoteDevice>, Arc<WorkerFailure>> {
        let name = format!("RPC{index}[{worker}]");
        let description = format!("device {index} of the worker {}", connection.place());
        let buffer_type = RemoteBufferType::ask(Arc::clone(&connection), name.clone(), index)?;
        Ok(Arc::new(RemoteDevice { connection, index, name, description, buffer_type }))
    }

    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Its number on the worker.
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// The dialect its worker is spoken to in.
    pub fn dialect(&self) -> &'static Dialect {
        self.connection.dialect
    }
}

impl Device for RemoteDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> &str {
        &self.description
    }

    /// Workers do not say what they lend; peers take it for a graphics processor, and so do we.
    fn kind(&self) -> DeviceKind {
        DeviceKind::Gpu
    }

    /// Asked anew each time. It is a hint: a worker may say anything.
    fn memory(&self) -> Result<Memory, Error> {
        let answer: [u8; 16] = ask_device(&self.connection, Command::GetDeviceMemory, self.index)
            .map_err(|failure| failure.of_device(&self.name))?;
        let (free, total) = answer.split_at(8);
        let number = |bytes: &[u8]| {
            let bytes = bytes.try_into().unwrap_or_default();
            usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX)
        };
        let total = number(total);
        Ok(Memory { free: number(free).min(total), total })
    }

    fn caps(&self) -> Caps {
        Caps { asynchronous: true, buffer_from_host: false }
    }

    fn open(self: Arc<Self>, _options: &StreamOptions) -> Result<Box<dyn Stream>, Error> {
        if let Some(failure) = self.connection.failed() {
            return Err(failure.of_device(&self.name));
        }
        Ok(Box::new(RemoteStream::new(self)))
    }

    fn buffer_type(&self) -> Arc<dyn BufferType> {
        Arc::clone(&self.buffer_type)
    }

    fn supports_op(&self, node: TensorRef<'_>) -> bool {
        can_encode(node, self.connection.dialect)
    }

    /// Of a worker of another make it is not known what it computes, and one that meets an op that it cannot compute may end.
    fn wants_small_results(&self) -> bool {
        !self.connection.dialect.own_ops.is_empty()
    }

    fn supports_buffer_type(&self, buffer_type: &Arc<dyn BufferType>) -> bool {
        same_buffer_type(&self.buffer_type, buffer_type)
    }

    /// A hint, too: nothing but how results are spoken of follows from it.
    fn arithmetic(&self) -> Option<Arithmetic> {
        self.connection.arithmetic
    }
}
