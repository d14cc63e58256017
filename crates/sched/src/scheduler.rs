//! From a graph to a prepared graph.

use std::sync::Arc;

use oxcart_backend::{Buffer, Buffers, Stream, Usage, Work, allocate};
use oxcart_tensor::graph::{BufferId, Flags, Storage};
use oxcart_tensor::{Graph, TensorId, TensorRef};

use crate::assign::{Assignments, Setting, assign};
use crate::error::Error;
use crate::kept::Kept;
use crate::memory::{MemoryPlan, Planner, Pool, Request, Strategy, Transfer};
use crate::prepared::{CopyStep, Prepared, Run};
use crate::program::Program;
use crate::split::{Cut, cut};
use crate::streams::{Memories, StreamId, Streams};

/// How a scheduler works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether streams may take nodes whose weights are in host memory, if they want to.
    pub offload: bool,
    /// How many runs may be under way at the same time. With more than one, the caller can set the inputs of the next
    /// run while earlier ones are computed.
    pub runs: usize,
    /// Whether inputs keep their contents over a run.
    pub keep_inputs: bool,
    /// How memory is planned.
    pub strategy: Strategy,
}

impl Default for Options {
    fn default() -> Options {
        Options { offload: true, runs: 1, keep_inputs: true, strategy: Strategy::default() }
    }
}

/// Cuts graphs into splits and gives each to the stream that has its data.
///
/// ```
/// use oxcart_sched::{Options, Scheduler};
/// use oxcart_backend::Buffers;
/// use oxcart_tensor::{DType, Graph};
/// use oxcart_testdev::{Config, TestDevice};
///
/// let cpu = TestDevice::new(Config::default()).stream();
/// let mut scheduler = Scheduler::new(vec![cpu], Options::default())?;
///
/// let mut graph = Graph::new();
/// let x = graph.leaf(DType::F32, [2])?;
/// graph.mark_input(x)?;
/// let y = graph.sqr(x)?;
/// graph.mark_output(y)?;
/// graph.expand(y)?;
///
/// let mut prepared = scheduler.prepare(graph, Buffers::new())?;
/// for number in [3.0_f32, 4.0] {
///     prepared.set_input(x, &[number.to_le_bytes(), 1.0_f32.to_le_bytes()].concat())?;
///     prepared.compute()?;
///     assert_eq!(prepared.read(y)?[..4], (number * number).to_le_bytes());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Scheduler {
    streams: Arc<Streams>,
    options: Options,
    /// By stream, the pool of its memory; streams with the same kind of memory share one.
    pool_of: Vec<u16>,
    pools: Vec<Pool>,
    /// By pool, the stream that stands for it.
    owners: Vec<StreamId>,
    /// By pool, buffers for results, kept from graph to graph.
    chunks: Vec<Vec<Arc<dyn Buffer>>>,
    planner: Planner,
    kept: Kept,
    /// What the graph does that is being prepared, and by tensor the pool it belongs to; kept for their memory.
    program: Program,
    pool_of_tensor: Vec<u16>,
}

impl Scheduler {
    /// A scheduler over these streams, the most preferred first. The last one should be able to do everything.
    pub fn new(streams: Vec<Box<dyn Stream>>, options: Options) -> Result<Scheduler, Error> {
        let streams = Streams::new(streams)?;
        let mut owners: Vec<StreamId> = Vec::new();
        let mut pool_of = Vec::with_capacity(streams.len());
        for id in streams.ids() {
            let known = owners.iter().position(|&owner| streams.same_memory(owner, id));
            let pool = known.unwrap_or_else(|| {
                owners.push(id);
                owners.len() - 1
            });
            // There are no more pools than streams, whose number fits.
            pool_of.push(pool as u16);
        }
        let pools = owners.iter().map(|&id| Pool::of(&**streams.buffer_type(id))).collect();
        let chunks = vec![Vec::new(); owners.len()];
        let options = Options { runs: options.runs.max(1), ..options };
        Ok(Scheduler {
            streams: Arc::new(streams),
            options,
            pool_of,
            pools,
            owners,
            chunks,
            planner: Planner::new(),
            kept: Kept::default(),
            program: Program::default(),
            pool_of_tensor: Vec::new(),
        })
    }

    /// Number of streams.
    pub fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// A stream by its position, for pinning.
    pub fn stream(&self, index: usize) -> Result<StreamId, Error> {
        self.streams.id(index)
    }

    /// The name of a stream.
    pub fn name(&self, id: StreamId) -> &str {
        self.streams.stream(id).name()
    }

    /// Bytes of the buffers for results that a stream's memory holds now.
    pub fn buffer_size(&self, id: StreamId) -> usize {
        self.chunks[usize::from(self.pool_of[id.index()])].iter().map(|chunk| chunk.len()).sum()
    }

    /// Lets go of the buffers for results, and of the plan they were made for. Graphs that are prepared keep theirs.
    pub fn reset(&mut self) {
        self.kept.clear();
        self.chunks.iter_mut().for_each(Vec::clear);
    }

    /// Makes a graph ready to run. `buffers` says what the buffer ids in it mean. The memory plan of the graph before
    /// is used again where it suits, as it does when a program makes the same graph for each batch.
    pub fn prepare(&mut self, graph: Graph, buffers: Buffers) -> Result<Prepared, Error> {
        self.prepare_pinned(graph, buffers, &[])
    }

    /// As [`prepare`](Scheduler::prepare), with streams given for some tensors.
    pub fn prepare_pinned(
        &mut self,
        mut graph: Graph,
        mut buffers: Buffers,
        pinned: &[(TensorId, StreamId)],
    ) -> Result<Prepared, Error> {
        let (assigned, cut) = self.split(&mut graph, &buffers, pinned)?;
        let memory = self.place(&graph, &assigned, &cut)?;
        self.grow(&memory)?;
        self.bind(&mut graph, &mut buffers, &memory)?;
        let runs = self.make_runs(graph, &buffers, &cut)?;
        let inputs = cut.graph_inputs.iter().map(|&(id, _)| id).collect();
        let streams = Arc::clone(&self.streams);
        Ok(Prepared { streams, buffers, runs, current: 0, splits: cut.splits, assigned, memory, inputs })
    }

    /// Allocates what the largest graph needs, so that preparing smaller ones allocates nothing.
    pub fn reserve(&mut self, graph: Graph, buffers: &Buffers) -> Result<MemoryPlan, Error> {
        self.reserve_pinned(graph, buffers, &[])
    }

    /// As [`reserve`](Scheduler::reserve), with streams given for some tensors.
    pub fn reserve_pinned(
        &mut self,
        mut graph: Graph,
        buffers: &Buffers,
        pinned: &[(TensorId, StreamId)],
    ) -> Result<MemoryPlan, Error> {
        let (assigned, cut) = self.split(&mut graph, buffers, pinned)?;
        let memory = self.place(&graph, &assigned, &cut)?;
        self.grow(&memory)?;
        Ok(MemoryPlan::clone(&memory))
    }

    /// Passes one to five.
    fn split(
        &mut self,
        graph: &mut Graph,
        buffers: &Buffers,
        pinned: &[(TensorId, StreamId)],
    ) -> Result<(Assignments, Cut), Error> {
        let streams = &*self.streams;
        let memories = Memories::new(streams, buffers);
        self.program.read(graph, 0..graph.nodes().len());
        let offload = self.options.offload;
        let setting = Setting { buffers, streams, memories: &memories, pinned, offload };
        let mut assigned = assign(graph, &self.program, &setting)?;
        let cut = cut(graph, &mut self.program, &memories, &mut assigned, self.options.runs)?;
        Ok((assigned, cut))
    }

    /// Plans the memory of everything that has none.
    fn place(&mut self, graph: &Graph, assigned: &Assignments, cut: &Cut) -> Result<Arc<MemoryPlan>, Error> {
        let mut pool_of = std::mem::take(&mut self.pool_of_tensor);
        let pool = |stream: Option<StreamId>| stream.map_or(0, |stream| self.pool_of[stream.index()]);
        pool_of.clear();
        pool_of.extend(assigned.streams().map(pool));
        let transfers: Vec<Transfer> = cut
            .splits
            .iter()
            .flat_map(|split| split.inputs.iter().map(move |input| (input, split.nodes.start)))
            .filter(|(input, _)| !self.is_written_by_caller(graph, input.source))
            .flat_map(|(input, before)| {
                input.copies.iter().map(move |&to| Transfer { from: input.source, to, before })
            })
            .collect();
        let buffer_types: Vec<_> = self.owners.iter().map(|&id| &**self.streams.buffer_type(id)).collect();
        let size_of = |tensor: TensorRef<'_>, pool: usize| buffer_types[pool].alloc_size(tensor);
        let mut request = Request::new(graph, &self.pools, &pool_of, &size_of);
        request.transfers = &transfers;
        request.keep_inputs = self.options.keep_inputs;
        let memory = match self.kept.plan_for(&request, &self.program) {
            Some(plan) => Arc::clone(plan),
            None => {
                let plan = self.planner.plan_program(&request, &self.program, self.options.strategy)?;
                let plan = Arc::new(plan);
                self.kept.keep(Arc::clone(&plan), &mut self.program, &mut pool_of, transfers);
                plan
            }
        };
        self.pool_of_tensor = pool_of;
        Ok(memory)
    }

    /// With several runs under way, copies of inputs are written by the caller's thread, past the streams. So nothing
    /// else may use their memory, not even before they are written: they live all the time.
    fn is_written_by_caller(&self, graph: &Graph, source: TensorId) -> bool {
        self.options.runs > 1 && graph.tensor(source).is_ok_and(|source| source.root().has(Flags::INPUT))
    }

    /// Makes sure that the buffers for results are large enough.
    fn grow(&mut self, memory: &MemoryPlan) -> Result<(), Error> {
        for (pool, needed) in memory.pools().iter().enumerate() {
            let buffer_type = self.streams.buffer_type(self.owners[pool]);
            for (index, &size) in needed.chunks().iter().enumerate() {
                if self.chunks[pool].get(index).is_some_and(|chunk| chunk.len() >= size) {
                    continue;
                }
                // What was there goes first, so that both need not fit.
                self.chunks[pool].truncate(index);
                let chunk = allocate(buffer_type, size)?;
                chunk.set_usage(Usage::Compute);
                self.chunks[pool].push(chunk);
            }
        }
        Ok(())
    }

    /// Gives every planned tensor its place. The plan is the one that is kept.
    fn bind(&self, graph: &mut Graph, buffers: &mut Buffers, memory: &MemoryPlan) -> Result<(), Error> {
        // By pool and chunk, its id and its size.
        let placed: Vec<Vec<(&dyn Buffer, BufferId, usize)>> = memory
            .pools()
            .iter()
            .zip(&self.chunks)
            .map(|(needed, chunks)| {
                let used = chunks[..needed.chunks().len()].iter();
                used.map(|chunk| (&**chunk, buffers.add(Arc::clone(chunk)), chunk.len())).collect()
            })
            .collect();
        for (id, spot) in memory.spots() {
            let (chunk, buffer, len) = placed[usize::from(spot.pool)][spot.chunk as usize];
            graph.bind(id, Storage { buffer, offset: spot.offset }, len)?;
            chunk.init_tensor(graph.tensor(id)?)?;
        }
        // Views after what they look into.
        let all: Vec<&dyn Buffer> = buffers.iter().map(|buffer| &**buffer).collect();
        for &id in &self.kept.program().views {
            let view = graph.tensor(id)?;
            if let Some(buffer) = view.buffer() {
                let missing = oxcart_backend::Error::NoSuchBuffer { id: buffer };
                all.get(buffer.0 as usize).ok_or(missing)?.init_tensor(view)?;
            }
        }
        Ok(())
    }

    /// One graph for each run that may be under way.
    fn make_runs(&self, graph: Graph, buffers: &Buffers, cut: &Cut) -> Result<Vec<Run>, Error> {
        let mut runs = Vec::with_capacity(self.options.runs);
        for run in 1..self.options.runs {
            runs.push(self.make_run(exchange_leaves(&graph, buffers, cut, run)?, buffers, cut)?);
        }
        runs.insert(0, self.make_run(graph, buffers, cut)?);
        Ok(runs)
    }

    fn make_run(&self, graph: Graph, buffers: &Buffers, cut: &Cut) -> Result<Run, Error> {
        let place = |id: TensorId| -> Result<_, Error> { Ok(buffers.place_of(graph.tensor(id)?)?) };
        let inputs = cut.graph_inputs.iter().map(|&(id, _)| place(id)).collect::<Result<_, _>>()?;
        let mut plans = Vec::with_capacity(cut.splits.len());
        let mut copies = Vec::with_capacity(cut.splits.len());
        for split in &cut.splits {
            let stream = self.streams.stream(split.stream);
            let nodes = graph.range(split.nodes.clone());
            plans.push(nodes.map_or(Ok(None), |nodes| stream.plan(Work { nodes, buffers }))?);
            let steps = split.inputs.iter().map(|input| {
                let source = place(input.source)?;
                let others = self.streams.ids().filter(|&id| id != input.from);
                let sees = |id: &StreamId| {
                    self.streams.device(*id).supports_buffer_type(source.buffer.buffer_type())
                };
                Ok(CopyStep {
                    from: input.from,
                    others: others.filter(sees).collect(),
                    target: place(input.copies[0])?,
                    is_input: graph.tensor(input.source)?.root().has(Flags::INPUT),
                    source,
                })
            });
            copies.push(steps.collect::<Result<_, Error>>()?);
        }
        let read = vec![None; self.streams.len()];
        Ok(Run { graph, plans, copies, inputs, read })
    }
}

/// The graph with the leaves of another run: the same leaves, bound to the places of their twins, so that views of
/// them follow.
fn exchange_leaves(graph: &Graph, buffers: &Buffers, cut: &Cut, run: usize) -> Result<Graph, Error> {
    let mut exchanged = graph.clone();
    let graph_inputs = cut.graph_inputs.iter().map(|(id, others)| (*id, others[run - 1]));
    let split_inputs = cut.splits.iter().flat_map(|split| &split.inputs);
    for (leaf, twin) in graph_inputs.chain(split_inputs.map(|input| (input.copies[0], input.copies[run]))) {
        if let Some(storage) = graph.storage(twin)? {
            exchanged.bind(leaf, storage, buffers.get(storage.buffer)?.len())?;
        }
    }
    Ok(exchanged)
}
