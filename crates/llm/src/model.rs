//! Tensors: architectures as graphs, weights and where they lie.
//!
//! | to | use |
//! |---|---|
//! | check a file and learn its hyper-parameters | [`ModelFile::open`] |
//! | decide which device has what, and show it | [`Placement::new`] |
//! | load | [`Model::load`] |
//! | compute | [`Runner`](crate::runner::Runner), [`Encoder`](crate::runner::Encoder) |
//!
//! Devices are given by the caller and seen through traits only; so a model runs on whatever there is, on this machine
//! or elsewhere.

mod arch;
mod contents;
mod error;
mod file;
pub(crate) mod held;
mod hyper_parameters;
mod keys;
pub mod limits;
pub(crate) mod net;
mod placement;
mod weights;

pub use arch::names as architectures;
pub use contents::Contents;
pub use error::Error;
pub use file::ModelFile;
pub use hyper_parameters::{
    Block, BlockState, ChannelDelta, CompressedRows, DecayRule, Distances, Experts, Factors, Gating, Half,
    HyperParameters, IndexRule, Indexer, Latent, Ngrams, OneRow, Pooling, Ranking, RecurrentState, Rwkv,
    Source, StateSpace, StreamRule, Streams, Temperature, TokenRows, Window,
};
pub use net::Section;
pub(crate) use placement::ComputedBy;
pub use placement::{Override, PlacedTensor, Placement, PlacementOptions, Proportions, Share};
pub use weights::{Model, Progress};
