//! The numbers that files and peers use for tensor types, and nothing else.
//!
//! Invariant: the table is a bijection between the numbers that are alive and [`DType`]. Numbers of formats that were
//! removed (4, 5, 31 to 33, 36 to 38) and numbers not yet given out translate to nothing.

use crate::dtype::DType;

/// Position is the number.
#[rustfmt::skip]
const TYPES: [Option<DType>; 43] = {
    use DType::*;
    [
        Some(F32),  Some(F16),  Some(Q4_0), Some(Q4_1),
        None,       None,       Some(Q5_0), Some(Q5_1),
        Some(Q8_0), Some(Q8_1), Some(Q2_K), Some(Q3_K),
        Some(Q4_K), Some(Q5_K), Some(Q6_K), Some(Q8_K),
        Some(IQ2_XXS), Some(IQ2_XS), Some(IQ3_XXS), Some(IQ1_S),
        Some(IQ4_NL),  Some(IQ3_S),  Some(IQ2_S),   Some(IQ4_XS),
        Some(I8),  Some(I16),   Some(I32),  Some(I64),
        Some(F64), Some(IQ1_M), Some(BF16), None,
        None,      None,        Some(TQ1_0), Some(TQ2_0),
        None,      None,        None,        Some(MXFP4),
        Some(NVFP4), Some(Q1_0), Some(Q2_0),
    ]
};

/// The type that a file or a peer means by `id`.
pub fn dtype_from_id(id: u32) -> Option<DType> {
    TYPES.get(usize::try_from(id).ok()?).copied().flatten()
}

/// The number that files and peers use for `dtype`.
pub fn dtype_id(dtype: DType) -> u32 {
    (0..).zip(TYPES).find_map(|(id, entry)| (entry == Some(dtype)).then_some(id)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_one_number() {
        for dtype in DType::all() {
            assert_eq!(dtype_from_id(dtype_id(dtype)), Some(dtype), "{dtype}");
        }
        assert_eq!(TYPES.iter().flatten().count(), DType::all().len());
    }

    #[test]
    fn removed_and_unknown_numbers_are_nothing() {
        for id in [4, 5, 31, 32, 33, 36, 37, 38, 43, 255, u32::MAX] {
            assert_eq!(dtype_from_id(id), None, "{id}");
        }
    }

    #[test]
    fn the_numbers_that_files_and_peers_rely_on() {
        for (id, dtype) in
            [(0, DType::F32), (1, DType::F16), (8, DType::Q8_0), (14, DType::Q6_K), (30, DType::BF16)]
        {
            assert_eq!(dtype_id(dtype), id);
        }
    }
}
