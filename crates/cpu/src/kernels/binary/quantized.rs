//! Sums with a quantized tensor: blocks are expanded, added to, and packed again, maybe as another type.

use oxcart_tensor::quant::{dequantize_row, encode_row_at_run_time};
use oxcart_tensor::{DType, Op, TensorRef};

use crate::job::{Fault, Job, Kernel};

/// Elements expanded at a time: a whole number of blocks of every type.
const SEGMENT: usize = 256;

/// Bytes of a segment of the largest type.
const SEGMENT_BYTES: usize = SEGMENT * size_of::<f32>();

/// The kernel for a sum with a quantized first source.
pub(super) fn choose(node: TensorRef<'_>) -> Option<Kernel> {
    let known = matches!(node.op(), Op::Add(_) | Op::Add1(_))
        && node.source(1)?.dtype() == DType::F32
        && node.dtype().encodes_at_run_time();
    // Packing takes tens of instructions per element.
    known.then(|| Kernel::rows(add, node.layout(), 8 * node.layout().elements()))
}

fn add(job: Job<'_>) -> Result<(), Fault> {
    let (a, b) = (job.src(0), job.src(1));
    let one_number = matches!(job.op, Op::Add1(_)).then(|| b.get::<f32>([0; 4]));
    let (from, to, len) = (a.dtype(), job.dst.dtype(), job.dst.ne()[0]);
    let (mut packed, mut values) = ([0; SEGMENT_BYTES], [0.0; SEGMENT]);
    let mut added = [one_number.unwrap_or(0.0); SEGMENT];
    let stop = job.stop;
    for (at, mut y) in job.dst.rows::<u8>(job.share) {
        let a = a.row::<u8>(at);
        for start in (0..len).step_by(SEGMENT) {
            let len = SEGMENT.min(len - start);
            if stop.after(len) {
                return Ok(());
            }
            let (values, added) = (&mut values[..len], &mut added[..len]);
            let bytes = &mut packed[..bytes_of(from, len)];
            a.read(bytes_of(from, start), bytes);
            dequantize_row(from, bytes, values)?;
            if one_number.is_none() {
                b.row::<f32>(at).read(start, added);
            }
            values.iter_mut().zip(&*added).for_each(|(x, b)| *x += b);
            let bytes = &mut packed[..bytes_of(to, len)];
            encode_row_at_run_time(to, values, bytes)?;
            y.write(bytes_of(to, start), bytes);
        }
    }
    Ok(())
}

/// Bytes of the first `len` elements of a row, which end at a block's end.
fn bytes_of(dtype: DType, len: usize) -> usize {
    len / dtype.block_len() * dtype.block_bytes()
}
