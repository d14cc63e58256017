//! A graph of a client, checked and cut into slices: what GRAPH_COMPUTE runs and GRAPH_RECOMPUTE runs again.
//!
//! Invariant: every node was accepted by the device before the first one runs. A slice is what a client may compute in
//! one turn, so that graphs of several clients interleave.

use std::ops::Range;

use oxcart_backend::{Error, Pace, Plan, Work};
use oxcart_tensor::{Op, TensorRef};

use super::budget::Lease;
use super::client::Client;
use super::lent::Lent;
use super::limits::{NODE_WORK, PRODUCT_FACTOR, SLICE_WORK, STORED_GRAPH_BYTES};
use super::rebuild::{GLANCED, GLANCES, GoOn, Rebuilt, check_wanted};
use super::refusal::Refusal;

/// A graph that may run any number of times while its buffers exist.
#[derive(Debug)]
pub(crate) struct SlicedGraph {
    rebuilt: Rebuilt,
    slices: Vec<Slice>,
    /// Kept only if there is one slice: plans take memory, and those of a long graph would add up.
    /// Planning a long slice anew is little against running it.
    plan: Option<Box<dyn Plan>>,
    /// What it takes, see [`taken_bytes`].
    bytes: usize,
    /// What it counts: against the memory of messages while its message is here, and then for itself.
    pub(crate) charge: Lease,
}

/// Nodes that are computed in one turn.
#[derive(Debug)]
struct Slice {
    nodes: Range<usize>,
    /// What they count; more than [`SLICE_WORK`] only if there is one of them.
    work: u64,
}

impl SlicedGraph {
    /// Checks a graph and makes it ready.
    pub(crate) fn new(
        mut rebuilt: Rebuilt,
        lent: &Lent,
        charge: Lease,
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
        let mut plan = None;
        for slice in &slices {
            check_wanted(go_on, slice.nodes.len())?;
            // Each is planned, if only to see that it can be.
            plan = lent.lane(slice.work).stream().plan(work(&rebuilt, slice)?)?;
            if plan.is_none() {
                check_support(&rebuilt, slice, lent)?;
            }
        }
        if slices.len() > 1 {
            plan = None;
        }
        let bytes = taken_bytes(&rebuilt, &slices, plan.as_deref());
        Ok(SlicedGraph { rebuilt, slices, plan, bytes, charge })
    }

    /// Bytes that it takes.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether it uses a buffer.
    pub(crate) fn uses(&self, handle: u64) -> bool {
        self.rebuilt.handles.contains(&handle)
    }

    /// Computes it, slice by slice, each when it is the client's turn.
    pub(crate) fn run(&mut self, lent: &Lent, client: &Client) -> Result<(), Refusal> {
        let SlicedGraph { rebuilt, slices, plan, .. } = self;
        for slice in slices.iter() {
            let work = work(rebuilt, slice)?;
            lent.take_turn(lent.lane(slice.work), client, |stream| match plan {
                Some(plan) => plan.compute(),
                None => stream.compute(work),
            })?;
        }
        Ok(())
    }
}

/// Bytes that a graph takes, its buffers aside: tensors and their sources, steps of its plan, and what lists them. Found once,
/// for it takes time by the size of the graph.
fn taken_bytes(rebuilt: &Rebuilt, slices: &[Slice], plan: Option<&dyn Plan>) -> usize {
    let Rebuilt { graph, buffers, handles } = rebuilt;
    let lists = size_of_val(handles.as_slice()) + size_of_val(slices);
    let plan = plan.map_or(0, Plan::held_bytes);
    STORED_GRAPH_BYTES + graph.held_bytes() + buffers.held_bytes() + lists + plan
}

fn work<'a>(rebuilt: &'a Rebuilt, slice: &Slice) -> Result<Work<'a>, Refusal> {
    // Slices are cut from the order itself.
    let nodes = rebuilt.graph.range(slice.nodes.clone()).ok_or(Refusal::NoGraph)?;
    Ok(Work { nodes, buffers: &rebuilt.buffers })
}

fn unsupported(lent: &Lent, what: String) -> Refusal {
    Refusal::Failed(Error::Unsupported { device: lent.device().name().to_owned(), what })
}

/// Asks the device about every node, where it does not plan.
fn check_support(rebuilt: &Rebuilt, slice: &Slice, lent: &Lent) -> Result<(), Refusal> {
    for &id in work(rebuilt, slice)?.nodes.nodes() {
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
            slices.push(Slice { nodes: start..position, work: sum });
            (start, sum) = (position, 0);
        }
        sum = sum.saturating_add(cost);
    }
    if start < nodes.len() {
        slices.push(Slice { nodes: start..nodes.len(), work: sum });
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
