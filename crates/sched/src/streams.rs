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
    devices: Vec<Arc<dyn Device>>,
    buffer_types: Vec<Arc<dyn BufferType>>,
}

impl Backends {
    pub(crate) fn new(streams: Vec<Box<dyn Backend>>) -> Result<Backends, Error> {
        if streams.is_empty() || u16::try_from(streams.len()).is_err() {
            return Err(Error::NoBackends);
        }
        let devices: Vec<_> = streams.iter().map(|stream| Arc::clone(stream.device())).collect();
        let buffer_types = devices.iter().map(|device| device.buffer_type()).collect();
        Ok(Backends { streams, devices, buffer_types })
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
        &self.devices[id.index()]
    }

    pub(crate) fn buffer_type(&self, id: BackendId) -> &Arc<dyn BufferType> {
        &self.buffer_types[id.index()]
    }

    pub(crate) fn same_memory(&self, a: BackendId, b: BackendId) -> bool {
        same_buffer_type(self.buffer_type(a), self.buffer_type(b))
    }
}

/// Some memory: that of a backend's results, or a buffer of the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory(u32);

/// Which backend can read which memory, and what the buffers are for: asked once, then looked up.
#[derive(Debug)]
pub(crate) struct Memories {
    backends: usize,
    /// By backend, then memory. The memories of the backends come first, then the buffers.
    reads: Vec<bool>,
    buffers: Vec<BufferFacts>,
    /// By memory, the most preferred backend that can read it.
    first_reader: Vec<Option<BackendId>>,
    /// By backend, those preferred to it that use the very same memory.
    better: Vec<Vec<BackendId>>,
}

#[derive(Clone, Copy, Debug)]
struct BufferFacts {
    is_weights: bool,
    is_host: bool,
}

/// What one backend can read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readable<'a>(
    /// By memory.
    &'a [bool],
);

impl Readable<'_> {
    pub(crate) fn includes(self, memory: Memory) -> bool {
        self.0.get(memory.0 as usize).copied().unwrap_or(false)
    }
}

impl Memories {
    pub(crate) fn new(backends: &Backends, buffers: &Buffers) -> Memories {
        let count = backends.len();
        let types = backends.ids().map(|id| backends.buffer_type(id));
        let types: Vec<_> = types.chain(buffers.iter().map(|buffer| buffer.buffer_type())).collect();
        let mut reads = Vec::with_capacity(types.len() * count);
        for id in backends.ids() {
            reads.extend(
                types.iter().map(|buffer_type| backends.device(id).supports_buffer_type(buffer_type)),
            );
        }
        let first = |memory| backends.ids().find(|id| reads[id.index() * types.len() + memory]);
        let first_reader = (0..types.len()).map(first).collect();
        let facts = |buffer: &Arc<dyn Buffer>| BufferFacts {
            is_weights: buffer.usage() == Usage::Weights,
            is_host: buffer.buffer_type().is_host(),
        };
        let better = |id| backends.before(id).filter(|&other| backends.same_memory(other, id)).collect();
        Memories {
            backends: count,
            reads,
            first_reader,
            buffers: buffers.iter().map(facts).collect(),
            better: backends.ids().map(better).collect(),
        }
    }

    pub(crate) fn of_backend(&self, backend: BackendId) -> Memory {
        Memory(u32::from(backend.0))
    }

    /// A buffer that the table does not know is memory that nobody reads.
    pub(crate) fn of_buffer(&self, buffer: BufferId) -> Memory {
        // Both are table positions, far below half of what fits.
        Memory((self.backends as u32).saturating_add(buffer.0))
    }

    pub(crate) fn reads(&self, backend: BackendId, memory: Memory) -> bool {
        self.read_by(backend).includes(memory)
    }

    /// What a backend can read.
    pub(crate) fn read_by(&self, backend: BackendId) -> Readable<'_> {
        let count = self.first_reader.len();
        Readable(&self.reads[backend.index() * count..][..count])
    }

    /// Backends preferred to this one that use the very same memory.
    pub(crate) fn better(&self, backend: BackendId) -> &[BackendId] {
        &self.better[backend.index()]
    }

    pub(crate) fn is_weights(&self, buffer: BufferId) -> bool {
        self.buffers.get(buffer.0 as usize).is_some_and(|facts| facts.is_weights)
    }

    pub(crate) fn is_host(&self, buffer: BufferId) -> bool {
        self.buffers.get(buffer.0 as usize).is_some_and(|facts| facts.is_host)
    }

    /// The most preferred backend that can read a memory.
    pub(crate) fn first_reader(&self, memory: Memory) -> Option<BackendId> {
        *self.first_reader.get(memory.0 as usize)?
    }

    /// The most preferred backend that can read a memory and fits otherwise.
    #[inline]
    pub(crate) fn best(&self, memory: Memory, fits: impl Fn(BackendId) -> bool) -> Option<BackendId> {
        let first = self.first_reader(memory)?;
        if fits(first) {
            return Some(first);
        }
        let others = (first.index() + 1..self.backends).map(|index| BackendId(index as u16));
        others.into_iter().find(|&id| self.reads(id, memory) && fits(id))
    }

    /// Whether two backends can get at the same bytes without a copy: one at the other's results, or both at a buffer
    /// that is not just weights. Then they must not run at the same time.
    pub(crate) fn are_shared(&self, a: BackendId, b: BackendId) -> bool {
        let both = |(index, facts): (usize, &BufferFacts)| {
            let memory = Memory((self.backends + index) as u32);
            !facts.is_weights && self.reads(a, memory) && self.reads(b, memory)
        };
        self.reads(a, self.of_backend(b))
            || self.reads(b, self.of_backend(a))
            || self.buffers.iter().enumerate().any(both)
    }
}
