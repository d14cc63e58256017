//! Views: other layouts over the memory of a source. They compute nothing.
//!
//! Invariant: an element type never changes in a view. Bounds are checked by the door, because only the graph knows
//! the root that a view of a view looks into.

use super::{Args, Category, OpError, OpInfo, Operation, Outcome, Reason, Sizes, need};
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, TensorId};
use crate::layout::{Layout, LayoutError};
use crate::limits::DIMS;
use crate::shape::Shape;

/// A part of the source at explicit strides.
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

    fn work(&self, _sizes: &Sizes) -> u64 {
        0
    }
}

impl Operation for Reshape {
    const INFO: OpInfo = view_info("RESHAPE");

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        alias(args, args.source(0).layout().reshaped(self.ne), 0)
    }

    fn work(&self, _sizes: &Sizes) -> u64 {
        0
    }
}

impl Operation for Permute {
    const INFO: OpInfo = view_info("PERMUTE");

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        alias(args, args.source(0).layout().permuted(self.axes), 0)
    }

    fn work(&self, _sizes: &Sizes) -> u64 {
        0
    }
}

impl Operation for Transpose {
    const INFO: OpInfo = view_info("TRANSPOSE");

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        alias(args, args.source(0).layout().transposed(), 0)
    }

    fn work(&self, _sizes: &Sizes) -> u64 {
        0
    }
}

impl View {
    /// A view of `ne` elements of a type. `strides` are the byte distances of rows, planes and volumes; those left
    /// out are packed. What cannot be represented becomes a stride that no layout has.
    fn strided(dtype: DType, ne: Shape, strides: &[usize], offset: usize) -> View {
        let mut nb = [dtype.block_bytes(), dtype.row_bytes(ne[0]).unwrap_or(usize::MAX), 0, 0];
        for dim in 1..DIMS {
            nb[dim] = match strides.get(dim - 1) {
                Some(&stride) => stride,
                None if dim == 1 => nb[1],
                None => nb[dim - 1].saturating_mul(ne[dim - 1]),
            };
        }
        View { ne, nb, offset }
    }
}

impl Graph {
    /// A view of `ne` elements of `a`, `offset` bytes in. `strides` are the byte distances of rows, planes and
    /// volumes, at most three; those left out are packed.
    pub fn view(
        &mut self,
        a: TensorId,
        ne: impl Into<Shape>,
        strides: &[usize],
        offset: usize,
    ) -> Result<TensorId, Error> {
        let dtype = self.tensor(a)?.dtype();
        if strides.len() >= DIMS {
            let reason = Reason::TooMany { found: strides.len(), most: DIMS - 1 };
            return Err(OpError { op: View::INFO.name, operand: "strides", reason: Box::new(reason) }.into());
        }
        self.apply(View::strided(dtype, ne.into(), strides, offset), &[Some(a)])
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
