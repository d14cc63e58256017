//! Compiled kernels, by family and by the cards they are for.
//!
//! `tools/cuda/build.sh` makes them from `kernels/`; a check in CI says whether they are what the sources give.

use oxcart_tensor::DType;

/// Kernels that were compiled together: one file of `kernels/`, perhaps for one type of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    Elementwise,
    Arrange,
    Reduce,
    Rows,
    Norm,
    SoftMax,
    Rope,
    Sort,
    Conv,
    Recurrent,
    Product,
    /// Attention by matrix instructions.
    Attention(Numbers),
    AttentionPlain,
    /// Columns for products with few of them.
    Columns,
    /// Products with few columns.
    Matvec(DType),
    /// What comes before products with many columns.
    Sixteen,
    /// Products with many columns.
    Tiles(DType),
    /// Products with many columns on Hopper.
    Gemm,
}

/// In which numbers attention multiplies keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Numbers {
    /// Half precision, as they are.
    Half,
    /// Brain floats, as they are.
    Brain,
    /// Half precision, made of blocks.
    Any,
}

impl Numbers {
    /// What kernels are called after.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Numbers::Half => "half",
            Numbers::Brain => "brain",
            Numbers::Any => "any",
        }
    }
}

/// A file of `images/`: compressed, for cards from a capability on.
struct Image {
    family: Family,
    capability: (u32, u32),
    /// Only for cards of exactly this capability: machine code instead of something the driver translates.
    exact: bool,
    bytes: &'static [u8],
}

macro_rules! image {
    ($family:expr, $name:expr, compute_75) => {
        image!($family, $name, "compute_75", (7, 5), false)
    };
    ($family:expr, $name:expr, compute_80) => {
        image!($family, $name, "compute_80", (8, 0), false)
    };
    ($family:expr, $name:expr, sm_90a) => {
        image!($family, $name, "sm_90a", (9, 0), true)
    };
    ($family:expr, $name:expr, $target:literal, $capability:expr, $exact:expr) => {
        Image {
            family: $family,
            capability: $capability,
            exact: $exact,
            bytes: include_bytes!(concat!("../images/", $name, ".", $target)),
        }
    };
}

macro_rules! images {
    ([$($family:ident $name:literal;)*] numbers: [$($plain:ident $plain_name:literal,)*] blocks: [$($type:ident $type_name:literal,)*]) => {
        const IMAGES: &[Image] = &[
            image!(Family::Attention(Numbers::Half), "attention-half", compute_75),
            image!(Family::Attention(Numbers::Half), "attention-half", compute_80),
            image!(Family::Attention(Numbers::Half), "attention-half", sm_90a),
            image!(Family::Attention(Numbers::Any), "attention-any", compute_75),
            image!(Family::Attention(Numbers::Any), "attention-any", compute_80),
            image!(Family::Attention(Numbers::Any), "attention-any", sm_90a),
            image!(Family::Attention(Numbers::Brain), "attention-brain", compute_80),
            image!(Family::Attention(Numbers::Brain), "attention-brain", sm_90a),
            image!(Family::Gemm, "gemm", sm_90a),
            image!(Family::Tiles(DType::F16), "tiles-f16", compute_75),
            image!(Family::Tiles(DType::F16), "tiles-f16", compute_80),
            image!(Family::Tiles(DType::F16), "tiles-f16", sm_90a),
            image!(Family::Tiles(DType::BF16), "tiles-bf16", compute_80),
            image!(Family::Tiles(DType::BF16), "tiles-bf16", sm_90a),
            $(
                image!(Family::$family, $name, compute_75),
                image!(Family::$family, $name, sm_90a),
            )*
            $(
                image!(Family::Matvec(DType::$plain), concat!("matvec-", $plain_name), compute_75),
                image!(Family::Matvec(DType::$plain), concat!("matvec-", $plain_name), compute_80),
                image!(Family::Matvec(DType::$plain), concat!("matvec-", $plain_name), sm_90a),
            )*
            $(
                image!(Family::Tiles(DType::$type), concat!("tiles-", $type_name), compute_75),
                image!(Family::Tiles(DType::$type), concat!("tiles-", $type_name), compute_80),
                image!(Family::Tiles(DType::$type), concat!("tiles-", $type_name), sm_90a),
                image!(Family::Matvec(DType::$type), concat!("matvec-", $type_name), compute_75),
                image!(Family::Matvec(DType::$type), concat!("matvec-", $type_name), compute_80),
                image!(Family::Matvec(DType::$type), concat!("matvec-", $type_name), sm_90a),
            )*
        ];
    };
}

images! {
    [
    Elementwise "elementwise";
    Arrange "arrange";
    Reduce "reduce";
    Rows "rows";
    Norm "norm";
    SoftMax "soft_max";
    Rope "rope";
    Sort "sort";
    Conv "conv";
    Recurrent "recurrent";
    Product "product";
    AttentionPlain "attention_plain";
    Columns "columns";
    Sixteen "sixteen";
    ]
    numbers: [F32 "f32", F16 "f16", BF16 "bf16",]
    blocks: [
    Q1_0 "q1_0", Q2_0 "q2_0", Q4_0 "q4_0", Q4_1 "q4_1", Q5_0 "q5_0", Q5_1 "q5_1", Q8_0 "q8_0",
    Q2_K "q2_K", Q3_K "q3_K", Q4_K "q4_K", Q5_K "q5_K", Q6_K "q6_K",
    IQ1_S "iq1_s", IQ1_M "iq1_m", IQ2_XXS "iq2_xxs", IQ2_XS "iq2_xs", IQ2_S "iq2_s",
    IQ3_XXS "iq3_xxs", IQ3_S "iq3_s", IQ4_NL "iq4_nl", IQ4_XS "iq4_xs",
    TQ1_0 "tq1_0", TQ2_0 "tq2_0", MXFP4 "mxfp4", NVFP4 "nvfp4",
    ]
}

/// The kernels of a family that suit a card best.
pub(crate) fn image(family: Family, capability: (u32, u32)) -> Option<Vec<u8>> {
    let fits = |image: &&Image| {
        image.family == family
            && if image.exact { image.capability == capability } else { image.capability <= capability }
    };
    let best = IMAGES.iter().filter(fits).max_by_key(|image| (image.capability, image.exact))?;
    // What was committed decompresses; a test looks at all of it.
    miniz_oxide::inflate::decompress_to_vec_zlib(best.bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_kernels_for_every_card() {
        for file in IMAGES {
            let text = miniz_oxide::inflate::decompress_to_vec_zlib(file.bytes).unwrap();
            let start: &[u8] = if file.exact { b"\x7fELF" } else { b"//" };
            assert!(text.starts_with(start), "{:?} {:?}", file.family, file.capability);
            // Cards below 8.0 know no brain floats; tiles of Hopper are for Hopper.
            let is_new =
                matches!(file.family, Family::Attention(Numbers::Brain) | Family::Tiles(DType::BF16));
            if file.family == Family::Gemm {
                continue;
            }
            for capability in
                [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)].into_iter().skip(is_new.into())
            {
                assert!(image(file.family, capability).is_some(), "{:?} {capability:?}", file.family);
            }
        }
        assert!(image(Family::Norm, (7, 0)).is_none());
    }
}
