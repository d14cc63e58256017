//! Every element type a tensor can have, and the one table of what is true of it.
//!
//! Invariant: a [`DType`] always names a live type with a block of at least one element and one byte. The numbers
//! that files and peers use for types are translated where they enter, by [`dtype_from_id`](crate::dtype_from_id).

use std::fmt;
use std::str::FromStr;

/// An element type. Names are ggml's, because that is what people search for.
#[expect(non_camel_case_types, reason = "ggml's names are the ones people know and search for")]
#[expect(missing_docs, reason = "each variant is one row of TRAITS, which says all there is to say")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DType {
    F32,
    F16,
    BF16,
    F64,
    I8,
    I16,
    I32,
    I64,
    Q1_0,
    Q2_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ4_NL,
    IQ4_XS,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
}

/// What kind of number a type holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// IEEE or brain floating point, one number per element.
    Float,
    /// Two's complement integer, one number per element.
    Integer,
    /// Elements packed into blocks that share scales.
    Quantized,
}

/// How values of a type can be made from `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encode {
    /// A graph may write this type while it runs.
    AtRunTime,
    /// Only when a model file is made: the search is too slow for a graph.
    Offline,
    /// Only when a model file is made, and only with importance data.
    WithImportance,
    /// There is no conversion from `f32`.
    Never,
}

/// One row of the type table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// The type this row is about.
    pub dtype: DType,
    /// ggml's canonical name, for example `q4_K`.
    pub name: &'static str,
    /// Elements per block; 1 for plain numbers.
    pub block_len: usize,
    /// Bytes per block.
    pub block_bytes: usize,
    /// What kind of number it is.
    pub class: Class,
    /// The type activations are converted to when this type is the weight of a matrix product; `None` when it
    /// cannot be a weight.
    pub dot_partner: Option<DType>,
    /// Whether stored values can be expanded to `f32` by a graph.
    pub decodes: bool,
    /// How values can be made from `f32`.
    pub encode: Encode,
}

const fn plain(dtype: DType, name: &'static str, bytes: usize, class: Class, encode: Encode) -> Traits {
    Traits { dtype, name, block_len: 1, block_bytes: bytes, class, dot_partner: None, decodes: false, encode }
}

const fn float(dtype: DType, name: &'static str, bytes: usize) -> Traits {
    let row = plain(dtype, name, bytes, Class::Float, Encode::AtRunTime);
    Traits { dot_partner: Some(dtype), decodes: true, ..row }
}

const fn block(
    dtype: DType,
    name: &'static str,
    len: usize,
    bytes: usize,
    dot: DType,
    encode: Encode,
) -> Traits {
    Traits {
        dtype,
        name,
        block_len: len,
        block_bytes: bytes,
        class: Class::Quantized,
        dot_partner: Some(dot),
        decodes: true,
        encode,
    }
}

/// A block type that exists only as the activation side of products.
const fn partner(dtype: DType, name: &'static str, len: usize, bytes: usize) -> Traits {
    Traits { dot_partner: None, decodes: false, ..block(dtype, name, len, bytes, dtype, Encode::AtRunTime) }
}

#[rustfmt::skip]
const TRAITS: [Traits; 35] = {
    use Class::{Float, Integer};
    use DType::*;
    use Encode::{AtRunTime, Never, Offline, WithImportance};
    [
        float(F32,  "f32",  4),
        float(F16,  "f16",  2),
        float(BF16, "bf16", 2),
        plain(F64,  "f64",  8, Float, Never),
        plain(I8,   "i8",   1, Integer, Never),
        plain(I16,  "i16",  2, Integer, Never),
        plain(I32,  "i32",  4, Integer, AtRunTime),
        plain(I64,  "i64",  8, Integer, Never),
        block(Q1_0, "q1_0", 128, 18, Q8_0, AtRunTime),
        block(Q2_0, "q2_0", 64,  18, Q8_0, AtRunTime),
        block(Q4_0, "q4_0", 32,  18, Q8_0, AtRunTime),
        block(Q4_1, "q4_1", 32,  20, Q8_1, AtRunTime),
        block(Q5_0, "q5_0", 32,  22, Q8_0, AtRunTime),
        block(Q5_1, "q5_1", 32,  24, Q8_1, AtRunTime),
        block(Q8_0, "q8_0", 32,  34, Q8_0, AtRunTime),
        partner(Q8_1, "q8_1", 32, 36),
        block(Q2_K, "q2_K", 256, 84,  Q8_K, AtRunTime),
        block(Q3_K, "q3_K", 256, 110, Q8_K, AtRunTime),
        block(Q4_K, "q4_K", 256, 144, Q8_K, AtRunTime),
        block(Q5_K, "q5_K", 256, 176, Q8_K, AtRunTime),
        block(Q6_K, "q6_K", 256, 210, Q8_K, AtRunTime),
        partner(Q8_K, "q8_K", 256, 292),
        block(IQ1_S,   "iq1_s",   256, 50,  Q8_K, WithImportance),
        block(IQ1_M,   "iq1_m",   256, 56,  Q8_K, Offline),
        block(IQ2_XXS, "iq2_xxs", 256, 66,  Q8_K, WithImportance),
        block(IQ2_XS,  "iq2_xs",  256, 74,  Q8_K, WithImportance),
        block(IQ2_S,   "iq2_s",   256, 82,  Q8_K, Offline),
        block(IQ3_XXS, "iq3_xxs", 256, 98,  Q8_K, Offline),
        block(IQ3_S,   "iq3_s",   256, 110, Q8_K, Offline),
        block(IQ4_NL,  "iq4_nl",  32,  18,  Q8_0, AtRunTime),
        block(IQ4_XS,  "iq4_xs",  256, 136, Q8_K, AtRunTime),
        block(TQ1_0,   "tq1_0",   256, 54,  Q8_K, AtRunTime),
        block(TQ2_0,   "tq2_0",   256, 66,  Q8_K, AtRunTime),
        block(MXFP4,   "mxfp4",   32,  17,  Q8_0, AtRunTime),
        block(NVFP4,   "nvfp4",   64,  36,  Q8_0, AtRunTime),
    ]
};

// Row i of TRAITS belongs to the variant with discriminant i; `traits` indexes by it.
const _: () = {
    let mut i = 0;
    while i < TRAITS.len() {
        assert!(TRAITS[i].dtype as usize == i);
        assert!(TRAITS[i].block_len >= 1 && TRAITS[i].block_bytes >= 1);
        i += 1;
    }
};

impl DType {
    /// Every type, in the order of the table.
    pub fn all() -> impl ExactSizeIterator<Item = DType> {
        TRAITS.iter().map(|row| row.dtype)
    }

    /// The whole row of the table.
    pub const fn traits(self) -> &'static Traits {
        &TRAITS[self as usize]
    }

    /// ggml's canonical name, for example `q4_K`.
    pub const fn name(self) -> &'static str {
        self.traits().name
    }

    /// Elements per block.
    pub const fn block_len(self) -> usize {
        self.traits().block_len
    }

    /// Bytes per block.
    pub const fn block_bytes(self) -> usize {
        self.traits().block_bytes
    }

    /// Whether elements are packed into blocks that share scales.
    pub const fn is_quantized(self) -> bool {
        matches!(self.traits().class, Class::Quantized)
    }

    /// Whether a graph can expand stored values to `f32`.
    pub const fn decodes(self) -> bool {
        self.traits().decodes
    }

    /// Whether a graph may write this type while it runs.
    pub const fn encodes_at_run_time(self) -> bool {
        matches!(self.traits().encode, Encode::AtRunTime)
    }

    /// The type activations take when this type is the weight of a matrix product.
    pub const fn dot_partner(self) -> Option<DType> {
        self.traits().dot_partner
    }

    /// Storage cost of one element.
    pub fn bits_per_element(self) -> f64 {
        self.block_bytes() as f64 * 8.0 / self.block_len() as f64
    }

    /// Bytes of a packed row of `len` elements, or `None` when `len` is not a whole number of blocks or the size
    /// does not fit.
    pub const fn row_bytes(self, len: usize) -> Option<usize> {
        if !len.is_multiple_of(self.block_len()) {
            return None;
        }
        (len / self.block_len()).checked_mul(self.block_bytes())
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no type's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown tensor type '{0}'")]
pub struct UnknownDType(pub String);

impl FromStr for DType {
    type Err = UnknownDType;

    /// Case does not matter: people write both `Q4_K` and `q4_K`.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        DType::all()
            .find(|dtype| dtype.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| UnknownDType(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back_in_any_case() {
        for dtype in DType::all() {
            assert_eq!(dtype.name().parse(), Ok(dtype));
            assert_eq!(dtype.name().to_uppercase().parse(), Ok(dtype));
        }
        assert_eq!("q4_2".parse::<DType>(), Err(UnknownDType("q4_2".into())));
    }

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!(DType::Q4_K.row_bytes(512), Some(288));
        assert_eq!(DType::Q4_K.row_bytes(0), Some(0));
        assert_eq!(DType::Q4_K.row_bytes(255), None);
        assert_eq!(DType::F64.row_bytes(usize::MAX), None);
    }

    #[test]
    fn a_dot_partner_covers_whole_weight_blocks() {
        for weight in DType::all() {
            let Some(act) = weight.dot_partner() else { continue };
            assert!(
                weight.block_len().is_multiple_of(act.block_len()),
                "{weight} blocks must split into whole {act} blocks"
            );
        }
    }

    #[test]
    fn sizes_match_the_published_bits_per_element() {
        for (dtype, bits) in [
            (DType::Q4_0, 4.5),
            (DType::Q2_K, 2.625),
            (DType::Q6_K, 6.5625),
            (DType::IQ1_S, 1.5625),
            (DType::TQ1_0, 1.6875),
            (DType::MXFP4, 4.25),
            (DType::Q1_0, 1.125),
        ] {
            assert_eq!(dtype.bits_per_element(), bits, "{dtype}");
        }
    }
}
