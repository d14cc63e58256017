//! Copies: duplicate, make contiguous, convert, copy into another tensor.

use super::{Args, Category, OpError, OpInfo, Operand, Operation, Outcome, Sizes, WantedDType, need};
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, TensorId};
use crate::layout::Layout;
use crate::shape::Shape;

/// A packed copy with the same type and extents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dup;

/// A packed copy in logical order, under any extents with the same number of elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cont {
    /// The extents of the copy.
    pub ne: Shape,
}

/// Element `n` of the source, in logical order, into element `n` of the target, converted; the result is the target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cpy;

/// A packed copy in another type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cast {
    /// The type of the copy.
    pub dtype: DType,
}

impl Operation for Dup {
    const INFO: OpInfo = OpInfo::new("DUP", Category::Language, &[need("a")]).in_place();

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        args.fresh(a.dtype(), a.ne())
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Operation for Cont {
    const INFO: OpInfo = OpInfo::new("CONT", Category::Language, &[need("a")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        let outcome = args.fresh(a.dtype(), self.ne)?;
        let holds = outcome.layout().elements() == a.layout().elements();
        args.param("ne", self.ne, holds, format!("must have the number of elements of {}", a.ne()))?;
        Ok(outcome)
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

/// Which conversions exist, and what they ask of the two layouts.
fn check_conversion(source: &Operand, target: Layout) -> Result<(), OpError> {
    use DType::{BF16, F16, F32, I32};
    let (from, to) = (source.dtype(), target.dtype());
    let is_real = |dtype| matches!(dtype, F32 | F16 | BF16);
    let target_rule = |holds: bool, rule| source.with("target", target).stride_rule(holds, rule);
    if from == to || (is_real(from) && is_real(to)) || matches!((from, to), (F32, I32) | (I32, F32)) {
        return Ok(());
    }
    if is_real(from) && to.is_quantized() && to.encodes_at_run_time() {
        source.contiguous_rows()?;
        let whole = source.ne()[0].is_multiple_of(to.block_len());
        source.shape(whole, format!("rows must be whole {to} blocks of {}", to.block_len()))?;
        return target_rule(target.is_contiguous(), "a quantized target must be contiguous");
    }
    if from.is_quantized() && from.decodes() && to == F32 {
        target_rule(target.has_contiguous_rows(), "rows must be contiguous")?;
        let whole = target.ne()[0].is_multiple_of(from.block_len()) || target.is_contiguous();
        return target_rule(whole, "rows must be whole blocks of the source, or the target contiguous");
    }
    Err(source.bad_dtype(WantedDType::With(wanted_source(to))))
}

fn wanted_source(to: DType) -> &'static str {
    match to {
        DType::F32 => "f32, f16, bf16, i32 or a type that expands to f32",
        DType::F16 | DType::BF16 => "f32, f16 or bf16",
        DType::I32 => "f32 or i32",
        to if to.is_quantized() && to.encodes_at_run_time() => "f32, f16, bf16 or the type of the target",
        _ => "the type of the target, which cannot be made from others",
    }
}

impl Operation for Cpy {
    const INFO: OpInfo =
        OpInfo::new("CPY", Category::Language, &[need("source"), need("target")]).result_in(1);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [source, target] = args.sources();
        let (from, to) = (source.layout().elements(), target.layout().elements());
        target.shape(from == to, format!("must have the {from} elements of the source"))?;
        check_conversion(&source, target.layout())?;
        Ok(Outcome::changed(&Self::INFO, &target))
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Operation for Cast {
    // On the wire a cast is a CPY that names itself as its own target.
    const INFO: OpInfo = OpInfo::new("CAST", Category::Language, &[need("source")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let source = args.source(0);
        let outcome = args.fresh(self.dtype, source.ne())?;
        check_conversion(&source, outcome.layout())?;
        Ok(outcome)
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Graph {
    /// A packed copy of `a`.
    pub fn dup(&mut self, a: TensorId) -> Result<TensorId, Error> {
        self.apply(Dup, &[Some(a)])
    }

    /// A packed copy of `a` with the same extents.
    pub fn cont(&mut self, a: TensorId) -> Result<TensorId, Error> {
        let ne = self.tensor(a)?.ne();
        self.apply(Cont { ne }, &[Some(a)])
    }

    /// A packed copy of `a` under the extents `ne`.
    pub fn cont_as(&mut self, a: TensorId, ne: impl Into<Shape>) -> Result<TensorId, Error> {
        self.apply(Cont { ne: ne.into() }, &[Some(a)])
    }

    /// Copies `source` into `target`, converting, and returns the target as a node that happens after the copy.
    pub fn cpy(&mut self, source: TensorId, target: TensorId) -> Result<TensorId, Error> {
        self.apply(Cpy, &[Some(source), Some(target)])
    }

    /// A packed copy of `a` in another type.
    pub fn cast(&mut self, a: TensorId, dtype: DType) -> Result<TensorId, Error> {
        self.apply(Cast { dtype }, &[Some(a)])
    }
}
