//! Types whose blocks have one scale, or a scale and a minimum, as they are; and those whose scales are small floats.

use oxcart_tensor::quant::{
    BlockIq4Nl, BlockMxfp4, BlockNvfp4, BlockQ1_0, BlockQ2_0, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1,
    BlockQ8_0, BlockTq1_0, BlockTq2_0, half_e8m0, half_ue4m3,
};

use super::{Half, Scaled, Stored, scaled};
use crate::kernels::dot::lanes::Lanes;

scaled!(
    [
        BlockQ1_0: -1..=1,
        BlockQ2_0: -1..=2,
        BlockQ4_0: -8..=7,
        BlockQ5_0: -16..=15,
        BlockQ8_0: -128..=127,
        BlockIq4Nl: -127..=113,
        BlockTq1_0: -1..=1,
        BlockTq2_0: -1..=2,
    ] {
        const GROUP: usize = 32;
        const STORED: Stored = Stored::Halves;

        #[inline(always)]
        fn halves(&self) -> [Half; 2] {
            [self.scale.bits(), 0]
        }
    }
);

scaled!(
    [BlockQ4_1: 0..=15, BlockQ5_1: 0..=31] {
        const GROUP: usize = 32;
        const MINS: bool = true;
        const STORED: Stored = Stored::Halves;

        #[inline(always)]
        fn halves(&self) -> [Half; 2] {
            [self.scale.bits(), self.min.bits()]
        }
    }
);

scaled!(
    [
        BlockMxfp4: -12..=12 {
            const GROUP: usize = 32;

            #[inline(always)]
            fn scales<S: Lanes>(&self, _: S, scales: &mut [f32], _: &mut [f32]) {
                scales[0] = half_e8m0(self.exponent);
            }
        },
        BlockNvfp4: -12..=12 {
            const GROUP: usize = 16;

            #[inline(always)]
            fn scales<S: Lanes>(&self, _: S, scales: &mut [f32], _: &mut [f32]) {
                for (to, scale) in scales.iter_mut().zip(self.scales) {
                    *to = half_ue4m3(scale);
                }
            }
        },
    ] {
        const STORED: Stored = Stored::Otherwise;

        #[inline(always)]
        fn halves(&self) -> [Half; 2] {
            [0; 2]
        }
    }
);
