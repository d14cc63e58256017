//! The one door: every node comes into being here.
//!
//! Invariant: [`Graph::insert`] adds a node only after its op accepted the sources, its view was found to lie within
//! its root, and what it writes was found to be free of overlap. A refused node leaves the graph unchanged.

use super::{Flags, Graph, TensorId, ViewOf};
use crate::dtype::DType;
use crate::error::Error;
use crate::layout::Layout;
use crate::limits::MAX_SOURCES;
use crate::ops::{Args, Op, OpError, OpInfo, Outcome, Reason, Source, WantedDType};

/// A request for a node.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    /// What it does.
    pub op: Op,
    /// What it reads, in the order of the op.
    pub sources: &'a [Option<TensorId>],
    /// Whether the result shares the memory of source 0.
    pub in_place: bool,
    /// The type of the result, where the op leaves a choice.
    pub dtype: Option<DType>,
}

impl Graph {
    /// Adds a node; everything else that adds nodes calls this.
    pub fn insert(&mut self, node: Node<'_>) -> Result<TensorId, Error> {
        let Node { op, sources, in_place, dtype } = node;
        let info = op.info();
        let mut operands = [None; MAX_SOURCES];
        let operands = self.describe_sources(info, sources, &mut operands)?;
        let args = Args::new(info, operands, in_place, dtype)?;
        let outcome = op.infer(&args).unwrap_or_else(|| Err(reject(info, "op", Reason::NotAnOp)))?;
        let outcome = if in_place { share_first_source(info, operands, outcome)? } else { outcome };
        check_dtype(info, dtype, outcome.layout())?;
        let view = self.resolve_view(info, sources, outcome)?;
        let layout = outcome.layout();
        if view.is_some() && info.computes && !layout.is_free_of_overlap() {
            return Err(reject(info, "result", Reason::Overlap { found: layout }).into());
        }
        self.check_also_written(info, sources, view)?;
        self.push(layout, op, view, sources)
    }

    /// Adds a node with memory of its own, or whatever memory the op prescribes.
    pub fn apply(&mut self, op: impl Into<Op>, sources: &[Option<TensorId>]) -> Result<TensorId, Error> {
        self.insert(Node { op: op.into(), sources, in_place: false, dtype: None })
    }

    /// As [`apply`](Graph::apply), the result having another type than it would by default.
    pub fn apply_as(
        &mut self,
        op: impl Into<Op>,
        sources: &[Option<TensorId>],
        dtype: DType,
    ) -> Result<TensorId, Error> {
        self.insert(Node { op: op.into(), sources, in_place: false, dtype: Some(dtype) })
    }

    /// As [`apply`](Graph::apply), the result being written over source 0.
    pub fn apply_in_place(
        &mut self,
        op: impl Into<Op>,
        sources: &[Option<TensorId>],
    ) -> Result<TensorId, Error> {
        self.insert(Node { op: op.into(), sources, in_place: true, dtype: None })
    }

    fn describe_sources<'b>(
        &self,
        info: &'static OpInfo,
        sources: &[Option<TensorId>],
        operands: &'b mut [Option<Source>; MAX_SOURCES],
    ) -> Result<&'b [Option<Source>], Error> {
        let Some(operands) = operands.get_mut(..sources.len()) else {
            let reason = Reason::TooMany { found: sources.len(), most: info.sources.len() };
            return Err(reject(info, "sources", reason).into());
        };
        for (operand, &source) in operands.iter_mut().zip(sources) {
            let Some(id) = source else { continue };
            let tensor = self.tensor(id)?;
            *operand = Some(Source { layout: *tensor.layout(), is_param: tensor.has(Flags::PARAM) });
        }
        Ok(operands)
    }

    /// Refuses an op that would write to the memory of one tensor twice. Sources that are written to have the result's
    /// strides, so they are as free of overlap as the result is.
    fn check_also_written(
        &self,
        info: &'static OpInfo,
        sources: &[Option<TensorId>],
        view: Option<ViewOf>,
    ) -> Result<(), Error> {
        let mut written = [view.map(|view| view.root); MAX_SOURCES];
        for (place, &slot) in info.also_writes.iter().enumerate() {
            let Some(id) = sources.get(slot).copied().flatten() else { continue };
            let root = Some(self.tensor(id)?.root().id());
            if written[..=place].contains(&root) {
                return Err(reject(info, info.sources[slot].name, Reason::SharedMemory).into());
            }
            written[place + 1] = root;
        }
        Ok(())
    }

    /// Finds the root a result looks into, and checks that it stays inside.
    fn resolve_view(
        &self,
        info: &'static OpInfo,
        sources: &[Option<TensorId>],
        outcome: Outcome,
    ) -> Result<Option<ViewOf>, Error> {
        let Outcome::Alias { source, offset, layout } = outcome else { return Ok(None) };
        let Some(id) = sources.get(source).copied().flatten() else {
            return Err(reject(info, "result", Reason::Missing).into());
        };
        let (root, base) = match self.tensor(id)?.view() {
            Some(view) => (view.root, view.offset),
            None => (id, 0),
        };
        let root_len = self.tensor(root)?.layout().byte_len();
        let len = layout.byte_len();
        let from = base.saturating_add(offset);
        if from.saturating_add(len) > root_len {
            return Err(reject(info, "result", Reason::OutOfBounds { offset: from, len, root_len }).into());
        }
        Ok(Some(ViewOf { root, offset: from }))
    }
}

fn reject(info: &'static OpInfo, operand: &'static str, reason: Reason) -> OpError {
    OpError { op: info.name, operand, reason: Box::new(reason) }
}

/// The result of an op computed over its first source: that source's own layout.
fn share_first_source(
    info: &'static OpInfo,
    operands: &[Option<Source>],
    outcome: Outcome,
) -> Result<Outcome, OpError> {
    let first = operands.first().copied().flatten().map(|source| source.layout);
    match (outcome, first) {
        (Outcome::Fresh(fresh), Some(layout))
            if info.in_place && fresh.ne() == layout.ne() && fresh.dtype() == layout.dtype() =>
        {
            Ok(Outcome::Alias { source: 0, offset: 0, layout })
        }
        _ => Err(reject(info, "result", Reason::NotInPlace)),
    }
}

/// A type the caller asked for, but the op did not make.
fn check_dtype(info: &'static OpInfo, wanted: Option<DType>, layout: Layout) -> Result<(), OpError> {
    match wanted {
        Some(found) if found != layout.dtype() => {
            let wanted = WantedDType::Only(layout.dtype());
            Err(reject(info, "result", Reason::DType { found, wanted }))
        }
        _ => Ok(()),
    }
}
