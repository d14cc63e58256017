//! Rows picked and placed by number.
//!
//! Row numbers live in tensor data, so kernels check them; everything else is checked here.

use super::work::{sum, times};
use super::{Args, Category, OpError, OpInfo, Operation, Outcome, Sizes, WantedDType, need};
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, TensorId};

/// Gathers rows, expanded to `f32`: `y[:, j, k, l] = a[:, rows[j, k, l], k, l]`. Rows of `i32` stay `i32`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GetRows;

/// Adds gradient rows into a zeroed matrix: `y[:, rows[r]] += a[:, r]`. Gradient rows after the last number are not used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GetRowsBack {
    /// Rows of the result.
    pub rows: usize,
}

/// Writes rows, converted, into the target: `target[:, rows[j, …], k, l] = values[:, j, k, l]`. The result is the
/// target; rows that are not named keep their contents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SetRows;

impl Operation for GetRows {
    const INFO: OpInfo = OpInfo::new("GET_ROWS", Category::Language, &[need("table"), need("rows")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [table, rows] = args.sources();
        if table.dtype() != DType::I32 && !table.dtype().decodes() {
            return Err(table.bad_dtype(WantedDType::With("i32 or a type that expands to f32")));
        }
        rows.i32()?;
        table.contiguous_rows()?;
        rows.extent(1, table.ne()[2], "dimension 2 of table")?;
        rows.extent(2, table.ne()[3], "dimension 3 of table")?;
        rows.flat_from(3)?;
        let dtype = if table.dtype() == DType::I32 { DType::I32 } else { DType::F32 };
        let [count, planes, volumes, _] = rows.extents();
        args.fresh(dtype, [table.ne()[0], count, planes, volumes])
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Operation for GetRowsBack {
    const INFO: OpInfo = OpInfo::new("GET_ROWS_BACK", Category::Training, &[need("gradient"), need("rows")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [gradient, rows] = args.sources();
        gradient.one_of(&[DType::F32, DType::F16])?;
        rows.i32()?;
        gradient.flat_from(2)?;
        gradient.contiguous_rows()?;
        rows.flat_from(1)?;
        rows.shape(rows.ne()[0] <= gradient.ne()[1], "at most one row number per gradient row")?;
        rows.contiguous()?;
        args.fresh(DType::F32, [gradient.ne()[0], self.rows])
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sum([sizes.result(), times([sizes.source(1), sizes.ne(0)[0]])])
    }
}

impl Operation for SetRows {
    const INFO: OpInfo =
        OpInfo::new("SET_ROWS", Category::Language, &[need("values"), need("rows"), need("target")])
            .result_in(2);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [values, rows, target] = args.sources();
        values.one_of(&[DType::F32, DType::F16])?;
        rows.one_of(&[DType::I64, DType::I32])?;
        if !target.dtype().encodes_at_run_time() {
            return Err(target.bad_dtype(WantedDType::With("a type a graph can write")));
        }
        values.contiguous_rows()?;
        target.contiguous_rows()?;
        target.extent(0, values.ne()[0], "the row length of values")?;
        target.extent(2, values.ne()[2], "dimension 2 of values")?;
        target.extent(3, values.ne()[3], "dimension 3 of values")?;
        rows.extent(0, values.ne()[1], "one row number per row of values")?;
        rows.divides(1, values.ne()[2], "dimension 2 of values")?;
        rows.divides(2, values.ne()[3], "dimension 3 of values")?;
        rows.flat_from(3)?;
        Ok(Outcome::changed(&Self::INFO, &target))
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sum([sizes.source(0), sizes.rows(0)])
    }
}

impl Graph {
    /// Rows of `table` picked by number, expanded to `f32`.
    pub fn get_rows(&mut self, table: TensorId, rows: TensorId) -> Result<TensorId, Error> {
        self.apply(GetRows, &[Some(table), Some(rows)])
    }

    /// Gradient of [`get_rows`](Graph::get_rows): gradient rows added into a zeroed matrix of `count` rows.
    pub fn get_rows_back(
        &mut self,
        gradient: TensorId,
        rows: TensorId,
        count: usize,
    ) -> Result<TensorId, Error> {
        self.apply(GetRowsBack { rows: count }, &[Some(gradient), Some(rows)])
    }

    /// Writes `values` into the rows of `target` that `rows` names; returns the target as a node that happens after.
    pub fn set_rows(
        &mut self,
        target: TensorId,
        values: TensorId,
        rows: TensorId,
    ) -> Result<TensorId, Error> {
        self.apply(SetRows, &[Some(values), Some(rows), Some(target)])
    }
}
