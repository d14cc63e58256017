//! Every bound of the client on what a worker may say and on what waits to be sent.

use std::time::Duration;

/// Devices a worker may have.
pub const MAX_DEVICES: u32 = 64;

/// The largest alignment a device may ask for. Devices ask for a few hundred bytes; more would only waste memory.
pub const MAX_ALIGNMENT: u64 = 1 << 30;

/// Addresses of a name that are tried.
pub const MAX_ADDRESSES: usize = 16;

/// Bytes of one SET_TENSOR, GET_TENSOR, MEMSET_TENSOR or COPY_TENSOR; longer ranges take several. Extents have 32 bits on
/// the wire, and peers split system calls here.
pub const MAX_PIECE: usize = 1 << 30;

/// Commands that wait to be sent; a call that would add one more waits. Frees always fit: there are no more than buffers.
pub const MAX_QUEUED_COMMANDS: usize = 1024;

/// Bytes that wait to be sent. One command may be longer, when it is alone.
pub const MAX_QUEUED_BYTES: usize = 256 << 20;

/// The longest command that a caller sends by itself when nothing else is waiting, instead of leaving it to the
/// connection's thread. Small enough to fit what the system buffers.
pub const MAX_DIRECT_BYTES: usize = 32 << 10;

/// Unconfirmed commands that an error lists; the rest is counted. The first ones are the likely culprits.
pub const MAX_NOTES: usize = 8;

/// Sizes that a device told and that are remembered.
pub const MAX_KNOWN_SIZES: usize = 1 << 16;

/// Names of tensors that a buffer remembers, to put them into errors.
pub const MAX_KNOWN_NAMES: usize = 1 << 14;

/// Bytes above which a worker may be asked whether it has the data already, where it is told what to keep.
pub const HASH_THRESHOLD: usize = 128 << 10;

/// The same where it is not told, but keeps whatever is larger than this.
pub const UNTOLD_HASH_THRESHOLD: usize = 10 << 20;

/// Bytes that are written at a time where a range is filled by writing.
pub const FILL_PIECE: usize = 1 << 20;

/// Bytes that are held at a time where a worker cannot copy by itself.
pub const STAGE: usize = 16 << 20;

/// How often a wait looks at the clock.
pub const TICK: Duration = Duration::from_millis(250);

/// Time for each graph beyond the first where several are waited for together.
pub const FURTHER_GRAPH: Duration = Duration::from_secs(60);

/// The longest that any number of graphs is waited for, unless one alone may take longer.
pub const LONGEST_COMPUTING: Duration = Duration::from_secs(3600);

/// Commands of a connection whose end may become known by another; beyond, the oldest become known later.
pub const MAX_MARKS: usize = 64;

/// How often bytes may fail to come from one worker to another until they go by here.
pub const MAX_FAILED_DELIVERIES: usize = 2;

/// Bytes of a pulse that are read at a time; what a worker says honestly is much less.
pub const PULSE_PIECE: usize = 4 << 10;

/// How long a worker is looked at of which another got nothing: the one that waited may see a moment earlier that it is gone.
pub const LOOK: Duration = Duration::from_millis(500);

const _: () = assert!(MAX_PIECE <= u32::MAX as usize);
const _: () = assert!(MAX_DIRECT_BYTES <= MAX_QUEUED_BYTES);
const _: () = assert!(HASH_THRESHOLD < MAX_PIECE && UNTOLD_HASH_THRESHOLD < MAX_PIECE);
