//! A stream of work on a device of a worker.
//!
//! All streams to one worker share its connection, so whatever is asked for takes effect in the order of asking, whichever
//! stream it was asked on. Synchronizing means that the worker has done it, not only that it was sent.

use std::any::Any;
use std::sync::{Arc, mpsc};

use oxcart_backend::{Buffers, Device, Error, Guid, Pending, Place, Plan, Stream, Ticket, Work};

use oxcart_tensor::TensorRef;

use super::buffer::RemoteBuffer;
use super::buffer_type::device_head;
use super::connection::Connection;
use super::device::RemoteDevice;
use super::failure::{About, WorkerFailure};
use super::graph::{EncodedGraph, address_at, encode_nodes};
use super::introduction::{Failed, push};
use super::job::{DeferredError, Job, Range, set_head};
use super::known_graphs::Asked;
use super::message::{Head, SharedBytes, Waiting};
use crate::wire::{Command, Slot};

/// A stream of work on a device of a worker.
#[derive(Debug)]
pub struct RemoteStream {
    device: Arc<dyn Device>,
    lane: Arc<Lane>,
}

/// What a stream shares with its plans.
#[derive(Debug)]
struct Lane {
    remote: Arc<RemoteDevice>,
    /// Of the connection, when the stream was opened. An interruption ends it.
    era: u64,
    deferred: Arc<DeferredError>,
}

impl Lane {
    fn connection(&self) -> &Arc<Connection> {
        self.remote.connection()
    }

    fn name(&self) -> &str {
        self.remote.name()
    }

    fn error(&self, failure: &WorkerFailure) -> Error {
        failure.of_device(self.name())
    }

    fn submit(&self, job: Job) -> Result<(), Error> {
        self.connection().submit_in(self.era, job).map(|_| ()).map_err(|failure| self.error(&failure))
    }

    fn encode(&self, work: Work<'_>) -> Result<EncodedGraph, Error> {
        let connection = self.connection();
        let address = |tensor: TensorRef<'_>| address_at(tensor, work.buffers, connection);
        encode_nodes(work.nodes, connection.dialect, (self.remote.index(), self.name()), &address)
    }

    /// Has a graph computed, by a short message if the worker has it already.
    fn compute(&self, graph: &EncodedGraph) -> Result<(), Error> {
        if graph.nodes == 0 {
            return Ok(());
        }
        let (connection, index) = (self.connection(), self.remote.index());
        let about = About::Graph { nodes: graph.nodes };
        let job = |asked: Asked| {
            let short =
                |command, head| Job::Tell(Waiting { about: about.clone(), ..Waiting::new(command, head) });
            let whole = |command, head: Head| Waiting {
                command,
                head: head.followed_by(graph.body.len()),
                payload: Some(SharedBytes::all(Arc::clone(&graph.body))),
                about: about.clone(),
                work: graph.body.len() as u64,
            };
            let of_slot = |command, slot: Slot| Head::new(command).raw(&slot.encode());
            match asked {
                Asked::Run(slot) => short(Command::GraphRun, of_slot(Command::GraphRun, slot)),
                Asked::Keep(slot) => Job::Tell(whole(Command::GraphKeep, of_slot(Command::GraphKeep, slot))),
                Asked::Again => {
                    let head = device_head(Command::GraphRecompute, connection.dialect, index);
                    short(Command::GraphRecompute, head)
                }
                Asked::Whole => {
                    let graph = whole(Command::GraphCompute, Head::new(Command::GraphCompute));
                    match connection.dialect.has_recompute {
                        true => Job::Tell(graph),
                        false => {
                            let (device, deferred) = (self.name().to_owned(), Arc::clone(&self.deferred));
                            Job::Graph { graph, device, deferred }
                        }
                    }
                }
            }
        };
        let submitted = connection.submit_graph(self.era, index as usize, graph, job);
        submitted.map_err(|failure| self.error(&failure))
    }

    /// A place in memory of this worker.
    fn range_of(&self, place: &Place) -> Result<Option<Range>, Error> {
        match place.buffer.as_any().downcast_ref::<RemoteBuffer>() {
            Some(buffer) if buffer.is_of(self.connection()) => {
                buffer.range(place.offset, place.len).map(Some)
            }
            _ => Ok(None),
        }
    }
}

impl RemoteStream {
    pub(super) fn new(remote: Arc<RemoteDevice>) -> RemoteStream {
        let era = remote.connection().era();
        let lane = Lane { remote: Arc::clone(&remote), era, deferred: Arc::default() };
        RemoteStream { device: remote, lane: Arc::new(lane) }
    }

    /// Has another worker push bytes to this one.
    fn push_from(&self, other: &Lane, source: &Place, target: &Place) -> Result<bool, Error> {
        let (Some(from), Some(to)) = (other.range_of(source)?, self.lane.range_of(target)?) else {
            return Ok(false);
        };
        let (from, to) = (
            (other.connection().as_ref(), other.era, from),
            (self.lane.connection().as_ref(), self.lane.era, to),
        );
        push(from, to).map_err(|failed| match failed {
            Failed::Sender(failure) => other.error(&failure),
            Failed::Receiver(failure) => self.lane.error(&failure),
        })
    }

    /// What failed since it was asked last.
    fn report(&self, finished: Result<(), Arc<WorkerFailure>>) -> Result<(), Error> {
        match self.lane.deferred.take() {
            Some(error) => Err(error),
            None => finished.map_err(|failure| self.lane.error(&failure)),
        }
    }
}

impl Stream for RemoteStream {
    fn name(&self) -> &str {
        self.lane.name()
    }

    fn guid(&self) -> Guid {
        Guid(*b"oxcart rpc cli 1")
    }

    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn set_async(&self, target: &Place, data: Vec<u8>) -> Result<(), Error> {
        let target = target.part(0, data.len())?;
        let Some(range) = self.lane.range_of(&target)? else { return target.write(&data) };
        let remote = target.buffer.as_any().downcast_ref::<RemoteBuffer>();
        // Weights that the worker may have are worth a question, which has to be waited for.
        if remote.is_some_and(|buffer| buffer.may_be_cached(data.len())) {
            return target.write(&data);
        }
        let data = Arc::new(data);
        let has_flag = self.lane.connection().dialect.has_cache_flag;
        for (start, piece) in range.pieces() {
            let name = remote.and_then(|buffer| buffer.name_at(piece.offset));
            self.lane.submit(Job::Tell(Waiting {
                command: Command::SetTensor,
                head: set_head(piece, has_flag.then_some(false)),
                payload: Some(SharedBytes::part(&data, start..start + piece.len)),
                about: About::Bytes { len: piece.len, name },
                work: piece.len as u64,
            }))?;
        }
        Ok(())
    }

    fn get_async(&self, source: &Place) -> Result<Pending, Error> {
        let Some(range) = self.lane.range_of(source)?.filter(|range| range.len > 0) else {
            return source.bytes().map(Pending::Ready);
        };
        let (then, receiver) = mpsc::channel();
        let device = self.lane.name().to_owned();
        self.lane.submit(Job::Get { source: range, _keep: source.clone(), device, then })?;
        Ok(Pending::Waiting(Box::new(move || receiver.recv().unwrap_or(Err(Error::Cancelled)))))
    }

    /// Nothing has to be waited for before: bytes are read behind everything that was asked for.
    fn read(&self, source: &Place, out: &mut [u8]) -> Result<(), Error> {
        let done = source.read(out);
        self.report(self.lane.connection().check(self.lane.era))?;
        done
    }

    /// Within one worker, or from another that can push to this one. Otherwise bytes go through here, by the common way.
    fn copy_in(&self, source_stream: &dyn Stream, source: &Place, target: &Place) -> Result<bool, Error> {
        let target = target.part(0, source.len)?;
        if let Some(other) = source_stream.as_any().downcast_ref::<RemoteStream>()
            && !Arc::ptr_eq(other.lane.connection(), self.lane.connection())
        {
            return self.push_from(&other.lane, source, &target);
        }
        let (Some(from), Some(to)) = (self.lane.range_of(source)?, self.lane.range_of(&target)?) else {
            return Ok(false);
        };
        let shares = from.buffer.handle == to.buffer.handle;
        // Peers copy without regard to overlap.
        if shares && from.offset < to.offset + to.len && to.offset < from.offset + from.len {
            return Ok(false);
        }
        self.lane.submit(Job::Copy { source: from, target: to, _keep: [source.clone(), target] })?;
        Ok(true)
    }

    fn synchronize(&self) -> Result<(), Error> {
        self.report(self.lane.connection().finish(self.lane.era, None))
    }

    fn plan(&self, work: Work<'_>) -> Result<Option<Box<dyn Plan>>, Error> {
        let graph = self.lane.encode(work)?;
        let buffers = work.buffers.clone();
        Ok(Some(Box::new(RemotePlan { lane: Arc::clone(&self.lane), graph, buffers_in_use: buffers })))
    }

    fn compute(&self, work: Work<'_>) -> Result<(), Error> {
        self.lane.compute(&self.lane.encode(work)?)
    }

    fn record(&self) -> Result<Ticket, Error> {
        Ok(Ticket(self.lane.connection().point()))
    }

    fn finish(&self, ticket: Ticket) -> Result<(), Error> {
        self.report(self.lane.connection().finish(self.lane.era, Some(ticket.0)))
    }

    /// Among the streams of one worker there is nothing to do: they share one line.
    fn wait_for(&self, other: &dyn Stream, ticket: Ticket) -> Result<(), Error> {
        let Some(other) = other.as_any().downcast_ref::<RemoteStream>() else { return other.finish(ticket) };
        let connection = other.lane.connection();
        if Arc::ptr_eq(connection, self.lane.connection()) {
            return Ok(());
        }
        let (device, deferred) = (other.lane.name().to_owned(), Arc::clone(&self.lane.deferred));
        match connection.confirm_later(other.lane.era, ticket.0) {
            Ok(None) => Ok(()),
            Ok(Some(done)) => {
                let (other, era) = (Arc::clone(connection), other.lane.era);
                self.lane.submit(Job::Wait { other, era, done, device, deferred })
            }
            Err(failure) => {
                deferred.note(failure.of_device(&device));
                Ok(())
            }
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A graph that is described once, and sent once as long as the worker has it stored.
#[derive(Debug)]
struct RemotePlan {
    lane: Arc<Lane>,
    graph: EncodedGraph,
    /// Keeps the memory that the description names.
    buffers_in_use: Buffers,
}

impl Plan for RemotePlan {
    fn update(&mut self, work: Work<'_>) -> Result<(), Error> {
        let graph = self.lane.encode(work)?;
        // The same bytes again are the same graph to the worker.
        if graph.body != self.graph.body {
            self.graph = graph;
        }
        self.buffers_in_use = work.buffers.clone();
        Ok(())
    }

    fn compute(&mut self) -> Result<(), Error> {
        self.lane.compute(&self.graph)
    }

    fn held_bytes(&self) -> usize {
        size_of::<RemotePlan>() + self.graph.body.capacity() + self.buffers_in_use.held_bytes()
    }
}
