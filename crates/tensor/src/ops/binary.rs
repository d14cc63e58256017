//! Elementwise arithmetic on two tensors.

use super::{Args, Category, OpError, OpInfo, Operand, Operation, Outcome, Sizes, WantedDType, need};
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, TensorId};

/// `a + b`, `b` repeated to the extents of `a`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Add;

/// `a - b`, `b` repeated to the extents of `a`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sub;

/// `a * b`, elementwise, `b` repeated to the extents of `a`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mul;

/// `a / b`, `b` repeated to the extents of `a`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Div;

/// `a` plus the row of `b` that `ids` chooses: `y[:, i, j] = a[:, i, j] + b[:, ids[i, j]]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AddId;

/// `a` plus one number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Add1;

const fn binary_info(name: &'static str) -> OpInfo {
    OpInfo::new(name, Category::Language, &const { [need("a"), need("b")] }).in_place().reuses(&[0, 1])
}

/// The rules of plain numbers; quantized sums have their own.
fn infer_plain(args: &Args<'_>, a: &Operand, b: &Operand) -> Result<Outcome, OpError> {
    use DType::{BF16, F16, F32};
    a.one_of(&[F32, F16, BF16])?;
    match a.dtype() {
        F32 => b.f32()?,
        F16 => b.one_of(&[F16, F32])?,
        _ => b.one_of(&[BF16, F32])?,
    }
    let dtype = args.wanted_dtype(a.dtype());
    let may_widen = b.dtype() == F32 && dtype == F32;
    let wanted = WantedDType::With("the type of a, or f32 where b is f32");
    args.result_dtype(dtype, wanted, dtype == a.dtype() || may_widen)?;
    a.unit_stride()?;
    b.shape(b.ne().repeats_into(a.ne()), format!("must repeat into {}, the shape of a", a.ne()))?;
    args.fresh(dtype, a.ne())
}

fn infer_binary(args: &Args<'_>) -> Result<Outcome, OpError> {
    let [a, b] = args.sources();
    infer_plain(args, &a, &b)
}

impl Operation for Add {
    const INFO: OpInfo = binary_info("ADD");

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [a, b] = args.sources();
        if !a.dtype().is_quantized() {
            let outcome = infer_plain(args, &a, &b)?;
            if outcome.layout().dtype() != a.dtype() {
                b.extent(0, a.ne()[0], "only whole rows repeat into another type")?;
            }
            return Ok(outcome);
        }
        a.decodes()?;
        b.f32()?;
        let dtype = args.wanted_dtype(a.dtype());
        let wanted = WantedDType::With("a type a graph can write");
        args.result_dtype(dtype, wanted, dtype.encodes_at_run_time())?;
        b.contiguous_rows()?;
        b.same_shape(&a)?;
        args.fresh(dtype, a.ne())
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Operation for Sub {
    const INFO: OpInfo = binary_info("SUB");

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        infer_binary(args)
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Operation for Mul {
    const INFO: OpInfo = binary_info("MUL");

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        infer_binary(args)
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Operation for Div {
    const INFO: OpInfo = binary_info("DIV");

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        infer_binary(args)
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Operation for AddId {
    const INFO: OpInfo =
        OpInfo::new("ADD_ID", Category::Language, &[need("a"), need("b"), need("ids")]).reuses(&[0]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [a, b, ids] = args.sources();
        a.f32()?;
        b.f32()?;
        ids.i32()?;
        a.flat_from(3)?;
        b.flat_from(2)?;
        a.contiguous_rows()?;
        b.contiguous_rows()?;
        b.extent(0, a.ne()[0], "the row length of a")?;
        ids.shape_is([a.ne()[1], a.ne()[2]], "one id per row of a")?;
        args.fresh(DType::F32, a.ne())
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Operation for Add1 {
    const INFO: OpInfo =
        OpInfo::new("ADD1", Category::Training, &[need("a"), need("b")]).in_place().reuses(&[0]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        use DType::{BF16, F16, F32};
        let [a, b] = args.sources();
        match a.dtype() {
            F16 => b.one_of(&[F32, F16])?,
            BF16 => b.one_of(&[F32, BF16])?,
            dtype if dtype.decodes() && dtype.encodes_at_run_time() => b.f32()?,
            _ => {
                return Err(
                    a.bad_dtype(WantedDType::With("a type that expands to f32 and that a graph can write"))
                );
            }
        }
        b.shape_is(1, "one number")?;
        a.stride_rule(a.layout().is_padded_1d(), "rows must be contiguous and lie at one common distance")?;
        args.fresh(a.dtype(), a.ne())
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Graph {
    /// `a + b`, `b` repeated to the extents of `a`.
    pub fn add(&mut self, a: TensorId, b: TensorId) -> Result<TensorId, Error> {
        self.apply(Add, &[Some(a), Some(b)])
    }

    /// `a + b` in a type of its own: `f32` where `a` has 16 bits, any type a graph can write where `a` is quantized.
    /// Only whole rows of `b` repeat into another type.
    pub fn add_cast(&mut self, a: TensorId, b: TensorId, dtype: DType) -> Result<TensorId, Error> {
        self.apply_as(Add, &[Some(a), Some(b)], dtype)
    }

    /// `a - b`, `b` repeated to the extents of `a`.
    pub fn sub(&mut self, a: TensorId, b: TensorId) -> Result<TensorId, Error> {
        self.apply(Sub, &[Some(a), Some(b)])
    }

    /// `a * b`, elementwise, `b` repeated to the extents of `a`.
    pub fn mul(&mut self, a: TensorId, b: TensorId) -> Result<TensorId, Error> {
        self.apply(Mul, &[Some(a), Some(b)])
    }

    /// `a / b`, `b` repeated to the extents of `a`.
    pub fn div(&mut self, a: TensorId, b: TensorId) -> Result<TensorId, Error> {
        self.apply(Div, &[Some(a), Some(b)])
    }

    /// `a` plus the rows of `b` chosen by `ids`.
    pub fn add_id(&mut self, a: TensorId, b: TensorId, ids: TensorId) -> Result<TensorId, Error> {
        self.apply(AddId, &[Some(a), Some(b), Some(ids)])
    }

    /// `a` plus the number `b`.
    pub fn add1(&mut self, a: TensorId, b: TensorId) -> Result<TensorId, Error> {
        self.apply(Add1, &[Some(a), Some(b)])
    }
}
