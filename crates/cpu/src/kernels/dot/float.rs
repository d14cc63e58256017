//! Weights that are plain numbers.

use zerocopy::{FromZeros, IntoBytes};

use super::lanes::Lanes;
use super::{Plain, blocks};

/// A kind of number, sixteen of which are loaded at a time.
pub(crate) trait Floats: 'static {
    /// Bytes of sixteen numbers.
    type Sixteen: Plain;
    fn load<S: Lanes>(s: S, from: &Self::Sixteen) -> S::Floats;
}

/// Runs of sixteen numbers, and what is left.
#[inline(always)]
pub(crate) fn whole<F: Floats>(bytes: &[u8]) -> (&[F::Sixteen], &[u8]) {
    let runs = bytes.len() / size_of::<F::Sixteen>();
    let (runs, rest) = bytes.split_at(runs * size_of::<F::Sixteen>());
    (blocks(runs), rest)
}

/// Fewer than sixteen numbers, and zeros.
#[inline(always)]
pub(crate) fn padded<F: Floats>(rest: &[u8]) -> F::Sixteen {
    let mut sixteen = F::Sixteen::new_zeroed();
    sixteen.as_mut_bytes()[..rest.len()].copy_from_slice(rest);
    sixteen
}

impl Floats for f32 {
    type Sixteen = [u8; 64];
    #[inline(always)]
    fn load<S: Lanes>(s: S, from: &[u8; 64]) -> S::Floats {
        s.load_f32s(from)
    }
}

impl Floats for half::f16 {
    type Sixteen = [u8; 32];
    #[inline(always)]
    fn load<S: Lanes>(s: S, from: &[u8; 32]) -> S::Floats {
        s.load_f16s(from)
    }
}

impl Floats for half::bf16 {
    type Sixteen = [u8; 32];
    #[inline(always)]
    fn load<S: Lanes>(s: S, from: &[u8; 32]) -> S::Floats {
        s.load_bf16s(from)
    }
}
