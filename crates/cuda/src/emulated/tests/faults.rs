//! A driver that fails: at every call in turn, once or for good. What comes of it is an error, never a panic, and nothing is
//! kept that was not given back.

use std::sync::Arc;

use oxcart_backend::{Buffers, Device, Error, Stream, StreamOptions, Work, place_all};
use oxcart_tensor::{DType, Graph, TensorId};

use super::super::{Emulated, device};
use crate::device::CudaDevice;

/// Codes of the driver: no memory is left, and a kernel has ruined the card.
const OUT_OF_MEMORY: i32 = 2;
const ILLEGAL_ADDRESS: i32 = 700;

/// A graph of some launches, as often as it takes until it is recorded and replayed.
fn compute(device: &Arc<CudaDevice>) -> Result<Vec<u8>, Error> {
    let stream = Arc::clone(device).open(&StreamOptions::default())?;
    let mut graph = Graph::new();
    let x = graph.leaf(DType::F32, [64]).unwrap();
    let mut y = x;
    for _ in 0..5 {
        y = graph.add(y, x).unwrap();
    }
    graph.mark_output(y).unwrap();
    graph.expand(y).unwrap();
    let mut buffers = Buffers::new();
    let all: Vec<_> = graph.ids().collect();
    place_all(&mut graph, &all, &stream.device().buffer_type(), &mut buffers)?;
    let bytes: Vec<u8> = (0..64_u16).flat_map(|n| f32::from(n).to_le_bytes()).collect();
    // Through a buffer, then through the stream.
    buffers.set(graph.tensor(x).unwrap(), 0, &vec![0; bytes.len()])?;
    stream.set_async(&buffers.place_of(graph.tensor(x).unwrap())?, bytes.clone())?;
    let work = Work { nodes: graph.range(0..graph.nodes().len()).unwrap(), buffers: &buffers };
    let mut plan = stream.plan(work)?.unwrap();
    for _ in 0..6 {
        plan.compute()?;
    }
    let mut out = vec![0; bytes.len()];
    stream.read(&buffers.place_of(graph.tensor(y).unwrap())?, &mut out)?;
    Ok(out)
}

/// Lets every call fail in turn, and looks at what comes of it.
fn at_every_call(code: i32, look: impl Fn(&Emulated, &Arc<CudaDevice>, Result<Vec<u8>, Error>)) {
    for after in 0.. {
        let Some((driver, device)) = device() else { return };
        driver.fail(after, code);
        let found = compute(&device);
        if driver.is_waiting_to_fail() {
            assert!(found.is_ok() && after > 20, "{after} calls, {found:?}");
            break;
        }
        look(&driver, &device, found);
        drop(device);
        assert_eq!(driver.held(), [0; 5], "after {after} calls");
    }
}

#[test]
fn a_graph_is_replayed_and_gives_everything_back() {
    let Some((driver, device)) = device() else { return };
    let found = compute(&device).unwrap();
    assert_eq!(found[4..8], 6_f32.to_le_bytes());
    assert!(driver.replays() > 0);
    drop(device);
    assert_eq!(driver.held(), [0; 5]);
}

#[test]
fn one_failure_is_an_error_or_nothing_and_the_card_goes_on() {
    at_every_call(OUT_OF_MEMORY, |driver, device, found| {
        if let Ok(bytes) = found {
            assert_eq!(bytes[4..8], 6_f32.to_le_bytes());
        }
        driver.heal();
        assert!(compute(device).is_ok(), "the card is not lost");
    });
}

#[test]
fn a_lost_card_says_so_from_then_on() {
    at_every_call(ILLEGAL_ADDRESS, |driver, device, found| {
        if let Err(error) = found {
            assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
            // The driver may say what it likes: a card that was lost is not used again.
            driver.heal();
            assert!(matches!(compute(device), Err(Error::DeviceLost { .. })));
        }
    });
}

/// A product of some columns, for which kernels need scratch memory.
struct Product {
    graph: Graph,
    buffers: Buffers,
    result: TensorId,
}

impl Product {
    fn new(stream: &dyn Stream, columns: usize) -> Product {
        let mut graph = Graph::new();
        let weights = graph.leaf(DType::F32, [64, 8]).unwrap();
        let x = graph.leaf(DType::F32, [64, columns]).unwrap();
        let result = graph.mul_mat(weights, x).unwrap();
        graph.mark_output(result).unwrap();
        graph.expand(result).unwrap();
        let mut buffers = Buffers::new();
        let all: Vec<_> = graph.ids().collect();
        place_all(&mut graph, &all, &stream.device().buffer_type(), &mut buffers).unwrap();
        for id in [weights, x] {
            let ones = 1_f32.to_le_bytes().repeat(graph.tensor(id).unwrap().ne().elements().unwrap());
            buffers.set(graph.tensor(id).unwrap(), 0, &ones).unwrap();
        }
        Product { graph, buffers, result }
    }

    fn work(&self) -> Work<'_> {
        Work { nodes: self.graph.range(0..self.graph.nodes().len()).unwrap(), buffers: &self.buffers }
    }

    /// Its numbers, which are forgotten.
    fn take(&self, stream: &dyn Stream) -> Vec<u8> {
        stream.synchronize().unwrap();
        let result = self.graph.tensor(self.result).unwrap();
        let bytes = self.buffers.bytes(result).unwrap();
        self.buffers.set(result, 0, &vec![0; bytes.len()]).unwrap();
        bytes
    }
}

#[test]
fn a_plan_that_cannot_be_changed_computes_what_it_did() {
    for after in 0.. {
        let Some((driver, device)) = device() else { return };
        let stream = Arc::clone(&device).open(&StreamOptions::default()).unwrap();
        // The larger one has another kernel and more scratch memory.
        let (small, large) = (Product::new(&*stream, 2), Product::new(&*stream, 8));
        let mut plan = stream.plan(small.work()).unwrap().unwrap();
        plan.compute().unwrap();
        assert_eq!(small.take(&*stream), 64_f32.to_le_bytes().repeat(16));
        driver.fail(after, OUT_OF_MEMORY);
        let changed = plan.update(large.work());
        let is_done = driver.is_waiting_to_fail();
        driver.heal();
        plan.compute().unwrap();
        let (found, columns) = match changed {
            Ok(()) => (large.take(&*stream), 8),
            Err(_) => (small.take(&*stream), 2),
        };
        assert_eq!(found, 64_f32.to_le_bytes().repeat(8 * columns), "after {after} calls");
        if is_done {
            assert!(after > 3, "{after} calls");
            break;
        }
    }
}

/// A worker keeps plans for its clients, which must not have it hold a piece of scratch memory for each.
#[test]
fn plans_that_are_kept_share_few_pieces_of_scratch_memory() {
    let Some((driver, device)) = device() else { return };
    let options = StreamOptions { max_scratch: Some(1 << 20), ..StreamOptions::default() };
    let stream = Arc::clone(&device).open(&options).unwrap();
    let products: Vec<_> = (2..40).map(|columns| Product::new(&*stream, columns)).collect();
    let before = driver.held()[0];
    let mut plans: Vec<_> =
        products.iter().map(|product| stream.plan(product.work()).unwrap().unwrap()).collect();
    let pieces = driver.held()[0] - before;
    assert!((1..=8).contains(&pieces), "{pieces} pieces for {} plans", plans.len());
    for (plan, product) in plans.iter_mut().zip(&products) {
        plan.compute().unwrap();
        let found = product.take(&*stream);
        assert_eq!(found, 64_f32.to_le_bytes().repeat(found.len() / 4));
    }
}
