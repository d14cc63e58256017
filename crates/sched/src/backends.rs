//! The backends of a scheduler, and what each can read.

use std::fmt;
use std::sync::Arc;

use oxcart_backend::{Backend, Buffer, BufferType, Buffers, Device, Usage, same_buffer_type};
use oxcart_tensor::graph::BufferId;

use crate::error::Error;

/// A backend of a scheduler: lower ids are preferred, the last one is the CPU or whatever can do everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendId(u16);

impl BackendId {
    /// Position among the scheduler's backends.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for BackendId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// Streams to schedule on, most preferred first.
#[derive(Debug)]
pub(crate) struct Backends {
    streams: Vec<Box<dyn Backend>>,
    buffer_types: Vec<Arc<dyn BufferType>>,
}

impl Backends {
    pub(crate) fn new(streams: Vec<Box<dyn Backend>>) -> Result<Backends, Error> {
        if streams.is_empty() || u16::try_from(streams.len()).is_err() {
            return Err(Error::NoBackends);
        }
        let buffer_types = streams.iter().map(|stream| stream.device().buffer_type()).collect();
        Ok(Backends { streams, buffer_types })
    }

    pub(crate) fn len(&self) -> usize {
        self.streams.len()
    }

    pub(crate) fn id(&self, index: usize) -> Result<BackendId, Error> {
        let missing = Error::NoSuchBackend { index, count: self.len() };
        u16::try_from(index).ok().filter(|_| index < self.len()).map(BackendId).ok_or(missing)
    }

    pub(crate) fn ids(&self) -> impl DoubleEndedIterator<Item = BackendId> + ExactSizeIterator + use<> {
        // The number of streams was checked to fit.
        (0..self.streams.len()).map(|index| BackendId(index as u16))
    }

    /// Those preferred to `id`.
    pub(crate) fn before(&self, id: BackendId) -> impl Iterator<Item = BackendId> + use<> {
        (0..id.0).map(BackendId)
    }

    pub(crate) fn last(&self) -> BackendId {
        BackendId((self.streams.len() - 1) as u16)
    }

    pub(crate) fn stream(&self, id: BackendId) -> &dyn Backend {
        &*self.streams[id.index()]
    }

    pub(crate) fn device(&self, id: BackendId) -> &Arc<dyn Device> {
        self.streams[id.index()].device()
    }

    pub(crate) fn buffer_type(&self, id: BackendId) -> &Arc<dyn BufferType> {
        &self.buffer_types[id.index()]
    }

    pub(crate) fn same_memory(&self, a: BackendId, b: BackendId) -> bool {
        same_buffer_type(self.buffer_type(a), self.buffer_type(b))
    }
}

/// Which backend can read which buffer, asked once and then looked up.
#[derive(Debug)]
pub(crate) struct BufferSupport {
    backends: usize,
    /// By buffer, then backend.
    buffers: Vec<bool>,
    /// By backend whose memory it is, then reading backend.
    memories: Vec<bool>,
}

impl BufferSupport {
    pub(crate) fn new(backends: &Backends, buffers: &Buffers) -> BufferSupport {
        let ask = |buffer_type: &Arc<dyn BufferType>| -> Vec<bool> {
            backends.ids().map(|id| backends.device(id).supports_buffer_type(buffer_type)).collect()
        };
        let memories = backends.ids().flat_map(|id| ask(backends.buffer_type(id))).collect();
        let mut table = Vec::with_capacity(buffers.len() * backends.len());
        for buffer in buffers.iter() {
            table.extend(ask(buffer.buffer_type()));
        }
        BufferSupport { backends: backends.len(), buffers: table, memories }
    }

    pub(crate) fn reads(&self, backend: BackendId, buffer: BufferId) -> bool {
        self.buffers.get(buffer.0 as usize * self.backends + backend.index()).copied().unwrap_or(false)
    }

    /// Whether `backend` can read what lies in the memory of `home`.
    pub(crate) fn reads_memory_of(&self, backend: BackendId, home: BackendId) -> bool {
        self.memories[home.index() * self.backends + backend.index()]
    }

    /// Whether two backends can get at the same bytes without a copy: one at the other's results, or both at a buffer
    /// that is not just weights. Then they must not run at the same time.
    pub(crate) fn share_memory(&self, a: BackendId, b: BackendId, buffers: &Buffers) -> bool {
        let both = |(index, buffer): (usize, &Arc<dyn Buffer>)| {
            let row = index * self.backends;
            buffer.usage() != Usage::Weights && self.buffers[row + a.index()] && self.buffers[row + b.index()]
        };
        self.reads_memory_of(a, b) || self.reads_memory_of(b, a) || buffers.iter().enumerate().any(both)
    }

    /// The most preferred backend that can read a buffer and fits otherwise.
    pub(crate) fn best(&self, buffer: BufferId, fits: impl Fn(BackendId) -> bool) -> Option<BackendId> {
        (0..self.backends).map(|index| BackendId(index as u16)).find(|&id| self.reads(id, buffer) && fits(id))
    }
}
