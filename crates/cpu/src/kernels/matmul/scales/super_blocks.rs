//! Super-blocks of 256 elements in groups, whose small scales share a large one.

use oxcart_tensor::quant::{BlockIq4Xs, BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K};

use super::{Half, MAX_WORDS, Scaled, Stored, byte, scaled, words_of};

impl Scaled for BlockQ2K {
    const GROUP: usize = 16;
    const MINS: bool = true;
    const LEAST: i8 = 0;
    const MOST: i8 = 3;
    const STORED: Stored = Stored::Codes;
    const WORDS: usize = 4;

    #[inline(always)]
    fn halves(&self) -> [Half; 2] {
        [self.scale.bits(), self.min.bits()]
    }
    #[inline(always)]
    fn words(&self) -> [u32; MAX_WORDS] {
        words_of(self.scales)
    }
    #[inline(always)]
    fn scale_code(words: &[u32; MAX_WORDS], group: usize) -> i32 {
        byte(words, group) & 15
    }
    #[inline(always)]
    fn min_code(words: &[u32; MAX_WORDS], group: usize) -> i32 {
        byte(words, group) >> 4
    }
}

impl Scaled for BlockQ3K {
    const GROUP: usize = 16;
    const LEAST: i8 = -4;
    const MOST: i8 = 3;
    const STORED: Stored = Stored::Codes;
    const WORDS: usize = 3;

    #[inline(always)]
    fn halves(&self) -> [Half; 2] {
        [self.scale.bits(), 0]
    }
    #[inline(always)]
    fn words(&self) -> [u32; MAX_WORDS] {
        words_of(self.scales)
    }
    #[inline(always)]
    fn scale_code(words: &[u32; MAX_WORDS], group: usize) -> i32 {
        let low = byte(words, group % 8) >> (4 * (group / 8)) & 15;
        let high = byte(words, 8 + group % 4) >> (2 * (group / 4)) & 3;
        (low | high << 4) - 32
    }
}

/// Six bits of eight groups, see [`GroupScales`](oxcart_tensor::quant::GroupScales); scales begin at byte 0, minimums at 4.
#[inline(always)]
fn six_bits(words: &[u32; MAX_WORDS], first: usize, group: usize) -> i32 {
    match group {
        0..4 => byte(words, first + group) & 63,
        _ => byte(words, 4 + group) >> first & 15 | byte(words, first + group - 4) >> 6 << 4,
    }
}

scaled!(
    [BlockQ4K: 0..=15, BlockQ5K: 0..=31] {
        const GROUP: usize = 32;
        const MINS: bool = true;
        const STORED: Stored = Stored::Codes;
        const WORDS: usize = 3;

        #[inline(always)]
        fn halves(&self) -> [Half; 2] {
            [self.scale.bits(), self.min.bits()]
        }
        #[inline(always)]
        fn words(&self) -> [u32; MAX_WORDS] {
            words_of::<12>(zerocopy::transmute!(self.groups))
        }
        #[inline(always)]
        fn scale_code(words: &[u32; MAX_WORDS], group: usize) -> i32 {
            six_bits(words, 0, group)
        }
        #[inline(always)]
        fn min_code(words: &[u32; MAX_WORDS], group: usize) -> i32 {
            six_bits(words, 4, group)
        }
    }
);

impl Scaled for BlockQ6K {
    const GROUP: usize = 16;
    const LEAST: i8 = -32;
    const MOST: i8 = 31;
    const STORED: Stored = Stored::Codes;
    const WORDS: usize = 4;

    #[inline(always)]
    fn halves(&self) -> [Half; 2] {
        [self.scale.bits(), 0]
    }
    #[inline(always)]
    fn words(&self) -> [u32; MAX_WORDS] {
        words_of::<16>(zerocopy::transmute!(self.scales))
    }
    #[inline(always)]
    fn scale_code(words: &[u32; MAX_WORDS], group: usize) -> i32 {
        (words[group / 4] << (24 - 8 * (group % 4))) as i32 >> 24
    }
}

impl Scaled for BlockIq4Xs {
    const GROUP: usize = 32;
    const LEAST: i8 = -127;
    const MOST: i8 = 113;
    const STORED: Stored = Stored::Codes;
    const WORDS: usize = 2;

    #[inline(always)]
    fn halves(&self) -> [Half; 2] {
        [self.scale.bits(), 0]
    }
    #[inline(always)]
    fn words(&self) -> [u32; MAX_WORDS] {
        let mut words = words_of(self.scales_low);
        words[1] = u32::from(self.scales_high.get());
        words
    }
    #[inline(always)]
    fn scale_code(words: &[u32; MAX_WORDS], group: usize) -> i32 {
        let (low, high) = (words[0] >> (4 * group) & 15, words[1] >> (2 * group) & 3);
        (low | high << 4) as i32 - 32
    }
}
