//! The card itself: memory, queues, marks and recordings as tables.
//!
//! A card on paper has memory but computes nothing: it only takes note of kernels, which must be in the images for its capability.
//!
//! Concurrency: one lock around everything, so kernels run one at a time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Mutex, MutexGuard};

use super::compile::Kernels;
use crate::driver::{
    Address, CardInfo, Driver, DriverFailure, Function, Mark, Module, Queue, Recording, Shape, TileMap,
};
use crate::images::kernels_of;

/// What is recorded and done again.
#[derive(Clone, Debug)]
enum Work {
    Launch { function: u64, shape: Shape, params: Vec<u8> },
    Copy { to: u64, from: u64, bytes: usize },
    Fill { to: u64, value: u8, bytes: usize },
}

/// When calls fail.
#[derive(Clone, Copy, Debug)]
struct Failing {
    /// Calls before the first that fails.
    after: usize,
    code: i32,
}

#[derive(Debug, Default)]
struct State {
    /// Live memory by address: bytes, and the mapping around it.
    memory: BTreeMap<u64, (usize, u64, usize)>,
    host: BTreeMap<u64, (usize, u64, usize)>,
    queues: HashMap<u64, Option<Vec<Work>>>,
    marks: HashMap<u64, ()>,
    /// Kernels of each, where they come from images.
    modules: HashMap<u64, BTreeSet<String>>,
    functions: Vec<String>,
    recordings: HashMap<u64, Vec<Work>>,
    next: u64,
    calls: usize,
    failing: Option<Failing>,
    broken: Option<i32>,
    /// Kernels that ran, and how many times recordings were replayed.
    launches: Vec<String>,
    replays: usize,
}

/// The driver of an emulated card.
pub(crate) struct Emulated {
    /// None for a card on paper.
    kernels: Option<&'static Kernels>,
    version: i32,
    cards: u32,
    state: Mutex<State>,
    capacity: usize,
    capability: (u32, u32),
    multiprocessors: u32,
    shared_memory: u32,
}

impl fmt::Debug for Emulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Emulated")
    }
}

const PAGE: usize = 4096;

impl Emulated {
    pub(crate) fn new(kernels: &'static Kernels) -> Emulated {
        Emulated { kernels: Some(kernels), ..Emulated::paper((8, 0), 4, 164 << 10) }
    }

    /// A card on paper.
    pub(crate) fn paper(capability: (u32, u32), multiprocessors: u32, shared_memory: u32) -> Emulated {
        let (state, capacity) = (Mutex::default(), 1 << 30);
        let (version, cards) = (12_040, 1);
        Emulated {
            kernels: None,
            version,
            cards,
            state,
            capacity,
            capability,
            multiprocessors,
            shared_memory,
        }
    }

    /// The same with a driver of another version.
    pub(crate) fn with_version(self, version: i32) -> Emulated {
        Emulated { version, ..self }
    }

    /// Several such cards, which share one memory.
    pub(crate) fn with_cards(self, cards: u32) -> Emulated {
        Emulated { cards, ..self }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Counts a call, and fails if it is to.
    fn call(&self, call: &'static str) -> Result<MutexGuard<'_, State>, DriverFailure> {
        let mut state = self.state();
        state.calls += 1;
        if let Some(code) = state.broken {
            return Err(DriverFailure::new(call, code, "broken before"));
        }
        if let Some(Failing { after, code }) = state.failing {
            if after == 0 {
                state.failing = None;
                let failure = DriverFailure::new(call, code, "made to fail");
                if failure.kind() == crate::driver::Kind::Lost {
                    state.broken = Some(code);
                }
                return Err(failure);
            }
            state.failing = Some(Failing { after: after - 1, code });
        }
        Ok(state)
    }

    /// Lets the call after so many more fail; a code that means that the card is lost makes all calls from then on fail.
    pub(crate) fn fail(&self, after: usize, code: i32) {
        self.state().failing = Some(Failing { after, code });
    }

    /// Lets nothing fail any more.
    pub(crate) fn heal(&self) {
        let mut state = self.state();
        (state.failing, state.broken) = (None, None);
    }

    /// Whether a failure that was arranged has not happened.
    pub(crate) fn is_waiting_to_fail(&self) -> bool {
        self.state().failing.is_some()
    }

    /// What has not been given back: allocations of both kinds, queues, marks, recordings.
    pub(crate) fn held(&self) -> [usize; 5] {
        let state = self.state();
        [state.memory.len(), state.host.len(), state.queues.len(), state.marks.len(), state.recordings.len()]
    }

    /// Kernels that ran since they were last asked for.
    pub(crate) fn take_launches(&self) -> Vec<String> {
        std::mem::take(&mut self.state().launches)
    }

    /// How many times recordings were replayed.
    pub(crate) fn replays(&self) -> usize {
        self.state().replays
    }

    /// Turns the order of threads around.
    pub(crate) fn run_backwards(&self, backwards: bool) {
        let _state = self.state();
        if let Some(kernels) = self.kernels {
            kernels.run_backwards(backwards);
        }
    }

    fn map(bytes: usize) -> Option<(u64, u64, usize)> {
        let inner = bytes.next_multiple_of(PAGE).max(PAGE);
        let all = inner + 2 * PAGE;
        // SAFETY: a mapping of its own, of which the inner part becomes usable.
        unsafe {
            let map = libc::mmap(
                std::ptr::null_mut(),
                all,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            if map == libc::MAP_FAILED {
                return None;
            }
            let inside = map.cast::<u8>().add(PAGE);
            assert_eq!(libc::mprotect(inside.cast(), inner, libc::PROT_READ | libc::PROT_WRITE), 0);
            // Nothing is zero by accident.
            std::ptr::write_bytes(inside, 0xA5, inner);
            // As near to the end as the alignment of memory allows.
            let start = inside.add((inner - bytes) / 256 * 256);
            Some((start.expose_provenance() as u64, map.expose_provenance() as u64, all))
        }
    }

    fn unmap(map: u64, all: usize) {
        // SAFETY: the mapping was made by `map`, and its address was given up.
        unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(map as usize), all) };
    }

    /// Whether a range lies in memory that exists.
    fn check(state: &State, at: u64, bytes: usize) {
        let within = |table: &BTreeMap<u64, (usize, u64, usize)>| {
            table
                .range(..=at)
                .next_back()
                .is_some_and(|(&start, &(len, ..))| at + bytes as u64 <= start + len as u64)
        };
        assert!(within(&state.memory) || within(&state.host), "{bytes} bytes at {at:#x} do not exist");
    }

    fn submit(&self, state: &mut State, queue: Queue, work: Work) {
        match state.queues.get_mut(&queue.0).expect("the queue exists") {
            Some(recorded) => recorded.push(work),
            None => self.run(state, &work),
        }
    }

    fn run(&self, state: &mut State, work: &Work) {
        match work {
            Work::Launch { function, shape, params } => {
                let name = state.functions[*function as usize - 1].clone();
                assert!(
                    shape.grid[1] <= 65535 && shape.grid[2] <= 65535 && shape.grid[0] > 0,
                    "{name}: {shape:?}"
                );
                if let Some(kernels) = self.kernels {
                    // SAFETY: the lock is held; the maker of the launch vouches for its parameters.
                    let done = unsafe { kernels.run(&name, shape.grid, shape.block, shape.shared, params) };
                    assert_eq!(done, 0, "{name} {shape:?}");
                }
                state.launches.push(name);
            }
            &Work::Copy { to, from, bytes } => {
                Emulated::check(state, to, bytes);
                Emulated::check(state, from, bytes);
                let (to, from) = (
                    std::ptr::with_exposed_provenance_mut::<u8>(to as usize),
                    std::ptr::with_exposed_provenance::<u8>(from as usize),
                );
                // SAFETY: both ranges were checked.
                unsafe { std::ptr::copy(from, to, bytes) };
            }
            &Work::Fill { to, value, bytes } => {
                Emulated::check(state, to, bytes);
                // SAFETY: the range was checked.
                unsafe {
                    std::ptr::write_bytes(
                        std::ptr::with_exposed_provenance_mut::<u8>(to as usize),
                        value,
                        bytes,
                    )
                };
            }
        }
    }

    fn number(state: &mut State) -> u64 {
        state.next += 1;
        state.next
    }
}

impl Driver for Emulated {
    fn version(&self) -> i32 {
        self.version
    }

    fn card_count(&self) -> Result<u32, DriverFailure> {
        self.call("card_count").map(|_| self.cards)
    }

    fn card_info(&self, _card: u32) -> Result<CardInfo, DriverFailure> {
        drop(self.call("card_info")?);
        Ok(CardInfo {
            name: "Emulated".into(),
            capability: self.capability,
            memory: self.capacity,
            multiprocessors: self.multiprocessors,
            shared_memory: self.shared_memory,
            bus_id: "0000:00:00.0".into(),
            integrated: false,
        })
    }

    fn memory(&self, _card: u32) -> Result<(usize, usize), DriverFailure> {
        let state = self.call("memory")?;
        let used: usize = state.memory.values().map(|(len, ..)| len).sum();
        Ok((self.capacity - used.min(self.capacity), self.capacity))
    }

    fn allocate(&self, _card: u32, bytes: usize) -> Result<Address, DriverFailure> {
        let mut state = self.call("allocate")?;
        let none = || DriverFailure::new("allocate", 2, "out of memory");
        let used: usize = state.memory.values().map(|(len, ..)| len).sum();
        if bytes > self.capacity - used.min(self.capacity) {
            return Err(none());
        }
        let (start, map, all) = Emulated::map(bytes).ok_or_else(none)?;
        state.memory.insert(start, (bytes, map, all));
        Ok(Address(start))
    }

    fn free(&self, _card: u32, memory: Address) -> Result<(), DriverFailure> {
        // What is freed is freed, whatever the call says.
        let (_, map, all) = self.state().memory.remove(&memory.0).expect("memory is freed once");
        Emulated::unmap(map, all);
        self.call("free").map(drop)
    }

    fn allocate_host(&self, _card: u32, bytes: usize) -> Result<Address, DriverFailure> {
        let mut state = self.call("allocate_host")?;
        let (start, map, all) =
            Emulated::map(bytes).ok_or_else(|| DriverFailure::new("allocate_host", 2, "out of memory"))?;
        state.host.insert(start, (bytes, map, all));
        Ok(Address(start))
    }

    fn free_host(&self, _card: u32, memory: Address) -> Result<(), DriverFailure> {
        let (_, map, all) = self.state().host.remove(&memory.0).expect("memory is freed once");
        Emulated::unmap(map, all);
        self.call("free_host").map(drop)
    }

    fn open_queue(&self, _card: u32) -> Result<Queue, DriverFailure> {
        let mut state = self.call("open_queue")?;
        let number = Emulated::number(&mut state);
        state.queues.insert(number, None);
        Ok(Queue(number))
    }

    fn close_queue(&self, _card: u32, queue: Queue) -> Result<(), DriverFailure> {
        self.state().queues.remove(&queue.0).expect("a queue is closed once");
        self.call("close_queue").map(drop)
    }

    fn drain(&self, _card: u32, _queue: Queue) -> Result<(), DriverFailure> {
        self.call("drain").map(drop)
    }

    fn make_mark(&self, _card: u32) -> Result<Mark, DriverFailure> {
        let mut state = self.call("make_mark")?;
        let number = Emulated::number(&mut state);
        state.marks.insert(number, ());
        Ok(Mark(number))
    }

    fn drop_mark(&self, _card: u32, mark: Mark) -> Result<(), DriverFailure> {
        self.state().marks.remove(&mark.0).expect("a mark is dropped once");
        self.call("drop_mark").map(drop)
    }

    fn set_mark(&self, _card: u32, mark: Mark, queue: Queue) -> Result<(), DriverFailure> {
        let state = self.call("set_mark")?;
        assert!(state.marks.contains_key(&mark.0) && state.queues.contains_key(&queue.0));
        Ok(())
    }

    fn wait_for_mark(&self, _card: u32, mark: Mark) -> Result<(), DriverFailure> {
        let state = self.call("wait_for_mark")?;
        assert!(state.marks.contains_key(&mark.0));
        Ok(())
    }

    fn queue_behind(&self, _card: u32, _queue: Queue, mark: Mark) -> Result<(), DriverFailure> {
        let state = self.call("queue_behind")?;
        assert!(state.marks.contains_key(&mark.0));
        Ok(())
    }

    unsafe fn copy_in(
        &self,
        _card: u32,
        _queue: Queue,
        to: Address,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), DriverFailure> {
        let state = self.call("copy_in")?;
        Emulated::check(&state, to.0, bytes);
        // SAFETY: the target was checked, the source is as the caller says.
        unsafe { std::ptr::copy(from, std::ptr::with_exposed_provenance_mut(to.0 as usize), bytes) };
        Ok(())
    }

    unsafe fn copy_out(
        &self,
        _card: u32,
        _queue: Queue,
        to: *mut u8,
        from: Address,
        bytes: usize,
    ) -> Result<(), DriverFailure> {
        let state = self.call("copy_out")?;
        Emulated::check(&state, from.0, bytes);
        // SAFETY: the source was checked, the target is as the caller says.
        unsafe { std::ptr::copy(std::ptr::with_exposed_provenance(from.0 as usize), to, bytes) };
        Ok(())
    }

    fn copy(
        &self,
        _card: u32,
        queue: Queue,
        to: Address,
        from: Address,
        bytes: usize,
    ) -> Result<(), DriverFailure> {
        let mut state = self.call("copy")?;
        self.submit(&mut state, queue, Work::Copy { to: to.0, from: from.0, bytes });
        Ok(())
    }

    fn copy_across(
        &self,
        to: (u32, Address),
        from: (u32, Address),
        queue: Queue,
        bytes: usize,
    ) -> Result<(), DriverFailure> {
        self.copy(to.0, queue, to.1, from.1, bytes)
    }

    fn fill(
        &self,
        _card: u32,
        queue: Queue,
        to: Address,
        value: u8,
        bytes: usize,
    ) -> Result<(), DriverFailure> {
        let mut state = self.call("fill")?;
        self.submit(&mut state, queue, Work::Fill { to: to.0, value, bytes });
        Ok(())
    }

    fn load(&self, _card: u32, image: &[u8]) -> Result<Module, DriverFailure> {
        let mut state = self.call("load")?;
        let number = Emulated::number(&mut state);
        state.modules.insert(number, kernels_of(image).into_iter().collect());
        Ok(Module(number))
    }

    fn has_kernels(&self) -> bool {
        self.kernels.is_some()
    }

    fn unload(&self, _card: u32, module: Module) -> Result<(), DriverFailure> {
        self.state().modules.remove(&module.0).expect("a module is unloaded once");
        self.call("unload").map(drop)
    }

    fn function(&self, _card: u32, module: Module, name: &str) -> Result<Function, DriverFailure> {
        let mut state = self.call("function")?;
        let is_there = match self.kernels {
            Some(kernels) => kernels.params(name).is_some(),
            None => state.modules[&module.0].contains(name),
        };
        if !is_there {
            return Err(DriverFailure::new("function", 500, format!("there is no kernel {name}")));
        }
        state.functions.push(name.to_owned());
        Ok(Function(state.functions.len() as u64))
    }

    fn allow_shared(&self, _card: u32, _function: Function, bytes: u32) -> Result<(), DriverFailure> {
        drop(self.call("allow_shared")?);
        assert!(bytes <= self.shared_memory);
        Ok(())
    }

    unsafe fn launch(
        &self,
        _card: u32,
        queue: Queue,
        function: Function,
        shape: Shape,
        params: &[u8],
    ) -> Result<(), DriverFailure> {
        let mut state = self.call("launch")?;
        self.submit(&mut state, queue, Work::Launch { function: function.0, shape, params: params.to_vec() });
        Ok(())
    }

    fn begin_recording(&self, _card: u32, queue: Queue) -> Result<(), DriverFailure> {
        let mut state = self.call("begin_recording")?;
        let before = state.queues.insert(queue.0, Some(Vec::new()));
        assert!(matches!(before, Some(None)), "the queue exists and records nothing");
        Ok(())
    }

    fn end_recording(&self, _card: u32, queue: Queue) -> Result<Recording, DriverFailure> {
        let recorded = self.state().queues.insert(queue.0, None).flatten().expect("the queue records");
        let mut state = self.call("end_recording")?;
        let number = Emulated::number(&mut state);
        state.recordings.insert(number, recorded);
        Ok(Recording(number))
    }

    fn replay(&self, _card: u32, recording: Recording, _queue: Queue) -> Result<(), DriverFailure> {
        let mut state = self.call("replay")?;
        let work = state.recordings[&recording.0].clone();
        state.replays += 1;
        work.iter().for_each(|work| self.run(&mut state, work));
        Ok(())
    }

    fn drop_recording(&self, _card: u32, recording: Recording) -> Result<(), DriverFailure> {
        self.state().recordings.remove(&recording.0).expect("a recording is dropped once");
        self.call("drop_recording").map(drop)
    }

    fn encode_tiles(&self, _map: &TileMap) -> Result<[u8; 128], DriverFailure> {
        self.call("encode_tiles").map(|_| [0; 128])
    }
}
