//! Whether a result is good enough, by the tolerance that was recorded with the case.

use oxcart_tensor::quant::dequantize_row;
use oxcart_tensor::{DType, Layout};
use serde_json::Value;

use crate::json::{float, number, text};
use crate::{Case, Recorded};

/// What is wrong with a result; `Ok` if nothing is.
pub type Verdict = Result<(), String>;

impl Case {
    /// Compares what [`run`](Case::run) gave with what was recorded.
    pub fn judge(&self, found: &[u8]) -> Verdict {
        let written =
            self.sources.iter().flatten().filter_map(|source| Some((source, source.after.clone()?)));
        let expected: Vec<_> = std::iter::once((&self.result, self.storage(&self.result)))
            .chain(written.map(|(source, after)| (source, &self.blob[after])))
            .collect();
        let len: usize = expected.iter().map(|(_, bytes)| bytes.len()).sum();
        if found.len() != len {
            return Err(format!("{} bytes instead of {len}", found.len()));
        }
        let mut rest = found;
        for (tensor, expected) in expected {
            let (found, others) = rest.split_at(expected.len());
            self.judge_tensor(tensor, found, expected)?;
            rest = others;
        }
        Ok(())
    }

    fn judge_tensor(&self, tensor: &Recorded, found: &[u8], expected: &[u8]) -> Verdict {
        let tolerance = &self.index["tolerance"];
        let kind = text(&tolerance["kind"]);
        if kind == "exact" {
            return same_bytes(found, expected);
        }
        if self.aliased.is_some() || self.reused.is_some() {
            same_outside(tensor, found, expected)?;
        }
        let values = |bytes: &[u8]| elements(tensor, bytes);
        let (x, r) = (values(found), values(expected));
        match kind {
            "elementwise" => elementwise(&x, &r, float(&tolerance["atol"]), float(&tolerance["rtol"])),
            "nmse" => self.nmse(&x, &r, float(&tolerance["max"])),
            "quantized" => self.quantized(found, expected, &x, &r, tolerance),
            "set_per_row" => set_per_row(&x, &r, self.result.layout.ne()[0]),
            other => panic!("no tolerance is called {other}"),
        }
    }

    /// Near the reference, or at least as near the exact answer as the reference is (twice its error allowed).
    fn nmse(&self, x: &[f64], r: &[f64], max: f64) -> Verdict {
        let blunt = below("normalized error", nmse(x, r)?, max);
        let Some(exact) = self.index.get("exact") else { return blunt };
        let start = number(&exact["offset"]);
        let bytes = &self.blob[start..start + number(&exact["size"])];
        let exact_values: Vec<_> =
            bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect();
        let sharp = nmse(x, &exact_values)?;
        let limit = (2.0 * float(&exact["reference_nmse"])).max(1e-9);
        below("normalized error against the exact answer", sharp, limit).and(blunt)
    }

    fn quantized(&self, found: &[u8], expected: &[u8], x: &[f64], r: &[f64], tolerance: &Value) -> Verdict {
        if let Some(source) = tolerance.get("source_nmse") {
            // As good as the reference's own rounding is good enough.
            let original: Vec<_> =
                self.sources[0].as_ref().map_or(Vec::new(), |s| elements(s, self.storage(s)));
            if original.len() == x.len() && nmse(x, &original)? <= 1.02 * float(source) {
                return Ok(());
            }
        }
        let bytes = self.result.layout.dtype().block_bytes();
        let blocks = found.chunks(bytes).zip(expected.chunks(bytes));
        let differ = blocks.clone().filter(|(a, b)| a != b).count() as f64 / blocks.len() as f64;
        below("share of blocks that differ", differ, float(&tolerance["max_block_mismatch"]))?;
        below("normalized error", nmse(x, r)?, float(&tolerance["nmse"]))
    }
}

fn below(what: &str, value: f64, limit: f64) -> Verdict {
    if value <= limit { Ok(()) } else { Err(format!("{what} is {value:.3e}, more than {limit:.3e}")) }
}

fn same_bytes(found: &[u8], expected: &[u8]) -> Verdict {
    match found.iter().zip(expected).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => {
            let wrong = found.iter().zip(expected).filter(|(a, b)| a != b).count();
            Err(format!("{wrong} of {} bytes differ, the first at {at}", found.len()))
        }
    }
}

/// Byte offsets of all blocks of a tensor within its storage, in logical order.
fn block_offsets(tensor: &Recorded) -> impl Iterator<Item = usize> + use<> {
    let layout: Layout = tensor.layout;
    let ([n0, n1, n2, n3], nb) = (layout.ne().extents(), layout.nb());
    let (blocks, start) = (n0 / layout.dtype().block_len(), tensor.view_offset);
    (0..blocks * n1 * n2 * n3).map(move |i| {
        let (i0, i) = (i % blocks, i / blocks);
        let (i1, i) = (i % n1, i / n1);
        start + i0 * nb[0] + i1 * nb[1] + i % n2 * nb[2] + i / n2 * nb[3]
    })
}

/// Bytes around a result that shares memory must not have changed.
fn same_outside(tensor: &Recorded, found: &[u8], expected: &[u8]) -> Verdict {
    let mut inside = vec![false; found.len()];
    let size = tensor.layout.dtype().block_bytes();
    for offset in block_offsets(tensor) {
        inside[offset..offset + size].fill(true);
    }
    match (0..found.len()).find(|&at| !inside[at] && found[at] != expected[at]) {
        None => Ok(()),
        Some(at) => Err(format!("byte {at}, outside the result, was written")),
    }
}

/// All elements in logical order.
fn elements(tensor: &Recorded, storage: &[u8]) -> Vec<f64> {
    let dtype = tensor.layout.dtype();
    let mut block = vec![0.0; dtype.block_len()];
    let mut out = Vec::with_capacity(tensor.layout.elements());
    for offset in block_offsets(tensor) {
        let raw = &storage[offset..offset + dtype.block_bytes()];
        match (dtype, raw) {
            (DType::I32, &[a, b, c, d]) => out.push(f64::from(i32::from_le_bytes([a, b, c, d]))),
            (DType::I64, &[a, b, c, d, e, f, g, h]) => {
                out.push(i64::from_le_bytes([a, b, c, d, e, f, g, h]) as f64)
            }
            _ => {
                dequantize_row(dtype, raw, &mut block).unwrap_or_else(|error| panic!("{dtype}: {error}"));
                out.extend(block.iter().map(|&x| f64::from(x)));
            }
        }
    }
    out
}

fn elementwise(x: &[f64], r: &[f64], atol: f64, rtol: f64) -> Verdict {
    let good = |x: f64, r: f64| x == r || x.is_nan() && r.is_nan() || (x - r).abs() <= atol + rtol * r.abs();
    match x.iter().zip(r).position(|(&x, &r)| !good(x, r)) {
        None => Ok(()),
        Some(i) => Err(format!("element {i} is {} instead of {}", x[i], r[i])),
    }
}

/// Squared error relative to the squared reference, over what is finite there; the rest must coincide.
fn nmse(x: &[f64], r: &[f64]) -> Result<f64, String> {
    if x.len() != r.len() {
        return Err(format!("{} elements instead of {}", x.len(), r.len()));
    }
    let (mut error, mut size) = (0.0, 0.0);
    for (i, (&x, &r)) in x.iter().zip(r).enumerate() {
        if r.is_finite() {
            error += (x - r) * (x - r);
            size += r * r;
        } else if x != r && !(x.is_nan() && r.is_nan()) {
            return Err(format!("element {i} is {x} instead of {r}"));
        }
    }
    if error == 0.0 { Ok(0.0) } else { Ok(error / size) }
}

fn set_per_row(x: &[f64], r: &[f64], len: usize) -> Verdict {
    let sorted = |row: &[f64]| {
        let mut row = row.to_vec();
        row.sort_by(f64::total_cmp);
        row
    };
    match x.chunks(len).zip(r.chunks(len)).position(|(x, r)| sorted(x) != sorted(r)) {
        None => Ok(()),
        Some(row) => Err(format!("row {row} has other members")),
    }
}
