//! Which bytes nodes read and write, and whether one may be computed before another.

use oxcart_tensor::TensorRef;

use super::Nodes;
use crate::plan::{Builder, Refused};

/// Some bytes of a card's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    start: u64,
    end: u64,
}

impl Span {
    /// The bytes of a tensor.
    pub(super) fn of(tensor: TensorRef<'_>, b: &mut Builder<'_>) -> Result<Span, Refused> {
        let start = b.address(tensor)?.0;
        Ok(Span { start, end: start + tensor.byte_len() as u64 })
    }

    /// Whether two have a byte in common.
    pub(super) fn meets(self, other: Span) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// What a node writes: its result, and sources that its op also writes to.
fn written(node: TensorRef<'_>, b: &mut Builder<'_>) -> Result<Vec<Span>, Refused> {
    let mut spans = vec![Span::of(node, b)?];
    for &slot in node.op().info().also_writes {
        if let Some(source) = node.source(slot) {
            spans.push(Span::of(source, b)?);
        }
    }
    Ok(spans)
}

/// Whether the node at `late` may be computed right after the one at `early`: nothing in between touches what it writes, or
/// writes what it reads. Nodes of the same launch, in `with`, are not in between.
pub(super) fn may_move(
    nodes: &Nodes<'_, '_>,
    (early, late): (usize, usize),
    with: &[usize],
    b: &mut Builder<'_>,
) -> Result<bool, Refused> {
    let node = nodes.list[late];
    let writes = written(node, b)?;
    let mut reads = Vec::new();
    for source in node.sources().flatten() {
        reads.push(Span::of(source, b)?);
    }
    for at in early + 1..late {
        if nodes.done[at] || with.contains(&at) {
            continue;
        }
        let between = nodes.list[at];
        let touched = written(between, b)?;
        let meets = |some: &[Span], others: &[Span]| some.iter().any(|a| others.iter().any(|b| a.meets(*b)));
        if meets(&touched, &writes) || meets(&touched, &reads) {
            return Ok(false);
        }
        for source in between.sources().flatten() {
            let span = Span::of(source, b)?;
            if writes.iter().any(|write| write.meets(span)) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Whether no node that is computed before a place writes to a tensor, so that it may be read before they have ended: none that
/// is before it in the order, and none that was moved there.
pub(super) fn is_settled(
    nodes: &mut Nodes<'_, '_>,
    at: usize,
    tensor: TensorRef<'_>,
    b: &mut Builder<'_>,
) -> Result<bool, Refused> {
    while nodes.writes.len() < at {
        let spans = written(nodes.list[nodes.writes.len()], b)?;
        nodes.writes.push(spans);
    }
    let span = Span::of(tensor, b)?;
    if nodes.writes[..at].iter().flatten().any(|write| write.meets(span)) {
        return Ok(false);
    }
    for moved in (at..nodes.list.len()).filter(|&place| nodes.done[place]) {
        if written(nodes.list[moved], b)?.iter().any(|write| write.meets(span)) {
            return Ok(false);
        }
    }
    Ok(true)
}
