//! Language models on top of the stream system: text to tokens and back, architectures as graphs, caches, sampling.
//!
//! [`text`] knows characters and tokens and nothing of tensors; [`model`] knows tensors and tokens and nothing of
//! characters.
#![forbid(unsafe_code)]

pub mod file_type;
pub mod model;
pub mod quantize;
pub mod text;
