//! A tensor written or added into a strided region of another.

use super::work::sum;
use super::{Args, Category, OpError, OpInfo, Operand, Operation, Outcome, Reason, Sizes, need};
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, TensorId};
use crate::layout::Layout;
use crate::limits::DIMS;
use crate::limits::REGION_OFFSET_LIMIT;

/// Where a tensor is laid into another: byte strides of dimensions 1 to 3, dimension 0 being packed, and a byte
/// offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Byte strides of dimensions 1, 2 and 3.
    pub strides: [usize; 3],
    /// Bytes from the first byte of the result.
    pub offset: usize,
}

/// `a`, with `b` written over a region of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Set(
    /// The region.
    pub Region,
);

/// `a`, with `b` added to a region of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Acc(
    /// The region.
    pub Region,
);

impl Region {
    /// The region as a layout of `inner` within `outer`, checked to lie inside it.
    fn check(&self, args: &Args<'_>, outer: &Operand, inner: &Operand) -> Result<(), OpError> {
        let Region { strides: [nb1, nb2, nb3], offset } = *self;
        let dtype = outer.dtype();
        // Strides over a single element mean nothing; builders fill them in from tensors of any size.
        let fits = (1..DIMS).all(|dim| inner.ne()[dim] <= 1 || i32::try_from(self.strides[dim - 1]).is_ok());
        args.param("strides", self.strides, fits, "must be below 2^31")?;
        args.param("offset", offset, offset < REGION_OFFSET_LIMIT, "must be below 2^30")?;
        args.param("offset", offset, offset.is_multiple_of(dtype.block_bytes()), "must be whole elements")?;
        let layout = Layout::strided(dtype, inner.ne(), [dtype.block_bytes(), nb1, nb2, nb3])
            .map_err(|error| args.reject("strides", Reason::Layout(error)))?;
        let (len, root_len) = (layout.byte_len(), outer.layout().byte_len());
        if offset.checked_add(len).is_none_or(|end| end > root_len) {
            return Err(args.reject("offset", Reason::OutOfBounds { offset, len, root_len }));
        }
        if !layout.is_free_of_overlap() {
            return Err(args.reject("strides", Reason::Overlap { found: layout }));
        }
        Ok(())
    }

    fn infer(&self, args: &Args<'_>, types: &'static [DType]) -> Result<Outcome, OpError> {
        let [a, b] = args.sources();
        a.one_of(types)?;
        b.same_dtype(&a)?;
        a.contiguous()?;
        b.unit_stride()?;
        let (whole, part) = (a.layout().elements(), b.layout().elements());
        b.shape(part <= whole, format!("must not have more than the {whole} elements of a"))?;
        self.check(args, &a, &b)?;
        args.fresh(a.dtype(), a.ne())
    }
}

impl Operation for Set {
    const INFO: OpInfo = OpInfo::new("SET", Category::Recurrent, &[need("a"), need("b")]).in_place();

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        self.0.infer(args, &[DType::F32, DType::I32])
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sum([sizes.result(), sizes.source(1), sizes.rows(1)])
    }
}

impl Operation for Acc {
    const INFO: OpInfo = OpInfo::new("ACC", Category::Training, &[need("a"), need("b")]).in_place();

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        self.0.infer(args, &[DType::F32])
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sum([sizes.result(), sizes.source(1), sizes.rows(1)])
    }
}

impl Graph {
    /// `a`, with `b` written over a region of it.
    pub fn set(&mut self, a: TensorId, b: TensorId, region: Region) -> Result<TensorId, Error> {
        self.apply(Set(region), &[Some(a), Some(b)])
    }

    /// `a`, with `b` added to a region of it.
    pub fn acc(&mut self, a: TensorId, b: TensorId, region: Region) -> Result<TensorId, Error> {
        self.apply(Acc(region), &[Some(a), Some(b)])
    }
}
