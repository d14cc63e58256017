//! Run one language model on the machines you own: the library that programs depend on.
//!
//! It is a facade: every module is one of the crates that Oxcart is made of, and [`devices`] knows them all, so that a
//! program finds what can compute on its machine without naming a kind of device.
#![forbid(unsafe_code)]

pub mod devices;

pub use oxcart_backend as backend;
pub use oxcart_cpu as cpu;
pub use oxcart_gguf as gguf;
pub use oxcart_llm as llm;
pub use oxcart_pull as pull;
pub use oxcart_rpc as rpc;
pub use oxcart_sched as sched;
pub use oxcart_tensor as tensor;
