//! Orders of rows.

use super::work::{LONG_ROW, rounds, sum, times};
use super::{Args, Category, OpError, OpInfo, Operand, Operation, Outcome, Sizes, need};
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, TensorId};

/// Which way to sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortOrder {
    /// Smallest first.
    Ascending,
    /// Largest first.
    Descending,
}

/// The permutation that sorts each row; order among equals is unspecified.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Argsort {
    /// Which way.
    pub order: SortOrder,
}

/// The indices of the `k` largest values of each row, in no particular order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopK {
    /// How many.
    pub k: usize,
}

fn check_sortable(a: &Operand) -> Result<(), OpError> {
    a.f32()?;
    a.contiguous_apart_from_rows()?;
    a.shape(i32::try_from(a.ne()[0]).is_ok(), "rows must have less than 2^31 elements")
}

impl Operation for Argsort {
    const INFO: OpInfo = OpInfo::new("ARGSORT", Category::Language, &[need("a")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        check_sortable(&a)?;
        args.fresh(DType::I32, a.ne())
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        times([sizes.source(0), 2 + rounds(sizes.ne(0)[0])])
    }
}

impl Operation for TopK {
    const INFO: OpInfo = OpInfo::new("TOP_K", Category::Language, &[need("a")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        check_sortable(&a)?;
        args.param("k", self.k, self.k <= a.ne()[0], "must not exceed the row length")?;
        args.fresh(DType::I32, a.ne().with(0, self.k))
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        let (row, k) = (sizes.ne(0)[0], self.k as u64);
        if k < row / 2 && row < LONG_ROW {
            times([sizes.rows(0), sum([times([3, row]), times([k, 1 + rounds(k)])])])
        } else {
            times([sizes.source(0), 2 + rounds(row)])
        }
    }
}

impl Graph {
    /// The permutation that sorts each row of `a`.
    pub fn argsort(&mut self, a: TensorId, order: SortOrder) -> Result<TensorId, Error> {
        self.apply(Argsort { order }, &[Some(a)])
    }

    /// The indices of the `k` largest values of each row of `a`, in no particular order.
    pub fn top_k(&mut self, a: TensorId, k: usize) -> Result<TensorId, Error> {
        self.apply(TopK { k }, &[Some(a)])
    }
}
