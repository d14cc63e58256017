//! Whole rows to and from `f32`: the one place that maps a [`DType`] to its block struct.
//!
//! Invariant: lengths are checked before the first byte is read or written, and values before the first is packed.

use half::{bf16, f16};
use zerocopy::little_endian::{F32, I32, U16};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::iq::{BlockIq1M, BlockIq1S, BlockIq2S, BlockIq2Xs, BlockIq2Xxs, BlockIq3S, BlockIq3Xxs};
use super::scan::mean_square;
use super::{
    Block, BlockIq4Nl, BlockIq4Xs, BlockMxfp4, BlockNvfp4, BlockQ1_0, BlockQ2_0, BlockQ2K, BlockQ3K,
    BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K, BlockQ6K, BlockQ8_0, BlockQ8_1, BlockQ8K,
    BlockTq1_0, BlockTq2_0, Encode, EncodeWeighted, Importance, QuantError, from_bf16, from_f16_slice,
    to_bf16, to_f16_slice,
};
use crate::dtype::DType;

/// Expands a row to `f32`, exactly.
///
/// Works for every type but the integers and `F64`. That includes the activation types `Q8_1` and `Q8_K`, which a
/// graph never expands: being able to look at them helps tests and debuggers.
///
/// ```
/// use oxcart_tensor::DType;
/// use oxcart_tensor::quant::{dequantize_row, quantize_row};
///
/// let row: Vec<f32> = (0..64).map(|i| i as f32 / 8.0).collect();
/// let mut bytes = vec![0; DType::Q8_0.row_bytes(row.len()).unwrap()];
/// quantize_row(DType::Q8_0, &row, None, &mut bytes)?;
///
/// let mut back = vec![0.0; row.len()];
/// dequantize_row(DType::Q8_0, &bytes, &mut back)?;
/// assert!(row.iter().zip(&back).all(|(a, b)| (a - b).abs() < 0.05));
/// # Ok::<(), oxcart_tensor::quant::QuantError>(())
/// ```
pub fn dequantize_row(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    let codec = Codec::of(dtype).ok_or(QuantError::NotDecodable { dtype })?;
    check_lengths(dtype, out.len(), bytes.len())?;
    (codec.decode)(bytes, out);
    Ok(())
}

/// Converts a row as a model file should hold it: with the format's best search, weighted by importance data where
/// there is some and the format can use it.
///
/// Block formats take finite values only. A value so large that a block's scale overflows gives an infinite scale,
/// which [`validate_row`](super::validate_row) finds; a block so small that the reciprocal of its scale would
/// overflow becomes zeros.
pub fn quantize_row(
    dtype: DType,
    values: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<(), QuantError> {
    let codec = Codec::of(dtype).ok_or(QuantError::NotEncodable { dtype })?;
    check_lengths(dtype, values.len(), out.len())?;
    check_values(dtype, values)?;
    if let Some(weights) = importance {
        check_importance(values, weights)?;
    }
    match (importance, codec.encode_weighted, codec.encode) {
        (Some(weights), Some(encode), _) => encode(values, weights, out),
        (_, _, Some(encode)) => encode(values, out),
        (None, Some(_), None) => return Err(QuantError::NeedsImportance { dtype }),
        (_, None, None) => return Err(QuantError::NotEncodable { dtype }),
    }
    Ok(())
}

/// Converts a row as a running graph does; an error for types that are only made offline.
///
/// Takes the same values as [`quantize_row`]. The result is the same too, except where a format has a cheaper
/// conversion for this ([`Encode::encode_at_run_time`]), and that `I32` can be made: fractions are dropped, what is too
/// large becomes the nearest integer there is, NaN becomes 0.
pub fn encode_row_at_run_time(dtype: DType, values: &[f32], out: &mut [u8]) -> Result<(), QuantError> {
    let not_encodable = QuantError::NotEncodable { dtype };
    if dtype == DType::I32 {
        check_lengths(dtype, values.len(), out.len())?;
        encode_i32(values, out);
        return Ok(());
    }
    let encode = match Codec::of(dtype) {
        Some(codec) if dtype.encodes_at_run_time() => codec.encode_at_run_time.ok_or(not_encodable)?,
        _ => return Err(not_encodable),
    };
    check_lengths(dtype, values.len(), out.len())?;
    check_values(dtype, values)?;
    encode(values, out);
    Ok(())
}

fn check_lengths(dtype: DType, len: usize, found: usize) -> Result<(), QuantError> {
    match dtype.row_bytes(len) {
        None => Err(QuantError::PartialBlock { dtype, len }),
        Some(expected) if expected != found => Err(QuantError::ByteLength { dtype, len, expected, found }),
        Some(_) => Ok(()),
    }
}

fn check_values(dtype: DType, values: &[f32]) -> Result<(), QuantError> {
    if !dtype.is_quantized() {
        return Ok(());
    }
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(QuantError::NotFinite { index }),
        None => Ok(()),
    }
}

fn check_importance(values: &[f32], weights: &[f32]) -> Result<(), QuantError> {
    if weights.len() != values.len() {
        return Err(QuantError::ImportanceLength { len: values.len(), found: weights.len() });
    }
    match weights.iter().position(|weight| !(weight.is_finite() && *weight >= 0.0)) {
        Some(index) => Err(QuantError::BadImportance { index }),
        None => Ok(()),
    }
}

type Decode = fn(&[u8], &mut [f32]);
type EncodeRow = fn(&[f32], &mut [u8]);
/// Values, importance weights, destination.
type EncodeWeightedRow = fn(&[f32], &[f32], &mut [u8]);

/// What can be done with rows of one type. Lengths and values have been checked by the time these are called.
#[derive(Clone, Copy)]
struct Codec {
    decode: Decode,
    encode: Option<EncodeRow>,
    encode_at_run_time: Option<EncodeRow>,
    encode_weighted: Option<EncodeWeightedRow>,
}

impl Codec {
    fn of(dtype: DType) -> Option<Self> {
        Some(match dtype {
            DType::F32 => Self::number(decode_f32, encode_f32),
            DType::F16 => Self::number(decode_f16, encode_f16),
            DType::BF16 => Self::number(decode_bf16, encode_bf16),
            DType::Q1_0 => Self::plain::<BlockQ1_0>(),
            DType::Q2_0 => Self::plain::<BlockQ2_0>(),
            DType::Q4_0 => Self::weighted::<BlockQ4_0>(),
            DType::Q4_1 => Self::weighted::<BlockQ4_1>(),
            DType::Q5_0 => Self::weighted::<BlockQ5_0>(),
            DType::Q5_1 => Self::weighted::<BlockQ5_1>(),
            DType::Q8_0 => Self::plain::<BlockQ8_0>(),
            DType::Q8_1 => Self::plain::<BlockQ8_1>(),
            DType::Q2_K => Self::weighted::<BlockQ2K>(),
            DType::Q3_K => Self::weighted::<BlockQ3K>(),
            DType::Q4_K => Self::weighted::<BlockQ4K>(),
            DType::Q5_K => Self::weighted::<BlockQ5K>(),
            DType::Q6_K => Self::weighted::<BlockQ6K>(),
            DType::Q8_K => Self::plain::<BlockQ8K>(),
            DType::IQ4_NL => Self::weighted::<BlockIq4Nl>(),
            DType::IQ4_XS => Self::weighted::<BlockIq4Xs>(),
            DType::TQ1_0 => Self::plain::<BlockTq1_0>(),
            DType::TQ2_0 => Self::plain::<BlockTq2_0>(),
            DType::MXFP4 => Self::plain::<BlockMxfp4>(),
            DType::NVFP4 => Self::plain::<BlockNvfp4>(),
            DType::IQ1_S => Self::weighted_only::<BlockIq1S>(),
            DType::IQ1_M => Self::weighted::<BlockIq1M>(),
            DType::IQ2_XXS => Self::weighted_only::<BlockIq2Xxs>(),
            DType::IQ2_XS => Self::weighted_only::<BlockIq2Xs>(),
            DType::IQ2_S => Self::weighted::<BlockIq2S>(),
            DType::IQ3_XXS => Self::weighted::<BlockIq3Xxs>(),
            DType::IQ3_S => Self::weighted::<BlockIq3S>(),
            DType::F64 | DType::I8 | DType::I16 | DType::I32 | DType::I64 => return None,
        })
    }

    fn number(decode: Decode, encode: EncodeRow) -> Self {
        Self { decode, encode: Some(encode), encode_at_run_time: Some(encode), encode_weighted: None }
    }

    /// A format that has no use for importance data.
    fn plain<B: Encode>() -> Self {
        Self {
            decode: decode_blocks::<B>,
            encode: Some(|values, out| encode_blocks(values, out, B::encode)),
            encode_at_run_time: Some(|values, out| encode_blocks(values, out, B::encode_at_run_time)),
            encode_weighted: None,
        }
    }

    /// A format that can only be made with importance data.
    fn weighted_only<B: EncodeWeighted>() -> Self {
        Self {
            decode: decode_blocks::<B>,
            encode: None,
            encode_at_run_time: None,
            encode_weighted: Some(encode_weighted_blocks::<B>),
        }
    }

    /// A format that can be made with or without.
    fn weighted<B: Encode + EncodeWeighted>() -> Self {
        Self { encode_weighted: Self::weighted_only::<B>().encode_weighted, ..Self::plain::<B>() }
    }
}

/// Bytes as whole items; the caller has checked that they are.
fn items<T: FromBytes + Unaligned + Immutable + KnownLayout>(bytes: &[u8]) -> &[T] {
    <[T]>::ref_from_bytes(bytes).expect("rows are whole blocks")
}

fn items_mut<T: FromBytes + IntoBytes + Unaligned + Immutable + KnownLayout>(bytes: &mut [u8]) -> &mut [T] {
    <[T]>::mut_from_bytes(bytes).expect("rows are whole blocks")
}

fn decode_blocks<B: Block>(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in items::<B>(bytes).iter().zip(out.chunks_exact_mut(B::DTYPE.block_len())) {
        block.decode(out);
    }
}

fn encode_blocks<B: Block>(values: &[f32], out: &mut [u8], encode: fn(&[f32]) -> B) {
    for (block, values) in items_mut(out).iter_mut().zip(values.chunks_exact(B::DTYPE.block_len())) {
        *block = encode(values);
    }
}

fn encode_weighted_blocks<B: EncodeWeighted>(values: &[f32], weights: &[f32], out: &mut [u8]) {
    let row_mean_square = mean_square(values);
    let len = B::DTYPE.block_len();
    let blocks = values.chunks_exact(len).zip(weights.chunks_exact(len));
    for (block, (values, weights)) in items_mut(out).iter_mut().zip(blocks) {
        *block = B::encode_weighted(values, Importance { weights, row_mean_square });
    }
}

fn decode_f32(bytes: &[u8], out: &mut [f32]) {
    for (out, stored) in out.iter_mut().zip(items::<F32>(bytes)) {
        *out = stored.get();
    }
}

fn encode_f32(values: &[f32], out: &mut [u8]) {
    for (stored, value) in items_mut::<F32>(out).iter_mut().zip(values) {
        stored.set(*value);
    }
}

fn encode_i32(values: &[f32], out: &mut [u8]) {
    for (stored, value) in items_mut::<I32>(out).iter_mut().zip(values) {
        stored.set(*value as i32);
    }
}

/// Numbers converted at a time, so that the fast slice conversions can be used on bytes without alignment.
const CHUNK: usize = 256;

fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    let mut chunk = [f16::ZERO; CHUNK];
    for (stored, out) in items::<U16>(bytes).chunks(CHUNK).zip(out.chunks_mut(CHUNK)) {
        let chunk = &mut chunk[..stored.len()];
        for (half, stored) in chunk.iter_mut().zip(stored) {
            *half = f16::from_bits(stored.get());
        }
        from_f16_slice(chunk, out);
    }
}

fn encode_f16(values: &[f32], out: &mut [u8]) {
    let mut chunk = [f16::ZERO; CHUNK];
    for (values, stored) in values.chunks(CHUNK).zip(items_mut::<U16>(out).chunks_mut(CHUNK)) {
        let chunk = &mut chunk[..values.len()];
        to_f16_slice(values, chunk);
        for (half, stored) in chunk.iter().zip(stored) {
            stored.set(half.to_bits());
        }
    }
}

fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
    for (out, stored) in out.iter_mut().zip(items::<U16>(bytes)) {
        *out = from_bf16(bf16::from_bits(stored.get()));
    }
}

fn encode_bf16(values: &[f32], out: &mut [u8]) {
    for (stored, value) in items_mut::<U16>(out).iter_mut().zip(values) {
        stored.set(to_bf16(*value).to_bits());
    }
}
