//! Heartbeats on a machine whose processors are all busy: apart from other tests, which would be the slower for it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{Fixture, PATIENCE};
use oxcart_backend::{Buffers, Device, Error, Registry, StreamOptions, Work, place_all};
use oxcart_rpc::client::{Options, RemoteRegistry, Timeouts};
use oxcart_tensor::{DType, Graph};

/// How long the processors are busy.
const BUSY: Duration = Duration::from_secs(8);

/// A machine that is busy with other things is slow, and not lost: not with the heartbeats that there are by default. Where even a thread of
/// the test itself had to wait for a processor for a good part of their limit, the machine is too slow to tell.
#[test]
fn busy_processors_make_no_worker_lost() {
    let fixture = Fixture::new();
    let timeouts = Timeouts { control: 10 * PATIENCE, connect: PATIENCE, ..Timeouts::default() };
    let limit = timeouts.heartbeat.unwrap();
    let options = Options { timeouts, ..Options::default() };
    let registry = RemoteRegistry::connect(&fixture.auto.to_string(), &options).unwrap();
    assert!(registry.has_heartbeats(), "by default");
    let is_over = AtomicBool::new(false);
    let mut longest = Duration::ZERO;
    let asked = thread::scope(|scope| {
        let loops = 2 * thread::available_parallelism().unwrap().get();
        for _ in 0..loops {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let held = fixture.device.hold();
        // Something waits for the worker all the time.
        let asked = scope.spawn(|| compute(&registry));
        let since = Instant::now();
        while since.elapsed() < BUSY {
            let slept = Instant::now();
            let pause = Duration::from_millis(20);
            thread::sleep(pause);
            longest = longest.max(slept.elapsed().saturating_sub(pause));
        }
        drop(held);
        is_over.store(true, Ordering::Relaxed);
        asked.join().unwrap()
    });
    if let Err(error) = asked {
        assert!(longest > limit / 4, "{error}; the longest wait for a processor was {longest:?}");
        oxcart_fixtures::skip(&format!("a thread waited {longest:?} for a processor; {error}"));
        return;
    }
    registry.devices()[0].memory().unwrap();
}

/// Has a worker add some numbers, and reads the sums.
fn compute(registry: &RemoteRegistry) -> Result<(), Error> {
    let device: Arc<dyn Device> = registry.devices().remove(0);
    let (mut graph, mut buffers) = (Graph::new(), Buffers::new());
    let input = graph.leaf(DType::F32, [1000]).unwrap();
    let output = graph.add(input, input).unwrap();
    graph.expand(output).unwrap();
    place_all(&mut graph, &[input, output], &device.buffer_type(), &mut buffers)?;
    let place = buffers.place_of(graph.tensor(output).unwrap()).unwrap();
    let stream = device.open(&StreamOptions::default())?;
    let nodes = graph.range(0..graph.nodes().len()).unwrap();
    stream.compute(Work { nodes, buffers: &buffers })?;
    stream.read(&place, &mut vec![0; place.len])
}
