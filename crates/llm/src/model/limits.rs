//! Bounds on what a file or a caller may ask for; everything below is far above any model there is.

/// Blocks of a model.
pub const MAX_BLOCKS: usize = 512;
/// Attention heads of a block.
pub const MAX_HEADS: usize = 1024;
/// Channels of one head.
pub const MAX_HEAD_SIZE: usize = 4096;
/// Channels between blocks.
pub const MAX_EMBEDDING: usize = 1 << 18;
/// Channels inside a feed-forward network.
pub const MAX_FEED_FORWARD: usize = 1 << 20;
/// Experts of a block.
pub const MAX_EXPERTS: usize = 1024;
/// Residual streams.
pub const MAX_STREAMS: usize = 64;
/// Rounds that balance weights of residual streams.
pub const MAX_ROUNDS: usize = 1024;
/// Tokens that a convolution sees.
pub const MAX_CONVOLUTION: usize = 256;
/// Tokens of an n-gram that has an embedding.
pub const MAX_NGRAM: usize = 16;
/// Embeddings of n-grams.
pub const MAX_NGRAM_ROWS: usize = 1 << 30;
/// Tokens of a vocabulary.
pub const MAX_VOCABULARY: usize = 1 << 24;
/// Tokens of a context, in training or at run time.
pub const MAX_CONTEXT: usize = 1 << 28;
/// Sequences of a runner.
pub const MAX_SEQUENCES: usize = 1 << 14;
/// Tokens computed at a time.
pub const MAX_BATCH: usize = 1 << 16;

// Products of any two of these are far from overflowing, so shapes can be computed without checks.
const _: () = assert!((MAX_HEADS * MAX_HEAD_SIZE).checked_mul(MAX_CONTEXT).is_some());
const _: () = assert!((MAX_FEED_FORWARD * MAX_EMBEDDING).checked_mul(MAX_EXPERTS).is_some());
