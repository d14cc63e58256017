//! Codebook types: points of a grid with signs, or moved by an eighth. Their scales are odd multiples.

use oxcart_tensor::quant::iq::{
    BlockIq1M, BlockIq1S, BlockIq2S, BlockIq2Xs, BlockIq2Xxs, BlockIq3S, BlockIq3Xxs,
};

use super::{Half, MAX_WORDS, Scaled, Stored, scaled, words_of};

/// The odd number that a code of some bits stands for.
#[inline(always)]
fn odd(code: u32) -> i32 {
    1 + 2 * code as i32
}

/// Four bits per group.
#[inline(always)]
fn nibble(words: &[u32; MAX_WORDS], group: usize) -> u32 {
    words[group / 8] >> (4 * (group % 8)) & 15
}

impl Scaled for BlockIq1S {
    const GROUP: usize = 32;
    const LEAST: i8 = -9;
    const MOST: i8 = 9;
    const STORED: Stored = Stored::Codes;
    const WORDS: usize = 4;
    const FACTOR: f32 = 0.125;

    #[inline(always)]
    fn halves(&self) -> [Half; 2] {
        [self.scale.get(), 0]
    }
    #[inline(always)]
    fn words(&self) -> [u32; MAX_WORDS] {
        words_of::<16>(zerocopy::transmute!(self.groups))
    }
    #[inline(always)]
    fn scale_code(words: &[u32; MAX_WORDS], group: usize) -> i32 {
        odd(words[group / 2] >> (16 * (group % 2) + 12) & 7)
    }
}

impl Scaled for BlockIq1M {
    const GROUP: usize = 16;
    const LEAST: i8 = -9;
    const MOST: i8 = 9;
    const STORED: Stored = Stored::Codes;
    const WORDS: usize = 2;
    const FACTOR: f32 = 0.125;

    #[inline(always)]
    fn halves(&self) -> [Half; 2] {
        [self.scale().to_bits(), 0]
    }
    #[inline(always)]
    fn words(&self) -> [u32; MAX_WORDS] {
        words_of::<8>(zerocopy::transmute!(self.scales))
    }
    #[inline(always)]
    fn scale_code(words: &[u32; MAX_WORDS], group: usize) -> i32 {
        odd(words[group / 8] >> (16 * (group / 4 % 2) + 3 * (group % 4)) & 7)
    }
}

scaled!(
    [
        BlockIq2Xxs: -43..=43 {
            const FACTOR: f32 = 0.125;

            #[inline(always)]
            fn words(&self) -> [u32; MAX_WORDS] {
                let mut words = [0; MAX_WORDS];
                for (word, group) in words.iter_mut().zip(&self.groups) {
                    *word = group.signs_and_scale.get();
                }
                words
            }
        },
        BlockIq3Xxs: -62..=62 {
            const FACTOR: f32 = 0.25;

            #[inline(always)]
            fn words(&self) -> [u32; MAX_WORDS] {
                words_of::<32>(zerocopy::transmute!(self.signs_and_scale))
            }
        },
    ] {
        const GROUP: usize = 32;
        const STORED: Stored = Stored::Codes;
        const WORDS: usize = 8;

        #[inline(always)]
        fn halves(&self) -> [Half; 2] {
            [self.scale.get(), 0]
        }
        #[inline(always)]
        fn scale_code(words: &[u32; MAX_WORDS], group: usize) -> i32 {
            odd(words[group] >> 28)
        }
    }
);

scaled!(
    [
        BlockIq2Xs: -43..=43 {
            const GROUP: usize = 16;
            const WORDS: usize = 2;
            const FACTOR: f32 = 0.125;
        },
        BlockIq2S: -43..=43 {
            const GROUP: usize = 16;
            const WORDS: usize = 2;
            const FACTOR: f32 = 0.125;
        },
        BlockIq3S: -15..=15 {
            const GROUP: usize = 32;
            const WORDS: usize = 1;
        },
    ] {
        const STORED: Stored = Stored::Codes;

        #[inline(always)]
        fn halves(&self) -> [Half; 2] {
            [self.scale.get(), 0]
        }
        #[inline(always)]
        fn words(&self) -> [u32; MAX_WORDS] {
            words_of(self.scales)
        }
        #[inline(always)]
        fn scale_code(words: &[u32; MAX_WORDS], group: usize) -> i32 {
            odd(nibble(words, group))
        }
    }
);
