//! Streams of a test device: at once, or through a thread of their own.
//!
//! Concurrency: the thread owns nothing but its end of the queue; jobs own what they need. An error is kept until the
//! next [`synchronize`](Stream::synchronize), after which the stream goes on.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use oxcart_backend::{
    Buffer, Buffers, Device, Error, Guid, HostMemory, Pending, Place, Stream, Ticket, Work, copy_place,
};
use oxcart_tensor::graph::Flags;
use oxcart_tensor::{Graph, TensorRef};

use crate::buffer::TestBuffer;
use crate::device::{InjectedFault, TestDevice};
use crate::interpret::{compute, load, store};

type Job = Box<dyn FnOnce() -> Result<(), Error> + Send>;

/// A stream of a test device.
#[derive(Debug)]
pub struct TestStream {
    device: Arc<dyn Device>,
    test: Arc<TestDevice>,
    queue: Option<(Sender<Job>, JoinHandle<()>)>,
    failed: Arc<Mutex<Option<Error>>>,
    progress: Arc<Progress>,
    cancel: Arc<AtomicBool>,
}

impl TestStream {
    pub(crate) fn new(test: Arc<TestDevice>) -> TestStream {
        let failed = Arc::new(Mutex::new(None));
        let queue = test.config.asynchronous.then(|| {
            let (sender, jobs) = channel::<Job>();
            let (failed, delay, name) = (Arc::clone(&failed), test.config.delay, test.config.name.clone());
            let thread = std::thread::spawn(move || {
                for job in jobs {
                    std::thread::sleep(delay);
                    if let Err(error) = attempt(&name, job) {
                        failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    }
                }
            });
            (sender, thread)
        });
        TestStream {
            device: Arc::clone(&test) as _,
            test,
            queue,
            failed,
            progress: Arc::default(),
            cancel: Arc::default(),
        }
    }

    /// What failed since it was asked last.
    fn report(&self) -> Result<(), Error> {
        match self.failed.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Copies between two asynchronous test streams, in the order of this one. It waits for the other stream, and that one for the copy.
    fn copy_with(&self, other: &dyn Stream, source: &Place, target: &Place) -> Result<bool, Error> {
        let Some(other) = asynchronous(other) else { return Ok(false) };
        if self.queue.is_none() {
            return Ok(false);
        }
        self.wait_for(other, other.record()?)?;
        let (source, target) = (source.clone(), target.clone());
        self.enqueue(move || copy_place(&source, &target).map(|_| ()))?;
        other.wait_for(self, self.record()?)?;
        Ok(true)
    }

    fn enqueue(&self, job: impl FnOnce() -> Result<(), Error> + Send + 'static) -> Result<(), Error> {
        let Some((sender, _)) = &self.queue else { return job() };
        let gone = |_| Error::DeviceFailed {
            device: self.test.config.name.clone(),
            reason: "its thread is gone".into(),
        };
        sender.send(Box::new(job)).map_err(gone)
    }
}

/// Does a job; a panic is a failure like any other.
fn attempt(name: &str, job: Job) -> Result<(), Error> {
    catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(|_| {
        Err(Error::Panicked { device: name.to_owned(), what: "a job of its queue".into() })
    })
}

impl Drop for TestStream {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.queue.take() {
            drop(sender);
            // Jobs cannot make the thread panic, so there is nothing to report.
            let _ = thread.join();
        }
    }
}

impl Stream for TestStream {
    fn name(&self) -> &str {
        &self.test.config.name
    }

    fn guid(&self) -> Guid {
        Guid(*b"oxcart testdev 1")
    }

    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn set_async(&self, target: &Place, data: Vec<u8>) -> Result<(), Error> {
        let target = target.part(0, data.len())?;
        self.enqueue(move || target.write(&data))
    }

    fn get_async(&self, source: &Place) -> Result<Pending, Error> {
        if self.queue.is_none() {
            return source.bytes().map(Pending::Ready);
        }
        let (sender, receiver) = channel();
        let source = source.clone();
        self.enqueue(move || {
            // The caller may no longer be waiting.
            let _ = sender.send(source.bytes());
            Ok(())
        })?;
        Ok(Pending::Waiting(Box::new(move || receiver.recv().unwrap_or(Err(Error::Cancelled)))))
    }

    fn copy_in(&self, source_stream: &dyn Stream, source: &Place, target: &Place) -> Result<bool, Error> {
        if self.test.config.copies_out { Ok(false) } else { self.copy_with(source_stream, source, target) }
    }

    fn copy_out(&self, target_stream: &dyn Stream, source: &Place, target: &Place) -> Result<bool, Error> {
        if self.test.config.copies_out { self.copy_with(target_stream, source, target) } else { Ok(false) }
    }

    fn synchronize(&self) -> Result<(), Error> {
        if self.queue.is_some() {
            let (sender, receiver) = channel();
            self.enqueue(move || {
                let _ = sender.send(());
                Ok(())
            })?;
            let _ = receiver.recv();
        }
        self.report()
    }

    fn compute(&self, work: Work<'_>) -> Result<(), Error> {
        if self.queue.is_none() {
            return run(&self.test, work, &self.cancel);
        }
        let (graph, positions, buffers): (Graph, _, Buffers) =
            (work.nodes.graph().clone(), work.nodes.positions(), work.buffers.clone());
        let (test, cancel) = (Arc::clone(&self.test), Arc::clone(&self.cancel));
        self.enqueue(move || match graph.range(positions) {
            Some(nodes) => run(&test, Work { nodes, buffers: &buffers }, &cancel),
            None => Ok(()),
        })
    }

    fn cancel_flag(&self) -> Option<Arc<AtomicBool>> {
        Some(Arc::clone(&self.cancel))
    }

    fn record(&self) -> Result<Ticket, Error> {
        let ticket = self.progress.announce();
        let progress = Arc::clone(&self.progress);
        self.enqueue(move || {
            progress.reach(ticket);
            Ok(())
        })?;
        Ok(ticket)
    }

    fn finish(&self, ticket: Ticket) -> Result<(), Error> {
        self.progress.wait_until(ticket);
        self.report()
    }

    fn wait_for(&self, other: &dyn Stream, ticket: Ticket) -> Result<(), Error> {
        let Some(other) = asynchronous(other) else { return other.finish(ticket) };
        let progress = Arc::clone(&other.progress);
        self.enqueue(move || {
            progress.wait_until(ticket);
            Ok(())
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A test stream with a queue.
fn asynchronous(stream: &dyn Stream) -> Option<&TestStream> {
    stream.as_any().downcast_ref::<TestStream>().filter(|stream| stream.queue.is_some())
}

/// How far a stream has come: the latest point recorded, and the latest one reached.
#[derive(Debug, Default)]
struct Progress {
    points: Mutex<(u64, u64)>,
    changed: Condvar,
}

impl Progress {
    fn announce(&self) -> Ticket {
        let mut points = self.points.lock().unwrap_or_else(PoisonError::into_inner);
        points.0 += 1;
        Ticket(points.0)
    }

    fn reach(&self, ticket: Ticket) {
        let mut points = self.points.lock().unwrap_or_else(PoisonError::into_inner);
        // Threads that record at the same time may queue up in another order.
        points.1 = points.1.max(ticket.0);
        self.changed.notify_all();
    }

    fn wait_until(&self, ticket: Ticket) {
        let points = self.points.lock().unwrap_or_else(PoisonError::into_inner);
        let reached = self.changed.wait_while(points, |points| points.1 < ticket.0);
        drop(reached.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Computes nodes one after another, until it is told to stop.
fn run(test: &TestDevice, work: Work<'_>, cancel: &AtomicBool) -> Result<(), Error> {
    let graph = work.nodes.graph();
    for &id in work.nodes.nodes() {
        let node = graph.tensor(id)?;
        let skipped = !node.computes() || !node.has(Flags::COMPUTE) || node.layout().is_empty();
        if skipped {
            continue;
        }
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        if !test.supports_op(node) {
            return Err(unsupported(test, format!("{} ({})", node.op().label(), node.label())));
        }
        test.begin();
        match test.fault() {
            None => {}
            Some(InjectedFault::NoMemory) => {
                return Err(Error::OutOfMemory { buffer_type: "scratch".into(), size: node.byte_len() });
            }
            Some(InjectedFault::Panic) => panic!("injected"),
            Some(InjectedFault::Breakdown) => {
                let device = test.config.name.clone();
                return Err(Error::DeviceLost { device, reason: "it broke down, as injected".into() });
            }
        }
        if !test.config.null {
            run_node(test, work.buffers, node)?;
            test.note(id);
        }
    }
    Ok(())
}

fn unsupported(test: &TestDevice, what: String) -> Error {
    Error::Unsupported { device: test.config.name.clone(), what }
}

fn run_node(test: &TestDevice, buffers: &Buffers, node: TensorRef<'_>) -> Result<(), Error> {
    let failed = |reason| Error::DeviceFailed { device: test.config.name.clone(), reason };
    let mut sources = Vec::new();
    for source in node.sources().flatten() {
        sources.push(read(test, buffers, source)?);
    }
    let before = read(test, buffers, node)?;
    let mut result = compute(node, &sources, before).map_err(failed)?;
    if test.config.scale_error != 0.0 {
        result.iter_mut().for_each(|x| *x *= 1.0 + test.config.scale_error);
    }
    let place = buffers.place_of(node)?;
    let memory = visible(test, &*place.buffer, node)?;
    let mut bytes = memory.write().ok_or_else(|| unsupported(test, "writing to read-only memory".into()))?;
    store(node.layout(), &mut bytes[place.offset..place.offset + place.len], &result).map_err(failed)
}

fn read(test: &TestDevice, buffers: &Buffers, tensor: TensorRef<'_>) -> Result<Vec<f32>, Error> {
    let place = buffers.place_of(tensor)?;
    let bytes = visible(test, &*place.buffer, tensor)?.read();
    load(tensor.layout(), &bytes[place.offset..place.offset + place.len])
        .map_err(|reason| Error::DeviceFailed { device: test.config.name.clone(), reason })
}

/// The memory of a buffer, if this device could see it.
fn visible<'a>(
    test: &TestDevice,
    buffer: &'a dyn Buffer,
    tensor: TensorRef<'_>,
) -> Result<&'a HostMemory, Error> {
    let own = buffer.as_any().downcast_ref::<TestBuffer>().and_then(TestBuffer::memory);
    own.or_else(|| buffer.host()).filter(|_| test.sees(buffer.buffer_type())).ok_or_else(|| {
        unsupported(test, format!("reading {} from {} memory", tensor.label(), buffer.buffer_type().name()))
    })
}
