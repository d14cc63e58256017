//! A tensor with contents, for tests: any type, any layout, made from numbers and looked at as numbers.

use std::borrow::Borrow;

use half::{bf16, f16};
use oxcart_tensor::quant::{dequantize_row, encode_row_at_run_time, quantize_row};
use oxcart_tensor::{DType, Layout, Shape};

use super::noise;
use crate::view::{Plain, raw_bytes};

/// What results are before they are computed; no kernel computes it.
pub(super) const UNTOUCHED: u8 = 0xA5;

/// A layout and the bytes it lies in, gaps included, perhaps with more behind.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tensor {
    pub(crate) layout: Layout,
    pub(crate) bytes: Vec<u8>,
    pub(super) is_param: bool,
}

impl Tensor {
    /// Any layout over any bytes.
    pub(crate) fn new(layout: Layout, bytes: Vec<u8>) -> Tensor {
        assert!(bytes.len() >= layout.byte_len());
        Tensor { layout, bytes, is_param: false }
    }

    /// Numbers in logical order, rounded to the type; as many as it takes.
    pub(crate) fn with_layout(layout: Layout, values: impl IntoIterator<Item: Borrow<f32>>) -> Tensor {
        let (dtype, row) = (layout.dtype(), layout.ne()[0]);
        let mut tensor = Tensor::new(layout, vec![0; layout.byte_len()]);
        let mut values = values.into_iter().map(|x| *x.borrow());
        let places: Vec<_> = tensor.places().collect();
        let unit = dtype.block_bytes();
        for places in places.chunks((row / dtype.block_len()).max(1)) {
            let values: Vec<_> = values.by_ref().take(row).collect();
            assert_eq!(values.len(), row, "too few numbers");
            for (&place, stored) in places.iter().zip(stored(dtype, &values).chunks(unit)) {
                tensor.bytes[place..place + unit].copy_from_slice(stored);
            }
        }
        tensor
    }

    /// Packed numbers, rounded to the type.
    pub(crate) fn of(
        dtype: DType,
        ne: impl Into<Shape>,
        values: impl IntoIterator<Item: Borrow<f32>>,
    ) -> Tensor {
        Tensor::with_layout(Layout::packed(dtype, ne).unwrap(), values)
    }

    pub(crate) fn f32(ne: impl Into<Shape>, values: impl IntoIterator<Item: Borrow<f32>>) -> Tensor {
        Tensor::of(DType::F32, ne, values)
    }

    /// Packed elements as they are.
    pub(crate) fn packed<T: Plain>(dtype: DType, ne: impl Into<Shape>, elements: &[T]) -> Tensor {
        let layout = Layout::packed(dtype, ne).unwrap();
        assert_eq!(layout.byte_len(), size_of_val(elements));
        Tensor::new(layout, raw_bytes(elements).to_vec())
    }

    pub(crate) fn i32(ne: impl Into<Shape>, values: &[i32]) -> Tensor {
        Tensor::packed(DType::I32, ne, values)
    }

    /// Packed noise.
    pub(crate) fn noise(dtype: DType, ne: impl Into<Shape>, seed: u64) -> Tensor {
        Tensor::of(dtype, ne, noise(seed))
    }

    /// Packed noise with dimension `axes[0]` fastest in memory, then `axes[1]`, and so on.
    pub(crate) fn permuted(dtype: DType, ne: [usize; 4], axes: [usize; 4], seed: u64) -> Tensor {
        let stored = axes.map(|axis| ne[axis]);
        let layout = Layout::packed(dtype, stored).unwrap().permuted(axes).unwrap();
        assert_eq!(layout.ne().extents(), ne);
        Tensor::with_layout(layout, noise(seed))
    }

    /// Any layout and type, gaps filled too: multiples of 1/16 from -8 to 8 for floats, any bytes for others.
    pub(crate) fn pattern(layout: Layout) -> Tensor {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as u8
        };
        let mut bytes = vec![0; layout.byte_len()];
        match layout.dtype() {
            dtype @ (DType::F32 | DType::F16 | DType::BF16) => {
                for unit in bytes.chunks_exact_mut(dtype.block_bytes()) {
                    unit.copy_from_slice(&stored(dtype, &[f32::from(next()) / 16.0 - 8.0]));
                }
            }
            _ => bytes.fill_with(next),
        }
        Tensor::new(layout, bytes)
    }

    /// The same bytes under another layout.
    pub(crate) fn seen_as(self, layout: Layout) -> Tensor {
        Tensor::new(layout, self.bytes)
    }

    /// The same bytes at other strides.
    pub(crate) fn strided(self, ne: impl Into<Shape>, nb: [usize; 4]) -> Tensor {
        let layout = Layout::strided(self.dtype(), ne, nb).unwrap();
        self.seen_as(layout)
    }

    /// A parameter that training changes.
    pub(crate) fn param(self) -> Tensor {
        Tensor { is_param: true, ..self }
    }

    pub(crate) fn dtype(&self) -> DType {
        self.layout.dtype()
    }

    pub(crate) fn ne(&self) -> [usize; 4] {
        self.layout.ne().extents()
    }

    /// Where unit `n` (a plain element, or a block) starts, in logical order.
    fn place(&self, n: usize) -> usize {
        let [ne0, ne1, ne2, _] = self.ne();
        let blocks = ne0 / self.dtype().block_len();
        let at = [n % blocks, n / blocks % ne1, n / blocks / ne1 % ne2, n / blocks / ne1 / ne2];
        offset(at, self.layout.nb())
    }

    /// Where its units start, in logical order.
    fn places(&self) -> impl Iterator<Item = usize> {
        (0..self.layout.elements() / self.dtype().block_len()).map(|n| self.place(n))
    }

    /// Its units, in logical order.
    pub(crate) fn units(&self) -> Vec<&[u8]> {
        self.places().map(|place| &self.bytes[place..place + self.dtype().block_bytes()]).collect()
    }

    /// Its units as what they are, in logical order.
    pub(crate) fn units_as<const N: usize, T>(&self, from_bytes: fn([u8; N]) -> T) -> Vec<T> {
        self.units().iter().map(|unit| from_bytes((*unit).try_into().unwrap())).collect()
    }

    /// One unit of plain elements.
    pub(crate) fn unit(&self, at: [usize; 4]) -> &[u8] {
        assert!(at.iter().zip(self.ne()).all(|(&i, n)| i < n), "{at:?} is outside");
        let place = offset(at, self.layout.nb());
        &self.bytes[place..place + self.dtype().block_bytes()]
    }

    /// All elements in logical order, exactly.
    pub(crate) fn values(&self) -> Vec<f32> {
        self.units().into_iter().flat_map(|unit| decode(self.dtype(), unit)).collect()
    }

    /// As [`values`](Tensor::values), in double precision.
    pub(crate) fn exact(&self) -> Vec<f64> {
        self.values().into_iter().map(f64::from).collect()
    }

    pub(crate) fn i32s(&self) -> Vec<i32> {
        self.units_as(i32::from_le_bytes)
    }

    /// One element.
    pub(crate) fn get(&self, at: [usize; 4]) -> f32 {
        let unit = self.unit(at);
        match self.dtype() {
            DType::F32 => f32::from_le_bytes(unit.try_into().unwrap()),
            DType::F16 => f16::from_le_bytes(unit.try_into().unwrap()).to_f32(),
            DType::BF16 => bf16::from_le_bytes(unit.try_into().unwrap()).to_f32(),
            other => panic!("no floats of type {other}"),
        }
    }

    /// One element in double precision.
    pub(crate) fn at(&self, at: [usize; 4]) -> f64 {
        f64::from(self.get(at))
    }

    /// Whether an element, in logical order, was never written.
    pub(crate) fn is_untouched(&self, i: usize) -> bool {
        let place = self.place(i);
        self.bytes[place..place + self.dtype().block_bytes()].iter().all(|&byte| byte == UNTOUCHED)
    }

    /// Whether bytes that belong to no unit are the same in both.
    pub(crate) fn has_gaps_of(&self, other: &Tensor) -> bool {
        let mut used = vec![false; self.bytes.len()];
        let unit = self.dtype().block_bytes();
        self.places().for_each(|place| used[place..place + unit].fill(true));
        (0..used.len()).all(|i| used[i] || self.bytes[i] == other.bytes[i])
    }

    /// Every element is what `exact` says, within `tolerance`.
    pub(crate) fn assert_near(&self, tolerance: f64, exact: impl Fn([usize; 4]) -> f64) {
        let [n0, n1, n2, n3] = self.ne();
        for i in 0..n0 * n1 * n2 * n3 {
            let at = [i % n0, i / n0 % n1, i / (n0 * n1) % n2, i / (n0 * n1 * n2)];
            let (found, exact) = (self.at(at), exact(at));
            assert!((found - exact).abs() <= tolerance, "{at:?} is {found} instead of {exact}");
        }
    }
}

fn offset(at: [usize; 4], nb: [usize; 4]) -> usize {
    at.iter().zip(nb).map(|(i, nb)| i * nb).sum()
}

/// Numbers as packed elements, blocks made as well as can be.
fn stored(dtype: DType, values: &[f32]) -> Vec<u8> {
    if dtype == DType::I32 {
        return encode(dtype, values);
    }
    let mut bytes = vec![0; dtype.row_bytes(values.len()).unwrap()];
    quantize_row(dtype, values, Some(&vec![1.0; values.len()]), &mut bytes).unwrap();
    bytes
}

/// Numbers as packed elements, as a running graph makes them.
pub(crate) fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; dtype.row_bytes(values.len()).unwrap()];
    encode_row_at_run_time(dtype, values, &mut bytes).unwrap();
    bytes
}

/// Packed elements as numbers.
pub(crate) fn decode(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    if dtype == DType::I32 {
        return bytes.as_chunks().0.iter().map(|&b| i32::from_le_bytes(b) as f32).collect();
    }
    let mut values = vec![0.0; bytes.len() / dtype.block_bytes() * dtype.block_len()];
    dequantize_row(dtype, bytes, &mut values).unwrap();
    values
}
