//! The driver as this crate sees it: a trait, so that a test can put another one in its place.
//!
//! Handles are plain numbers that only the driver that made them understands. Every call that concerns a card names it, and
//! may be made from any thread. Work that is given to a stream is done in order, some time later; a call that fails because of
//! earlier work says so.
//!
//! Invariant: nothing above this module calls NVIDIA's functions, and nothing here knows tensors.

mod failure;
mod library;

pub(crate) use failure::{DriverFailure, Kind};
pub(crate) use library::{Library, NoLibrary};

use std::fmt;

/// A byte in a card's memory, or in host memory that cards can get at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address(pub(crate) u64);

impl Address {
    /// So many bytes further on.
    pub(crate) const fn plus(self, bytes: usize) -> Address {
        Address(self.0 + bytes as u64)
    }
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) struct $name(pub(crate) u64);
    )*};
}

handles! {
    /// Work that is done in order.
    Queue;
    /// A point in a queue.
    Mark;
    /// Kernels that were loaded together.
    Module;
    /// A kernel.
    Function;
    /// Launches that were recorded, ready to be done again.
    Recording;
}

/// What is known about a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CardInfo {
    pub(crate) name: String,
    /// For example (9, 0).
    pub(crate) capability: (u32, u32),
    pub(crate) memory: usize,
    pub(crate) multiprocessors: u32,
    /// The most shared memory that a block can have.
    pub(crate) shared_memory: u32,
    /// For example `0000:18:00.0`.
    pub(crate) bus_id: String,
    pub(crate) integrated: bool,
}

/// How a kernel is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub(crate) shared: u32,
    /// Whether it may begin before the kernel before has ended; it waits for it by itself.
    pub(crate) early: bool,
}

/// A matrix in a card's memory that the copy engine of newer cards fetches tile by tile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TileMap {
    pub(crate) data: Address,
    /// Elements of a row, and rows; elements have 16 bits.
    pub(crate) extents: [u64; 2],
    /// Bytes from one row to the next.
    pub(crate) pitch: u64,
    /// Elements of a row, and rows, of a tile.
    pub(crate) tile: [u32; 2],
}

/// What a card's driver does.
pub(crate) trait Driver: Send + Sync + fmt::Debug {
    /// Its version, for example 12020 for 12.2.
    fn version(&self) -> i32;
    fn card_count(&self) -> Result<u32, DriverFailure>;
    fn card_info(&self, card: u32) -> Result<CardInfo, DriverFailure>;
    /// Free and total bytes.
    fn memory(&self, card: u32) -> Result<(usize, usize), DriverFailure>;

    fn allocate(&self, card: u32, bytes: usize) -> Result<Address, DriverFailure>;
    fn free(&self, card: u32, memory: Address) -> Result<(), DriverFailure>;
    /// Host memory that does not move, at the same address for all.
    fn allocate_host(&self, card: u32, bytes: usize) -> Result<Address, DriverFailure>;
    fn free_host(&self, card: u32, memory: Address) -> Result<(), DriverFailure>;

    fn open_queue(&self, card: u32) -> Result<Queue, DriverFailure>;
    fn close_queue(&self, card: u32, queue: Queue) -> Result<(), DriverFailure>;
    /// Waits until all its work is done.
    fn drain(&self, card: u32, queue: Queue) -> Result<(), DriverFailure>;

    fn make_mark(&self, card: u32) -> Result<Mark, DriverFailure>;
    fn drop_mark(&self, card: u32, mark: Mark) -> Result<(), DriverFailure>;
    /// Moves a mark to the current end of a queue.
    fn set_mark(&self, card: u32, mark: Mark, queue: Queue) -> Result<(), DriverFailure>;
    fn wait_for_mark(&self, card: u32, mark: Mark) -> Result<(), DriverFailure>;
    /// Makes what follows on a queue wait for a mark, which may be another card's.
    fn queue_behind(&self, card: u32, queue: Queue, mark: Mark) -> Result<(), DriverFailure>;

    /// # Safety
    ///
    /// Both ranges exist and stay until the copy is done, and nothing else writes to the target meanwhile.
    unsafe fn copy_in(
        &self,
        card: u32,
        queue: Queue,
        to: Address,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), DriverFailure>;
    /// # Safety
    ///
    /// As for [`copy_in`](Driver::copy_in).
    unsafe fn copy_out(
        &self,
        card: u32,
        queue: Queue,
        to: *mut u8,
        from: Address,
        bytes: usize,
    ) -> Result<(), DriverFailure>;
    fn copy(
        &self,
        card: u32,
        queue: Queue,
        to: Address,
        from: Address,
        bytes: usize,
    ) -> Result<(), DriverFailure>;
    /// From one card's memory to another's.
    fn copy_across(
        &self,
        to: (u32, Address),
        from: (u32, Address),
        queue: Queue,
        bytes: usize,
    ) -> Result<(), DriverFailure>;
    fn fill(
        &self,
        card: u32,
        queue: Queue,
        to: Address,
        value: u8,
        bytes: usize,
    ) -> Result<(), DriverFailure>;

    /// Loads kernels that were compiled for a card; what a driver with kernels of its own is given does not matter.
    fn load(&self, card: u32, image: &[u8]) -> Result<Module, DriverFailure>;
    /// Whether it has kernels of its own.
    fn has_kernels(&self) -> bool {
        false
    }
    fn unload(&self, card: u32, module: Module) -> Result<(), DriverFailure>;
    fn function(&self, card: u32, module: Module, name: &str) -> Result<Function, DriverFailure>;
    /// Lets a kernel's blocks have so much dynamic shared memory.
    fn allow_shared(&self, card: u32, function: Function, bytes: u32) -> Result<(), DriverFailure>;
    /// Launches a kernel, which takes one structure by value.
    ///
    /// # Safety
    ///
    /// The structure is what the kernel takes, and every address in it is that of memory large enough, which stays until the
    /// kernel is done.
    unsafe fn launch(
        &self,
        card: u32,
        queue: Queue,
        function: Function,
        shape: Shape,
        params: &[u8],
    ) -> Result<(), DriverFailure>;

    /// From now on, work given to the queue by this thread is recorded instead of done.
    fn begin_recording(&self, card: u32, queue: Queue) -> Result<(), DriverFailure>;
    fn end_recording(&self, card: u32, queue: Queue) -> Result<Recording, DriverFailure>;
    fn replay(&self, card: u32, recording: Recording, queue: Queue) -> Result<(), DriverFailure>;
    fn drop_recording(&self, card: u32, recording: Recording) -> Result<(), DriverFailure>;

    /// The 128 bytes by which kernels name a matrix to the copy engine.
    fn encode_tiles(&self, map: &TileMap) -> Result<[u8; 128], DriverFailure>;
}
