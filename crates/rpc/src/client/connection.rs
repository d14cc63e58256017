//! A connection that many threads share: everything takes turns, in the order in which it was asked for.
//!
//! Each command draws a ticket. A call that needs an answer, or lends its bytes, waits for its turn and then uses the line
//! itself, so nothing is copied and, when no other call is waiting, no thread is woken. A command that owns its bytes waits
//! in a queue, which a thread of the connection empties; small ones without an answer are sent by the caller if the line
//! is idle.
//!
//! What a worker has done may also become known by another one, which got what this one was told to push to it: see [`Awaited`].
//!
//! A worker that waited in vain for another one is interrupted: it has done nothing since and answers nothing, but holds what it held. It is
//! told to go on at once, and a new era begins: streams of earlier ones, and what they had left to its turn, get nothing but that failure.
//!
//! A worker that is lost is lost to its neighbours, too: those that wait for it, or send to it, are told so by their pulses at once.
//!
//! Invariants: the line is either in the state or with the call that has the turn; tickets are served in order; after a
//! failure no call gets a turn, and each gets the failure instead. No lock is held while bytes move or jobs are dropped.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use oxcart_backend::Arithmetic;

use super::failure::{About, Unconfirmed, WorkerFailure, WorkerFault};
use super::graph::EncodedGraph;
use super::introduction::Reach;
use super::job::Job;
use super::known_graphs::{Asked, KnownGraphs};
use super::limits::{LOOK, MAX_DIRECT_BYTES, MAX_MARKS, MAX_QUEUED_BYTES, MAX_QUEUED_COMMANDS};
use super::line::{Line, WorkerHas};
use super::message::{Head, Message, Waiting};
use super::options::Options;
use super::pulse::Beating;
use super::traffic::Traffic;
use crate::wire::{Command, Dialect, Slot};

/// Where a live buffer of the worker is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Live {
    pub(super) handle: u64,
    pub(super) base: u64,
}

#[derive(Debug)]
struct State {
    /// The line, while no call has the turn.
    line: Option<Line>,
    next_ticket: u64,
    /// The ticket whose turn it is.
    serving: u64,
    /// Everything with a smaller ticket is known to be done.
    confirmed: u64,
    queue: VecDeque<Queued>,
    queued_bytes: usize,
    failed: Option<Arc<WorkerFailure>>,
    closing: bool,
    /// The graphs that the worker will have stored when everything so far has had its turn.
    graphs: KnownGraphs,
    /// Bases of live buffers, by handle.
    live: BTreeMap<u64, u64>,
    /// Workers that push to this one.
    senders: Vec<Neighbour>,
    /// Workers that this one pushes to.
    receivers: Vec<Neighbour>,
    /// Introductions whose other worker is lost, which this one is to be told.
    lost_neighbours: Vec<u32>,
    /// Introductions of workers that push to this one that were made since it was interrupted: it can be interrupted by these alone.
    met: BTreeSet<u32>,
    /// Whether it was to compute a graph since then that it kept: only then can it be interrupted for want of one.
    has_run_kept: bool,
    /// Introductions by which it has waited in vain.
    broken: BTreeSet<u32>,
    /// How often it was interrupted, and how it was the last time.
    era: u64,
    interrupted: Option<Arc<WorkerFailure>>,
    /// What this worker waits for, in the order of tickets.
    awaited: VecDeque<Awaited>,
}

/// The other worker of an introduction.
#[derive(Debug)]
struct Neighbour {
    introduction: u32,
    core: Weak<Core>,
    /// Whether one of the two was interrupted since, which has ended the introduction. It still tells what an interruption came from.
    is_over: bool,
}

/// A command that waits for its turn.
#[derive(Debug)]
struct Queued {
    ticket: u64,
    /// Of a stream, which an interruption ends.
    is_of_stream: bool,
    /// None once it is not to be done any more.
    job: Option<Job>,
}

/// A command that waits for another worker. Once it is known to be done, so is everything that the other one was told up to then.
#[derive(Debug)]
struct Awaited {
    ticket: u64,
    sender: Weak<Core>,
    /// On the other connection, the ticket after that of the push.
    before: u64,
}

/// What the connection's thread and its users share.
#[derive(Debug)]
pub(super) struct Core {
    /// Where the worker is, as messages say it.
    place: Arc<str>,
    dialect: &'static Dialect,
    state: Mutex<State>,
    /// For those who wait for a turn or for room in the queue.
    turns: Condvar,
    /// For the thread.
    work: Condvar,
    /// Ends waits on the line.
    socket: TcpStream,
    /// Ends the pulse.
    pulse: Option<TcpStream>,
    /// Whether the pulse goes on.
    pub(super) has_pulse: AtomicBool,
}

/// A connection to a worker. It ends when the last user drops it.
#[derive(Debug)]
pub(super) struct Connection {
    core: Arc<Core>,
    pub(super) dialect: &'static Dialect,
    pub(super) traffic: Arc<Traffic>,
    /// Whether the worker keeps large weights by content.
    pub(super) worker_cache: bool,
    /// What else it may have already.
    pub(super) worker_has: WorkerHas,
    /// The order in which all of its devices add up, if it is the same.
    pub(super) arithmetic: Option<Arithmetic>,
    /// How other workers can get to this one.
    pub(super) reach: Reach,
}

/// The right to use the line, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    core: &'a Core,
    line: Option<Line>,
    ticket: u64,
}

impl Connection {
    /// Takes over a line on which HELLO has been said, and its pulse.
    pub(super) fn new(
        line: Line,
        pulse: Option<Beating>,
        place: Arc<str>,
        traffic: Arc<Traffic>,
        options: &Options,
    ) -> std::io::Result<Arc<Connection>> {
        let (socket, dialect, worker_has) = (line.handle()?, line.dialect, line.has);
        let arithmetic = line.arithmetic;
        let reach = Reach::new(&line, &socket, options);
        let graphs = KnownGraphs::new(dialect, line.kept_graph_bytes);
        let state = State {
            line: Some(line),
            next_ticket: 0,
            serving: 0,
            confirmed: 0,
            queue: VecDeque::new(),
            queued_bytes: 0,
            failed: None,
            closing: false,
            graphs,
            live: BTreeMap::new(),
            senders: Vec::new(),
            receivers: Vec::new(),
            lost_neighbours: Vec::new(),
            met: BTreeSet::new(),
            broken: BTreeSet::new(),
            era: 0,
            interrupted: None,
            has_run_kept: false,
            awaited: VecDeque::new(),
        };
        let core = Arc::new(Core {
            state: Mutex::new(state),
            turns: Condvar::new(),
            work: Condvar::new(),
            socket,
            pulse: pulse.as_ref().map(Beating::handle).transpose()?,
            has_pulse: AtomicBool::new(pulse.is_some()),
            place,
            dialect,
        });
        let of_thread = Arc::clone(&core);
        std::thread::Builder::new().name("oxcart-rpc-client".into()).spawn(move || run_jobs(&of_thread))?;
        if pulse.is_some_and(|pulse| pulse.start(Arc::clone(&core)).is_err()) {
            core.has_pulse.store(false, Ordering::SeqCst);
        }
        let worker_cache = options.worker_cache;
        Ok(Arc::new(Connection { core, dialect, traffic, worker_cache, worker_has, arithmetic, reach }))
    }

    /// Whether it has a pulse that goes on.
    pub(super) fn has_pulse(&self) -> bool {
        self.core.has_pulse.load(Ordering::SeqCst)
    }

    /// Where the worker is, as messages say it.
    pub(super) fn place(&self) -> &Arc<str> {
        &self.core.place
    }

    /// Why the connection is of no use any more, if it is not.
    pub(super) fn failed(&self) -> Option<Arc<WorkerFailure>> {
        self.core.lock().failed.clone()
    }

    /// As [`failed`](Connection::failed), but looks first: a worker that left while the line was idle is found out now rather than by the
    /// next command. Never waits; a line that is in use shows it by itself.
    pub(super) fn look(&self) -> Option<Arc<WorkerFailure>> {
        self.core.look()
    }

    /// Waits for a turn.
    pub(super) fn turn(&self) -> Result<Turn<'_>, Arc<WorkerFailure>> {
        self.core.turn().map(|(turn, _)| turn)
    }

    /// Sends a request and reads its answer of `N` bytes.
    pub(super) fn ask<const N: usize>(&self, message: &Message<'_>) -> Result<[u8; N], Arc<WorkerFailure>> {
        let mut answer = [0; N];
        self.turn()?.exchange(message, &mut answer)?;
        Ok(answer)
    }

    /// Leaves a command to its turn. Waits only if too many are waiting already.
    pub(super) fn submit(&self, job: Job) -> Result<(), Arc<WorkerFailure>> {
        let state = self.core.wait_for_room(None, job.bytes())?;
        self.core.enter(state, false, job).map(|_| ())
    }

    /// The same for a stream of some era; says which ticket it has.
    pub(super) fn submit_in(&self, era: u64, job: Job) -> Result<u64, Arc<WorkerFailure>> {
        let state = self.core.wait_for_room(Some(era), job.bytes())?;
        self.core.enter(state, true, job)
    }

    /// How often the worker was interrupted.
    pub(super) fn era(&self) -> u64 {
        self.core.lock().era
    }

    /// Why a stream of some era is of no use any more, if it is not.
    pub(super) fn check(&self, era: u64) -> Result<(), Arc<WorkerFailure>> {
        self.core.lock().check(Some(era))
    }

    /// Whether the worker has waited in vain by an introduction.
    pub(super) fn was_broken(&self, introduction: u32) -> bool {
        self.core.lock().broken.contains(&introduction)
    }

    /// Another worker will push to this one, by an introduction, if it is let in.
    pub(super) fn add_sender(&self, introduction: u32, sender: &Connection) {
        let add = |neighbours: &mut Vec<Neighbour>, other: &Connection| {
            neighbours.retain(|known| known.core.strong_count() > 0);
            let core = Arc::downgrade(&other.core);
            neighbours.push(Neighbour { introduction, core, is_over: false });
        };
        add(&mut sender.core.lock().receivers, self);
        add(&mut self.core.lock().senders, sender);
    }

    /// Another worker was let in by an introduction, which was made in some era of this one. An interruption has ended those of earlier eras.
    pub(super) fn has_met(&self, introduction: u32, era: u64) {
        let mut state = self.core.lock();
        if state.era == era {
            state.met.insert(introduction);
        }
    }

    /// Another worker does not push to this one after all: it was not let in.
    pub(super) fn remove_sender(&self, introduction: u32, sender: &Connection) {
        let is_other = |known: &Neighbour| known.introduction != introduction;
        sender.core.lock().receivers.retain(is_other);
        self.core.lock().senders.retain(is_other);
    }

    /// The command with a ticket waits for what another worker was told to push by a command with a ticket there.
    pub(super) fn awaits(&self, ticket: u64, sender: &Connection, pushed: u64) {
        let awaited = Awaited { ticket, sender: Arc::downgrade(&sender.core), before: pushed + 1 };
        let mut state = self.core.lock();
        if state.awaited.len() >= MAX_MARKS {
            // A later one says as much, only later.
            state.awaited.pop_front();
        }
        let at = state.awaited.partition_point(|other| other.ticket < ticket);
        state.awaited.insert(at, awaited);
        let known = state.known_of_others();
        drop(state);
        confirm(known);
    }

    /// Has a graph of a stream computed on a device. One that the worker has stored need not be sent again.
    pub(super) fn submit_graph(
        &self,
        era: u64,
        device: usize,
        graph: &EncodedGraph,
        job: impl FnOnce(Asked) -> Job,
    ) -> Result<(), Arc<WorkerFailure>> {
        let mut state = self.core.wait_for_room(Some(era), graph.body.len())?;
        let (asked, emptied) = state.graphs.ask(device, graph);
        state.has_run_kept |= matches!(asked, Asked::Run(_));
        state.empty(&emptied);
        self.core.enter(state, true, job(asked)).map(|_| ())
    }

    /// Notes a new buffer; `false` if the worker gave out its handle before.
    pub(super) fn register(&self, live: Live) -> bool {
        self.core.lock().live.insert(live.handle, live.base).is_none()
    }

    /// Frees a buffer when its turn comes. Never waits and never fails: a lost worker has freed it already.
    pub(super) fn free(&self, handle: u64, job: Job) {
        let mut state = self.core.lock();
        state.live.remove(&handle);
        let emptied = state.graphs.forget_buffer(handle);
        if state.failed.is_none() {
            state.empty(&emptied);
            state.push(false, job);
            drop(state);
            self.core.work.notify_one();
        }
    }

    /// The last ticket drawn, and all before it.
    pub(super) fn point(&self) -> u64 {
        self.core.lock().next_ticket
    }

    /// Has the worker confirm everything that a stream of some era asked for before a point, in its turn from now: what is returned ends when
    /// that is done, or will not be. None if it is done already.
    pub(super) fn confirm_later(
        &self,
        era: u64,
        point: u64,
    ) -> Result<Option<Receiver<()>>, Arc<WorkerFailure>> {
        let state = self.core.wait_for_room(Some(era), 0)?;
        if state.confirmed >= point {
            return Ok(None);
        }
        let live = state.first_live();
        let (then, done) = channel();
        self.core.enter(state, true, Job::Confirm { live, _then: then })?;
        Ok(Some(done))
    }

    /// Waits until the worker has done everything that a stream of some era asked for before a point, or everything so far.
    pub(super) fn finish(&self, era: u64, point: Option<u64>) -> Result<(), Arc<WorkerFailure>> {
        {
            let state = self.core.lock();
            state.check(Some(era))?;
            if state.confirmed >= point.unwrap_or(state.next_ticket) {
                return Ok(());
            }
        }
        let (mut turn, live) = self.core.turn()?;
        if !turn.is_confirmed() {
            turn.probe(live)?;
        }
        self.check(era)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = self.core.lock();
        state.closing = true;
        let jobs = std::mem::take(&mut state.queue);
        if state.failed.is_none() {
            let gone =
                WorkerFailure::new(&self.core.place, WorkerFault::HungUp, None, Unconfirmed::default());
            state.failed = Some(Arc::new(gone));
        }
        let failure = state.failed.clone();
        drop(state);
        self.core.hang_up();
        self.core.work.notify_one();
        abandon(jobs.into_iter().filter_map(|queued| queued.job), failure.as_deref());
    }
}

/// Ends all waiting for what is not done.
fn abandon(jobs: impl IntoIterator<Item = Job>, failure: Option<&WorkerFailure>) {
    for job in jobs {
        job.abandon(failure);
    }
}

impl State {
    /// Whether something can still be asked for, by a stream of some era if it is one that asks.
    fn check(&self, era: Option<u64>) -> Result<(), Arc<WorkerFailure>> {
        let interrupted = self.interrupted.as_ref().filter(|_| era.is_some_and(|era| era != self.era));
        self.failed.as_ref().or(interrupted).map_or(Ok(()), |failure| Err(Arc::clone(failure)))
    }

    /// Workers that push to this one or that it pushes to, by introductions that are not over.
    fn neighbours(&self) -> Vec<(u32, Arc<Core>)> {
        let all = self.senders.iter().chain(&self.receivers).filter(|known| !known.is_over);
        all.filter_map(|known| Some((known.introduction, known.core.upgrade()?))).collect()
    }

    /// Notes that an introduction is over.
    fn part(&mut self, introduction: u32) {
        let all = self.senders.iter_mut().chain(&mut self.receivers);
        all.filter(|known| known.introduction == introduction).for_each(|known| known.is_over = true);
    }

    /// Notes that all introductions are over, and forgets those that were before.
    fn part_from_all(&mut self) {
        for neighbours in [&mut self.senders, &mut self.receivers] {
            neighbours.retain(|known| !known.is_over);
            neighbours.iter_mut().for_each(|known| known.is_over = true);
        }
    }

    /// A buffer that is live at the ticket that is drawn next.
    fn first_live(&self) -> Option<Live> {
        self.live.first_key_value().map(|(&handle, &base)| Live { handle, base })
    }

    fn draw(&mut self) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        ticket
    }

    /// Leaves a job to the connection's thread, which has to be woken; says which ticket it has.
    fn push(&mut self, is_of_stream: bool, job: Job) -> u64 {
        let ticket = self.draw();
        self.queued_bytes += job.bytes();
        self.queue.push_back(Queued { ticket, is_of_stream, job: Some(job) });
        ticket
    }

    /// Has the worker empty slots. After an interruption it has none to empty, so this ends with the streams.
    fn empty(&mut self, slots: &[Slot]) {
        for slot in slots {
            let head = Head::new(Command::GraphDrop).raw(&slot.encode());
            self.push(true, Job::Tell(Waiting::new(Command::GraphDrop, head)));
        }
    }

    /// The line, if it is this ticket's turn.
    fn take_line(&mut self, ticket: u64) -> Option<Line> {
        let mut line = if self.serving == ticket { self.line.take() } else { None };
        if let Some(line) = &mut line {
            line.confirm(self.confirmed);
        }
        line
    }

    /// What is known to be done on other connections, by what is known here; each with the first ticket of which it is not.
    fn known_of_others(&mut self) -> Vec<(Arc<Core>, u64)> {
        let known = self.awaited.partition_point(|awaited| awaited.ticket < self.confirmed);
        let known = self.awaited.drain(..known);
        known.filter_map(|awaited| Some((awaited.sender.upgrade()?, awaited.before))).collect()
    }
}

/// On these connections, everything before a ticket is known to be done, and with it what those have waited for.
fn confirm(mut known: Vec<(Arc<Core>, u64)>) {
    while let Some((core, before)) = known.pop() {
        let mut state = core.lock();
        if state.confirmed < before {
            state.confirmed = before;
            if let Some(line) = &mut state.line {
                line.confirm(before);
            }
            known.extend(state.known_of_others());
        }
    }
}

impl Core {
    /// The state. A thread that panicked while it held the lock left it whole: every change is a few plain stores.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hang_up(&self) {
        for socket in [Some(&self.socket), self.pulse.as_ref()].into_iter().flatten() {
            // A connection that is gone already needs no end.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Why the connection is of no use any more, if that is known, or shows without a word.
    fn look(&self) -> Option<Arc<WorkerFailure>> {
        let mut state = self.lock();
        if state.failed.is_some() {
            return state.failed.clone();
        }
        let failure = state.line.as_mut()?.quiet_failure()?;
        drop(state);
        Some(self.fail(failure))
    }

    /// Where a worker is that pushes to this one, and why it, or one that it waits for in turn, cannot be used any more. One that is lost is
    /// seen to be so by the worker that waits for it and from here at nearly the same time, so they are looked at for a moment.
    fn sender(&self, introduction: u32) -> Option<(Arc<str>, Option<Arc<WorkerFailure>>)> {
        let sender = self.senders(|number| number == introduction).pop()?;
        let mut all = vec![Arc::clone(&sender)];
        let mut at = 0;
        while let Some(core) = all.get(at) {
            let more = core.senders(|_| true);
            more.into_iter().for_each(|core| {
                if !all.iter().any(|known| Arc::ptr_eq(known, &core)) {
                    all.push(core);
                }
            });
            at += 1;
        }
        let since = Instant::now();
        loop {
            let failure = all.iter().find_map(|core| core.look());
            if failure.is_some() || since.elapsed() >= LOOK {
                return Some((Arc::clone(&sender.place), failure));
            }
            std::thread::sleep(LOOK / 20);
        }
    }

    /// Whether a call waits for the worker, or for another one that waits for what this one pushes, however indirectly.
    pub(super) fn is_waited_for(self: &Arc<Self>) -> bool {
        let mut all = vec![Arc::clone(self)];
        let mut at = 0;
        while let Some(core) = all.get(at) {
            let state = core.lock();
            if state.failed.is_none() && (state.line.is_none() || state.serving < state.next_ticket) {
                return true;
            }
            let more: Vec<_> = state.receivers.iter().filter_map(|known| known.core.upgrade()).collect();
            drop(state);
            more.into_iter().for_each(|core| {
                if !all.iter().any(|known| Arc::ptr_eq(known, &core)) {
                    all.push(core);
                }
            });
            at += 1;
        }
        false
    }

    /// Workers that push to this one, by introductions of some numbers.
    fn senders(&self, is_one: impl Fn(u32) -> bool) -> Vec<Arc<Core>> {
        let state = self.lock();
        let senders = state.senders.iter().filter(|known| is_one(known.introduction));
        senders.filter_map(|known| known.core.upgrade()).collect()
    }

    /// Waits for a turn; also gives a buffer that is live at that turn.
    fn turn(&self) -> Result<(Turn<'_>, Option<Live>), Arc<WorkerFailure>> {
        let mut state = self.lock();
        let ticket = state.draw();
        let live = state.first_live();
        loop {
            state.check(None)?;
            if let Some(line) = state.take_line(ticket) {
                return Ok((Turn { core: self, line: Some(line), ticket }, live));
            }
            state = self.turns.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn wait_for_room(
        &self,
        era: Option<u64>,
        bytes: usize,
    ) -> Result<MutexGuard<'_, State>, Arc<WorkerFailure>> {
        let mut state = self.lock();
        loop {
            state.check(era)?;
            let fits = state.queued_bytes.saturating_add(bytes) <= MAX_QUEUED_BYTES;
            if state.queue.is_empty() || (fits && state.queue.len() < MAX_QUEUED_COMMANDS) {
                return Ok(state);
            }
            state = self.turns.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives a job the next ticket, and does it at once if it is small and the line is idle.
    fn enter(
        &self,
        mut state: MutexGuard<'_, State>,
        is_of_stream: bool,
        job: Job,
    ) -> Result<u64, Arc<WorkerFailure>> {
        let ticket = state.draw();
        let bytes = job.bytes();
        if bytes <= MAX_DIRECT_BYTES
            && !job.waits_in(self.dialect)
            && let Some(line) = state.take_line(ticket)
        {
            drop(state);
            let mut turn = Turn { core: self, line: Some(line), ticket };
            job.run(&mut turn);
            drop(turn);
            return self.lock().failed.clone().map_or(Ok(ticket), Err);
        }
        state.queued_bytes += bytes;
        state.queue.push_back(Queued { ticket, is_of_stream, job: Some(job) });
        drop(state);
        self.work.notify_one();
        Ok(ticket)
    }

    /// Begins a new era after an interruption, unless the worker cannot have been interrupted: it has met none by what it names since the last
    /// time, or was to compute no graph that it kept. An attempt that came to nothing is no reason either, or a worker that lies could have them
    /// made without end.
    fn interrupt(
        &self,
        line: &mut Line,
        mut failure: WorkerFailure,
    ) -> Result<Arc<WorkerFailure>, WorkerFailure> {
        let (is_plausible, what) = match failure.fault() {
            WorkerFault::NotKept => {
                (self.lock().has_run_kept, "an interruption by a graph that it was not asked for")
            }
            WorkerFault::NotDelivered { introduction, .. } => {
                (self.lock().met.contains(introduction), "an interruption by a worker that it has not met")
            }
            _ => (false, "an interruption by nothing"),
        };
        if !is_plausible {
            let fault = WorkerFault::Implausible { what: what.to_owned() };
            return Err(line.failure(fault, failure.during()));
        }
        let is_full = matches!(failure.fault(), WorkerFault::NotKept);
        let head = Head::new(Command::Resume).whole();
        let about = About::Nothing;
        line.send(&Message { command: Command::Resume, head: &head, payload: &[], about: &about, work: 0 })?;
        let introduction = failure.name_sender(|introduction| self.sender(introduction));
        let failure = Arc::new(failure);
        let mut state = self.lock();
        state.era += 1;
        state.met.clear();
        state.has_run_kept = false;
        state.interrupted = Some(Arc::clone(&failure));
        state.broken.extend(introduction);
        // The worker has neither done nor kept what it was told since.
        state.graphs.clear();
        if is_full {
            state.graphs.pause();
        }
        state.awaited.clear();
        let mut jobs = Vec::new();
        let mut bytes = 0;
        for queued in state.queue.iter_mut().filter(|queued| queued.is_of_stream) {
            bytes += queued.job.as_ref().map_or(0, Job::bytes);
            jobs.extend(queued.job.take());
        }
        state.queued_bytes = state.queued_bytes.saturating_sub(bytes);
        // The worker has ended all its introductions: what it and others are told from now on is about later ones.
        let parted = state.neighbours();
        state.part_from_all();
        drop(state);
        for (introduction, other) in parted {
            other.lock().part(introduction);
        }
        self.turns.notify_all();
        abandon(jobs, Some(&failure));
        Ok(failure)
    }

    /// Ends the connection for all callers, whatever is under way on its line.
    pub(super) fn end(&self, fault: WorkerFault) {
        self.fail(WorkerFailure::new(&self.place, fault, None, Unconfirmed::default()));
    }

    /// Introductions whose other worker was lost since this was asked the last time; none once the connection is over.
    pub(super) fn lost_neighbours(&self) -> Option<Vec<u32>> {
        let mut state = self.lock();
        state.failed.is_none().then(|| std::mem::take(&mut state.lost_neighbours))
    }

    /// Ends the connection for all callers, with the first cause there is.
    fn fail(&self, failure: WorkerFailure) -> Arc<WorkerFailure> {
        let mut state = self.lock();
        let neighbours = if state.failed.is_none() { state.neighbours() } else { Vec::new() };
        let failure = Arc::clone(state.failed.get_or_insert_with(|| Arc::new(failure)));
        let jobs = std::mem::take(&mut state.queue);
        state.queued_bytes = 0;
        drop(state);
        self.hang_up();
        for (introduction, other) in neighbours {
            other.lock().lost_neighbours.push(introduction);
        }
        self.turns.notify_all();
        self.work.notify_one();
        abandon(jobs.into_iter().filter_map(|queued| queued.job), Some(&failure));
        failure
    }
}

/// What the connection's thread does.
fn run_jobs(core: &Core) {
    loop {
        let mut state = core.lock();
        let (job, mut turn) = loop {
            if state.closing || state.failed.is_some() {
                return;
            }
            let next = state.queue.front().map(|queued| queued.ticket);
            if let Some(ticket) = next
                && let Some(line) = state.take_line(ticket)
                && let Some(Queued { job, .. }) = state.queue.pop_front()
            {
                let bytes = job.as_ref().map_or(0, Job::bytes);
                state.queued_bytes = state.queued_bytes.saturating_sub(bytes);
                break (job, Turn { core, line: Some(line), ticket });
            }
            state = core.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        drop(state);
        core.turns.notify_all();
        if let Some(job) = job {
            job.run(&mut turn);
        }
    }
}

impl Turn<'_> {
    fn with_line<T>(
        &mut self,
        act: impl FnOnce(&mut Line) -> Result<T, WorkerFailure>,
    ) -> Result<T, Arc<WorkerFailure>> {
        let Some(line) = &mut self.line else {
            // The line went with an earlier failure of this very turn.
            let gone =
                || WorkerFailure::new(&self.core.place, WorkerFault::Broken, None, Unconfirmed::default());
            return Err(self.core.fail(gone()));
        };
        match act(line) {
            Ok(value) => Ok(value),
            Err(mut failure) => {
                if failure.is_interruption() {
                    match self.core.interrupt(line, failure) {
                        Ok(failure) => return Err(failure),
                        Err(worse) => failure = worse,
                    }
                }
                line.hang_up();
                self.line = None;
                Err(self.core.fail(failure))
            }
        }
    }

    /// The dialect of the worker; `None` after a failure.
    pub(super) fn dialect(&self) -> Option<&'static Dialect> {
        self.line.as_ref().map(|line| line.dialect)
    }

    /// Whether every command sent so far is known to be done.
    pub(super) fn is_confirmed(&self) -> bool {
        self.line.as_ref().is_some_and(Line::is_confirmed)
    }

    /// Sends a request that has no answer.
    pub(super) fn send(&mut self, message: &Message<'_>) -> Result<(), Arc<WorkerFailure>> {
        self.with_line(|line| line.send(message))
    }

    /// Sends a request and reads its answer, which must be as long as `out`.
    pub(super) fn exchange(
        &mut self,
        message: &Message<'_>,
        out: &mut [u8],
    ) -> Result<(), Arc<WorkerFailure>> {
        self.with_line(|line| line.exchange(message, out))
    }

    /// Sends a request whose answer, if there is one, is empty.
    pub(super) fn tell(&mut self, message: &Message<'_>) -> Result<(), Arc<WorkerFailure>> {
        let ticket = self.ticket;
        self.with_line(|line| {
            line.tell(message)?;
            if message.command == Command::Push {
                line.mark(ticket);
            }
            Ok(())
        })
    }

    /// Ends the connection because an answer cannot be true.
    pub(super) fn refuse(&mut self, command: Command, what: String) -> Arc<WorkerFailure> {
        let refused = self.with_line(|line| Err::<(), _>(line.implausible(command, what)));
        match refused {
            Err(failure) => failure,
            Ok(()) => unreachable!("it was just made an error"),
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(line) = self.line.take() {
            if !line.is_between_messages() {
                let failure = line.failure(WorkerFault::Broken, None);
                self.core.fail(failure);
                return;
            }
            let mut state = self.core.lock();
            state.serving = self.ticket + 1;
            let mut known = Vec::new();
            if line.is_confirmed() {
                state.confirmed = self.ticket + 1;
                known = state.known_of_others();
            }
            state.line = Some(line);
            let waiting = state.next_ticket > state.serving;
            drop(state);
            confirm(known);
            if waiting {
                self.core.turns.notify_all();
                self.core.work.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use super::super::channel::Channel;
    use super::*;
    use crate::os::socket::TimedSocket;
    use crate::wire::NotDelivered;

    /// A connection to something that says nothing.
    fn connection() -> (Arc<Connection>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let tick = Some(Duration::from_secs(1));
        let channel = Channel::plain(TimedSocket::new(stream, tick, tick).unwrap());
        let (traffic, options) = (Arc::<Traffic>::default(), Options::default());
        let line =
            Line::new(channel, "a worker".into(), Dialect::own(), Arc::clone(&traffic), options.timeouts);
        let connection = Connection::new(line, None, "a worker".into(), traffic, &options).unwrap();
        (connection, listener.accept().unwrap().0)
    }

    /// Two connections that wait for each other at the same time both go on: what each waits for has its place before the wait itself.
    #[test]
    fn connections_that_wait_for_each_other_go_on() {
        use std::io::{Read, Write};

        use super::super::job::DeferredError;
        use super::super::message::Waiting;

        let both = [(); 2].map(|()| {
            let (connection, mut peer) = connection();
            // Answers whatever has an answer, which is to confirm.
            std::thread::spawn(move || {
                let mut header = [0; 9];
                while peer.read_exact(&mut header).is_ok() {
                    let size = u64::from_le_bytes(header[1..].try_into().unwrap());
                    peer.read_exact(&mut vec![0; usize::try_from(size).unwrap()]).unwrap();
                    if header[0] == Command::GetAlignment as u8 {
                        peer.write_all(&[8_u64.to_le_bytes(), 64_u64.to_le_bytes()].concat()).unwrap();
                    }
                }
            });
            connection
        });
        let (done, rest) = channel();
        std::thread::spawn(move || {
            let deferred = Arc::<DeferredError>::default();
            for _ in 0..200 {
                let points = both.each_ref().map(|connection| {
                    let tell = Waiting::new(Command::Resume, Head::new(Command::Resume));
                    connection.submit_in(0, Job::Tell(tell)).unwrap() + 1
                });
                for (at, connection) in both.iter().enumerate() {
                    let other = &both[1 - at];
                    if let Some(done) = other.confirm_later(0, points[1 - at]).unwrap() {
                        let (other, deferred) = (Arc::clone(other), Arc::clone(&deferred));
                        let wait = Job::Wait { other, era: 0, done, device: String::new(), deferred };
                        connection.submit_in(0, wait).unwrap();
                    }
                }
                both.iter().for_each(|connection| connection.finish(0, None).unwrap());
            }
            done.send(deferred.take().is_none()).unwrap();
        });
        assert_eq!(rest.recv_timeout(Duration::from_secs(60)), Ok(true));
    }

    /// Has a worker say that it was interrupted by an introduction; says whether it is believed.
    fn is_interrupted(connection: &Connection, introduction: u32) -> bool {
        let why = NotDelivered::Lost;
        let fault = WorkerFault::NotDelivered { introduction, sender: None, failure: None, why };
        let said = connection.turn().unwrap().with_line(|line| Err::<(), _>(line.failure(fault, None)));
        said.unwrap_err().is_interruption()
    }

    /// Nor is there a graph that a worker could not keep, unless it was to compute one again.
    #[test]
    fn a_worker_without_a_graph_was_asked_for_one() {
        let (connection, _worker) = connection();
        let says_so = || {
            let said = connection
                .turn()
                .unwrap()
                .with_line(|line| Err::<(), _>(line.failure(WorkerFault::NotKept, None)));
            said.unwrap_err().is_interruption()
        };
        connection.core.lock().has_run_kept = true;
        assert!(says_so() && connection.failed().is_none());
        assert!(!says_so() && connection.failed().is_some(), "it was asked for none since");
    }

    /// A worker that says again and again that it was interrupted is believed once for each other worker that was let in.
    #[test]
    fn a_worker_is_interrupted_by_what_it_has_met_and_once() {
        let lies = |tell: &dyn Fn(&Connection, &Connection)| {
            let [(sender, _a), (receiver, _b)] = [(); 2].map(|()| connection());
            tell(&sender, &receiver);
            let is_believed = is_interrupted(&receiver, 1);
            assert_eq!(receiver.failed().is_none(), is_believed);
            !is_believed
        };
        let meet = |sender: &Connection, receiver: &Connection, introduction| {
            receiver.add_sender(introduction, sender);
            receiver.has_met(introduction, receiver.era());
        };
        assert!(lies(&|_, _| {}), "it was never told of another");
        assert!(lies(&|sender, receiver| receiver.add_sender(1, sender)), "the other was not let in");
        assert!(lies(&|sender, receiver| meet(sender, receiver, 2)), "by another introduction");
        assert!(!lies(&|sender, receiver| meet(sender, receiver, 1)));
        assert!(lies(&|sender, receiver| {
            meet(sender, receiver, 1);
            meet(sender, receiver, 2);
            assert!(is_interrupted(receiver, 2), "which ends both");
        }));
        assert!(lies(&|sender, receiver| {
            let before = receiver.era();
            meet(sender, receiver, 2);
            assert!(is_interrupted(receiver, 2));
            // What was begun before the interruption was ended by it.
            receiver.has_met(1, before);
        }));
    }

    /// A worker keeps as many numbers of lost workers as it takes part in introductions: it is told none that mean nothing to it any more.
    #[test]
    fn a_worker_is_told_of_introductions_that_there_are() {
        let [(sender, _a), (receiver, _b), (last, _c)] = [(); 3].map(|()| connection());
        receiver.add_sender(1, &sender);
        receiver.has_met(1, receiver.era());
        last.add_sender(2, &receiver);
        // One that was never let in.
        receiver.add_sender(3, &sender);
        receiver.remove_sender(3, &sender);
        assert!(is_interrupted(&receiver, 1));
        // That ended all of its introductions, for those at the other ends, too.
        receiver.add_sender(4, &sender);
        last.add_sender(5, &receiver);
        sender.core.end(WorkerFault::Closed);
        assert_eq!(receiver.core.lost_neighbours(), Some(vec![4]));
        receiver.core.end(WorkerFault::Closed);
        assert_eq!(last.core.lost_neighbours(), Some(vec![5]));
        assert_eq!(sender.core.lost_neighbours(), None);
    }
}
