//! Vectors of `f32` on each instruction set, behind one trait.
//!
//! A kernel is written once over [`Simd`], as an `#[inline(always)]` function, and compiled once per instruction set by
//! [`for_each_level!`](crate::simd::for_each_level). Holding a token is the proof that the processor has the
//! instructions: outside of this folder tokens come only from that macro, whose functions run only after
//! [`Level::detect`] said that they may.
//!
//! Invariant: every token computes the same function of its lanes, up to the order in which [`Simd::sum`] adds them
//! and to whether [`Simd::mul_add`] rounds once or twice. [`Scalar`] is the definition.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod level;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub use level::{Level, LevelError};
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
pub(crate) use scalar::{Scalar, fused};

use half::{bf16, f16};

/// An instruction set, as a token.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// Which one it is.
    const LEVEL: Level;
    /// Whether it is none. Unlike a `match` on the level, an `if` on one of these has compilers leave out what is never run before
    /// they spend time on it.
    const IS_SCALAR: bool = matches!(Self::LEVEL, Level::Scalar);
    /// Whether it is AVX-512.
    const IS_AVX512: bool = false;
    /// Lanes of a vector; a power of two, at most [`MAX_LANES`].
    const LANES: usize;
    /// A vector.
    type F32: Copy;

    /// All lanes the same.
    fn splat(self, x: f32) -> Self::F32;
    /// The first lanes of a slice, which has at least as many.
    fn load(self, from: &[f32]) -> Self::F32;
    /// Writes the lanes to the start of a slice, which has at least as many.
    fn store(self, v: Self::F32, to: &mut [f32]);
    /// The first lanes of a slice, widened exactly.
    fn load_f16(self, from: &[f16]) -> Self::F32;
    /// The first lanes of a slice, widened exactly.
    fn load_bf16(self, from: &[bf16]) -> Self::F32;

    /// All lanes the same, widened exactly.
    fn splat_f16(self, x: f16) -> Self::F32;
    /// The first lanes of a slice, as numbers.
    fn load_i8(self, from: &[i8]) -> Self::F32;

    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a * b + c`, rounded once where the processor can.
    fn mul_add(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// `a > b ? a : b`.
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a < b ? a : b`.
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// To the nearest whole number, ties to even.
    fn round(self, a: Self::F32) -> Self::F32;
    /// 2 to the power of a whole number from -126 to 127.
    fn pow2(self, n: Self::F32) -> Self::F32;
    /// `a > b ? yes : no`, lane by lane; `no` where one of them is NaN.
    fn where_greater(self, a: Self::F32, b: Self::F32, yes: Self::F32, no: Self::F32) -> Self::F32;

    /// `a * 2^n` for a whole `n` from -152 to 130 and `a` near 1, rounded once.
    #[inline(always)]
    fn scale(self, a: Self::F32, n: Self::F32) -> Self::F32 {
        // In two steps, because neither the smallest nor the largest power of two is a number by itself. The first is exact.
        let half = self.round(self.mul(n, self.splat(0.5)));
        self.mul(self.mul(a, self.pow2(half)), self.pow2(self.sub(n, half)))
    }

    /// The sum of all lanes.
    fn sum(self, v: Self::F32) -> f32;
    /// The sum of all lanes of each of four vectors, in this order: the upper half of the lanes is added to the lower half,
    /// and so on until one is left.
    fn fold_four(self, v: [Self::F32; 4]) -> [f32; 4];
    /// The largest lane.
    fn largest(self, v: Self::F32) -> f32;
}

/// The most lanes any instruction set has.
pub(crate) const MAX_LANES: usize = 16;

/// A function compiled for each instruction set.
///
/// `for_each_level!(name[A: Number]: fn(args…) -> Result)` needs an
/// `#[inline(always)] fn name<S: Simd, A: Number>(simd: S, args…)` in scope and gives a [`Compiled`] with one function
/// pointer per level. The brackets hold the generic parameters after the token, if any.
macro_rules! for_each_level {
    ($body:ident $([$($generic:ident : $bound:path),+])? : fn($($arg:ident : $kind:ty),* $(,)?) $(-> $result:ty)?) => {{
        fn on_scalar $(<$($generic: $bound),+>)? ($($arg: $kind),*) $(-> $result)? {
            $body::<$crate::simd::Scalar $(, $($generic),+)?>($crate::simd::Scalar, $($arg),*)
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx,avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt")]
        fn on_avx2 $(<$($generic: $bound),+>)? ($($arg: $kind),*) $(-> $result)? {
            // SAFETY: this function has the features, so its caller has seen them.
            let token = unsafe { $crate::simd::Avx2::assume() };
            $body::<$crate::simd::Avx2 $(, $($generic),+)?>(token, $($arg),*)
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(
            enable = "avx,avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"
        )]
        fn on_avx512 $(<$($generic: $bound),+>)? ($($arg: $kind),*) $(-> $result)? {
            // SAFETY: this function has the features, so its caller has seen them.
            let token = unsafe { $crate::simd::Avx512::assume() };
            $body::<$crate::simd::Avx512 $(, $($generic),+)?>(token, $($arg),*)
        }

        #[cfg(target_arch = "aarch64")]
        fn on_neon $(<$($generic: $bound),+>)? ($($arg: $kind),*) $(-> $result)? {
            // SAFETY: NEON is part of every 64-bit ARM.
            let token = unsafe { $crate::simd::Neon::assume() };
            $body::<$crate::simd::Neon $(, $($generic),+)?>(token, $($arg),*)
        }

        $crate::simd::Compiled::<fn($($kind),*) $(-> $result)?> {
            scalar: on_scalar $(::<$($generic),+>)?,
            // SAFETY: `Compiled::at` hands these out only for a level that was found on this processor.
            #[cfg(target_arch = "x86_64")]
            avx2: |$($arg),*| unsafe { on_avx2 $(::<$($generic),+>)? ($($arg),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            avx512: |$($arg),*| unsafe { on_avx512 $(::<$($generic),+>)? ($($arg),*) },
            #[cfg(target_arch = "aarch64")]
            neon: on_neon $(::<$($generic),+>)?,
        }
    }};
}
pub(crate) use for_each_level;

/// One function, compiled for each instruction set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compiled<F> {
    pub(crate) scalar: F,
    #[cfg(target_arch = "x86_64")]
    pub(crate) avx2: F,
    #[cfg(target_arch = "x86_64")]
    pub(crate) avx512: F,
    #[cfg(target_arch = "aarch64")]
    pub(crate) neon: F,
}

impl<F: Copy> Compiled<F> {
    /// The function for a level. A [`Level`] beyond scalar exists only where the processor has it.
    pub(crate) fn at(&self, level: Level) -> F {
        match level {
            Level::Scalar => self.scalar,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(_) => self.avx2,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(_) => self.avx512,
            #[cfg(target_arch = "aarch64")]
            Level::Neon => self.neon,
        }
    }
}

/// Asks for bytes that will be needed soon.
#[inline(always)]
pub(crate) fn prefetch(bytes: &[u8]) {
    for at in (0..bytes.len()).step_by(64) {
        prefetch_line(&bytes[at]);
    }
}

/// Asks for the bytes around an address, which may be any.
#[inline(always)]
pub(crate) fn prefetch_line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which reads nothing and fails for no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    // There is no stable way to ask elsewhere.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Asks for what lies so far behind a place, if there is anything: what follows a row of a tensor is often the next.
#[inline(always)]
pub(crate) fn prefetch_at(place: *const u8, distance: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing, wherever the address is.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.wrapping_add(distance).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (place, distance);
}
