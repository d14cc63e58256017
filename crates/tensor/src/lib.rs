//! The data model of Oxcart: element types, quantized blocks, layouts, typed operations and graphs.
//!
//! This crate describes computations; it owns no tensor memory, performs no I/O and knows no device.
#![forbid(unsafe_code)]

pub mod dtype;
pub mod layout;
pub mod limits;
pub mod quant;
pub mod shape;

pub use dtype::DType;
pub use layout::{Layout, LayoutError};
pub use shape::Shape;
