//! Views: other layouts over the memory of a source. They compute nothing.
//!
//! Invariant: an element type never changes in a view. Bounds are the door's business, because only the graph knows
//! the root that a view of a view looks into.

use super::{Args, Category, OpError, OpInfo, Operation, Outcome, need};
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, TensorId};
use crate::layout::{Layout, LayoutError};
use crate::limits::DIMS;
use crate::shape::Shape;

/// A window into the source at explicit strides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    /// Extents in elements.
    pub ne: Shape,
    /// Strides in bytes.
    pub nb: [usize; DIMS],
    /// Bytes from the first byte of the source.
    pub offset: usize,
}

/// The same packed elements under other extents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reshape {
    /// The new extents.
    pub ne: Shape,
}

/// Dimensions in another order: dimension `i` of the source becomes dimension `axes[i]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Permute {
    /// Where each dimension goes.
    pub axes: [usize; DIMS],
}

/// Dimensions 0 and 1 exchanged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transpose;

const fn view_info(name: &'static str) -> OpInfo {
    OpInfo::new(name, Category::Language, &const { [need("a")] }).only_relabels()
}

fn alias(args: &Args<'_>, layout: Result<Layout, LayoutError>, offset: usize) -> Result<Outcome, OpError> {
    let layout = layout.map_err(|error| args.bad_layout(error))?;
    Ok(Outcome::Alias { source: 0, offset, layout })
}

impl Operation for View {
    const INFO: OpInfo = view_info("VIEW");

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let dtype = args.source(0).dtype();
        let aligned = self.offset.is_multiple_of(dtype.block_bytes());
        args.param("offset", self.offset, aligned, "must be a whole number of blocks")?;
        alias(args, Layout::strided(dtype, self.ne, self.nb), self.offset)
    }
}

impl Operation for Reshape {
    const INFO: OpInfo = view_info("RESHAPE");

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        alias(args, args.source(0).layout().reshaped(self.ne), 0)
    }
}

impl Operation for Permute {
    const INFO: OpInfo = view_info("PERMUTE");

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        alias(args, args.source(0).layout().permuted(self.axes), 0)
    }
}

impl Operation for Transpose {
    const INFO: OpInfo = view_info("TRANSPOSE");

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        alias(args, args.source(0).layout().transposed(), 0)
    }
}

/// Strides of a window whose outer ones follow from the extents when not given.
fn window_strides(dtype: DType, ne: Shape, given: &[usize]) -> Option<[usize; DIMS]> {
    let mut nb = [dtype.block_bytes(), dtype.row_bytes(ne[0])?, 0, 0];
    for i in 1..DIMS {
        nb[i] = match given.get(i - 1) {
            Some(&stride) => stride,
            None if i == 1 => nb[1],
            None => nb[i - 1].checked_mul(ne[i - 1])?,
        };
    }
    Some(nb)
}

impl Graph {
    /// A window of `ne` elements into `a`, `offset` bytes in. `strides` are the byte distances of rows, planes and
    /// volumes; those left out are packed.
    pub fn view(
        &mut self,
        a: TensorId,
        ne: impl Into<Shape>,
        strides: &[usize],
        offset: usize,
    ) -> Result<TensorId, Error> {
        let (ne, dtype) = (ne.into(), self.tensor(a)?.dtype());
        // An impossible row length is refused by the layout with its own reason.
        let nb = window_strides(dtype, ne, strides).unwrap_or([dtype.block_bytes(); DIMS]);
        self.apply(View { ne, nb, offset }, &[Some(a)])
    }

    /// The same packed elements under other extents.
    pub fn reshape(&mut self, a: TensorId, ne: impl Into<Shape>) -> Result<TensorId, Error> {
        self.apply(Reshape { ne: ne.into() }, &[Some(a)])
    }

    /// Dimension `i` of `a` becomes dimension `axes[i]`.
    pub fn permute(&mut self, a: TensorId, axes: [usize; DIMS]) -> Result<TensorId, Error> {
        self.apply(Permute { axes }, &[Some(a)])
    }

    /// Dimensions 0 and 1 exchanged.
    pub fn transpose(&mut self, a: TensorId) -> Result<TensorId, Error> {
        self.apply(Transpose, &[Some(a)])
    }
}
