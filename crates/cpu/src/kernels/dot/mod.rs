//! Dot products of a row of weights with a row of activations, for every type that can be a weight.
//!
//! A row of activations is first rounded to the weight type's partner ([`DType::dot_partner`]), once, by [`encode`]; then
//! [`dot`] multiplies it with as many rows of weights as there are.

use oxcart_tensor::DType;

use crate::simd::Level;

/// The dot product of a row of weights with a row of its partner type, both as bytes.
pub(crate) type Dot = fn(&[u8], &[u8]) -> f32;

/// Rounds a row of numbers to a partner type.
pub(crate) type Encode = fn(&[f32], &mut [u8]);

/// The dot product for weights of a type; `None` if it cannot be a weight.
pub(crate) fn dot(_weights: DType, _level: Level) -> Option<Dot> {
    None
}

/// How activations become a partner type; `None` if it is none.
pub(crate) fn encode(_partner: DType, _level: Level) -> Option<Encode> {
    None
}
