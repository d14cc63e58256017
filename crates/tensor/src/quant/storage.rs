//! What is inside a block, as far as byte order and validity care: where its numbers of several bytes are.
//!
//! Invariant: `fields` covers every field wider than a byte of every type, and nothing else; bytes it does not name
//! mean the same in either byte order.

use std::ops::Range;

use half::f16;

use super::QuantError;
use crate::dtype::DType;

/// A run of equal numbers inside a block: offset of the first, bytes of each, how many.
#[derive(Clone, Copy, Debug)]
enum Field {
    /// Floats that must be finite.
    Floats(usize, usize, usize),
    /// Integers and packed bits.
    Words(usize, usize, usize),
}

impl Field {
    fn span(self) -> (Range<usize>, usize) {
        let (Field::Floats(offset, width, count) | Field::Words(offset, width, count)) = self;
        (offset..offset + width * count, width)
    }
}

/// The numbers of more than one byte in a block.
#[rustfmt::skip]
const fn fields(dtype: DType) -> &'static [Field] {
    use Field::{Floats, Words};
    match dtype {
        DType::F32 => &[Floats(0, 4, 1)],
        DType::F16 | DType::BF16 => &[Floats(0, 2, 1)],
        DType::F64 => &[Floats(0, 8, 1)],
        DType::I8 => &[],
        DType::I16 => &[Words(0, 2, 1)],
        DType::I32 => &[Words(0, 4, 1)],
        DType::I64 => &[Words(0, 8, 1)],
        DType::Q1_0 | DType::Q2_0 | DType::Q4_0 | DType::Q8_0 | DType::IQ4_NL => &[Floats(0, 2, 1)],
        DType::Q4_1 | DType::Q8_1 | DType::Q4_K | DType::Q5_K => &[Floats(0, 2, 2)],
        DType::Q5_0 => &[Floats(0, 2, 1), Words(2, 4, 1)],
        DType::Q5_1 => &[Floats(0, 2, 2), Words(4, 4, 1)],
        DType::Q2_K => &[Floats(80, 2, 2)],
        DType::Q3_K => &[Floats(108, 2, 1)],
        DType::Q6_K => &[Floats(208, 2, 1)],
        DType::Q8_K => &[Floats(0, 4, 1), Words(260, 2, 16)],
        DType::IQ1_S => &[Floats(0, 2, 1), Words(34, 2, 8)],
        DType::IQ1_M => &[Words(48, 2, 4)],
        // Groups of four index bytes and one word of signs and scale.
        DType::IQ2_XXS => &[
            Floats(0, 2, 1),
            Words(6, 4, 1), Words(14, 4, 1), Words(22, 4, 1), Words(30, 4, 1),
            Words(38, 4, 1), Words(46, 4, 1), Words(54, 4, 1), Words(62, 4, 1),
        ],
        DType::IQ2_XS => &[Floats(0, 2, 1), Words(2, 2, 32)],
        DType::IQ2_S | DType::IQ3_S => &[Floats(0, 2, 1)],
        DType::IQ3_XXS => &[Floats(0, 2, 1), Words(66, 4, 8)],
        DType::IQ4_XS => &[Floats(0, 2, 1), Words(2, 2, 1)],
        DType::TQ1_0 => &[Floats(52, 2, 1)],
        DType::TQ2_0 => &[Floats(64, 2, 1)],
        DType::MXFP4 | DType::NVFP4 => &[],
    }
}

fn whole_blocks(dtype: DType, found: usize) -> Result<(), QuantError> {
    if found.is_multiple_of(dtype.block_bytes()) {
        Ok(())
    } else {
        Err(QuantError::PartialBytes { dtype, found })
    }
}

/// Converts rows between little- and big-endian storage, in place; doing it twice changes nothing.
///
/// All other functions here take little-endian data.
pub fn swap_byte_order(dtype: DType, bytes: &mut [u8]) -> Result<(), QuantError> {
    whole_blocks(dtype, bytes.len())?;
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        for field in fields(dtype) {
            let (span, width) = field.span();
            for number in block[span].chunks_exact_mut(width) {
                number.reverse();
            }
        }
    }
    Ok(())
}

/// Checks that stored rows hold only numbers: no NaN and no infinity in floats or in the scales of blocks.
///
/// Decoding is defined for any bytes, so this is not needed for safety; it tells damaged files from good ones.
pub fn validate_row(dtype: DType, bytes: &[u8]) -> Result<(), QuantError> {
    whole_blocks(dtype, bytes.len())?;
    let mut blocks = bytes.chunks_exact(dtype.block_bytes());
    match blocks.position(|block| !is_finite(dtype, block)) {
        Some(block) => Err(QuantError::InvalidBlock { dtype, block }),
        None => Ok(()),
    }
}

fn is_finite(dtype: DType, block: &[u8]) -> bool {
    match dtype {
        DType::MXFP4 => block[0] != u8::MAX,
        DType::IQ1_M => {
            // The bits of the f16 scale are the top nibbles of four u16.
            let scale = (0..4).fold(0, |bits, i| bits | u16::from(block[49 + 2 * i] >> 4) << (4 * i));
            f16::from_bits(scale).is_finite()
        }
        _ => fields(dtype).iter().filter(|field| matches!(field, Field::Floats(..))).all(|field| {
            let (span, width) = field.span();
            block[span].chunks_exact(width).all(|number| has_finite_exponent(dtype, number))
        }),
    }
}

/// A float is finite unless all bits of its exponent are set.
fn has_finite_exponent(dtype: DType, little_endian: &[u8]) -> bool {
    let exponent = match (dtype, little_endian.len()) {
        (DType::BF16, _) | (_, 4) => 0x7F80,
        (_, 2) => 0x7C00,
        _ => 0x7FF0,
    };
    let [.., low, high] = *little_endian else { return true };
    u16::from_le_bytes([low, high]) & exponent != exponent
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::{dequantize_row, quantize_row};

    #[test]
    fn fields_lie_in_their_block_in_order() {
        for dtype in DType::all() {
            let end = fields(dtype).iter().fold(0, |end, field| {
                let (span, _) = field.span();
                assert!(span.start >= end, "{dtype}");
                span.end
            });
            assert!(end <= dtype.block_bytes(), "{dtype}");
        }
    }

    #[test]
    fn numbers_are_swapped_and_bytes_are_not() {
        let mut block: Vec<u8> = (0..22).collect();
        swap_byte_order(DType::Q5_0, &mut block).unwrap();
        assert_eq!(block[..8], [1, 0, 5, 4, 3, 2, 6, 7]);

        let mut numbers = [1, 2, 3, 4, 5, 6, 7, 8];
        swap_byte_order(DType::F64, &mut numbers).unwrap();
        assert_eq!(numbers, [8, 7, 6, 5, 4, 3, 2, 1]);
        swap_byte_order(DType::I8, &mut numbers).unwrap();
        assert_eq!(numbers, [8, 7, 6, 5, 4, 3, 2, 1]);
    }

    #[test]
    fn plain_numbers_must_be_finite() {
        for (dtype, good, bad) in [
            (DType::F32, &f32::MAX.to_le_bytes()[..], &f32::NEG_INFINITY.to_le_bytes()[..]),
            (DType::F64, &1e300f64.to_le_bytes(), &f64::NAN.to_le_bytes()),
            (DType::F16, &[0xFF, 0x7B], &[0x00, 0xFC]),
            (DType::BF16, &[0x7F, 0x7F], &[0xC0, 0x7F]),
        ] {
            assert_eq!(validate_row(dtype, &[good, good].concat()), Ok(()), "{dtype}");
            let found = validate_row(dtype, &[good, bad].concat());
            assert_eq!(found, Err(QuantError::InvalidBlock { dtype, block: 1 }));
        }
        assert_eq!(validate_row(DType::I64, &[0xFF; 16]), Ok(()));
    }

    #[test]
    fn scales_must_be_finite() {
        for dtype in DType::all().filter(|dtype| dtype.is_quantized()) {
            assert_eq!(validate_row(dtype, &vec![0; dtype.block_bytes()]), Ok(()), "{dtype}");
            let expected = match dtype {
                DType::NVFP4 => Ok(()),
                _ => Err(QuantError::InvalidBlock { dtype, block: 0 }),
            };
            assert_eq!(validate_row(dtype, &vec![0xFF; dtype.block_bytes()]), expected);
        }
    }

    #[test]
    fn a_scale_that_overflowed_is_found() {
        let mut bytes = [0; 34];
        quantize_row(DType::Q8_0, &[1e30; 32], None, &mut bytes).unwrap();
        let dtype = DType::Q8_0;
        assert_eq!(validate_row(dtype, &bytes), Err(QuantError::InvalidBlock { dtype, block: 0 }));
    }

    #[test]
    fn swapping_moves_every_scale_a_decoder_reads() {
        // A block with scale 1 in big-endian storage decodes to something else until it is swapped.
        let mut bytes = [0; 34];
        quantize_row(DType::Q8_0, &[127.0; 32], None, &mut bytes).unwrap();
        bytes.swap(0, 1);
        swap_byte_order(DType::Q8_0, &mut bytes).unwrap();
        let mut out = [0.0; 32];
        dequantize_row(DType::Q8_0, &bytes, &mut out).unwrap();
        assert_eq!(out, [127.0; 32]);
    }

    #[test]
    fn rows_are_whole_blocks() {
        let dtype = DType::Q4_K;
        let error = QuantError::PartialBytes { dtype, found: 145 };
        assert_eq!(swap_byte_order(dtype, &mut [0; 145]), Err(error));
        assert_eq!(validate_row(dtype, &[0; 145]), Err(error));
    }
}
