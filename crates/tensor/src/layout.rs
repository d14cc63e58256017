//! Where the elements of a tensor lie, relative to its first byte.
//!
//! A layout is a plain value: a type, extents and byte strides. It never touches memory, so all view arithmetic is
//! tested alone.
//!
//! Invariants, kept by the only two ways in ([`Layout::packed`] and [`Layout::strided`]):
//! - the element count is at most [`MAX_ELEMENTS`](crate::limits::MAX_ELEMENTS), the byte length, and that of a packed
//!   row, at most [`MAX_BYTES`];
//! - `ne0` is a whole number of blocks, and blocks of a quantized row are adjacent;
//! - every stride that is used steps over whole blocks, so no element is ever misaligned within its tensor.

use std::fmt;

use crate::dtype::DType;
use crate::limits::{DIMS, MAX_BYTES};
use crate::shape::Shape;

/// Type, extents and byte strides of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    dtype: DType,
    ne: Shape,
    nb: [usize; DIMS],
}

/// Why a type, extents and strides do not make a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A row would end inside a block.
    #[error("row of {ne0} elements is not a whole number of {dtype} blocks of {}", dtype.block_len())]
    PartialBlock {
        /// The element type.
        dtype: DType,
        /// The row length.
        ne0: usize,
    },
    /// Element count or byte length does not fit.
    #[error("{dtype} tensor of {ne} is too large")]
    TooLarge {
        /// The element type.
        dtype: DType,
        /// The extents.
        ne: Shape,
    },
    /// A stride does not step over whole blocks.
    #[error("stride {stride} of dimension {dim} is not a multiple of the {} bytes of a {dtype} block", dtype.block_bytes())]
    PartialStride {
        /// The element type.
        dtype: DType,
        /// The dimension.
        dim: usize,
        /// Its stride in bytes.
        stride: usize,
    },
    /// Blocks of a quantized row are not adjacent.
    #[error("{dtype} blocks of a row must be adjacent, but are {stride} bytes apart")]
    ScatteredBlocks {
        /// The element type.
        dtype: DType,
        /// The stride of dimension 0 in bytes.
        stride: usize,
    },
    /// Axes that are not a permutation of 0, 1, 2, 3.
    #[error("axes {axes:?} are not a permutation of 0, 1, 2, 3")]
    NotAPermutation {
        /// The offending axes.
        axes: [usize; DIMS],
    },
    /// A permutation that would walk across the blocks of a row.
    #[error("dimension 0 of a {dtype} tensor cannot be moved: its blocks lie along it")]
    BlocksMoved {
        /// The element type.
        dtype: DType,
    },
    /// A reshape that does not keep the number of elements.
    #[error("cannot reshape {from} into {to}: the number of elements differs")]
    ElementCount {
        /// Extents of the source.
        from: Shape,
        /// Extents asked for.
        to: Shape,
    },
    /// A reshape of elements that are not packed.
    #[error("cannot reshape a tensor that is not contiguous")]
    NotContiguous,
}

impl Layout {
    /// Elements packed without gaps.
    pub fn packed(dtype: DType, ne: impl Into<Shape>) -> Result<Layout, LayoutError> {
        let ne = ne.into();
        let row = dtype.row_bytes(ne[0]).ok_or_else(|| Self::row_error(dtype, ne))?;
        let too_large = || LayoutError::TooLarge { dtype, ne };
        let mut nb = [dtype.block_bytes(), row, 0, 0];
        for i in 2..DIMS {
            nb[i] = nb[i - 1].checked_mul(ne[i - 1]).ok_or_else(too_large)?;
        }
        Layout { dtype, ne, nb }.checked()
    }

    /// Elements at explicit byte strides. Strides may be larger than packed (gaps), smaller (overlap) or zero
    /// (broadcast).
    pub fn strided(dtype: DType, ne: impl Into<Shape>, nb: [usize; DIMS]) -> Result<Layout, LayoutError> {
        Layout { dtype, ne: ne.into(), nb }.checked()
    }

    fn row_error(dtype: DType, ne: Shape) -> LayoutError {
        if ne[0].is_multiple_of(dtype.block_len()) {
            LayoutError::TooLarge { dtype, ne }
        } else {
            LayoutError::PartialBlock { dtype, ne0: ne[0] }
        }
    }

    fn checked(self) -> Result<Layout, LayoutError> {
        let Layout { dtype, ne, nb } = self;
        if !ne[0].is_multiple_of(dtype.block_len()) {
            return Err(LayoutError::PartialBlock { dtype, ne0: ne[0] });
        }
        if dtype.block_len() > 1 && nb[0] != dtype.block_bytes() {
            return Err(LayoutError::ScatteredBlocks { dtype, stride: nb[0] });
        }
        for dim in 0..DIMS {
            if ne[dim] > 1 && !nb[dim].is_multiple_of(dtype.block_bytes()) {
                return Err(LayoutError::PartialStride { dtype, dim, stride: nb[dim] });
            }
        }
        // A packed row must be representable even where the tensor is empty or broadcast: sizes are made of it.
        let sizes = [dtype.row_bytes(ne[0]), self.checked_byte_len()];
        let fits = sizes.iter().all(|size| size.is_some_and(|size| size <= MAX_BYTES));
        if fits && ne.elements().is_some() { Ok(self) } else { Err(LayoutError::TooLarge { dtype, ne }) }
    }

    fn checked_byte_len(&self) -> Option<usize> {
        if self.ne.is_empty() {
            return Some(0);
        }
        let last_block = (self.ne[0] / self.block_len() - 1).checked_mul(self.nb[0])?;
        (1..DIMS).try_fold(last_block.checked_add(self.dtype.block_bytes())?, |len, i| {
            len.checked_add((self.ne[i] - 1).checked_mul(self.nb[i])?)
        })
    }

    /// The element type.
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extents in elements.
    pub const fn ne(&self) -> Shape {
        self.ne
    }

    /// Strides in bytes; that of dimension 0 is the distance of consecutive blocks.
    pub const fn nb(&self) -> [usize; DIMS] {
        self.nb
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.ne.elements().unwrap_or_else(|| unreachable!("checked when the layout was made"))
    }

    /// Bytes from the first to the last byte, gaps included; zero when empty.
    pub fn byte_len(&self) -> usize {
        self.checked_byte_len().unwrap_or_else(|| unreachable!("checked when the layout was made"))
    }

    /// Bytes of one row of blocks.
    pub fn row_bytes(&self) -> usize {
        self.ne[0] / self.block_len() * self.dtype.block_bytes()
    }

    fn block_len(&self) -> usize {
        self.dtype.block_len()
    }

    /// Whether some extent is zero.
    pub fn is_empty(&self) -> bool {
        self.ne.is_empty()
    }

    /// Whether rows follow each other and planes follow each other without gaps, dimensions up to and including
    /// `free` being exempt: 0 means packed, 1 leaves the distance of rows free, 2 also that of planes.
    pub fn is_contiguous_above(&self, free: usize) -> bool {
        let block = self.block_len();
        if self.ne[0] != block && self.nb[0] != self.dtype.block_bytes() {
            return false;
        }
        let mut next = self.dtype.block_bytes() * (self.ne[0] / block);
        for i in 1..DIMS {
            if i > free {
                if self.ne[i] != 1 && self.nb[i] != next {
                    return false;
                }
                next = next.saturating_mul(self.ne[i]);
            } else {
                next = self.ne[i].saturating_mul(self.nb[i]);
            }
        }
        true
    }

    /// Whether elements are packed in logical order.
    pub fn is_contiguous(&self) -> bool {
        self.is_contiguous_above(0)
    }

    /// Whether the elements of each row are adjacent.
    pub fn has_contiguous_rows(&self) -> bool {
        self.ne[0] == self.block_len() || self.nb[0] == self.dtype.block_bytes()
    }

    /// Whether the dimensions below `dims` are packed in logical order; the others are not looked at.
    pub fn is_contiguous_to(&self, dims: usize) -> bool {
        let mut inner = self.ne.extents();
        inner.iter_mut().skip(dims).for_each(|ne| *ne = 1);
        Layout { ne: Shape::from(inner), ..*self }.is_contiguous()
    }

    /// Whether channels (dimension 2) are the fastest, as in images stored pixel by pixel.
    pub fn has_contiguous_channels(&self) -> bool {
        let [nb0, nb1, nb2, _] = self.nb;
        nb2 == self.dtype.block_bytes() && nb0 > nb2 && nb1 > nb0
    }

    /// Whether only the distance of rows is free, all rows lying at one common distance.
    pub fn is_padded_1d(&self) -> bool {
        self.nb[0] == self.dtype.block_bytes()
            && self.nb[2] == self.nb[1].saturating_mul(self.ne[1])
            && self.nb[3] == self.nb[2].saturating_mul(self.ne[2])
    }

    /// Whether a step along dimension 0 is longer than one along dimension 1.
    pub fn is_transposed(&self) -> bool {
        self.nb[0] > self.nb[1]
    }

    /// Whether no byte belongs to two elements. Only layouts whose dimensions nest (each step at least as long as
    /// all that lies inside it) are recognized; every slice and permutation of a packed tensor is one.
    pub fn is_free_of_overlap(&self) -> bool {
        if self.is_empty() {
            return true;
        }
        let blocks = self.ne[0] / self.block_len();
        let mut axes = [
            (self.nb[0], blocks),
            (self.nb[1], self.ne[1]),
            (self.nb[2], self.ne[2]),
            (self.nb[3], self.ne[3]),
        ];
        axes.sort_unstable();
        let mut inside = self.dtype.block_bytes();
        for (stride, extent) in axes.into_iter().filter(|&(_, extent)| extent > 1) {
            if stride < inside {
                return false;
            }
            inside += (extent - 1) * stride;
        }
        true
    }

    /// The layout whose dimension `axes[i]` is this one's dimension `i`.
    pub fn permuted(&self, axes: [usize; DIMS]) -> Result<Layout, LayoutError> {
        let mut seen = [false; DIMS];
        let (mut ne, mut nb) = ([0; DIMS], [0; DIMS]);
        for (i, &axis) in axes.iter().enumerate() {
            if axis >= DIMS || seen[axis] {
                return Err(LayoutError::NotAPermutation { axes });
            }
            seen[axis] = true;
            ne[axis] = self.ne[i];
            nb[axis] = self.nb[i];
        }
        if self.dtype.is_quantized() && axes[0] != 0 {
            return Err(LayoutError::BlocksMoved { dtype: self.dtype });
        }
        Layout::strided(self.dtype, ne, nb)
    }

    /// Dimensions 0 and 1 exchanged.
    pub fn transposed(&self) -> Result<Layout, LayoutError> {
        self.permuted([1, 0, 2, 3])
    }

    /// The same packed elements under other extents.
    pub fn reshaped(&self, ne: impl Into<Shape>) -> Result<Layout, LayoutError> {
        let to = ne.into();
        if !self.is_contiguous() {
            return Err(LayoutError::NotContiguous);
        }
        let layout = Layout::packed(self.dtype, to)?;
        if layout.elements() != self.elements() {
            return Err(LayoutError::ElementCount { from: self.ne, to });
        }
        Ok(layout)
    }
}

/// `f16[64, 3]`, and the strides when they are not packed: `f16[64, 3]@[2, 256]`.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.ne)?;
        if !self.is_contiguous() {
            write!(f, "@{:?}", &self.nb[..self.ne.dims()])?;
        }
        Ok(())
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests;
