//! One connection: reads commands, has them carried out, writes answers. Runs on a thread of its own.
//!
//! Nothing is believed before it has arrived. Large data goes straight between the socket and the client's own buffer,
//! whose lock no other thread waits for: a slow client blocks only itself.

use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::budget::Lease;
use super::client::{Client, Phase};
use super::counters::add;
use super::event::{Event, Totals};
use super::limits::{
    CHORE_BYTES, KEPT_PIECE_BYTES, PIECE_BYTES, READ_AHEAD_BYTES, SMALL_CHANGE, SMALL_REPLY_BYTES,
};
use super::refusal::Refusal;
use super::server::{DialectChoice, WorkerState};
use super::session::{Answer, Session, Target};
use super::space::BufferRange;
use crate::wire::{
    Command, Dialect, Interruption, MAX_GRAPH_BYTES, NotDelivered, Reply, Slot, answer_capabilities,
    with_arithmetic, with_copies, with_kept_graphs,
};

/// What GRAPH_COMPUTE answers in version 2.
const SUCCESS: u8 = 0;
const FAILED: u8 = 255;

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The client left, in the middle of something or not.
    Left,
    /// A request was refused.
    Refused(&'static str, Refusal),
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> End {
        // Whatever a socket says, it means that the client is not there any more.
        End::Left
    }
}

/// Serves a client until it leaves or is refused.
pub(crate) fn serve(
    shared: &Arc<WorkerState>,
    client: &Client,
    choice: DialectChoice,
    (input, output): (impl Read, impl Write),
) {
    let mut connection = Connection {
        shared,
        client,
        input: BufReader::with_capacity(READ_AHEAD_BYTES, input),
        output,
        answer: Vec::new(),
        body: Vec::new(),
        totals: Totals::default(),
        // What has been used already, to come in, is paid for like the rest.
        paid: Duration::ZERO,
        paid_at: Instant::now(),
    };
    let (end, dialect) = match connection.greet(choice) {
        Ok(dialect) => {
            add(&shared.counters.clients, 1);
            let machine = client.machine_name();
            shared.report(&Event::Connected { client: client.id, peer: client.peer, dialect, machine });
            let mut session = Session::new(Arc::clone(shared), dialect, client);
            let _graphs = ForgetGraphs(client);
            (connection.serve(&mut session, dialect), Some(dialect))
        }
        Err(end) => (Err(end), None),
    };
    let totals = connection.totals;
    match (client.dropped(), end) {
        (Some(why), _) => shared.report(&Event::Dropped { client: client.id, peer: client.peer, why }),
        (None, Err(End::Refused(command, refusal))) => shared.refused(client, command, &refusal),
        _ => {}
    }
    if let Some(dialect) = dialect {
        let (client, peer, lasted) = (client.id, client.peer, client.age());
        shared.report(&Event::Left { client, peer, dialect, totals, lasted });
    }
}

/// Forgets a client's graphs when its session ends, before the buffers go that they use.
struct ForgetGraphs<'a>(&'a Client);

impl Drop for ForgetGraphs<'_> {
    fn drop(&mut self) {
        self.0.graphs.clear();
    }
}

struct Connection<'a, R, W> {
    shared: &'a Arc<WorkerState>,
    client: &'a Client,
    input: BufReader<R>,
    output: W,
    /// A small answer, with its length.
    answer: Vec<u8>,
    /// Body of a command of fixed size, or the fixed start of an open-ended one.
    body: Vec<u8>,
    totals: Totals,
    /// What of its thread's time outside of turns is paid for, and since when.
    paid: Duration,
    paid_at: Instant,
}

type Outcome<T = ()> = Result<T, End>;

impl<R: Read, W: Write> Connection<'_, R, W> {
    fn count_in(&mut self, bytes: u64) {
        self.totals.bytes_in += bytes;
        add(&self.shared.counters.bytes_in, bytes);
    }

    fn count_out(&mut self, bytes: u64) {
        self.totals.bytes_out += bytes;
        add(&self.shared.counters.bytes_out, bytes);
    }

    /// The number of a command and the size of its body.
    fn read_header(&mut self) -> Outcome<(u8, u64)> {
        let mut header = [0; 9];
        self.input.read_exact(&mut header)?;
        let [number, size @ ..] = header;
        self.count_in(9);
        Ok((number, u64::from_le_bytes(size)))
    }

    /// Reads so many bytes, which are few, into `body`.
    fn read_body(&mut self, bytes: usize) -> Outcome {
        self.body.resize(bytes, 0);
        self.input.read_exact(&mut self.body)?;
        self.count_in(bytes as u64);
        Ok(())
    }

    /// HELLO: decides which dialect is spoken.
    fn greet(&mut self, choice: DialectChoice) -> Outcome<&'static Dialect> {
        let refused = |refusal| End::Refused(Command::Hello.name(), refusal);
        // A client of another protocol may never send nine bytes; one is enough to see that.
        if self.input.fill_buf()?.first().is_some_and(|&first| first != Command::Hello as u8) {
            return Err(refused(Refusal::Hello));
        }
        let (_, size) = self.read_header()?;
        let dialect = choice.for_hello(size).ok_or_else(|| refused(Refusal::HelloSize { size }))?;
        self.read_body(Command::Hello.request_bytes(dialect))?;
        self.client.enter(Phase::Working, None);
        let version = [dialect.version.major, dialect.version.minor, dialect.version.patch];
        let mut reply = version.to_vec();
        if dialect.has_capabilities {
            // Capabilities are of transports that we do not have; whatever is offered, we decline.
            reply.push(0);
            let answer = answer_capabilities(dialect, &self.body);
            let answer = with_kept_graphs(answer, dialect, self.shared.limits.kept_bytes());
            let answer = with_arithmetic(answer, self.shared.arithmetic());
            reply.extend(if self.shared.copies.is_some() { with_copies(answer) } else { answer });
        }
        self.reply(&reply)?;
        Ok(dialect)
    }

    fn serve(&mut self, session: &mut Session, dialect: &'static Dialect) -> Outcome {
        loop {
            self.client.enter(Phase::Idle, self.shared.limits.idle);
            // What a client has sent before it left is of no use to it.
            let is_over = self.shared.stopping.load(Ordering::Relaxed) || self.client.is_gone();
            if is_over || self.input.fill_buf()?.is_empty() {
                return Ok(());
            }
            self.client.enter(Phase::Reading, Some(self.shared.limits.message_time(0)));
            let (number, size) = self.read_header()?;
            let refused = |refusal| End::Refused("command", refusal);
            let command =
                Command::from_number(number, dialect).ok_or_else(|| refused(Refusal::Command { number }))?;
            self.carry_out(session, dialect, command, size)?;
            self.totals.commands += 1;
            add(&self.shared.counters.commands, 1);
            self.pay();
        }
    }

    /// Makes up for time of the processor that was used without a turn, if that is more than a part while others are busy too: all of
    /// them together may have half a processor for nothing.
    fn pay(&mut self) {
        let used = self.client.used_outside_of_turns();
        let unpaid = used.saturating_sub(self.paid);
        if unpaid < SMALL_CHANGE {
            return;
        }
        self.client.use_processor();
        let busy = u32::try_from(self.shared.roster.busy()).unwrap_or(u32::MAX);
        if busy > 1 && unpaid > self.paid_at.elapsed() / busy.saturating_mul(2) {
            self.shared.pay(self.client, unpaid);
        }
        (self.paid, self.paid_at) = (used, Instant::now());
    }

    fn carry_out(
        &mut self,
        session: &mut Session,
        dialect: &'static Dialect,
        command: Command,
        size: u64,
    ) -> Outcome {
        let refused = |refusal| End::Refused(command.name(), refusal);
        let wrong_size = || refused(Refusal::Size { command: command.name(), size });
        if command == Command::Hello {
            return Err(refused(Refusal::Hello));
        }
        let fixed = command.request_bytes(dialect);
        if matches!(command, Command::GraphCompute | Command::GraphKeep) {
            return self.compute(session, dialect, command, size);
        }
        let fits = if command.is_open_ended() { size >= fixed as u64 } else { size == fixed as u64 };
        if !fits {
            return Err(wrong_size());
        }
        self.client.due_in(Some(self.shared.limits.message_time(size)));
        self.read_body(fixed)?;
        if let Some(interruption) = session.interruption()
            && command.reply(dialect) != Reply::None
        {
            self.client.enter(Phase::Working, None);
            return self.say(interruption);
        }
        if command == Command::SetTensor {
            let data_bytes = size - fixed as u64;
            let target = session.set_tensor(&self.body, data_bytes).map_err(refused)?;
            return self.receive(session, &target, data_bytes);
        }
        self.client.enter(Phase::Working, None);
        let answer = match command {
            Command::Await => {
                self.client.enter(Phase::Awaiting, None);
                session.carry_out(command, &self.body, self.client)
            }
            Command::GraphRecompute | Command::GraphRun => {
                self.client.enter(Phase::Computing, None);
                let done = session.recompute(command, &self.body, self.client);
                self.totals.graphs += 1;
                done.map(|()| Answer::Done)
            }
            _ => session.carry_out(command, &self.body, self.client),
        };
        let interruption = match answer {
            Err(Refusal::NotDelivered { number, why }) => Some(Interruption { number, why }),
            Err(Refusal::NotKept) => Some(Interruption { number: 0, why: NotDelivered::NotKept }),
            _ => None,
        };
        let answer = match (answer, interruption) {
            // It is no fault of the client, who learns of it where it next waits for an answer.
            (Err(refusal), Some(interruption)) if !self.client.is_gone() => {
                match refusal {
                    Refusal::NotDelivered { number, why } => {
                        self.shared.undelivered(self.client, session.neighbour(number), why);
                    }
                    refusal => self.shared.refused(self.client, command.name(), &refusal),
                }
                session.interrupt(interruption, self.client);
                Answer::Done
            }
            (answer, _) => answer.map_err(|refusal| self.gone_or(command, refusal))?,
        };
        if command.reply(dialect) == Reply::None {
            return Ok(());
        }
        self.give(session, command, answer)
    }

    /// A graph that was stopped because its client has left is not a refusal, nor is what has not come by then.
    fn gone_or(&self, command: Command, refusal: Refusal) -> End {
        match refusal {
            Refusal::NotDelivered { .. } | Refusal::NotKept if self.client.is_gone() => End::Left,
            Refusal::Failed(oxcart_backend::Error::Cancelled) if self.client.is_gone() => {
                add(&self.shared.counters.cancelled, 1);
                End::Left
            }
            refusal => End::Refused(command.name(), refusal),
        }
    }

    /// The data of SET_TENSOR, straight into its place.
    fn receive(&mut self, session: &Session, target: &Target, data_bytes: u64) -> Outcome {
        let range = &target.range;
        let failed = |refusal| End::Refused(Command::SetTensor.name(), refusal);
        let mut keeping = session.keep(target);
        match range.buffer.host().filter(|_| range.len > 0) {
            Some(memory) => {
                let mut memory = memory.write().ok_or_else(|| failed(read_only(range)))?;
                let place = memory.get_mut(range.offset..).and_then(|rest| rest.get_mut(..range.len));
                // A range lies inside its buffer.
                let place = place.ok_or(End::Left)?;
                match &mut keeping {
                    None => {
                        for piece in place.chunks_mut(CHORE_BYTES) {
                            self.input.read_exact(piece)?;
                            self.pay();
                        }
                    }
                    Some(keeping) => {
                        for piece in place.chunks_mut(KEPT_PIECE_BYTES) {
                            self.input.read_exact(piece)?;
                            keeping.add(piece);
                            self.pay();
                        }
                    }
                }
            }
            None => {
                let passing = session.passing(range).map_err(failed)?;
                for start in (0..range.len).step_by(passing.piece_bytes()) {
                    let len = (range.len - start).min(passing.piece_bytes());
                    passing.with(len, |piece| -> Outcome {
                        self.input.read_exact(piece)?;
                        let written = range.buffer.write(range.offset + start, piece);
                        written.map_err(|error| failed(error.into()))?;
                        if let Some(keeping) = &mut keeping {
                            keeping.add(piece);
                        }
                        Ok(())
                    })?;
                    self.pay();
                }
            }
        }
        self.count_in(data_bytes);
        self.client.enter(Phase::Working, None);
        if let Some(keeping) = keeping {
            keeping.complete();
        }
        Ok(())
    }

    /// GRAPH_COMPUTE and GRAPH_KEEP. In version 2 a graph that is refused or fails is answered, and the connection goes on.
    fn compute(
        &mut self,
        session: &mut Session,
        dialect: &'static Dialect,
        command: Command,
        size: u64,
    ) -> Outcome {
        let name = command.name();
        let (body, charge) = self.read_graph(command, size)?;
        self.client.enter(Phase::Computing, None);
        let done = session.compute(command, body, self.client, charge);
        self.totals.graphs += 1;
        self.client.enter(Phase::Working, None);
        if command.reply(dialect) != Reply::None {
            let status = match done.map_err(|refusal| self.gone_or(command, refusal)) {
                Ok(()) => SUCCESS,
                Err(End::Refused(_, refusal)) => {
                    self.shared.refused(self.client, name, &refusal);
                    FAILED
                }
                Err(end) => return Err(end),
            };
            return self.reply(&[status]);
        }
        done.map_err(|refusal| self.gone_or(command, refusal))
    }

    /// The body of a graph, which grows as it arrives, and what it counts against the memory of messages: itself,
    /// and as much again for the graph that it becomes.
    fn read_graph(&mut self, command: Command, size: u64) -> Outcome<(Vec<u8>, Lease)> {
        let refused = |refusal| End::Refused(command.name(), refusal);
        let full = || refused(self.shared.full_of_messages());
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let slot = if command == Command::GraphKeep { Slot::BYTES } else { 0 };
        let most = self.shared.limits.graph_bytes.min(MAX_GRAPH_BYTES) + slot;
        if size > most {
            let limit = most as u64;
            return Err(refused(Refusal::Limit { what: "bytes in a graph", limit }));
        }
        self.client.due_in(Some(self.shared.limits.message_time(size as u64)));
        let mut charge = self.shared.messages.lease(self.client.holder(), 0).ok_or_else(full)?;
        let mut body: Vec<u8> = Vec::new();
        while body.len() < size {
            let start = body.len();
            // No more at a time than has come already: an announcement alone takes next to nothing from others.
            let piece = (size - start).min(start.clamp(READ_AHEAD_BYTES, PIECE_BYTES));
            self.shared.charge_message(self.client, &mut charge, 2 * (start + piece)).map_err(refused)?;
            if body.try_reserve(piece).is_err() {
                return Err(full());
            }
            body.resize(start + piece, 0);
            self.input.read_exact(body.get_mut(start..).unwrap_or_default())?;
        }
        self.count_in(size as u64);
        Ok((body, charge))
    }

    fn give(&mut self, session: &Session, command: Command, answer: Answer) -> Outcome {
        match answer {
            Answer::Done => self.reply(&[]),
            Answer::Byte(value) => self.reply(&[value]),
            Answer::Word(value) => self.reply(&value.to_le_bytes()),
            Answer::Long(value) => self.reply(&value.to_le_bytes()),
            Answer::Pair(first, second) => {
                let mut both = [0; 16];
                both[..8].copy_from_slice(&first.to_le_bytes());
                both[8..].copy_from_slice(&second.to_le_bytes());
                self.reply(&both)
            }
            Answer::Token(token) => self.reply(&token),
            Answer::Data(range) => self.send(session, command, &range),
        }
    }

    /// Sends a small answer, with its length, in one piece.
    fn reply(&mut self, bytes: &[u8]) -> Outcome {
        self.answer.clear();
        self.answer.extend((bytes.len() as u64).to_le_bytes());
        self.answer.extend_from_slice(bytes);
        self.client.enter(Phase::Waiting, None);
        self.output.write_all(&self.answer)?;
        self.count_out(self.answer.len() as u64);
        Ok(())
    }

    /// Says in the place of an answer why there is none for now.
    fn say(&mut self, interruption: Interruption) -> Outcome {
        let bytes = interruption.encode();
        self.client.enter(Phase::Waiting, None);
        self.output.write_all(&bytes)?;
        self.count_out(bytes.len() as u64);
        Ok(())
    }

    /// Sends bytes of a buffer, straight from there where it is host memory.
    fn send(&mut self, session: &Session, command: Command, range: &BufferRange) -> Outcome {
        let failed = |error: oxcart_backend::Error| End::Refused(command.name(), error.into());
        if range.len <= SMALL_REPLY_BYTES {
            let mut bytes = vec![0; range.len];
            range.buffer.read(range.offset, &mut bytes).map_err(failed)?;
            return self.reply(&bytes);
        }
        let len = (range.len as u64).to_le_bytes();
        if let Some(memory) = range.buffer.host() {
            let memory = memory.read();
            let bytes = memory.get(range.offset..).and_then(|rest| rest.get(..range.len));
            // A range lies inside its buffer.
            let mut before = &len[..];
            for piece in bytes.ok_or(End::Left)?.chunks(PIECE_BYTES) {
                self.client.enter(Phase::Waiting, None);
                write_both(&mut self.output, before, piece)?;
                before = &[];
                self.pay();
            }
        } else {
            let passing = session.passing(range).map_err(|refusal| End::Refused(command.name(), refusal))?;
            for start in (0..range.len).step_by(passing.piece_bytes()) {
                passing.with((range.len - start).min(passing.piece_bytes()), |piece| -> Outcome {
                    self.client.enter(Phase::Working, None);
                    range.buffer.read(range.offset + start, piece).map_err(failed)?;
                    self.client.enter(Phase::Waiting, None);
                    let before = if start == 0 { &len[..] } else { &[] };
                    Ok(write_both(&mut self.output, before, piece)?)
                })?;
                self.pay();
            }
        }
        self.count_out(8 + range.len as u64);
        Ok(())
    }
}

fn read_only(range: &BufferRange) -> Refusal {
    let buffer_type = range.buffer.buffer_type().name().to_owned();
    Refusal::Failed(oxcart_backend::Error::ReadOnly { buffer_type })
}

/// Writes a short and a long piece, the short one not alone.
fn write_both(output: &mut impl Write, short: &[u8], long: &[u8]) -> io::Result<()> {
    let sent = loop {
        match output.write_vectored(&[IoSlice::new(short), IoSlice::new(long)]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            sent => break sent?,
        }
    };
    output.write_all(short.get(sent..).unwrap_or_default())?;
    output.write_all(long.get(sent.saturating_sub(short.len())..).unwrap_or_default())
}
