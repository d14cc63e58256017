//! The data model of Oxcart: element types, quantized blocks, layouts, typed operations and graphs.
//!
//! This crate describes computations; it owns no tensor memory, performs no I/O and knows no device.
#![forbid(unsafe_code)]

pub mod dtype;
mod error;
pub mod graph;
pub mod layout;
pub mod limits;
pub mod ops;
pub mod quant;
pub mod shape;
mod type_id;

pub use dtype::DType;
pub use error::Error;
pub use graph::{Graph, TensorId, TensorRef};
pub use layout::{Layout, LayoutError};
pub use ops::Op;
pub use shape::Shape;
pub use type_id::{dtype_from_id, dtype_id};
