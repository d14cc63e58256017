//! The kind of memory that one device of a worker has.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use oxcart_backend::{Buffer, BufferType, Error};
use oxcart_tensor::{Op, TensorRef};
use zerocopy::IntoBytes;

use super::buffer::RemoteBuffer;
use super::connection::{Connection, Live};
use super::failure::{About, WorkerFailure};
use super::job::Job;
use super::limits::{MAX_ALIGNMENT, MAX_KNOWN_SIZES};
use super::message::{Head, Message, Waiting};
use super::record::{leaf_record, node_record};
use crate::wire::{Command, Dialect, TensorRecord};

/// Elements that rows of quantized tensors are padded to on some devices.
const PADDED_ROW: usize = 512;

/// The memory of one device of a worker.
#[derive(Debug)]
pub struct RemoteBufferType {
    connection: Arc<Connection>,
    name: String,
    device: u32,
    alignment: usize,
    max_size: usize,
    /// Sizes the device told, by what it was told about the tensor.
    known_sizes: Mutex<HashMap<Vec<u8>, usize>>,
}

/// A question about a device, answered with numbers.
pub(super) fn ask_device<const N: usize>(
    connection: &Connection,
    command: Command,
    device: u32,
) -> Result<[u8; N], Arc<WorkerFailure>> {
    let head = device_head(command, connection.dialect, device).whole();
    connection.ask(&Message { command, head: &head, payload: &[], about: &About::Nothing, work: 0 })
}

/// The start of a request that names a device where the dialect does.
pub(super) fn device_head(command: Command, dialect: &Dialect, device: u32) -> Head {
    let head = Head::new(command);
    if dialect.has_devices { head.u32(device) } else { head }
}

/// Whether a device may pad the rows of a tensor.
pub(super) fn is_padded(tensor: TensorRef<'_>) -> bool {
    let has_odd_rows = !tensor.ne()[0].is_multiple_of(PADDED_ROW);
    tensor.dtype().is_quantized() && has_odd_rows && tensor.view().is_none()
}

/// Whether only the device knows how much memory a tensor takes.
fn asks_for_size(tensor: TensorRef<'_>, dialect: &Dialect) -> bool {
    let by_op = match tensor.op() {
        Op::FlashAttnExt(_) | Op::MulMatId(_) => dialect.has_devices,
        Op::MulMat(_) | Op::Cumsum(_) | Op::Argsort(_) | Op::TopK(_) => dialect.has_cache_flag,
        _ => false,
    };
    by_op || is_padded(tensor)
}

impl RemoteBufferType {
    /// Asks a device about its memory.
    pub(super) fn ask(
        connection: Arc<Connection>,
        name: String,
        device: u32,
    ) -> Result<Arc<RemoteBufferType>, Arc<WorkerFailure>> {
        let number = |command| ask_device(&connection, command, device).map(u64::from_le_bytes);
        let alignment = number(Command::GetAlignment)?;
        let refuse = |command, what| match connection.turn() {
            Ok(mut turn) => turn.refuse(command, what),
            Err(failure) => failure,
        };
        if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
            return Err(refuse(Command::GetAlignment, format!("an alignment of {alignment}")));
        }
        let max_size = number(Command::GetMaxSize)?;
        if max_size == 0 {
            return Err(refuse(Command::GetMaxSize, "a largest buffer of no bytes".into()));
        }
        // No buffer is larger than what can be addressed here.
        let max_size = usize::try_from(max_size).unwrap_or(usize::MAX).min(isize::MAX.unsigned_abs());
        let alignment = usize::try_from(alignment).unwrap_or(1);
        let known_sizes = Mutex::default();
        Ok(Arc::new(RemoteBufferType { connection, name, device, alignment, max_size, known_sizes }))
    }

    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Allocates on the worker; `None` if it has not enough memory.
    fn allocate_remote(&self, size: usize) -> Result<Option<Live>, Arc<WorkerFailure>> {
        let wanted = size as u64;
        let head = device_head(Command::AllocBuffer, self.connection.dialect, self.device);
        let (head, about) = (head.u64(wanted).whole(), About::Bytes { len: size, name: None });
        let message =
            Message { command: Command::AllocBuffer, head: &head, payload: &[], about: &about, work: wanted };
        let mut turn = self.connection.turn()?;
        let mut answer = [[0; 8]; 2];
        turn.exchange(&message, answer.as_mut_bytes())?;
        let [handle, remote_size] = answer.map(u64::from_le_bytes);
        if handle == 0 {
            return Ok(None);
        }
        if remote_size < wanted {
            let what = format!("a buffer of {remote_size} bytes instead of {wanted}");
            return Err(turn.refuse(Command::AllocBuffer, what));
        }
        let head = Head::new(Command::BufferGetBase).u64(handle).whole();
        let about = About::Nothing;
        let message =
            Message { command: Command::BufferGetBase, head: &head, payload: &[], about: &about, work: 0 };
        let mut base = [0; 8];
        turn.exchange(&message, &mut base)?;
        let base = u64::from_le_bytes(base);
        let is_aligned = base.is_multiple_of(self.alignment as u64);
        if base == 0 || !is_aligned || base.checked_add(remote_size).is_none() {
            return Err(turn.refuse(Command::BufferGetBase, format!("a base of {base:#x}")));
        }
        let live = Live { handle, base };
        if !self.connection.register(live) {
            let what = format!("buffer {handle:#x}, which is in use");
            return Err(turn.refuse(Command::AllocBuffer, what));
        }
        Ok(Some(live))
    }

    fn ask_size(&self, tensor: TensorRef<'_>) -> Option<usize> {
        let dialect = self.connection.dialect;
        let record = node_record(tensor, dialect).ok()?;
        let mut key = size_key(&record);
        let mut sources = [TensorRecord::absent(); 10];
        if dialect.has_devices {
            for (place, source) in sources.iter_mut().zip(tensor.sources()) {
                *place = source.map_or(Ok(*place), |source| leaf_record(source, dialect)).ok()?;
                key.extend(size_key(place));
            }
        }
        if let Some(&size) = self.known_sizes.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Some(size);
        }
        let mut head = device_head(Command::GetAllocSize, dialect, self.device).record(&record);
        if dialect.has_devices {
            head = head.raw(sources.as_bytes());
        }
        let (head, about) = (head.whole(), About::Nothing);
        let command = Command::GetAllocSize;
        let message = Message { command, head: &head, payload: &[], about: &about, work: 0 };
        let size = self.connection.ask(&message).map(u64::from_le_bytes).ok()?;
        // Too much to be true is too much to be allocated, which is how the caller learns of it.
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let mut known = self.known_sizes.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_KNOWN_SIZES {
            known.clear();
        }
        known.insert(key, size);
        Some(size)
    }
}

/// What a size depends on, of the tensor and of each source that is sent with it: type, op, parameters, extents, strides.
fn size_key(record: &TensorRecord) -> Vec<u8> {
    let mut key = Vec::with_capacity(104);
    key.extend_from_slice(record.dtype.as_bytes());
    key.extend_from_slice(record.op.as_bytes());
    key.extend_from_slice(record.params.as_bytes());
    key.extend_from_slice(record.ne.as_bytes());
    key.extend_from_slice(record.nb.as_bytes());
    key
}

impl BufferType for RemoteBufferType {
    fn name(&self) -> &str {
        &self.name
    }

    fn allocate_bytes(self: Arc<Self>, size: usize) -> Result<Arc<dyn Buffer>, Error> {
        let error = |failure: Arc<WorkerFailure>| failure.of_device(&self.name);
        let short = || Error::OutOfMemory { buffer_type: self.name.clone(), size };
        if size > self.max_size {
            return Err(short());
        }
        let live = self.allocate_remote(size).map_err(error)?.ok_or_else(short)?;
        let buffer = RemoteBuffer::new(Arc::clone(&self), live, size);
        // Workers of other makes hand out memory as they found it.
        let head = Head::new(Command::BufferClear).u64(live.handle).u8(0);
        let about = About::Bytes { len: size, name: None };
        let clear = Waiting { about, work: size as u64, ..Waiting::new(Command::BufferClear, head) };
        self.connection.submit(Job::Tell(clear)).map_err(error)?;
        Ok(Arc::new(buffer))
    }

    fn alignment(&self) -> usize {
        self.alignment
    }

    fn max_size(&self) -> usize {
        self.max_size
    }

    /// Never less than the tensor's own bytes. A worker that is gone is not asked; whatever comes next will tell.
    fn alloc_size(&self, tensor: TensorRef<'_>) -> usize {
        let own = tensor.byte_len();
        if !asks_for_size(tensor, self.connection.dialect) {
            return own;
        }
        self.ask_size(tensor).map_or(own, |size| size.max(own))
    }
}
