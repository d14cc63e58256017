//! From a weight type to its block struct: the one list of weight types of this family.

use oxcart_tensor::DType;
use oxcart_tensor::quant::iq::{
    BlockIq1M, BlockIq1S, BlockIq2S, BlockIq2Xs, BlockIq2Xxs, BlockIq3S, BlockIq3Xxs,
};
use oxcart_tensor::quant::{
    BlockIq4Nl, BlockIq4Xs, BlockMxfp4, BlockNvfp4, BlockQ1_0, BlockQ2_0, BlockQ2K, BlockQ3K, BlockQ4_0,
    BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K, BlockQ6K, BlockQ8_0, BlockTq1_0, BlockTq2_0,
};

use super::scales::Scaled;

/// Something to do with a weight type once it is known at compile time.
pub(super) trait Visit {
    type Answer;

    fn float(self, dtype: DType) -> Self::Answer;
    fn quantized<B: Scaled>(self) -> Self::Answer;
}

/// Does it; `None` if the type cannot be a weight.
pub(super) fn visit<V: Visit>(dtype: DType, visitor: V) -> Option<V::Answer> {
    Some(match dtype {
        DType::F32 | DType::F16 | DType::BF16 => visitor.float(dtype),
        DType::Q1_0 => visitor.quantized::<BlockQ1_0>(),
        DType::Q2_0 => visitor.quantized::<BlockQ2_0>(),
        DType::Q4_0 => visitor.quantized::<BlockQ4_0>(),
        DType::Q4_1 => visitor.quantized::<BlockQ4_1>(),
        DType::Q5_0 => visitor.quantized::<BlockQ5_0>(),
        DType::Q5_1 => visitor.quantized::<BlockQ5_1>(),
        DType::Q8_0 => visitor.quantized::<BlockQ8_0>(),
        DType::Q2_K => visitor.quantized::<BlockQ2K>(),
        DType::Q3_K => visitor.quantized::<BlockQ3K>(),
        DType::Q4_K => visitor.quantized::<BlockQ4K>(),
        DType::Q5_K => visitor.quantized::<BlockQ5K>(),
        DType::Q6_K => visitor.quantized::<BlockQ6K>(),
        DType::IQ1_S => visitor.quantized::<BlockIq1S>(),
        DType::IQ1_M => visitor.quantized::<BlockIq1M>(),
        DType::IQ2_XXS => visitor.quantized::<BlockIq2Xxs>(),
        DType::IQ2_XS => visitor.quantized::<BlockIq2Xs>(),
        DType::IQ2_S => visitor.quantized::<BlockIq2S>(),
        DType::IQ3_XXS => visitor.quantized::<BlockIq3Xxs>(),
        DType::IQ3_S => visitor.quantized::<BlockIq3S>(),
        DType::IQ4_NL => visitor.quantized::<BlockIq4Nl>(),
        DType::IQ4_XS => visitor.quantized::<BlockIq4Xs>(),
        DType::TQ1_0 => visitor.quantized::<BlockTq1_0>(),
        DType::TQ2_0 => visitor.quantized::<BlockTq2_0>(),
        DType::MXFP4 => visitor.quantized::<BlockMxfp4>(),
        DType::NVFP4 => visitor.quantized::<BlockNvfp4>(),
        _ => return None,
    })
}
