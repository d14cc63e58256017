//! A computation over several workers, a part on each: what one has computed is what the next begins with.

use std::net::SocketAddr;
use std::sync::Arc;

use oxcart_backend::{
    Buffers, Device, Error, Place, Registry, Stream, StreamOptions, Work, copy_async, place_all,
};
use oxcart_rpc::client::{Options, RemoteRegistry};
use oxcart_rpc::wire::Command;
use oxcart_tensor::{DType, Graph};

pub const NUMBERS: usize = 1000;

/// A part of a computation, on one device: every number is doubled.
pub struct Stage {
    pub registry: Arc<RemoteRegistry>,
    pub stream: Box<dyn Stream>,
    pub graph: Graph,
    pub buffers: Buffers,
    pub input: Place,
    pub output: Place,
}

impl Stage {
    pub fn new(registry: Arc<RemoteRegistry>) -> Stage {
        let device: Arc<dyn Device> = registry.devices().remove(0);
        let (mut graph, mut buffers) = (Graph::new(), Buffers::new());
        let input = graph.leaf(DType::F32, [NUMBERS]).unwrap();
        let output = graph.add(input, input).unwrap();
        graph.expand(output).unwrap();
        place_all(&mut graph, &[input, output], &device.buffer_type(), &mut buffers).unwrap();
        let place = |id| buffers.place_of(graph.tensor(id).unwrap()).unwrap();
        let (input, output) = (place(input), place(output));
        let stream = device.open(&StreamOptions::default()).unwrap();
        Stage { registry, stream, graph, buffers, input, output }
    }

    pub fn at(address: SocketAddr, options: &Options) -> Stage {
        Stage::new(RemoteRegistry::connect(&address.to_string(), options).unwrap())
    }

    pub fn compute(&self) -> Result<(), Error> {
        let nodes = self.graph.range(0..self.graph.nodes().len()).unwrap();
        self.stream.compute(Work { nodes, buffers: &self.buffers })
    }

    /// A new stream, after the old one was interrupted.
    pub fn reopen(&mut self) {
        self.stream = Arc::clone(self.stream.device()).open(&StreamOptions::default()).unwrap();
    }

    /// The same, if its worker is not lost.
    pub fn reopen_if_there(&mut self) {
        if self.registry.failure().is_none() {
            self.reopen();
        }
    }

    pub fn waits(&self) -> u64 {
        self.registry.traffic().total().waits
    }

    pub fn messages(&self, command: Command) -> u64 {
        self.registry.traffic().of(command).messages
    }
}

/// Has numbers go through all stages; the last one is read.
pub fn step(stages: &[Stage], number: impl Fn(usize) -> f32) -> Result<Vec<f32>, Error> {
    let bytes = (0..NUMBERS).flat_map(|i| number(i).to_le_bytes()).collect();
    stages[0].stream.set_async(&stages[0].input, bytes)?;
    for (at, stage) in stages.iter().enumerate() {
        stage.compute()?;
        if let Some(next) = stages.get(at + 1) {
            copy_async(&*stage.stream, &stage.output, &*next.stream, &next.input)?;
        }
    }
    let last = stages.last().unwrap();
    let mut out = vec![0; NUMBERS * 4];
    last.stream.read(&last.output, &mut out)?;
    Ok(out.chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect())
}
