//! Matrix products.

use super::work::{sum, times};
use super::{Args, Category, OpError, OpInfo, Operand, Operation, Outcome, Sizes, WantedDType, need};
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, TensorId};

/// How precisely a device must work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// As the device likes.
    #[default]
    Any,
    /// `f32`.
    F32,
    /// `bf16`.
    Bf16,
    /// `f16`.
    F16,
    /// 8-bit blocks.
    Q8,
    /// 4-bit blocks.
    Q4,
}

/// What is known about the weights of a product beyond their values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hint {
    /// Nothing.
    #[default]
    None,
    /// They are a Hadamard matrix scaled to keep lengths, so a fast transform gives the product.
    Hadamard,
}

/// `y[i, j, p, q] = Σ_k a[k, i, p / r2, q / r3] * b[k, j, p, q]`: every row of `b` against every row of `a`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MulMat {
    /// Precision of sums.
    pub accumulate: Precision,
    /// What is known about `a`.
    pub hint: Hint,
    /// Least precision when converting `a`.
    pub weights: Precision,
    /// Least precision when converting `b`.
    pub activations: Precision,
}

/// As [`MulMat`], with the matrix chosen per row: `y[:, s, t] = a[:, :, ids[s, t]]ᵀ · b[:, s mod u, t]`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MulMatId {
    /// Precision of sums.
    pub accumulate: Precision,
    /// Least precision when converting `a`.
    pub weights: Precision,
    /// Least precision when converting `b`.
    pub activations: Precision,
}

/// Outer products summed: `y[i, j, p, q] = Σ_k a[i, k, p / r2, q / r3] * b[j, k, p, q]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OutProd;

/// The activation types that go with weights of a type; `widened` goes with `f32` weights too.
fn check_activations(a: &Operand, b: &Operand, widened: Option<DType>) -> Result<(), OpError> {
    let Some(partner) = a.dtype().dot_partner() else {
        return Err(a.bad_dtype(WantedDType::With("a type that can be a weight")));
    };
    let widens = a.dtype() == DType::F32 && Some(b.dtype()) == widened;
    if b.dtype() == DType::F32 || b.dtype() == partner || widens {
        return Ok(());
    }
    Err(b.bad_dtype(WantedDType::With("f32 or the activation type of the weights")))
}

impl Operation for MulMat {
    const INFO: OpInfo = OpInfo::new("MUL_MAT", Category::Language, &[need("a"), need("b")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [a, b] = args.sources();
        match self.hint {
            Hint::None => check_activations(&a, &b, Some(DType::BF16))?,
            Hint::Hadamard => {
                b.one_of(&[DType::F32, DType::F16])?;
                check_activations(&a, &b, Some(DType::F16))?;
                a.extent(1, a.ne()[0], "a Hadamard matrix is square")?;
                b.shape(b.ne()[0].is_power_of_two(), "rows must have a power of two elements")?;
            }
        }
        b.extent(0, a.ne()[0], "the row length of a")?;
        a.divides(2, b.ne()[2], "dimension 2 of b")?;
        a.divides(3, b.ne()[3], "dimension 3 of b")?;
        a.unit_stride()?;
        b.unit_stride()?;
        a.not_transposed()?;
        args.fresh(DType::F32, [a.ne()[1], b.ne()[1], b.ne()[2], b.ne()[3]])
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        let rounds = match self.hint {
            Hint::Hadamard => u64::from(sizes.ne(0)[0].max(1).ilog2()),
            Hint::None => sizes.ne(0)[0],
        };
        sum([times([sizes.result(), rounds]), sizes.source(1)])
    }
}

impl Operation for MulMatId {
    const INFO: OpInfo = OpInfo::new("MUL_MAT_ID", Category::Language, &[need("a"), need("b"), need("ids")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [a, b, ids] = args.sources();
        check_activations(&a, &b, None)?;
        ids.i32()?;
        a.flat_from(3)?;
        b.flat_from(3)?;
        ids.flat_from(2)?;
        b.extent(0, a.ne()[0], "the row length of a")?;
        ids.extent(1, b.ne()[2], "one column of ids per token of b")?;
        b.divides(1, ids.ne()[0], "ids per token")?;
        a.unit_stride()?;
        b.unit_stride()?;
        a.not_transposed()?;
        args.fresh(DType::F32, [a.ne()[1], ids.ne()[0], b.ne()[2]])
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        let [k, rows, matrices, _] = sizes.ne(0);
        let columns = sizes.source(2);
        sum([times([columns, k, sum([rows, 1])]), times([2, sum([columns, matrices])])])
    }
}

impl Operation for OutProd {
    const INFO: OpInfo = OpInfo::new("OUT_PROD", Category::Training, &[need("a"), need("b")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [a, b] = args.sources();
        b.f32()?;
        let expands = a.dtype().is_quantized() && a.dtype().decodes();
        if !(matches!(a.dtype(), DType::F32 | DType::F16) || expands) {
            return Err(a.bad_dtype(WantedDType::With("f32, f16 or a quantized type that expands to f32")));
        }
        b.extent(1, a.ne()[1], "the number of summed products")?;
        for dim in [2, 3] {
            if a.dtype() == DType::F32 {
                a.divides(dim, b.ne()[dim], "as in b")?;
            } else {
                a.extent(dim, b.ne()[dim], "as in b; only f32 repeats")?;
            }
        }
        a.unit_stride()?;
        a.not_transposed()?;
        args.fresh(DType::F32, [a.ne()[0], b.ne()[0], b.ne()[2], b.ne()[3]])
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        times([sizes.result(), sizes.ne(0)[1]])
    }
}

impl Graph {
    /// Every row of `b` against every row of `a`.
    pub fn mul_mat(&mut self, a: TensorId, b: TensorId) -> Result<TensorId, Error> {
        self.apply(MulMat::default(), &[Some(a), Some(b)])
    }

    /// Rows of `b` against the matrices of `a` that `ids` chooses.
    pub fn mul_mat_id(&mut self, a: TensorId, b: TensorId, ids: TensorId) -> Result<TensorId, Error> {
        self.apply(MulMatId::default(), &[Some(a), Some(b), Some(ids)])
    }

    /// Outer products of the rows of `a` and `b`, summed.
    pub fn out_prod(&mut self, a: TensorId, b: TensorId) -> Result<TensorId, Error> {
        self.apply(OutProd, &[Some(a), Some(b)])
    }
}
