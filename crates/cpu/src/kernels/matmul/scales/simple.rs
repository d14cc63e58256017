//! Types of 32 to 128 elements with one scale, or a scale and a minimum.

use oxcart_tensor::quant::{
    BlockIq4Nl, BlockMxfp4, BlockNvfp4, BlockQ1_0, BlockQ2_0, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1,
    BlockQ8_0, half_e8m0, half_ue4m3,
};

use super::{Half, Scaled, Stored};
use crate::kernels::dot::lanes::Lanes;

/// Scale and minimum are numbers of the block.
macro_rules! stored_halves {
    ($scale:ident) => {
        const STORED: Stored = Stored::Halves;

        #[inline(always)]
        fn halves(&self) -> [Half; 2] {
            [self.$scale.bits(), 0]
        }
    };
    ($scale:ident, $min:ident) => {
        const MINS: bool = true;
        const STORED: Stored = Stored::Halves;

        #[inline(always)]
        fn halves(&self) -> [Half; 2] {
            [self.$scale.bits(), self.$min.bits()]
        }
    };
}

impl Scaled for BlockQ4_0 {
    const GROUP: usize = 32;
    const LEAST: i8 = -8;
    const MOST: i8 = 7;
    stored_halves!(scale);
}

impl Scaled for BlockQ4_1 {
    const GROUP: usize = 32;
    const LEAST: i8 = 0;
    const MOST: i8 = 15;
    stored_halves!(scale, min);
}

impl Scaled for BlockQ5_0 {
    const GROUP: usize = 32;
    const LEAST: i8 = -16;
    const MOST: i8 = 15;
    stored_halves!(scale);
}

impl Scaled for BlockQ5_1 {
    const GROUP: usize = 32;
    const LEAST: i8 = 0;
    const MOST: i8 = 31;
    stored_halves!(scale, min);
}

impl Scaled for BlockQ8_0 {
    const GROUP: usize = 32;
    const LEAST: i8 = i8::MIN;
    const MOST: i8 = i8::MAX;
    stored_halves!(scale);
}

impl Scaled for BlockIq4Nl {
    const GROUP: usize = 32;
    const LEAST: i8 = -127;
    const MOST: i8 = 113;
    stored_halves!(scale);
}

impl Scaled for BlockQ1_0 {
    const GROUP: usize = 32;
    const LEAST: i8 = -1;
    const MOST: i8 = 1;
    stored_halves!(scale);
}

impl Scaled for BlockQ2_0 {
    const GROUP: usize = 32;
    const LEAST: i8 = -1;
    const MOST: i8 = 2;
    stored_halves!(scale);
}

impl Scaled for BlockMxfp4 {
    const GROUP: usize = 32;
    const LEAST: i8 = -12;
    const MOST: i8 = 12;
    const STORED: Stored = Stored::Otherwise;

    #[inline(always)]
    fn halves(&self) -> [Half; 2] {
        [0; 2]
    }

    #[inline(always)]
    fn scales<S: Lanes>(&self, _: S, scales: &mut [f32], _: &mut [f32]) {
        scales[0] = half_e8m0(self.exponent);
    }
}

impl Scaled for BlockNvfp4 {
    const GROUP: usize = 16;
    const LEAST: i8 = -12;
    const MOST: i8 = 12;
    const STORED: Stored = Stored::Otherwise;

    #[inline(always)]
    fn halves(&self) -> [Half; 2] {
        [0; 2]
    }

    #[inline(always)]
    fn scales<S: Lanes>(&self, _: S, scales: &mut [f32], _: &mut [f32]) {
        for (to, scale) in scales.iter_mut().zip(self.scales) {
            *to = half_ue4m3(scale);
        }
    }
}
