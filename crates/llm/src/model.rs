//! Tensors: architectures as graphs, weights and where they lie, caches, sessions.
//!
//! | to | use |
//! |---|---|
//! | check a file and learn its hyper-parameters | [`ModelFile::open`] |
//! | decide which device has what, and show it | [`Placement::new`] |
//! | load | [`Model::load`] |
//! | compute logits of tokens, one after another | [`Context`] |
//! | compute embeddings | [`Encoder`] |
//!
//! ```no_run
//! use oxcart_backend::{Device, StreamOptions};
//! use oxcart_llm::model::{Context, ContextOptions, Model, ModelFile, Placement, PlacementOptions, Wanted};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = oxcart_cpu::CpuDevice::new()?;
//! let file = ModelFile::open("model.gguf")?;
//! let placement = Placement::new(&file, vec![device.clone()], &PlacementOptions::default())?;
//! let model = Model::load(file, placement, &|_| {})?;
//! let mut context = Context::new(model, vec![device.open(&StreamOptions::threads(2))?], ContextOptions::default())?;
//! let logits = context.evaluate(&[1, 2, 3], Wanted::Last)?;
//! println!("{:?}", logits.row(0));
//! # Ok(())
//! # }
//! ```
//!
//! Devices are given by the caller and seen through traits only; so a model runs on whatever there is, on this machine
//! or elsewhere.

mod arch;
mod cache;
mod cells;
mod context;
mod encoder;
mod error;
mod file;
mod hyper;
mod keys;
pub mod limits;
mod net;
mod placement;
mod step;
mod weights;

pub use arch::names as architectures;
pub use context::{AtLimit, AttentionChoice, Context, ContextOptions, Logits, Timings, Wanted};
pub use encoder::{Encoder, EncoderOptions};
pub use error::Error;
pub use file::ModelFile;
pub use hyper::{Block, Experts, HyperParameters, Pooling};
pub use net::Section;
pub use placement::{Override, PlacedTensor, Placement, PlacementOptions, Proportions, Share};
pub use weights::{Model, Progress};
