//! Queries and keys rotated, and keys and values put into their caches, in one launch; where all of it is for the attention of
//! one token, that attention is the launch.

use oxcart_tensor::ops::{Rope, RopeMode};
use oxcart_tensor::{DType, Op, TensorRef};

use super::memory::{Span, is_settled, may_move};
use super::{Nodes, is_passing};
use crate::kernels::attention;
use crate::kernels::rope::{self, RopeJob};
use crate::plan::{Builder, Refused, Tensor};

/// The most tensors of one launch.
const MOST: usize = 3;

/// A tensor that is rotated, or written to rows of a cache, or both.
#[derive(Clone, Debug)]
struct Job<'g> {
    rotated: Option<TensorRef<'g>>,
    placed: Option<TensorRef<'g>>,
    places: Vec<usize>,
}

impl<'g> Job<'g> {
    fn reads(&self) -> Option<TensorRef<'g>> {
        match self.rotated {
            Some(node) => node.source(0),
            None => self.placed?.source(0),
        }
    }

    fn writes(&self) -> Option<TensorRef<'g>> {
        self.placed.or(self.rotated)
    }
}

/// Begins with a rotation or with rows that are written.
pub(in crate::kernels) fn add(
    nodes: &mut Nodes<'_, '_>,
    at: usize,
    b: &mut Builder<'_>,
) -> Result<bool, Refused> {
    let mut jobs: Vec<Job<'_>> = Vec::new();
    let mut taken: Vec<usize> = Vec::new();
    let candidates: Vec<usize> = [at].into_iter().chain(nodes.ahead(at).map(|(place, _)| place)).collect();
    for place in candidates {
        if jobs.len() == MOST {
            break;
        }
        if taken.contains(&place) {
            continue;
        }
        let Some(job) = job(nodes, place) else { continue };
        let agrees = |other: &Job<'_>| match (other.rotated, job.rotated) {
            (Some(a), Some(b)) => same_law(a, b),
            _ => true,
        };
        let mut fits = jobs.iter().all(agrees);
        let with: Vec<usize> = taken.iter().chain(&job.places).copied().collect();
        for &own in job.places.iter().filter(|&&own| own != at) {
            fits = fits && may_move(nodes, (at, own), &with, b)?;
        }
        if fits && is_apart(&jobs, &job, b)? {
            taken.extend(&job.places);
            jobs.push(job);
        } else if place == at {
            return Ok(false);
        }
    }
    let law = jobs.iter().find_map(|job| job.rotated);
    if taken.len() < 2 {
        return Ok(false);
    }
    let mut launched = Vec::new();
    for job in &jobs {
        let Some(job) = parameters(job, b)? else { return Ok(false) };
        launched.push(job);
    }
    match attention(nodes, at, &jobs, &taken, b)? {
        Some(place) => {
            let node = nodes.list[place];
            // The token's own tensors, in the order that the kernel knows.
            if !attention::add_fresh(node, |b| rope::params(law, &launched, b), b)? {
                rope::launch(law, &launched, b)?;
            } else {
                nodes.done[place] = true;
            }
        }
        None => rope::launch(law, &launched, b)?,
    }
    for place in taken {
        nodes.done[place] = true;
    }
    Ok(true)
}

/// The attention that all of some jobs are for, if it is of one token: its queries, its key and its value, in this order.
fn attention(
    nodes: &mut Nodes<'_, '_>,
    at: usize,
    jobs: &[Job<'_>],
    taken: &[usize],
    b: &mut Builder<'_>,
) -> Result<Option<usize>, Refused> {
    let [queries, keys, values] = jobs else { return Ok(None) };
    let (Some(q), None, Some(k), Some(_), Some(v), None) =
        (queries.rotated, queries.placed, keys.placed, keys.rotated, values.placed, values.rotated)
    else {
        return Ok(None);
    };
    let Op::Rope(law) = *q.op() else { return Ok(None) };
    let one = q.ne()[2] == 1 && q.ne()[3] == 1;
    let simple = matches!(law.mode, RopeMode::Normal | RopeMode::Neox);
    let Some((place, node)) = nodes.only_reader(queries.places[0]) else { return Ok(None) };
    let Op::PagedAttn(op) = *node.op() else { return Ok(None) };
    let [Some(seen_q), Some(seen_k), Some(seen_v), Some(table), Some(owners)] =
        [0, 1, 2, 3, 4].map(|slot| node.source(slot))
    else {
        return Ok(None);
    };
    // The caches that are written are those that are read, row by row.
    let same = |seen: TensorRef<'_>, put: TensorRef<'_>, b: &mut Builder<'_>| -> Result<bool, Refused> {
        let rows = seen.dtype() == put.dtype() && seen.layout().nb()[1] == put.layout().nb()[1];
        Ok(rows && seen.ne()[0] == put.ne()[0] && b.address(seen)? == b.address(put)?)
    };
    let whole = q.ne()[0] * op.key_heads == k.ne()[0] && law.n_dims + law.first_channel <= q.ne()[0];
    if !one || !simple || !whole || seen_q.id() != q.id() || !same(seen_k, k, b)? || !same(seen_v, v, b)? {
        return Ok(None);
    }
    if keys.rotated.is_none_or(|key| key.ne()[0] != q.ne()[0]) || k.ne()[0] != v.ne()[0] {
        return Ok(None);
    }
    let with: Vec<usize> = taken.iter().copied().chain([place]).collect();
    if !may_move(nodes, (at, place), &with, b)? {
        return Ok(None);
    }
    // What is read before the launch before has ended must have been there all along.
    // And blocks write results while others still read.
    let result = Span::of(node, b)?;
    let numbers = [q.source(1), q.source(2), k.source(1), v.source(1)];
    for tensor in numbers.into_iter().flatten().chain([seen_k, seen_v, table, owners]) {
        if !is_settled(nodes, at, tensor, b)? || Span::of(tensor, b)?.meets(result) {
            return Ok(None);
        }
    }
    // Both rows are the same, or another block could read what is being written.
    let rows = [k, v].map(|put| put.source(1).map(|numbers| numbers.id()));
    for job in jobs {
        let Some(reads) = job.reads() else { return Ok(None) };
        if Span::of(reads, b)?.meets(result) {
            return Ok(None);
        }
    }
    Ok((rows[0] == rows[1]).then_some(place))
}

/// Whether two rotations turn by the same angles.
fn same_law(a: TensorRef<'_>, b: TensorRef<'_>) -> bool {
    let ids = |node: TensorRef<'_>| [node.source(1).map(|s| s.id()), node.source(2).map(|s| s.id())];
    a.op() == b.op() && ids(a) == ids(b) && a.ne()[2] == b.ne()[2]
}

/// What a node is, if it is of this kind: a rotation, with the rows it is written to if that is all it is for; or rows.
fn job<'g>(nodes: &Nodes<'_, 'g>, at: usize) -> Option<Job<'g>> {
    let node = nodes.list[at];
    match node.op() {
        Op::Rope(rope) => {
            let plain = matches!(node.dtype(), DType::F32) && node.ne()[3] == 1;
            if !plain {
                return None;
            }
            let stored = stored_rotation(nodes, at, rope);
            let places = [at].into_iter().chain(stored.map(|(place, _)| place)).collect();
            Some(Job { rotated: Some(node), placed: stored.map(|(_, node)| node), places })
        }
        Op::SetRows(_) => {
            is_plain_rows(node).then(|| Job { rotated: None, placed: Some(node), places: vec![at] })
        }
        _ => None,
    }
}

/// Rows of one number per token, of plain numbers.
fn is_plain_rows(node: TensorRef<'_>) -> bool {
    let (Some(values), Some(numbers)) = (node.source(0), node.source(1)) else { return false };
    matches!(node.dtype(), DType::F32 | DType::F16 | DType::BF16)
        && values.dtype() == DType::F32
        && values.ne()[2] == 1
        && values.ne()[3] == 1
        && numbers.layout().is_contiguous()
        && numbers.ne()[0] == values.ne()[1]
}

/// The rows that a rotated tensor goes to, seen as one row per token.
fn stored_rotation<'g>(nodes: &Nodes<'_, 'g>, at: usize, _rope: &Rope) -> Option<(usize, TensorRef<'g>)> {
    let rotated = nodes.list[at];
    let [len, heads, tokens, _] = rotated.ne().extents();
    if !is_passing(rotated) || !rotated.layout().is_contiguous() {
        return None;
    }
    nodes.ahead(at).find(|&(_, node)| {
        let Some(values) = node.source(0) else { return false };
        matches!(node.op(), Op::SetRows(_))
            && is_plain_rows(node)
            && values.root().id() == rotated.id()
            && values.view().is_none_or(|view| view.offset == 0)
            && values.ne().extents() == [len * heads, tokens, 1, 1]
            && values.layout().is_contiguous()
            && node.graph().use_count(values.id()) == 1
            && !values.has(oxcart_tensor::graph::Flags::OUTPUT)
    })
}

/// Whether a job can run beside others: what one writes no other touches.
fn is_apart(jobs: &[Job<'_>], job: &Job<'_>, b: &mut Builder<'_>) -> Result<bool, Refused> {
    let (Some(reads), Some(writes)) = (job.reads(), job.writes()) else { return Ok(false) };
    let (reads, writes) = (Span::of(reads, b)?, Span::of(writes, b)?);
    // In place is fine where elements stay where they are.
    if reads != writes && reads.meets(writes) {
        return Ok(false);
    }
    for other in jobs {
        let (Some(other_reads), Some(other_writes)) = (other.reads(), other.writes()) else {
            return Ok(false);
        };
        let (other_reads, other_writes) = (Span::of(other_reads, b)?, Span::of(other_writes, b)?);
        if writes.meets(other_reads) || writes.meets(other_writes) || reads.meets(other_writes) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A job as the kernel takes it.
fn parameters(job: &Job<'_>, b: &mut Builder<'_>) -> Result<Option<RopeJob>, Refused> {
    let Some(source) = job.reads() else { return Ok(None) };
    let mut a = b.tensor(source)?;
    if job.rotated.is_none() {
        // One row per token, without heads.
        a.ne = [a.ne[0], 1, a.ne[1], 1];
        a.nb = [a.nb[0], 0, a.nb[1], 0];
    }
    let rotates = job.rotated.is_some();
    let Some(target) = job.writes() else { return Ok(None) };
    let y: Tensor = b.tensor(target)?;
    let rows = match job.placed.and_then(|node| node.source(1)) {
        Some(numbers) => Some((b.address(numbers)?.0, numbers.dtype())),
        None => None,
    };
    Ok(Some(RopeJob::new(a, y, rows, rotates, job.rotated)))
}
