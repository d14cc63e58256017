//! Requests as bytes: command, size and the fixed start of the body in one piece, large data as another, so that both
//! leave with one write and the data is never copied.

use std::ops::Range;
use std::sync::Arc;

use zerocopy::IntoBytes;

use super::failure::About;
use crate::wire::{Command, TensorRecord};

/// Bytes before a body: the command and the size.
pub(super) const PREFIX: usize = 9;

/// A request about to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message<'a> {
    pub(super) command: Command,
    /// Prefix and the start of the body; the size in it is that of the whole body.
    pub(super) head: &'a [u8],
    /// The rest of the body.
    pub(super) payload: &'a [u8],
    /// What it is about, for errors.
    pub(super) about: &'a About,
    /// Bytes the worker has to handle for it, in its own memory.
    pub(super) work: u64,
}

/// Prefix and the start of a body.
#[derive(Clone, Debug)]
pub(super) struct Head {
    bytes: Vec<u8>,
}

impl Head {
    pub(super) fn new(command: Command) -> Head {
        let mut bytes = Vec::with_capacity(PREFIX + 32);
        bytes.push(command as u8);
        bytes.extend([0; 8]);
        Head { bytes }
    }

    pub(super) fn u8(mut self, value: u8) -> Head {
        self.bytes.push(value);
        self
    }

    pub(super) fn u32(mut self, value: u32) -> Head {
        self.bytes.extend(value.to_le_bytes());
        self
    }

    pub(super) fn u64(mut self, value: u64) -> Head {
        self.bytes.extend(value.to_le_bytes());
        self
    }

    pub(super) fn record(mut self, record: &TensorRecord) -> Head {
        self.bytes.extend_from_slice(record.as_bytes());
        self
    }

    pub(super) fn raw(mut self, bytes: &[u8]) -> Head {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// The bytes, for a body that goes on with some more.
    pub(super) fn followed_by(mut self, more: usize) -> Vec<u8> {
        let size = (self.bytes.len() - PREFIX + more) as u64;
        self.bytes[1..PREFIX].copy_from_slice(&size.to_le_bytes());
        self.bytes
    }

    /// The bytes of a whole request.
    pub(super) fn whole(self) -> Vec<u8> {
        self.followed_by(0)
    }
}

/// Bytes that a waiting request shares with the caller that made it.
#[derive(Clone, Debug)]
pub(super) struct SharedBytes {
    bytes: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl SharedBytes {
    pub(super) fn all(bytes: Arc<Vec<u8>>) -> SharedBytes {
        SharedBytes { range: 0..bytes.len(), bytes }
    }

    /// Some of the bytes; none where there are none.
    pub(super) fn part(bytes: &Arc<Vec<u8>>, range: Range<usize>) -> SharedBytes {
        SharedBytes { bytes: Arc::clone(bytes), range }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        self.bytes.get(self.range.clone()).unwrap_or_default()
    }
}

/// A request that waits for its turn and owns its bytes.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) command: Command,
    pub(super) head: Vec<u8>,
    pub(super) payload: Option<SharedBytes>,
    pub(super) about: About,
    pub(super) work: u64,
}

impl Waiting {
    /// A request without large data.
    pub(super) fn new(command: Command, head: Head) -> Waiting {
        Waiting { command, head: head.whole(), payload: None, about: About::Nothing, work: 0 }
    }

    pub(super) fn message(&self) -> Message<'_> {
        Message {
            command: self.command,
            head: &self.head,
            payload: self.payload.as_ref().map_or(&[], SharedBytes::as_slice),
            about: &self.about,
            work: self.work,
        }
    }

    /// Bytes on the wire.
    pub(super) fn len(&self) -> usize {
        self.head.len() + self.payload.as_ref().map_or(0, |payload| payload.as_slice().len())
    }
}
