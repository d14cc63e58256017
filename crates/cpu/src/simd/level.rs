//! Which instruction set to use: the best there is, or the one that `OXCART_CPU` asks for.
//!
//! Invariant: a [`Level`] beyond [`Level::Scalar`] can only be made by [`Level::available`], after the processor said
//! that it has the instructions. Kernels compiled for it may therefore run without asking again.

use std::fmt;
use std::sync::LazyLock;

use oxcart_backend::Arithmetic;

/// Counts the orders of summation that docs/numerics.md has described. A change of any bit of any result is a new one.
const ORDER: u32 = 1;

/// Proof that the processor was asked.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen(());

/// An instruction set this processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Portable code, the reference for all others.
    Scalar,
    /// AVX2 with FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2(Seen),
    /// AVX-512 (F, BW, DQ, VL) with VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512(Seen),
    /// NEON, which every 64-bit ARM has.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

/// What `OXCART_CPU` asks for and cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("OXCART_CPU={wanted}: this processor has {}", names(.available))]
pub struct LevelError {
    wanted: String,
    available: Vec<Level>,
}

fn names(levels: &[Level]) -> String {
    levels.iter().map(Level::to_string).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Level::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(_) => "avx512",
            #[cfg(target_arch = "aarch64")]
            Level::Neon => "neon",
        })
    }
}

#[cfg(target_arch = "x86_64")]
impl Level {
    /// What the token of AVX2 is; that token exists only where the instructions were seen.
    pub(super) const AVX2: Level = Level::Avx2(Seen(()));
    /// What the token of AVX-512 is; that token exists only where the instructions were seen.
    pub(super) const AVX512: Level = Level::Avx512(Seen(()));
}

impl Level {
    /// What results have in common to the last bit with those of other processors.
    pub(crate) const fn arithmetic(self) -> Option<Arithmetic> {
        let instructions = match self {
            Level::Scalar => 1,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(_) => 2,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(_) => 3,
            #[cfg(target_arch = "aarch64")]
            Level::Neon => 4,
        };
        Arithmetic::new(ORDER << 8 | instructions)
    }

    /// Every instruction set this processor has, the best one last.
    pub fn available() -> Vec<Level> {
        let mut levels = vec![Level::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("popcnt")
                && is_x86_feature_detected!("lzcnt");
            let avx512 = avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni");
            levels.extend(avx2.then_some(Level::AVX2));
            levels.extend(avx512.then_some(Level::AVX512));
        }
        #[cfg(target_arch = "aarch64")]
        levels.push(Level::Neon);
        levels
    }

    /// The instruction set to use: what `OXCART_CPU` names, else the best. Looked up once.
    pub fn detect() -> Result<Level, LevelError> {
        static DETECTED: LazyLock<Result<Level, LevelError>> =
            LazyLock::new(|| choose(std::env::var("OXCART_CPU").ok().as_deref()));
        DETECTED.clone()
    }
}

fn choose(wanted: Option<&str>) -> Result<Level, LevelError> {
    let available = Level::available();
    match wanted.filter(|wanted| !wanted.is_empty()) {
        None => Ok(available.last().copied().unwrap_or(Level::Scalar)),
        Some(wanted) => available
            .iter()
            .copied()
            .find(|level| level.to_string().eq_ignore_ascii_case(wanted))
            .ok_or_else(|| LevelError { wanted: wanted.to_owned(), available }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_can_be_forced() {
        assert_eq!(choose(Some("scalar")), Ok(Level::Scalar));
        assert_eq!(choose(Some("SCALAR")), Ok(Level::Scalar));
        assert_eq!(choose(None).as_ref(), Ok(Level::available().last().unwrap()));
        assert_eq!(choose(Some("")), choose(None));
    }

    #[test]
    fn what_the_processor_lacks_is_refused() {
        let refused = choose(Some("mmx")).unwrap_err().to_string();
        assert!(refused.starts_with("OXCART_CPU=mmx: this processor has scalar"), "{refused}");
    }
}
