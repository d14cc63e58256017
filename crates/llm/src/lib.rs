//! Language models on top of the device system: text to tokens and back, architectures as graphs, caches, sampling.
//!
//! [`text`] knows characters and tokens and nothing of tensors; [`model`] and [`runner`] know tensors and tokens and nothing
//! of characters. [`logits`] is what they tell each other.
#![forbid(unsafe_code)]

pub mod engine;
pub mod file_type;
pub mod logits;
pub mod model;
pub mod quantize;
pub mod runner;
pub mod text;
