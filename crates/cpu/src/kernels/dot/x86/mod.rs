//! [`Lanes`](super::lanes::Lanes) for 64-bit x86.

mod avx2;
mod avx512;
