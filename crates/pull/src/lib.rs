//! Models by name: a path, a known name, a repository of the Hugging Face hub, or a URL becomes a file on this machine.
//!
//! ```
//! use oxcart_pull::{Name, Store};
//!
//! let store = Store::at("/tmp/oxcart-doc");
//! assert_eq!(store.find(&"smollm2".parse()?), None);
//! assert!(matches!("HuggingFaceTB/SmolLM2-GGUF:Q8_0".parse()?, Name::Hub { .. }));
//! # Ok::<(), oxcart_pull::Error>(())
//! ```
//!
//! Invariant: a file gets its final name only when all of it is there, its length and, where it is known, its checksum are
//! right, and it begins like a model. A model of several files is here when all of them are. What was interrupted goes on where
//! it stopped; no wait is without an end, and no more is written than was announced and the disk has room for.
#![forbid(unsafe_code)]

mod about;
mod catalog;
mod error;
mod hub;
mod index_page;
mod kept;
mod name;
mod os;
mod partial;
mod parts;
mod pip;
mod pip_settings;
#[doc(hidden)]
pub mod readers;
mod side_by_side;
mod store;
mod transfer;
mod wheel;

pub use about::About;
pub use catalog::{Alias, Known, aliases, known, known_models};
pub use error::Error;
pub use kept::Kept;
pub use name::Name;
pub use store::Store;
pub use transfer::{Hub, Step};
