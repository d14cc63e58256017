//! NVIDIA's driver, found and loaded at run time: the one module that calls it.
//!
//! The table below is written by hand rather than taken from a crate of bindings: it is forty functions, and a function that
//! an older driver lacks has to be an error with words, not a panic.
//!
//! Invariants: a function pointer in [`Calls`] has the signature of NVIDIA's header for the symbol of its name, because the
//! table gives both in one line; the library is never unloaded while a pointer exists, because `Library` owns it. A card's
//! primary context is made current on the calling thread before any call that concerns the card.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::sync::{Mutex, PoisonError};

use super::{
    Address, CardInfo, Driver, DriverFailure, Function, Mark, Module, Queue, Recording, Shape, TileMap,
};

/// Where the driver may be.
const NAMES: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };

type Status = c_int;
type Pointer = *mut c_void;

/// How NVIDIA wants attributes of a launch: a number, and 64 bytes whose meaning depends on it.
#[repr(C)]
struct LaunchAttribute {
    id: c_uint,
    padding: c_uint,
    value: [u64; 8],
}

#[repr(C)]
struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    queue: u64,
    attributes: *const LaunchAttribute,
    attribute_count: c_uint,
}

/// Number of the attribute that lets a kernel begin before the one before it has ended.
const PROGRAMMATIC_SERIALIZATION: c_uint = 6;

macro_rules! calls {
    ($($field:ident = $symbol:literal($($arg:ty),*);)*) => {
        /// NVIDIA's functions.
        struct Calls {
            $($field: unsafe extern "C" fn($($arg),*) -> Status,)*
        }

        impl Calls {
            /// Looks every function up; the error names the first that is missing.
            fn find(library: &libloading::Library) -> Result<Calls, &'static str> {
                Ok(Calls {
                    $($field: {
                        // SAFETY: the symbol is NVIDIA's function of this name, whose parameters are those of the line above.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($arg),*) -> Status>(concat!($symbol, "\0").as_bytes())
                        };
                        *symbol.map_err(|_| $symbol)?
                    },)*
                })
            }
        }
    };
}

calls! {
    init = "cuInit"(c_uint);
    version = "cuDriverGetVersion"(*mut c_int);
    error_string = "cuGetErrorString"(c_int, *mut *const c_char);
    device_count = "cuDeviceGetCount"(*mut c_int);
    device = "cuDeviceGet"(*mut c_int, c_int);
    device_name = "cuDeviceGetName"(*mut c_char, c_int, c_int);
    device_attribute = "cuDeviceGetAttribute"(*mut c_int, c_int, c_int);
    device_memory = "cuDeviceTotalMem_v2"(*mut usize, c_int);
    device_bus = "cuDeviceGetPCIBusId"(*mut c_char, c_int, c_int);
    retain = "cuDevicePrimaryCtxRetain"(*mut Pointer, c_int);
    set_current = "cuCtxSetCurrent"(Pointer);
    memory_info = "cuMemGetInfo_v2"(*mut usize, *mut usize);
    allocate = "cuMemAlloc_v2"(*mut u64, usize);
    free = "cuMemFree_v2"(u64);
    allocate_host = "cuMemHostAlloc"(*mut Pointer, usize, c_uint);
    free_host = "cuMemFreeHost"(Pointer);
    stream_create = "cuStreamCreate"(*mut u64, c_uint);
    stream_destroy = "cuStreamDestroy_v2"(u64);
    stream_synchronize = "cuStreamSynchronize"(u64);
    stream_wait = "cuStreamWaitEvent"(u64, u64, c_uint);
    event_create = "cuEventCreate"(*mut u64, c_uint);
    event_destroy = "cuEventDestroy_v2"(u64);
    event_record = "cuEventRecord"(u64, u64);
    event_synchronize = "cuEventSynchronize"(u64);
    copy_in = "cuMemcpyHtoDAsync_v2"(u64, *const c_void, usize, u64);
    copy_out = "cuMemcpyDtoHAsync_v2"(Pointer, u64, usize, u64);
    copy = "cuMemcpyDtoDAsync_v2"(u64, u64, usize, u64);
    copy_peer = "cuMemcpyPeerAsync"(u64, Pointer, u64, Pointer, usize, u64);
    fill = "cuMemsetD8Async"(u64, u8, usize, u64);
    module_load = "cuModuleLoadData"(*mut u64, *const c_void);
    module_unload = "cuModuleUnload"(u64);
    module_function = "cuModuleGetFunction"(*mut u64, u64, *const c_char);
    function_attribute = "cuFuncSetAttribute"(u64, c_int, c_int);
    launch = "cuLaunchKernelEx"(*const LaunchConfig, u64, *mut *const c_void, *mut *const c_void);
    capture_begin = "cuStreamBeginCapture_v2"(u64, c_uint);
    capture_end = "cuStreamEndCapture"(u64, *mut u64);
    instantiate = "cuGraphInstantiateWithFlags"(*mut u64, u64, u64);
    graph_destroy = "cuGraphDestroy"(u64);
    graph_launch = "cuGraphLaunch"(u64, u64);
    graph_exec_destroy = "cuGraphExecDestroy"(u64);
    encode_tiled = "cuTensorMapEncodeTiled"(
        *mut c_void, c_int, c_uint, Pointer, *const u64, *const u64, *const c_uint, *const c_uint, c_int, c_int, c_int, c_int
    );
}

/// Why there is no driver to work with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoLibrary {
    /// This machine has nothing of NVIDIA's.
    #[error("there is no NVIDIA driver on this machine")]
    NoDriver,
    /// It is there, but too old.
    #[error("the NVIDIA driver is too old: it lacks {0}; 535 or newer is needed")]
    Lacks(&'static str),
    /// It does not start.
    #[error("the NVIDIA driver does not start: {0}")]
    Fails(DriverFailure),
}

/// The driver of this machine.
pub(crate) struct Library {
    calls: Calls,
    version: i32,
    /// By card, its primary context once it was asked for; never given back, since devices live as long as the program.
    contexts: Mutex<Vec<Option<usize>>>,
    _library: libloading::Library,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").field("version", &self.version).finish_non_exhaustive()
    }
}

impl Library {
    /// Loads and starts the driver.
    pub(crate) fn load() -> Result<Library, NoLibrary> {
        // SAFETY: loading NVIDIA's driver runs its initializers, which are made for any program to load.
        let library = NAMES.iter().find_map(|name| unsafe { libloading::Library::new(name) }.ok());
        let library = library.ok_or(NoLibrary::NoDriver)?;
        let calls = Calls::find(&library).map_err(NoLibrary::Lacks)?;
        let mut driver = Library { calls, version: 0, contexts: Mutex::default(), _library: library };
        // SAFETY: no pointers but one to a number that lives through the call.
        let started = unsafe { (driver.calls.init)(0) };
        driver.check("cuInit", started).map_err(NoLibrary::Fails)?;
        let mut version = 0;
        // SAFETY: as above.
        let told = unsafe { (driver.calls.version)(&mut version) };
        driver.check("cuDriverGetVersion", told).map_err(NoLibrary::Fails)?;
        driver.version = version;
        Ok(driver)
    }

    fn check(&self, call: &'static str, code: Status) -> Result<(), DriverFailure> {
        if code == 0 {
            return Ok(());
        }
        let mut text = std::ptr::null();
        // SAFETY: the driver writes a pointer to a text of its own that stays, or leaves it null.
        let known = unsafe { (self.calls.error_string)(code, &mut text) };
        if known != 0 || text.is_null() {
            return Err(DriverFailure::new(call, code, "unknown error"));
        }
        // SAFETY: see above; the text ends with a zero.
        Err(DriverFailure::new(call, code, unsafe { CStr::from_ptr(text) }.to_string_lossy()))
    }

    fn attribute(&self, device: c_int, attribute: c_int) -> Result<u32, DriverFailure> {
        let mut value = 0;
        // SAFETY: the pointer is to a number that lives through the call.
        let code = unsafe { (self.calls.device_attribute)(&mut value, attribute, device) };
        self.check("cuDeviceGetAttribute", code)?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    fn device(&self, card: u32) -> Result<c_int, DriverFailure> {
        let mut device = 0;
        // SAFETY: the pointer is to a number that lives through the call.
        let code = unsafe { (self.calls.device)(&mut device, c_int::try_from(card).unwrap_or(c_int::MAX)) };
        self.check("cuDeviceGet", code)?;
        Ok(device)
    }

    /// The card's primary context.
    fn context(&self, card: u32) -> Result<Pointer, DriverFailure> {
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        let index = card as usize;
        if contexts.len() <= index {
            contexts.resize(index + 1, None);
        }
        if let Some(context) = contexts[index] {
            return Ok(std::ptr::with_exposed_provenance_mut(context));
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointer is to a pointer that lives through the call.
        let code = unsafe { (self.calls.retain)(&mut context, self.device(card)?) };
        self.check("cuDevicePrimaryCtxRetain", code)?;
        contexts[index] = Some(context.expose_provenance());
        Ok(context)
    }

    /// Makes a card's context current on this thread.
    fn on(&self, card: u32) -> Result<(), DriverFailure> {
        let context = self.context(card)?;
        // SAFETY: the context exists as long as the program.
        self.check("cuCtxSetCurrent", unsafe { (self.calls.set_current)(context) })
    }

    fn text(bytes: &[u8]) -> String {
        CStr::from_bytes_until_nul(bytes)
            .map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
    }
}

/// Numbers of the attributes that are asked for.
mod attribute {
    pub(super) const MULTIPROCESSORS: i32 = 16;
    pub(super) const INTEGRATED: i32 = 18;
    pub(super) const MAJOR: i32 = 75;
    pub(super) const MINOR: i32 = 76;
    pub(super) const SHARED_MEMORY: i32 = 97;
}

impl Driver for Library {
    fn version(&self) -> i32 {
        self.version
    }

    fn card_count(&self) -> Result<u32, DriverFailure> {
        let mut count = 0;
        // SAFETY: the pointer is to a number that lives through the call.
        let code = unsafe { (self.calls.device_count)(&mut count) };
        self.check("cuDeviceGetCount", code)?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    fn card_info(&self, card: u32) -> Result<CardInfo, DriverFailure> {
        let device = self.device(card)?;
        let (mut name, mut bus) = ([0_u8; 256], [0_u8; 64]);
        // SAFETY: the driver writes at most as many bytes as it is told there are.
        let code = unsafe { (self.calls.device_name)(name.as_mut_ptr().cast(), 255, device) };
        self.check("cuDeviceGetName", code)?;
        // SAFETY: as above.
        let code = unsafe { (self.calls.device_bus)(bus.as_mut_ptr().cast(), 63, device) };
        self.check("cuDeviceGetPCIBusId", code)?;
        let mut memory = 0;
        // SAFETY: the pointer is to a number that lives through the call.
        let code = unsafe { (self.calls.device_memory)(&mut memory, device) };
        self.check("cuDeviceTotalMem", code)?;
        Ok(CardInfo {
            name: Library::text(&name),
            capability: (
                self.attribute(device, attribute::MAJOR)?,
                self.attribute(device, attribute::MINOR)?,
            ),
            memory,
            multiprocessors: self.attribute(device, attribute::MULTIPROCESSORS)?,
            shared_memory: self.attribute(device, attribute::SHARED_MEMORY)?,
            bus_id: Library::text(&bus).to_lowercase(),
            integrated: self.attribute(device, attribute::INTEGRATED)? != 0,
        })
    }

    fn memory(&self, card: u32) -> Result<(usize, usize), DriverFailure> {
        self.on(card)?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are to numbers that live through the call.
        let code = unsafe { (self.calls.memory_info)(&mut free, &mut total) };
        self.check("cuMemGetInfo", code)?;
        Ok((free, total))
    }

    fn allocate(&self, card: u32, bytes: usize) -> Result<Address, DriverFailure> {
        self.on(card)?;
        let mut address = 0;
        // SAFETY: the pointer is to a number that lives through the call.
        let code = unsafe { (self.calls.allocate)(&mut address, bytes) };
        self.check("cuMemAlloc", code)?;
        Ok(Address(address))
    }

    fn free(&self, card: u32, memory: Address) -> Result<(), DriverFailure> {
        self.on(card)?;
        // SAFETY: the address came from `allocate`; the driver waits for work that uses it.
        self.check("cuMemFree", unsafe { (self.calls.free)(memory.0) })
    }

    fn allocate_host(&self, card: u32, bytes: usize) -> Result<Address, DriverFailure> {
        /// For all cards, and at the same address for cards and host.
        const PORTABLE_AND_MAPPED: c_uint = 1 | 2;
        self.on(card)?;
        let mut memory = std::ptr::null_mut();
        // SAFETY: the pointer is to a pointer that lives through the call.
        let code = unsafe { (self.calls.allocate_host)(&mut memory, bytes, PORTABLE_AND_MAPPED) };
        self.check("cuMemHostAlloc", code)?;
        Ok(Address(memory.expose_provenance() as u64))
    }

    fn free_host(&self, card: u32, memory: Address) -> Result<(), DriverFailure> {
        self.on(card)?;
        let pointer = std::ptr::with_exposed_provenance_mut(memory.0 as usize);
        // SAFETY: the address came from `allocate_host`.
        self.check("cuMemFreeHost", unsafe { (self.calls.free_host)(pointer) })
    }

    fn open_queue(&self, card: u32) -> Result<Queue, DriverFailure> {
        /// It does not wait for work that was given to no stream in particular.
        const NON_BLOCKING: c_uint = 1;
        self.on(card)?;
        let mut stream = 0;
        // SAFETY: the pointer is to a number that lives through the call.
        let code = unsafe { (self.calls.stream_create)(&mut stream, NON_BLOCKING) };
        self.check("cuStreamCreate", code)?;
        Ok(Queue(stream))
    }

    fn close_queue(&self, card: u32, queue: Queue) -> Result<(), DriverFailure> {
        self.on(card)?;
        // SAFETY: the stream came from `open_queue` and is not used any more.
        self.check("cuStreamDestroy", unsafe { (self.calls.stream_destroy)(queue.0) })
    }

    fn drain(&self, card: u32, queue: Queue) -> Result<(), DriverFailure> {
        self.on(card)?;
        // SAFETY: the stream exists.
        self.check("cuStreamSynchronize", unsafe { (self.calls.stream_synchronize)(queue.0) })
    }

    fn make_mark(&self, card: u32) -> Result<Mark, DriverFailure> {
        /// Marks do not measure time, which makes them cheaper.
        const NO_TIMING: c_uint = 2;
        self.on(card)?;
        let mut event = 0;
        // SAFETY: the pointer is to a number that lives through the call.
        let code = unsafe { (self.calls.event_create)(&mut event, NO_TIMING) };
        self.check("cuEventCreate", code)?;
        Ok(Mark(event))
    }

    fn drop_mark(&self, card: u32, mark: Mark) -> Result<(), DriverFailure> {
        self.on(card)?;
        // SAFETY: the event came from `make_mark` and is not used any more.
        self.check("cuEventDestroy", unsafe { (self.calls.event_destroy)(mark.0) })
    }

    fn set_mark(&self, card: u32, mark: Mark, queue: Queue) -> Result<(), DriverFailure> {
        self.on(card)?;
        // SAFETY: both exist.
        self.check("cuEventRecord", unsafe { (self.calls.event_record)(mark.0, queue.0) })
    }

    fn wait_for_mark(&self, card: u32, mark: Mark) -> Result<(), DriverFailure> {
        self.on(card)?;
        // SAFETY: the event exists.
        self.check("cuEventSynchronize", unsafe { (self.calls.event_synchronize)(mark.0) })
    }

    fn queue_behind(&self, card: u32, queue: Queue, mark: Mark) -> Result<(), DriverFailure> {
        self.on(card)?;
        // SAFETY: both exist.
        self.check("cuStreamWaitEvent", unsafe { (self.calls.stream_wait)(queue.0, mark.0, 0) })
    }

    unsafe fn copy_in(
        &self,
        card: u32,
        queue: Queue,
        to: Address,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), DriverFailure> {
        self.on(card)?;
        // SAFETY: as the caller says.
        let code = unsafe { (self.calls.copy_in)(to.0, from.cast(), bytes, queue.0) };
        self.check("cuMemcpyHtoDAsync", code)
    }

    unsafe fn copy_out(
        &self,
        card: u32,
        queue: Queue,
        to: *mut u8,
        from: Address,
        bytes: usize,
    ) -> Result<(), DriverFailure> {
        self.on(card)?;
        // SAFETY: as the caller says.
        let code = unsafe { (self.calls.copy_out)(to.cast(), from.0, bytes, queue.0) };
        self.check("cuMemcpyDtoHAsync", code)
    }

    fn copy(
        &self,
        card: u32,
        queue: Queue,
        to: Address,
        from: Address,
        bytes: usize,
    ) -> Result<(), DriverFailure> {
        self.on(card)?;
        // SAFETY: both are the card's memory; a range that does not exist is an error, not undefined behaviour of the host.
        self.check("cuMemcpyDtoDAsync", unsafe { (self.calls.copy)(to.0, from.0, bytes, queue.0) })
    }

    fn copy_across(
        &self,
        to: (u32, Address),
        from: (u32, Address),
        queue: Queue,
        bytes: usize,
    ) -> Result<(), DriverFailure> {
        let (target, source) = (self.context(to.0)?, self.context(from.0)?);
        self.on(to.0)?;
        // SAFETY: as for `copy`; both contexts exist.
        let code = unsafe { (self.calls.copy_peer)(to.1.0, target, from.1.0, source, bytes, queue.0) };
        self.check("cuMemcpyPeerAsync", code)
    }

    fn fill(
        &self,
        card: u32,
        queue: Queue,
        to: Address,
        value: u8,
        bytes: usize,
    ) -> Result<(), DriverFailure> {
        self.on(card)?;
        // SAFETY: as for `copy`.
        self.check("cuMemsetD8Async", unsafe { (self.calls.fill)(to.0, value, bytes, queue.0) })
    }

    fn load(&self, card: u32, image: &[u8]) -> Result<Module, DriverFailure> {
        self.on(card)?;
        // PTX is text that must end with a zero; machine code knows its own length.
        let mut bytes = image.to_vec();
        bytes.push(0);
        let mut module = 0;
        // SAFETY: the image is a whole one of ours, and lives through the call.
        let code = unsafe { (self.calls.module_load)(&mut module, bytes.as_ptr().cast()) };
        self.check("cuModuleLoadData", code)?;
        Ok(Module(module))
    }

    fn unload(&self, card: u32, module: Module) -> Result<(), DriverFailure> {
        self.on(card)?;
        // SAFETY: the module came from `load`, and nothing launches its kernels any more.
        self.check("cuModuleUnload", unsafe { (self.calls.module_unload)(module.0) })
    }

    fn function(&self, card: u32, module: Module, name: &str) -> Result<Function, DriverFailure> {
        self.on(card)?;
        let name =
            CString::new(name).map_err(|_| DriverFailure::new("cuModuleGetFunction", 500, "bad name"))?;
        let mut function = 0;
        // SAFETY: the pointers are to a number and a text that live through the call.
        let code = unsafe { (self.calls.module_function)(&mut function, module.0, name.as_ptr()) };
        self.check("cuModuleGetFunction", code)?;
        Ok(Function(function))
    }

    fn allow_shared(&self, card: u32, function: Function, bytes: u32) -> Result<(), DriverFailure> {
        const MAX_DYNAMIC_SHARED: c_int = 8;
        self.on(card)?;
        // SAFETY: the function exists.
        let code = unsafe {
            (self.calls.function_attribute)(
                function.0,
                MAX_DYNAMIC_SHARED,
                c_int::try_from(bytes).unwrap_or(c_int::MAX),
            )
        };
        self.check("cuFuncSetAttribute", code)
    }

    unsafe fn launch(
        &self,
        card: u32,
        queue: Queue,
        function: Function,
        shape: Shape,
        params: &[u8],
    ) -> Result<(), DriverFailure> {
        self.on(card)?;
        let attribute =
            LaunchAttribute { id: PROGRAMMATIC_SERIALIZATION, padding: 0, value: [1, 0, 0, 0, 0, 0, 0, 0] };
        let config = LaunchConfig {
            grid: shape.grid,
            block: shape.block,
            shared: shape.shared,
            queue: queue.0,
            attributes: &attribute,
            attribute_count: c_uint::from(shape.early),
        };
        let mut arguments = [params.as_ptr().cast::<c_void>()];
        // SAFETY: as the caller says; the driver copies the structure before it returns.
        let code =
            unsafe { (self.calls.launch)(&config, function.0, arguments.as_mut_ptr(), std::ptr::null_mut()) };
        self.check("cuLaunchKernelEx", code)
    }

    fn begin_recording(&self, card: u32, queue: Queue) -> Result<(), DriverFailure> {
        /// What other threads do meanwhile does not matter.
        const THREAD_LOCAL: c_uint = 1;
        self.on(card)?;
        // SAFETY: the stream exists.
        self.check("cuStreamBeginCapture", unsafe { (self.calls.capture_begin)(queue.0, THREAD_LOCAL) })
    }

    fn end_recording(&self, card: u32, queue: Queue) -> Result<Recording, DriverFailure> {
        self.on(card)?;
        let (mut graph, mut exec) = (0, 0);
        // SAFETY: the pointer is to a number that lives through the call.
        self.check("cuStreamEndCapture", unsafe { (self.calls.capture_end)(queue.0, &mut graph) })?;
        // SAFETY: as above; the graph is whole.
        let made = unsafe { (self.calls.instantiate)(&mut exec, graph, 0) };
        let made = self.check("cuGraphInstantiate", made);
        // What was made of it is of use whatever becomes of the graph itself.
        // SAFETY: what was made of the graph does not need it any more.
        let _ = unsafe { (self.calls.graph_destroy)(graph) };
        made.map(|()| Recording(exec))
    }

    fn replay(&self, card: u32, recording: Recording, queue: Queue) -> Result<(), DriverFailure> {
        self.on(card)?;
        // SAFETY: both exist; what the recorded launches use stays as long as the recording, as its maker says.
        self.check("cuGraphLaunch", unsafe { (self.calls.graph_launch)(recording.0, queue.0) })
    }

    fn drop_recording(&self, card: u32, recording: Recording) -> Result<(), DriverFailure> {
        self.on(card)?;
        // SAFETY: it came from `end_recording` and is not used any more; the driver waits for a replay under way.
        self.check("cuGraphExecDestroy", unsafe { (self.calls.graph_exec_destroy)(recording.0) })
    }

    fn encode_tiles(&self, map: &TileMap) -> Result<[u8; 128], DriverFailure> {
        /// Sixteen bits that are not looked at.
        const SIXTEEN_BITS: c_int = 1;
        const SWIZZLE_128: c_int = 3;
        const PROMOTE_256: c_int = 3;
        #[repr(C, align(64))]
        struct Aligned([u8; 128]);
        let mut out = Aligned([0; 128]);
        let (strides, steps) = ([map.pitch], [1_u32, 1]);
        // SAFETY: all pointers are to arrays of the rank's length that live through the call; the data is not touched.
        let code = unsafe {
            (self.calls.encode_tiled)(
                out.0.as_mut_ptr().cast(),
                SIXTEEN_BITS,
                2,
                std::ptr::with_exposed_provenance_mut(map.data.0 as usize),
                map.extents.as_ptr(),
                strides.as_ptr(),
                map.tile.as_ptr(),
                steps.as_ptr(),
                0,
                SWIZZLE_128,
                PROMOTE_256,
                0,
            )
        };
        self.check("cuTensorMapEncodeTiled", code)?;
        Ok(out.0)
    }
}
