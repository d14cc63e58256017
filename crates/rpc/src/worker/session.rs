//! What one client's commands mean: decoded requests to effects and answers. Knows no socket.
//!
//! Owned by the connection's thread alone. Invariant: a request is checked whole before its first effect; a refused one
//! has had none.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use oxcart_backend::{Buffer, BufferType, Buffers, Error, Place, copy_place};
use oxcart_tensor::graph::Storage;
use oxcart_tensor::{Graph, Layout};
use zerocopy::FromBytes;
use zerocopy::little_endian::{U32, U64};

use super::budget::Lease;
use super::cache::{Domain, Keeping, WeightCache};
use super::client::{Client, Phase};
use super::copies;
use super::counters::add;
use super::event::Event;
use super::lent::Lent;
use super::limits::{
    CHORE_BYTES, KEPT_ABOVE_BYTES, KEPT_ON_REQUEST_ABOVE_BYTES, KNOWN_BUFFER_BYTES, PLANNED_NODES,
};
use super::neighbours::Neighbours;
use super::parts::Parts;
use super::passing::Passing;
use super::pulses::ExpectedPulse;
use super::rebuild::rebuild_in_parts;
use super::refusal::Refusal;
use super::server::WorkerState;
use super::sliced_graph::{PlanRoom, SlicedGraph};
use super::space::{BufferRange, Space, layout_of};
use super::stored_graphs::Shelf;
use crate::link::Key;
use crate::wire::{
    Command, Dialect, Expect, GraphBody, Interruption, Meet, NO_TENSOR, Slot, Take, TensorRecord, Transfer,
};

/// What a command is answered with.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Nothing; or an empty answer, where the dialect has one.
    Done,
    /// A number.
    Byte(u8),
    /// A number.
    Word(u32),
    /// A number.
    Long(u64),
    /// Two numbers.
    Pair(u64, u64),
    /// What a pulse is known by.
    Token([u8; 16]),
    /// Bytes of a buffer.
    Data(BufferRange),
}

/// Where the data of SET_TENSOR goes.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) range: BufferRange,
    /// Whether it is worth keeping by its content.
    pub(crate) keep: bool,
}

/// One client's buffers and graphs.
#[derive(Debug)]
pub(crate) struct Session {
    shared: Arc<WorkerState>,
    dialect: &'static Dialect,
    space: Space,
    // After the buffers: their bytes are given back when they are.
    leases: HashMap<u64, [Lease; 2]>,
    /// The client's end of the connection, and ours.
    ends: Option<(SocketAddr, SocketAddr)>,
    /// The machine that the client has proved to be.
    key: Option<Key>,
    /// Whom the cache is shared with, once that was needed.
    domain: OnceCell<Option<Domain>>,
    /// Other workers that the client has introduced to this one.
    neighbours: Neighbours,
    /// Set when another worker has not sent what it should, or a graph was not kept, until the client says that it knows. Meanwhile nothing is
    /// computed, pushed or waited for, so that no result comes of what is not there.
    interruption: Option<Interruption>,
    /// What its pulse may come by, once it was asked for. It ends with the session.
    pulse: Option<ExpectedPulse>,
}

/// A request's body, taken apart from its start.
struct Fields<'a> {
    rest: &'a [u8],
    command: Command,
    size: usize,
}

impl<'a> Fields<'a> {
    fn new(command: Command, body: &'a [u8]) -> Fields<'a> {
        Fields { rest: body, command, size: body.len() }
    }

    fn take<T: FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned>(
        &mut self,
    ) -> Result<&'a T, Refusal> {
        let short = Refusal::Size { command: self.command.name(), size: self.size as u64 };
        let (value, rest) = T::ref_from_prefix(self.rest).map_err(|_| short)?;
        self.rest = rest;
        Ok(value)
    }

    fn byte(&mut self) -> Result<u8, Refusal> {
        self.take::<u8>().copied()
    }

    fn long(&mut self) -> Result<u64, Refusal> {
        Ok(self.take::<U64>()?.get())
    }

    fn record(&mut self) -> Result<&'a TensorRecord, Refusal> {
        self.take()
    }
}

impl Session {
    pub(crate) fn new(shared: Arc<WorkerState>, dialect: &'static Dialect, client: &Client) -> Session {
        let local = client.socket.as_ref().and_then(|socket| socket.stream().local_addr().ok());
        let ends = local.map(|local| (client.peer, local));
        let (space, leases) = (Space::default(), HashMap::new());
        let (domain, neighbours) = (OnceCell::new(), Neighbours::default());
        let key = client.key();
        let (interruption, pulse) = (None, None);
        Session { shared, dialect, space, leases, ends, key, domain, neighbours, interruption, pulse }
    }

    /// Why nothing is answered for now, if so.
    pub(crate) fn interruption(&self) -> Option<Interruption> {
        self.interruption
    }

    /// The worker of an introduction: its connection here, if it has come, and its key, if it has one.
    pub(crate) fn neighbour(&self, number: u32) -> (Option<&Client>, Option<Key>) {
        self.neighbours.expected(number)
    }

    /// Nothing is computed or answered until [`Command::Resume`], and other workers have nothing to wait for here. Buffers stay as they are.
    /// Graphs do not: of what the client says about them until it knows, nothing is done.
    pub(crate) fn interrupt(&mut self, interruption: Interruption, client: &Client) {
        self.interruption = Some(interruption);
        self.neighbours.part();
        client.graphs.clear();
    }

    fn lent(&self, device: u32) -> Result<(usize, &Lent), Refusal> {
        let index = usize::try_from(device).unwrap_or(usize::MAX);
        self.shared.devices.get(index).map(|lent| (index, lent)).ok_or(Refusal::Device { device })
    }

    /// The device a request names, where requests name one.
    fn named_device(&self, fields: &mut Fields<'_>) -> Result<(usize, &Lent), Refusal> {
        let device = if self.dialect.has_devices { fields.take::<U32>()?.get() } else { 0 };
        self.lent(device)
    }

    /// Where a tensor lies.
    fn range_of(&self, record: &TensorRecord) -> Result<BufferRange, Refusal> {
        self.space.range_of(record, &layout_of(record, self.dialect)?)
    }

    /// Carries out a command of fixed size, other than HELLO and those that compute.
    pub(crate) fn carry_out(
        &mut self,
        command: Command,
        body: &[u8],
        client: &Client,
    ) -> Result<Answer, Refusal> {
        let mut fields = Fields::new(command, body);
        let fields = &mut fields;
        match command {
            Command::AllocBuffer => self.alloc_buffer(fields, client),
            Command::GetAlignment => {
                let (_, lent) = self.named_device(fields)?;
                Ok(Answer::Long(lent.device().buffer_type().alignment() as u64))
            }
            Command::GetMaxSize => {
                let (_, lent) = self.named_device(fields)?;
                Ok(Answer::Long(lent.device().buffer_type().max_size() as u64))
            }
            Command::GetDeviceMemory => {
                let most = self.shared.memory_limit(client);
                let memory = self.named_device(fields)?.1.memory(client.holder(), most);
                Ok(Answer::Pair(memory.free as u64, memory.total as u64))
            }
            Command::DeviceCount => {
                Ok(Answer::Word(u32::try_from(self.shared.devices.len()).unwrap_or(u32::MAX)))
            }
            Command::BufferGetBase => Ok(Answer::Long(self.space.base(fields.long()?)?)),
            Command::FreeBuffer => self.free_buffer(fields.long()?, client),
            Command::BufferClear => {
                let range = self.space.whole(fields.long()?)?;
                self.fill(&range, fields.byte()?, client)
            }
            Command::GetTensor => {
                let range = self.range_of(fields.record()?)?;
                Ok(Answer::Data(range.part("tensor", fields.long()?, fields.long()?)?))
            }
            Command::SetTensorHash => self.set_tensor_hash(fields, client),
            Command::Take => self.take(body, client),
            Command::CopyTensor => self.copy_tensor(fields, client),
            Command::MemsetTensor => {
                let range = self.range_of(fields.record()?)?;
                let part = range.part("tensor", fields.long()?, fields.long()?)?;
                self.fill(&part, fields.byte()?, client)
            }
            Command::InitTensor => self.init_tensor(fields.record()?),
            Command::GetAllocSize => self.alloc_size(fields),
            Command::Expect => {
                let expect = Expect::decode(body).ok_or_else(|| unreadable(command, body))?;
                Ok(Answer::Byte(self.neighbours.expect(&self.shared, client, &expect).into()))
            }
            Command::Meet => {
                let meet = Meet::decode(body).ok_or_else(|| unreadable(command, body))?;
                Ok(Answer::Byte(self.neighbours.meet(&self.shared, client, &meet).into()))
            }
            Command::Push | Command::Await | Command::GraphDrop if self.interruption.is_some() => {
                Ok(Answer::Done)
            }
            Command::GraphDrop => {
                let slot = Slot::decode(body).ok_or(Refusal::NoSlot)?;
                client.graphs.empty(slot).then_some(Answer::Done).ok_or(Refusal::NoGraph)
            }
            Command::Resume => {
                self.interruption.take().ok_or(Refusal::NoInterruption)?;
                Ok(Answer::Done)
            }
            Command::Push => {
                let (transfer, range) = self.transfer(command, body)?;
                self.neighbours.push(&self.shared, client, transfer, &range)?;
                Ok(Answer::Done)
            }
            Command::Await => self.receive(body, client),
            Command::Pulse => {
                if self.pulse.is_none() {
                    self.pulse = self.shared.expect_pulse(client);
                }
                Ok(Answer::Token(self.pulse.as_ref().map_or([0; 16], ExpectedPulse::token)))
            }
            Command::Hello => Err(Refusal::Hello),
            Command::SetTensor
            | Command::GraphCompute
            | Command::GraphRecompute
            | Command::GraphKeep
            | Command::GraphRun => Err(Refusal::Command { number: command as u8 }),
        }
    }

    /// What a PUSH or an AWAIT is about.
    fn transfer(&self, command: Command, body: &[u8]) -> Result<((u32, u64), BufferRange), Refusal> {
        let transfer = Transfer::decode(body).ok_or_else(|| unreadable(command, body))?;
        Ok(((transfer.number, transfer.ticket), self.range_of(&transfer.record)?))
    }

    /// Waits for what another worker sends, and puts it where the client says; the other worker has no say in that.
    fn receive(&self, body: &[u8], client: &Client) -> Result<Answer, Refusal> {
        let (transfer, range) = self.transfer(Command::Await, body)?;
        let delivery = self.neighbours.take(&self.shared, client, transfer, range.len)?;
        client.enter(Phase::Working, None);
        self.shared.do_chore_in_parts(client, range.len, |start, len| {
            let part = delivery.bytes.get(start..start + len).unwrap_or_default();
            Ok(range.buffer.write(range.offset + start, part)?)
        })?;
        Ok(Answer::Done)
    }

    fn fill(&self, range: &BufferRange, value: u8, client: &Client) -> Result<Answer, Refusal> {
        self.shared.do_chore_in_parts(client, range.len, |start, len| {
            Ok(range.buffer.fill(range.offset + start, len, value)?)
        })?;
        Ok(Answer::Done)
    }

    fn alloc_buffer(&mut self, fields: &mut Fields<'_>, client: &Client) -> Result<Answer, Refusal> {
        let (index, lent) = self.named_device(fields)?;
        let size = fields.long()?;
        // Too little memory is no reason to refuse: honest clients ask for less then.
        let Some((buffer, leases)) = self.allocate(lent, size, client) else {
            // Or the device is gone, which others should know, too.
            if let Err(Error::DeviceLost { reason, .. }) = lent.device().memory() {
                self.shared.lose(index, &reason);
            } else {
                let (others, held) = lent.others_of(client.holder());
                self.shared.report(&Event::Full {
                    client: client.id,
                    peer: client.peer,
                    device: lent.device().name().to_owned(),
                    bytes: size,
                    free: lent.memory(client.holder(), self.shared.memory_limit(client)).free as u64,
                    others,
                    held: held as u64,
                });
            }
            return Ok(Answer::Pair(0, 0));
        };
        client.uses(index);
        client.hold(buffer.len());
        let len = buffer.len() as u64;
        let handle = self.space.add(buffer, index);
        self.leases.insert(handle, leases);
        Ok(Answer::Pair(handle, len))
    }

    /// A buffer, if there is room for it, and for knowing that it is there.
    fn allocate(&self, lent: &Lent, size: u64, client: &Client) -> Option<(Arc<dyn Buffer>, [Lease; 2])> {
        let size = usize::try_from(size).ok()?;
        let has_room = self.has_room(client, None, KNOWN_BUFFER_BYTES);
        if self.space.len() >= self.shared.limits.buffers || !has_room {
            return None;
        }
        let known = self.shared.lease_stored_bytes(client, KNOWN_BUFFER_BYTES)?;
        let (buffer, lease) = lent.allocate(client.holder(), size, self.shared.memory_limit(client))?;
        Some((buffer, [lease, known]))
    }

    fn free_buffer(&mut self, handle: u64, client: &Client) -> Result<Answer, Refusal> {
        let buffer = self.space.remove(handle)?;
        client.graphs.forget(handle);
        client.let_go(buffer.len());
        drop(buffer);
        self.leases.remove(&handle);
        Ok(Answer::Done)
    }

    /// Host memory that the bytes of a range pass through.
    pub(crate) fn passing(&self, range: &BufferRange) -> Result<Passing<'_>, Refusal> {
        let device = self.space.device(range.handle)?;
        let lent = self.shared.devices.get(device).ok_or(Refusal::Handle { handle: range.handle })?;
        Ok(lent.passing(range.len))
    }

    /// Where the data of SET_TENSOR goes, from the fixed start of its body.
    pub(crate) fn set_tensor(&self, start: &[u8], data_bytes: u64) -> Result<Target, Refusal> {
        let mut fields = Fields::new(Command::SetTensor, start);
        let record = fields.record()?;
        let kept_above = match self.dialect.has_cache_flag {
            false => Some(KEPT_ABOVE_BYTES),
            true => (fields.byte()? != 0).then_some(KEPT_ON_REQUEST_ABOVE_BYTES),
        };
        let offset = fields.long()?;
        let range = self.range_of(record)?.part("tensor", offset, data_bytes)?;
        let keep = kept_above.is_some_and(|least| data_bytes > least);
        Ok(Target { range, keep })
    }

    /// The cache, and the domain that this client shares it with, if both are there.
    fn cache(&self) -> Option<(&Arc<WeightCache>, &Domain)> {
        let cache = self.shared.cache.as_ref()?;
        let by_place = || self.ends.and_then(|(peer, local)| cache.domain(peer, local));
        let look = || self.key.map(Domain::of_machine).or_else(by_place);
        Some((cache, self.domain.get_or_init(look).as_ref()?))
    }

    /// Keeps the data of SET_TENSOR, which follows, if it is worth it and there is a cache.
    pub(crate) fn keep(&self, target: &Target) -> Option<Keeping> {
        let (cache, domain) = if target.keep { self.cache()? } else { return None };
        cache.keep(domain, target.range.len as u64)
    }

    fn set_tensor_hash(&self, fields: &mut Fields<'_>, client: &Client) -> Result<Answer, Refusal> {
        let range = self.range_of(fields.record()?)?;
        let offset = fields.long()?;
        let room = (range.len as u64).saturating_sub(offset);
        let rest = range.part("tensor", offset, room)?;
        let hash = fields.long()?;
        let mut loading = Parts::new(&self.shared.loads, client, CHORE_BYTES);
        let mut go_on = |bytes| loading.go_on(bytes);
        let hit = self.cache().is_some_and(|(cache, domain)| cache.load(domain, hash, &rest, &mut go_on));
        let counters = &self.shared.counters;
        add(if hit { &counters.cache_hits } else { &counters.cache_misses }, 1);
        Ok(Answer::Byte(hit.into()))
    }

    /// Bytes that the client names by their content, from the worker's own files or from what it keeps for the client.
    fn take(&self, body: &[u8], client: &Client) -> Result<Answer, Refusal> {
        let Take { record, content } = Take::decode(body).ok_or_else(|| unreadable(Command::Take, body))?;
        let range = self.range_of(&record)?;
        let mut loading = Parts::new(&self.shared.loads, client, CHORE_BYTES);
        let mut go_on = |bytes| loading.go_on(bytes);
        let counters = &self.shared.counters;
        if let Some(copies) = &self.shared.copies
            && copies::take(&**copies, &content.digest, &range, &mut go_on)?
        {
            add(&counters.copied, 1);
            return Ok(Answer::Byte(1));
        }
        let hit = match self.cache() {
            Some((cache, domain)) => cache.take(domain, &content, &range, &mut go_on)?,
            None => false,
        };
        add(if hit { &counters.cache_hits } else { &counters.cache_misses }, 1);
        Ok(Answer::Byte(hit.into()))
    }

    fn copy_tensor(&self, fields: &mut Fields<'_>, client: &Client) -> Result<Answer, Refusal> {
        let source = self.range_of(fields.record()?)?;
        let target = self.range_of(fields.record()?)?.part("target", 0, source.len as u64)?;
        let part = |range: &BufferRange, start: usize, len: usize| Place {
            buffer: Arc::clone(&range.buffer),
            offset: range.offset + start,
            len,
        };
        // Where the two overlap, nothing is written to before it was read.
        let backwards = source.handle == target.handle && source.offset < target.offset;
        self.shared.do_chore_in_parts(client, source.len, |start, len| {
            let start = if backwards { source.len - start - len } else { start };
            copy_place(&part(&source, start, len), &part(&target, start, len))?;
            Ok(())
        })?;
        Ok(Answer::Byte(1))
    }

    /// Prepares a tensor, where its memory wants that. A tensor elsewhere is ignored.
    fn init_tensor(&self, record: &TensorRecord) -> Result<Answer, Refusal> {
        let layout = layout_of(record, self.dialect)?;
        if !self.space.contains(record.buffer.get()) {
            return Ok(Answer::Done);
        }
        let range = self.space.range_of(record, &layout)?;
        if range.buffer.host().is_none() && !layout.is_empty() {
            let (mut graph, mut buffers) = (Graph::new(), Buffers::new());
            let leaf = graph.leaf_with_layout(layout).map_err(Error::from)?;
            let (capacity, offset) = (range.buffer.len(), range.offset);
            let buffer = buffers.add(range.buffer);
            graph.bind(leaf, Storage { buffer, offset }, capacity).map_err(Error::from)?;
            buffers.init_tensor(graph.tensor(leaf).map_err(Error::from)?)?;
        }
        Ok(Answer::Done)
    }

    fn alloc_size(&self, fields: &mut Fields<'_>) -> Result<Answer, Refusal> {
        let (_, lent) = self.named_device(fields)?;
        let record = fields.record()?;
        let layout = layout_of(record, self.dialect)?;
        let buffer_type = match self.space.buffer(record.buffer.get()) {
            Ok(buffer) => Arc::clone(buffer.buffer_type()),
            Err(_) => lent.device().buffer_type(),
        };
        // Sources are listed for devices that want scratch memory beside a result; ours want none there.
        Ok(Answer::Long(padded_len(&buffer_type, layout)? as u64))
    }

    /// Computes a graph and keeps it to be computed again, if there is room for it: in the slot that GRAPH_KEEP names, or as the last one of
    /// its device.
    pub(crate) fn compute(
        &mut self,
        command: Command,
        body: Vec<u8>,
        client: &Client,
        charge: Lease,
    ) -> Result<(), Refusal> {
        if self.interruption.is_some() {
            return Ok(());
        }
        let (slot, message) = match command {
            Command::GraphKeep if body.len() < Slot::BYTES => return Err(unreadable(command, &body)),
            Command::GraphKeep => {
                let (slot, message) = Slot::split(&body).ok_or(Refusal::NoSlot)?;
                (Some(slot), message)
            }
            _ => (None, body.as_slice()),
        };
        let (index, shelf, mut graph) = self.prepare(message, slot, client, charge)?;
        self.check_room(client, shelf, graph.bytes())?;
        drop(body);
        let has_room = self.settle(&mut graph, client)?;
        self.plan(&mut graph, index, shelf, client)?;
        client.uses(index);
        self.run(&mut graph, index, client)?;
        add(&self.shared.counters.graphs, 1);
        if self.dialect.has_recompute && has_room {
            client.graphs.put(shelf, index, graph);
        } else {
            client.graphs.lose(shelf);
        }
        Ok(())
    }

    /// Makes a graph of its message, for the device that it names.
    fn prepare(
        &self,
        body: &[u8],
        slot: Option<Slot>,
        client: &Client,
        charge: Lease,
    ) -> Result<(usize, Shelf, SlicedGraph), Refusal> {
        let graph = GraphBody::decode(body, self.dialect)?;
        self.check_counts(&graph)?;
        let (index, lent) = self.lent(graph.device)?;
        let shelf = slot.map_or(Shelf::LastOf(index), Shelf::Slot);
        let mut planning = Parts::new(&self.shared.chores, client, PLANNED_NODES);
        let mut go_on = |nodes| planning.go_on(nodes);
        let graph = client.in_turn(|| {
            let rebuilt = rebuild_in_parts(&graph, self.dialect, &self.space, lent.device(), &mut go_on)?;
            let charges = (charge, self.shared.lease_for_plans(client));
            SlicedGraph::new(rebuilt, lent, charges, self.shared.limits.node_work, &mut go_on)
        })?;
        Ok((index, shelf, graph))
    }

    /// Plans a graph, if only to see that it can be; what it counts itself is counted.
    fn plan(
        &self,
        graph: &mut SlicedGraph,
        device: usize,
        shelf: Shelf,
        client: &Client,
    ) -> Result<(), Refusal> {
        let lent = self.shared.devices.get(device).ok_or(Refusal::NoGraph)?;
        let room = PlanRoom {
            most: self.shared.limits.client_bytes,
            held: &|| self.held_bytes(client, Some(shelf)),
            give_up: &|| client.graphs.give_up_plans(),
        };
        let mut planning = Parts::new(&self.shared.chores, client, PLANNED_NODES);
        let mut go_on = |nodes| planning.go_on(nodes);
        client.in_turn(|| graph.plan(lent, &room, &mut go_on))
    }

    /// Lets a graph whose message is gone count for itself, and says whether there is room to store it. If not, it counts
    /// where its message did: whatever others have stored, it can be computed once.
    fn settle(&self, graph: &mut SlicedGraph, client: &Client) -> Result<bool, Refusal> {
        let bytes = graph.bytes();
        let stored = self.shared.lease_stored_bytes(client, bytes);
        let has_room = stored.is_some();
        match stored {
            Some(lease) => graph.charge = lease,
            None => self.shared.charge_message(client, &mut graph.charge, bytes)?,
        }
        Ok(has_room)
    }

    /// A graph may have so many nodes and tensors.
    fn check_counts(&self, graph: &GraphBody<'_>) -> Result<(), Refusal> {
        let limits = &self.shared.limits;
        let counts = [
            ("nodes in a graph", graph.nodes.len(), limits.graph_nodes),
            ("tensors in a graph", graph.tensors.len(), limits.graph_tensors),
        ];
        match counts.into_iter().find(|(_, count, limit)| count > limit) {
            Some((what, _, limit)) => Err(Refusal::Limit { what, limit: limit as u64 }),
            None => Ok(()),
        }
    }

    /// A graph must fit beside the others that are stored, whether it is to be stored or not.
    fn check_room(&self, client: &Client, shelf: Shelf, bytes: usize) -> Result<(), Refusal> {
        let limit = self.shared.limits.client_bytes as u64;
        let full = Refusal::Limit { what: "bytes of stored graphs and buffers", limit };
        self.has_room(client, Some(shelf), bytes).then_some(()).ok_or(full)
    }

    /// Whether so many more bytes fit what one client may hold, the graph in one place aside. Plans make way.
    fn has_room(&self, client: &Client, without: Option<Shelf>, bytes: usize) -> bool {
        loop {
            if self.held_bytes(client, without).saturating_add(bytes) <= self.shared.limits.client_bytes {
                return true;
            }
            if !client.graphs.give_up_plans() {
                return false;
            }
        }
    }

    /// What one client holds, the graph in one place aside.
    fn held_bytes(&self, client: &Client, without: Option<Shelf>) -> usize {
        let known = self.space.len().saturating_mul(KNOWN_BUFFER_BYTES);
        client.graphs.bytes(without).saturating_add(known)
    }

    /// Computes a graph and draws conclusions from how that went.
    fn run(&self, graph: &mut SlicedGraph, device: usize, client: &Client) -> Result<(), Refusal> {
        let lent = self.shared.devices.get(device).ok_or(Refusal::NoGraph)?;
        let done = graph.run(lent, client);
        match &done {
            Err(Refusal::Failed(Error::DeviceLost { reason, .. })) => self.shared.lose(device, reason),
            Err(Refusal::Failed(Error::Panicked { .. })) => {
                add(&self.shared.counters.panics, 1);
                self.shared.report(&Event::Panicked { client: client.id, peer: client.peer });
            }
            _ => {}
        }
        done
    }

    /// Computes the last graph of a device again, or the one in a slot.
    pub(crate) fn recompute(
        &mut self,
        command: Command,
        body: &[u8],
        client: &Client,
    ) -> Result<(), Refusal> {
        if self.interruption.is_some() {
            return Ok(());
        }
        let shelf = match command {
            Command::GraphRun => Shelf::Slot(Slot::decode(body).ok_or(Refusal::NoSlot)?),
            _ => Shelf::LastOf(self.named_device(&mut Fields::new(command, body))?.0),
        };
        let Some((index, mut graph)) = client.graphs.take(shelf) else {
            return Err(if client.graphs.has_lost(shelf) { Refusal::NotKept } else { Refusal::NoGraph });
        };
        self.run(&mut graph, index, client)?;
        client.graphs.put(shelf, index, graph);
        add(&self.shared.counters.recomputes, 1);
        Ok(())
    }
}

/// A body that is none of its command's, though it has its length.
fn unreadable(command: Command, body: &[u8]) -> Refusal {
    Refusal::Size { command: command.name(), size: body.len() as u64 }
}

/// Bytes to reserve for a tensor.
fn padded_len(buffer_type: &Arc<dyn BufferType>, layout: Layout) -> Result<usize, Refusal> {
    let mut graph = Graph::new();
    let leaf = graph.leaf_with_layout(layout).map_err(Error::from)?;
    let tensor = graph.tensor(leaf).map_err(Error::from)?;
    Ok(buffer_type.alloc_size(tensor).max(layout.byte_len()))
}

const _: () = assert!(NO_TENSOR == 0, "an absent source is all zeros");
