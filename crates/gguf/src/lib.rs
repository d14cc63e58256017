//! GGUF model files: a reader that survives hostile files, and a writer that round-trips.
//!
//! | to | use |
//! |---|---|
//! | open a model, in one file or in many | [`GgufSet::open`] |
//! | open one file | [`Gguf::open`] |
//! | tell the files of a split model by their names | [`PartName::of`] |
//! | look into bytes in memory | [`Header::parse`] |
//! | read metadata | [`Metadata::get`], [`Entry`] |
//! | find tensors | [`Tensors`], [`TensorInfo`] |
//! | get at tensor data | [`Gguf::read_tensor`], [`Gguf::map`] |
//! | write a file | [`Builder`] |
//!
//! Every file is hostile until `Index::scan` has seen all of its header: no number in it is believed before it was
//! compared with the length of the file, no memory is asked for beyond what the file has shown (how much in all,
//! [`limits`] says), nothing recurses, and no byte sequence panics. The lints below keep it so. After that, views ([`Metadata`], [`Tensors`]) decode in place.
//!
//! This crate knows files, types and layouts; it knows no device, and it does not know what a model is.
#![deny(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::as_conversions,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::unreachable,
        clippy::unwrap_used,
    )
)]

mod array;
mod builder;
mod cursor;
mod data;
mod encode;
mod error;
mod file;
mod format;
mod header;
mod index;
pub mod limits;
mod map;
mod measure;
mod memory;
mod metadata;
mod set;
mod state;
mod tensor;
mod text;
mod value;

pub use array::{Array, Numbers, Strings, Values};
pub use builder::Builder;
pub use data::Data;
pub use encode::{Element, Encode};
pub use error::{Error, Place, Result, SetError};
pub use file::{Gguf, TensorReader};
pub use format::{ByteOrder, Format, Version};
pub use header::{Header, MAGIC};
pub use map::Mapping;
pub use metadata::{Entry, Metadata};
pub use oxcart_tensor::{dtype_from_id, dtype_id};
pub use set::{GgufSet, PartName, SetTensor};
pub use state::FileState;
pub use tensor::{TensorInfo, Tensors};
pub use text::{Name, Text};
pub use value::{Number, Value, ValueType};
