//! A graph of a client, checked and cut into slices: what GRAPH_COMPUTE runs and GRAPH_RECOMPUTE runs again.
//!
//! Invariant: every node was accepted by the device, when it was planned, before the first one runs. A slice is what a client may compute in
//! one turn, so that graphs of several clients interleave. A plan is kept for each slice while there is room, and can be given up at any time.

use std::ops::Range;

use oxcart_backend::{Error, Pace, Plan, Work};
use oxcart_tensor::{Op, TensorRef};

use super::budget::Lease;
use super::client::Client;
use super::lent::Lent;
use super::limits::{NODE_WORK, PLAN_BYTES, PRODUCT_FACTOR, SLICE_WORK, STORED_GRAPH_BYTES};
use super::rebuild::{GLANCED, GLANCES, GoOn, Rebuilt, check_wanted};
use super::refusal::Refusal;

/// A graph that may run any number of times while its buffers exist.
#[derive(Debug)]
pub(crate) struct SlicedGraph {
    rebuilt: Rebuilt,
    slices: Vec<Slice>,
    /// What it takes without plans, see [`taken_bytes`].
    bytes: usize,
    /// What that counts: against the memory of messages while its message is here, and then for itself.
    pub(crate) charge: Lease,
    /// What its plans count.
    plans_charge: Lease,
}

/// Nodes that are computed in one turn.
#[derive(Debug)]
struct Slice {
    nodes: Range<usize>,
    /// What they count; more than [`SLICE_WORK`] only if there is one of them.
    work: u64,
    /// Of a stream of the lane for such work. Kept while there is room, otherwise the slice is planned anew each time.
    plan: Option<Box<dyn Plan>>,
}

/// Room for the plans of one client's graphs. No plan has to be kept, so none keeps out or pushes out what others have.
pub(crate) struct PlanRoom<'a> {
    /// Bytes that graphs and plans of the client may take in all.
    pub(crate) most: usize,
    /// Bytes that they take without this graph.
    pub(crate) held: &'a dyn Fn() -> usize,
    /// Gives up the plans of another graph of the client; says whether it had some.
    pub(crate) give_up: &'a dyn Fn() -> bool,
}

impl PlanRoom<'_> {
    /// Lets a charge count a plan of a graph that takes so many bytes itself, if there is room or some can be made.
    fn take(&self, charge: &mut Lease, graph: usize, plan: usize) -> bool {
        let whole = graph.saturating_add(charge.bytes()).saturating_add(plan);
        if whole > self.most {
            return false;
        }
        loop {
            if (self.held)().saturating_add(whole) <= self.most && charge.grow(plan) {
                return true;
            }
            if !(self.give_up)() {
                return false;
            }
        }
    }
}

impl SlicedGraph {
    /// Checks a graph and cuts it into slices.
    pub(crate) fn new(
        mut rebuilt: Rebuilt,
        lent: &Lent,
        (charge, plans_charge): (Lease, Lease),
        node_work: u64,
        go_on: &mut GoOn<'_>,
    ) -> Result<SlicedGraph, Refusal> {
        let mut slices = slices(&rebuilt, node_work, lent.device().pace(), go_on)?;
        // It may be kept for long, and nothing is added to it any more.
        rebuilt.graph.shrink_to_fit();
        rebuilt.handles.shrink_to_fit();
        slices.shrink_to_fit();
        for buffer in rebuilt.buffers.iter() {
            if !lent.device().supports_buffer_type(buffer.buffer_type()) {
                return Err(unsupported(lent, format!("{} memory", buffer.buffer_type().name())));
            }
        }
        let bytes = taken_bytes(&rebuilt, &slices);
        Ok(SlicedGraph { rebuilt, slices, bytes, charge, plans_charge })
    }

    /// Sees that the device can compute it, and keeps the plans that there is room for.
    pub(crate) fn plan(
        &mut self,
        lent: &Lent,
        room: &PlanRoom<'_>,
        go_on: &mut GoOn<'_>,
    ) -> Result<(), Refusal> {
        for slice in &mut self.slices {
            check_wanted(go_on, slice.nodes.len())?;
            match lent.lane(slice.work).stream().plan(work(&self.rebuilt, &slice.nodes)?)? {
                None => check_support(&self.rebuilt, slice, lent)?,
                Some(plan) => {
                    let bytes = PLAN_BYTES + plan.held_bytes();
                    let has_room = room.take(&mut self.plans_charge, self.bytes, bytes);
                    slice.plan = has_room.then_some(plan);
                }
            }
        }
        Ok(())
    }

    /// Bytes that it takes without plans.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes that its plans take.
    pub(crate) const fn plan_bytes(&self) -> usize {
        self.plans_charge.bytes()
    }

    /// Gives up its plans; says whether it had some. It can be computed all the same.
    pub(crate) fn give_up_plans(&mut self) -> bool {
        let had_some = self.plan_bytes() > 0;
        self.slices.iter_mut().for_each(|slice| slice.plan = None);
        self.plans_charge.shrink_to(0);
        had_some
    }

    /// Whether it uses a buffer.
    pub(crate) fn uses(&self, handle: u64) -> bool {
        self.rebuilt.handles.contains(&handle)
    }

    /// Computes it, slice by slice, each when it is the client's turn.
    pub(crate) fn run(&mut self, lent: &Lent, client: &Client) -> Result<(), Refusal> {
        let SlicedGraph { rebuilt, slices, .. } = self;
        for slice in slices.iter_mut() {
            let work = work(rebuilt, &slice.nodes)?;
            lent.take_turn(lent.lane(slice.work), client, |stream| match &mut slice.plan {
                Some(plan) => plan.compute(),
                None => stream.compute(work),
            })?;
        }
        Ok(())
    }
}

/// Bytes that a graph takes, its buffers and plans aside: tensors and their sources, and what lists them. Found once, for it takes time
/// by the size of the graph.
fn taken_bytes(rebuilt: &Rebuilt, slices: &[Slice]) -> usize {
    let Rebuilt { graph, buffers, handles } = rebuilt;
    let lists = size_of_val(handles.as_slice()) + size_of_val(slices);
    STORED_GRAPH_BYTES + graph.held_bytes() + buffers.held_bytes() + lists
}

fn work<'a>(rebuilt: &'a Rebuilt, nodes: &Range<usize>) -> Result<Work<'a>, Refusal> {
    // Slices are cut from the order itself.
    let nodes = rebuilt.graph.range(nodes.clone()).ok_or(Refusal::NoGraph)?;
    Ok(Work { nodes, buffers: &rebuilt.buffers })
}

fn unsupported(lent: &Lent, what: String) -> Refusal {
    Refusal::Failed(Error::Unsupported { device: lent.device().name().to_owned(), what })
}

/// Asks the device about every node, where it does not plan.
fn check_support(rebuilt: &Rebuilt, slice: &Slice, lent: &Lent) -> Result<(), Refusal> {
    for &id in work(rebuilt, &slice.nodes)?.nodes.nodes() {
        let node = rebuilt.graph.tensor(id).map_err(Error::from)?;
        if node.computes() && !lent.device().supports_op(node) {
            return Err(unsupported(lent, node.op().label().to_owned()));
        }
    }
    Ok(())
}

/// Cuts a graph so that no slice but one of a single node is more than a turn's work.
fn slices(
    rebuilt: &Rebuilt,
    node_work: u64,
    pace: Pace,
    go_on: &mut GoOn<'_>,
) -> Result<Vec<Slice>, Refusal> {
    let nodes = rebuilt.graph.nodes();
    let (mut slices, mut start, mut sum) = (Vec::new(), 0, 0_u64);
    for (position, &id) in nodes.iter().enumerate() {
        if position.is_multiple_of(GLANCED) {
            check_wanted(go_on, GLANCES)?;
        }
        let node = rebuilt.graph.tensor(id).map_err(Error::from)?;
        let cost = node.work();
        let limit = if is_product(node) { node_work.saturating_mul(PRODUCT_FACTOR) } else { node_work };
        if cost > limit {
            return Err(Refusal::Limit { what: "multiplications in a node", limit });
        }
        let cost = share(cost, pace.multiplications).max(share(elements(node), pace.elements)).max(NODE_WORK);
        if sum.saturating_add(cost) > SLICE_WORK && position > start {
            slices.push(Slice { nodes: start..position, work: sum, plan: None });
            (start, sum) = (position, 0);
        }
        sum = sum.saturating_add(cost);
    }
    if start < nodes.len() {
        slices.push(Slice { nodes: start..nodes.len(), work: sum, plan: None });
    }
    Ok(slices)
}

/// What part of a turn something is that a device does so many of in a turn.
fn share(count: u64, pace: u64) -> u64 {
    (u128::from(count) * u128::from(SLICE_WORK) / u128::from(pace.max(1))).try_into().unwrap_or(u64::MAX)
}

/// The most elements of a node's tensors.
fn elements(node: TensorRef<'_>) -> u64 {
    let elements = |tensor: TensorRef<'_>| tensor.layout().elements() as u64;
    node.sources().flatten().fold(elements(node), |most, source| most.max(elements(source)))
}

/// Whether a node is a product or a convolution, see [`PRODUCT_FACTOR`].
fn is_product(node: TensorRef<'_>) -> bool {
    matches!(
        node.op(),
        Op::MulMat(_)
            | Op::MulMatId(_)
            | Op::OutProd(_)
            | Op::FlashAttnExt(_)
            | Op::PagedAttn(_)
            | Op::FlashAttnBack(_)
            | Op::LightningIndexer(_)
            | Op::Conv2d(_)
            | Op::Conv3d(_)
            | Op::ConvTranspose1d(_)
            | Op::ConvTranspose2d(_)
    )
}
