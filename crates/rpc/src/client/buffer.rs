//! Memory on a worker.
//!
//! Writes and reads lend the caller's bytes to the socket; fills and frees are left to their turn. A buffer is freed when it
//! is dropped, without waiting.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use oxcart_backend::{Buffer, BufferType, Content, Error, Usage};
use oxcart_tensor::TensorRef;
use zerocopy::little_endian::U64;

use super::buffer_type::{RemoteBufferType, is_padded};
use super::connection::{Connection, Live};
use super::failure::{About, WorkerFailure};
use super::job::{Job, Range};
use super::limits::{FILL_PIECE, HASH_THRESHOLD, MAX_KNOWN_NAMES, MAX_PIECE, UNTOLD_HASH_THRESHOLD};
use super::message::{Head, Message, Waiting};
use super::record::{bytes_record, leaf_record};
use crate::wire::{Command, Take, content_of, fnv1a};

/// Memory on a worker.
#[derive(Debug)]
pub struct RemoteBuffer {
    remote: Arc<RemoteBufferType>,
    buffer_type: Arc<dyn BufferType>,
    live: Live,
    len: usize,
    usage: Mutex<Usage>,
    /// Names of leaves by where they start, so that errors can name them.
    names: Mutex<BTreeMap<usize, Arc<str>>>,
}

impl RemoteBuffer {
    pub(super) fn new(remote: Arc<RemoteBufferType>, live: Live, len: usize) -> RemoteBuffer {
        let buffer_type = Arc::clone(&remote) as _;
        RemoteBuffer { remote, buffer_type, live, len, usage: Mutex::default(), names: Mutex::default() }
    }

    pub(super) fn connection(&self) -> &Arc<Connection> {
        self.remote.connection()
    }

    /// Whether it lives on this connection.
    pub(super) fn is_of(&self, connection: &Arc<Connection>) -> bool {
        Arc::ptr_eq(self.connection(), connection)
    }

    /// Some of its bytes, checked.
    pub(super) fn range(&self, offset: usize, len: usize) -> Result<Range, Error> {
        if offset.checked_add(len).is_some_and(|end| end <= self.len) {
            return Ok(Range { buffer: self.live, offset, len });
        }
        Err(Error::OutOfBounds { what: self.remote.name().to_owned(), offset, len, size: self.len })
    }

    fn error(&self, failure: &Arc<WorkerFailure>) -> Error {
        failure.of_device(self.remote.name())
    }

    fn tell(&self, command: Command, head: Head, work: usize) -> Result<(), Error> {
        let about = About::Bytes { len: work, name: None };
        let waiting = Waiting { about, work: work as u64, ..Waiting::new(command, head) };
        self.connection().submit(Job::Tell(waiting)).map_err(|failure| self.error(&failure))
    }

    /// The name of the tensor that starts at a byte.
    pub(super) fn name_at(&self, offset: usize) -> Option<Arc<str>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).get(&offset).cloned()
    }

    /// Whether the worker may have these bytes already.
    pub(super) fn may_be_cached(&self, len: usize) -> bool {
        let connection = self.connection();
        let least = if connection.dialect.has_cache_flag { HASH_THRESHOLD } else { UNTOLD_HASH_THRESHOLD };
        let is_large = len > least && len <= MAX_PIECE;
        connection.worker_cache && is_large && self.usage() == Usage::Weights
    }

    /// Whether the worker may have these bytes already, and can be asked for them by their digest.
    fn may_be_taken(&self, len: usize) -> bool {
        let connection = self.connection();
        let has = connection.worker_has;
        let least = if has.copies { 0 } else { HASH_THRESHOLD };
        let is_asked_for = len > least && len <= MAX_PIECE;
        connection.worker_cache && has.takes && is_asked_for && self.usage() == Usage::Weights
    }

    /// Asks whether the worker has the bytes with this hash, and has put them in place.
    fn found_in_cache(&self, target: Range, hash: u64) -> Result<bool, Arc<WorkerFailure>> {
        let command = Command::SetTensorHash;
        self.is_in_place(target, command, Head::new(command).record(&bytes_record(target)).u64(0).u64(hash))
    }

    /// The same by what the bytes are known by, which no others are.
    fn was_taken(&self, target: Range, content: &Content) -> Result<bool, Arc<WorkerFailure>> {
        let take = Take { record: bytes_record(target), content: *content };
        self.is_in_place(target, Command::Take, Head::new(Command::Take).raw(&take.encode()))
    }

    /// Whether the worker says that it has put bytes in place by itself.
    fn is_in_place(&self, target: Range, command: Command, head: Head) -> Result<bool, Arc<WorkerFailure>> {
        let about = About::Bytes { len: target.len, name: self.name_at(target.offset) };
        let (head, work) = (head.whole(), target.len as u64);
        let mut turn = self.connection().turn()?;
        let mut answer = [0];
        turn.exchange(&Message { command, head: &head, payload: &[], about: &about, work }, &mut answer)?;
        match answer {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(turn.refuse(command, format!("result {other}"))),
        }
    }

    fn write_range(&self, target: Range, data: &[u8]) -> Result<(), Arc<WorkerFailure>> {
        let ask_first = self.may_be_cached(data.len());
        // The hash is computed before a turn is asked for, so that threads which write several tensors hash them in parallel.
        if ask_first && self.found_in_cache(target, fnv1a(data))? {
            return Ok(());
        }
        self.connection().turn()?.set(target, data, ask_first, self.name_at(target.offset))
    }

    fn write_known_range(
        &self,
        target: Range,
        data: &[u8],
        content: &Content,
    ) -> Result<(), Arc<WorkerFailure>> {
        let worth_keeping = self.may_be_cached(target.len);
        let is_there = match self.may_be_taken(target.len) {
            true => self.was_taken(target, content)?,
            false => worth_keeping && self.found_in_cache(target, content.hash)?,
        };
        if is_there {
            return Ok(());
        }
        self.connection().turn()?.set(target, data, worth_keeping, self.name_at(target.offset))
    }

    fn copy_range(&self, source: Range, target: Range) -> Result<bool, Arc<WorkerFailure>> {
        let mut turn = self.connection().turn()?;
        for ((_, from), (_, to)) in source.pieces().zip(target.pieces()) {
            if !turn.copy(from, to)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn remember_name(&self, tensor: TensorRef<'_>) {
        let (Some(name), Some(storage)) = (tensor.name(), tensor.storage()) else { return };
        if !tensor.is_leaf() {
            return;
        }
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() < MAX_KNOWN_NAMES || names.contains_key(&storage.offset) {
            names.insert(storage.offset, name.into());
        }
    }
}

impl Buffer for RemoteBuffer {
    fn buffer_type(&self) -> &Arc<dyn BufferType> {
        &self.buffer_type
    }

    fn len(&self) -> usize {
        self.len
    }

    fn usage(&self) -> Usage {
        *self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_usage(&self, usage: Usage) {
        *self.usage.lock().unwrap_or_else(PoisonError::into_inner) = usage;
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), Error> {
        let target = self.range(offset, data.len())?;
        if data.is_empty() {
            return Ok(());
        }
        self.write_range(target, data).map_err(|failure| self.error(&failure))
    }

    fn content_of(&self, data: &[u8]) -> Option<Content> {
        let is_asked_for = self.may_be_taken(data.len()) || self.may_be_cached(data.len());
        is_asked_for.then(|| content_of(data))
    }

    fn write_known(&self, offset: usize, data: &[u8], content: &Content) -> Result<(), Error> {
        let target = self.range(offset, data.len())?;
        if data.is_empty() {
            return Ok(());
        }
        self.write_known_range(target, data, content).map_err(|failure| self.error(&failure))
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        let source = self.range(offset, out.len())?;
        if out.is_empty() {
            return Ok(());
        }
        let turn = self.connection().turn();
        turn.and_then(|mut turn| turn.get(source, out)).map_err(|failure| self.error(&failure))
    }

    fn fill(&self, offset: usize, len: usize, value: u8) -> Result<(), Error> {
        let target = self.range(offset, len)?;
        if len == self.len {
            let head = Head::new(Command::BufferClear).u64(self.live.handle).u8(value);
            return self.tell(Command::BufferClear, head, len);
        }
        if self.connection().dialect.has_memset {
            return target.pieces().try_for_each(|(_, piece)| {
                let head = Head::new(Command::MemsetTensor).record(&bytes_record(piece));
                let head = head.u64(0).u64(piece.len as u64).u8(value);
                self.tell(Command::MemsetTensor, head, piece.len)
            });
        }
        let bytes = vec![value; len.min(FILL_PIECE)];
        for start in (0..len).step_by(FILL_PIECE) {
            let piece = (len - start).min(FILL_PIECE);
            self.write(offset + start, bytes.get(..piece).unwrap_or_default())?;
        }
        Ok(())
    }

    /// Some devices pad the rows of quantized tensors and want to clear the padding first.
    fn init_tensor(&self, tensor: TensorRef<'_>) -> Result<(), Error> {
        self.remember_name(tensor);
        let Some(storage) = tensor.storage().filter(|_| is_padded(tensor)) else { return Ok(()) };
        let range = self.range(storage.offset, tensor.byte_len())?;
        let dialect = self.connection().dialect;
        let mut record = leaf_record(tensor, dialect).map_err(|error| error.error(self.remote.name()))?;
        record.buffer = U64::new(range.buffer.handle);
        record.data = U64::new(range.buffer.base.wrapping_add(range.offset as u64));
        self.tell(Command::InitTensor, Head::new(Command::InitTensor).record(&record), range.len)
    }

    fn reset(&self) -> Result<(), Error> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).clear();
        Ok(())
    }

    fn copy_from(
        &self,
        offset: usize,
        source: &dyn Buffer,
        source_offset: usize,
        len: usize,
    ) -> Result<bool, Error> {
        let Some(other) = source.as_any().downcast_ref::<RemoteBuffer>() else { return Ok(false) };
        let (from, to) = (other.range(source_offset, len)?, self.range(offset, len)?);
        let shares = self.live.handle == other.live.handle;
        // Peers copy without regard to overlap.
        let overlaps = shares && from.offset < to.offset + len && to.offset < from.offset + len;
        if !other.is_of(self.connection()) || (overlaps && len > 0) {
            return Ok(false);
        }
        self.copy_range(from, to).map_err(|failure| self.error(&failure))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for RemoteBuffer {
    fn drop(&mut self) {
        let head = Head::new(Command::FreeBuffer).u64(self.live.handle);
        self.connection().free(self.live.handle, Job::Tell(Waiting::new(Command::FreeBuffer, head)));
    }
}
