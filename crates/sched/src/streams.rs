//! The streams of a scheduler, and what each can read.

use std::fmt;
use std::sync::Arc;

use oxcart_backend::{Buffer, BufferType, Buffers, Device, Stream, Usage, same_buffer_type};
use oxcart_tensor::graph::BufferId;

use crate::error::Error;

/// A stream of a scheduler: lower ids are preferred, the last one is the CPU or whatever can do everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(u16);

impl StreamId {
    /// Position among the scheduler's streams.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// Streams to schedule on, most preferred first.
#[derive(Debug)]
pub(crate) struct Streams {
    streams: Vec<Box<dyn Stream>>,
    devices: Vec<Arc<dyn Device>>,
    buffer_types: Vec<Arc<dyn BufferType>>,
}

/// The memory that a device's results lie in: its own. If that is host memory and another device knows host memory from
/// which its transfers are faster, it is that one's.
fn results_in(device: &Arc<dyn Device>, all: &[Arc<dyn Device>]) -> Arc<dyn BufferType> {
    let own = device.buffer_type();
    if !own.is_host() {
        return own;
    }
    let remote = all.iter().filter(|other| !other.buffer_type().is_host());
    let offered = remote.filter_map(|other| other.host_buffer_type());
    offered.into_iter().find(|host| device.supports_buffer_type(host)).unwrap_or(own)
}

impl Streams {
    pub(crate) fn new(streams: Vec<Box<dyn Stream>>) -> Result<Streams, Error> {
        if streams.is_empty() || u16::try_from(streams.len()).is_err() {
            return Err(Error::NoStreams);
        }
        let devices: Vec<_> = streams.iter().map(|stream| Arc::clone(stream.device())).collect();
        let buffer_types = devices.iter().map(|device| results_in(device, &devices)).collect();
        Ok(Streams { streams, devices, buffer_types })
    }

    pub(crate) fn len(&self) -> usize {
        self.streams.len()
    }

    pub(crate) fn id(&self, index: usize) -> Result<StreamId, Error> {
        let missing = Error::NoSuchStream { index, count: self.len() };
        u16::try_from(index).ok().filter(|_| index < self.len()).map(StreamId).ok_or(missing)
    }

    pub(crate) fn ids(&self) -> impl DoubleEndedIterator<Item = StreamId> + ExactSizeIterator + use<> {
        // The number of streams was checked to fit.
        (0..self.streams.len()).map(|index| StreamId(index as u16))
    }

    /// Those preferred to `id`.
    pub(crate) fn before(&self, id: StreamId) -> impl Iterator<Item = StreamId> + use<> {
        (0..id.0).map(StreamId)
    }

    pub(crate) fn last(&self) -> StreamId {
        StreamId((self.streams.len() - 1) as u16)
    }

    pub(crate) fn stream(&self, id: StreamId) -> &dyn Stream {
        &*self.streams[id.index()]
    }

    pub(crate) fn device(&self, id: StreamId) -> &Arc<dyn Device> {
        &self.devices[id.index()]
    }

    pub(crate) fn buffer_type(&self, id: StreamId) -> &Arc<dyn BufferType> {
        &self.buffer_types[id.index()]
    }

    pub(crate) fn same_memory(&self, a: StreamId, b: StreamId) -> bool {
        same_buffer_type(self.buffer_type(a), self.buffer_type(b))
    }
}

/// Some memory: that of a stream's results, or a buffer of the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryId(u32);

/// Which stream can read which memory, and what the buffers are for: asked once, then looked up.
#[derive(Debug)]
pub(crate) struct Memories {
    streams: usize,
    /// By stream, then memory. The memories of the streams come first, then the buffers.
    reads: Vec<bool>,
    buffers: Vec<BufferFacts>,
    /// By memory, the most preferred stream that can read it.
    first_reader: Vec<Option<StreamId>>,
    /// By stream, those preferred to it that use the very same memory.
    better: Vec<Vec<StreamId>>,
}

#[derive(Clone, Copy, Debug)]
struct BufferFacts {
    is_weights: bool,
    is_host: bool,
}

/// What one stream can read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readable<'a>(
    /// By memory.
    &'a [bool],
);

impl Readable<'_> {
    pub(crate) fn includes(self, memory: MemoryId) -> bool {
        self.0.get(memory.0 as usize).copied().unwrap_or(false)
    }
}

impl Memories {
    pub(crate) fn new(streams: &Streams, buffers: &Buffers) -> Memories {
        let count = streams.len();
        let types = streams.ids().map(|id| streams.buffer_type(id));
        let types: Vec<_> = types.chain(buffers.iter().map(|buffer| buffer.buffer_type())).collect();
        let mut reads = Vec::with_capacity(types.len() * count);
        for id in streams.ids() {
            reads
                .extend(types.iter().map(|buffer_type| streams.device(id).supports_buffer_type(buffer_type)));
        }
        let first = |memory| streams.ids().find(|id| reads[id.index() * types.len() + memory]);
        let first_reader = (0..types.len()).map(first).collect();
        let facts = |buffer: &Arc<dyn Buffer>| BufferFacts {
            is_weights: buffer.usage() == Usage::Weights,
            is_host: buffer.buffer_type().is_host(),
        };
        let better = |id| streams.before(id).filter(|&other| streams.same_memory(other, id)).collect();
        Memories {
            streams: count,
            reads,
            first_reader,
            buffers: buffers.iter().map(facts).collect(),
            better: streams.ids().map(better).collect(),
        }
    }

    pub(crate) fn of_stream(&self, stream: StreamId) -> MemoryId {
        MemoryId(u32::from(stream.0))
    }

    /// A buffer that the table does not know is memory that no stream reads.
    pub(crate) fn of_buffer(&self, buffer: BufferId) -> MemoryId {
        // Both are table positions, far below half of what fits.
        MemoryId((self.streams as u32).saturating_add(buffer.0))
    }

    pub(crate) fn reads(&self, stream: StreamId, memory: MemoryId) -> bool {
        self.read_by(stream).includes(memory)
    }

    /// What a stream can read.
    pub(crate) fn read_by(&self, stream: StreamId) -> Readable<'_> {
        let count = self.first_reader.len();
        Readable(&self.reads[stream.index() * count..][..count])
    }

    /// Streams preferred to this one that use the very same memory.
    pub(crate) fn better(&self, stream: StreamId) -> &[StreamId] {
        &self.better[stream.index()]
    }

    pub(crate) fn is_weights(&self, buffer: BufferId) -> bool {
        self.buffers.get(buffer.0 as usize).is_some_and(|facts| facts.is_weights)
    }

    pub(crate) fn is_host(&self, buffer: BufferId) -> bool {
        self.buffers.get(buffer.0 as usize).is_some_and(|facts| facts.is_host)
    }

    /// The most preferred stream that can read a memory.
    pub(crate) fn first_reader(&self, memory: MemoryId) -> Option<StreamId> {
        *self.first_reader.get(memory.0 as usize)?
    }

    /// The most preferred stream that can read a memory and fits otherwise.
    #[inline]
    pub(crate) fn best(&self, memory: MemoryId, fits: impl Fn(StreamId) -> bool) -> Option<StreamId> {
        let first = self.first_reader(memory)?;
        if fits(first) {
            return Some(first);
        }
        let others = (first.index() + 1..self.streams).map(|index| StreamId(index as u16));
        others.into_iter().find(|&id| self.reads(id, memory) && fits(id))
    }

    /// Whether two streams can get at the same bytes without a copy: one at the other's results, or both at a buffer
    /// that is not just weights. Then they must not run at the same time.
    pub(crate) fn are_shared(&self, a: StreamId, b: StreamId) -> bool {
        let both = |(index, facts): (usize, &BufferFacts)| {
            let memory = MemoryId((self.streams + index) as u32);
            !facts.is_weights && self.reads(a, memory) && self.reads(b, memory)
        };
        self.reads(a, self.of_stream(b))
            || self.reads(b, self.of_stream(a))
            || self.buffers.iter().enumerate().any(both)
    }
}
