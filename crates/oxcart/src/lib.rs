//! Run one language model on the machines you own: the library that programs depend on.
//!
//! ```no_run
//! use std::io::Write;
//!
//! let mut session = oxcart::Session::open("smollm2")?;
//! for piece in session.ask("Why is the sky blue?")? {
//!     print!("{}", piece?);
//!     std::io::stdout().flush()?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Session`] is the short way; [`Loader`] says which workers, plug-ins and sizes. Build with `--release`: without optimization
//! models run many times slower. Below the two is a facade: every module is one
//! of the crates that Oxcart is made of, and [`devices`] knows them all, so that a program finds what can compute on its
//! machine without naming a kind of device.
#![forbid(unsafe_code)]

pub mod devices;
pub mod digests;
mod error;
pub mod folders;
mod ignored;
mod os;
pub mod own_models;
mod session;

pub use error::Error;
pub use ignored::{ignored_keys, warn_of_ignored_keys};
pub use session::{EmbeddingSession, Loader, Session};

pub use oxcart_llm::engine::Request;
pub use oxcart_llm::text::Message;

pub use oxcart_backend as backend;
pub use oxcart_cpu as cpu;
pub use oxcart_cuda as cuda;
pub use oxcart_gguf as gguf;
pub use oxcart_llm as llm;
pub use oxcart_pull as pull;
pub use oxcart_rpc as rpc;
pub use oxcart_sched as sched;
pub use oxcart_tensor as tensor;
