//! Devices, buffers and streams, seen through traits.
//!
//! A [`Registry`] lists [`Device`]s; a device opens [`Stream`]s of work and has a [`BufferType`] that
//! allocates [`Buffer`]s. This crate knows no concrete device; it keeps the registry of those that exist, moves tensor
//! data between buffers of any kind, and loads devices from plug-ins.
//!
//! Invariant: every call that can fail returns an error that names the culprit; nothing aborts the process. A byte
//! range is checked against its buffer before it is touched.
#![deny(unsafe_code)]

mod arithmetic;
mod buffer;
mod byte_size;
mod compare;
mod content;
mod copy;
mod device;
mod error;
mod guid;
mod host;
mod multi;
mod os;
mod place;
pub mod plugin;
mod registry;
mod stream;
mod table;

pub use arithmetic::Arithmetic;
pub use buffer::{Buffer, BufferType, Usage, allocate, same_buffer_type};
pub use byte_size::ByteSize;
pub use compare::{Comparison, compare};
pub use content::Content;
pub use copy::{GraphCopy, copy_graph};
pub use device::{Caps, Device, DeviceKind, Memory, Pace};
pub use error::Error;
pub use guid::Guid;
pub use host::{HostBuffer, HostBufferType, HostMemory, HostRead, HostWrite};
pub use multi::MultiBuffer;
pub use place::{Place, Route, copy_place, copy_tensor, place_all};
pub use registry::{Registries, Registry, global};
pub use stream::{Pending, Plan, Stream, StreamOptions, Ticket, Work, copy_async};
pub use table::Buffers;
