//! Every bound on what a vocabulary, a template or a request may ask for, named once.

/// Tokens of a vocabulary. The largest in use have some 260,000.
pub const MAX_TOKENS: usize = 1 << 24;
/// Tokens of a vocabulary of which the file has only the number.
pub const MAX_NAMELESS_TOKENS: usize = 1 << 20;

/// Bytes of one piece. The longest in use, runs of spaces or dashes, have some hundred.
pub const MAX_PIECE_BYTES: usize = 1 << 16;

/// Bytes of all special tokens together: the automaton that finds them takes a multiple of this.
pub const MAX_SPECIAL_BYTES: usize = 1 << 24;

/// Bytes of a word that merges work on at a time, which takes some forty times as much memory. A longer word is cut; no
/// model has room for one.
pub(crate) const MAX_WORD_BYTES: usize = 1 << 24;

/// Bytes of a chat template's source.
pub const MAX_TEMPLATE_BYTES: usize = 1 << 20;

/// Steps that rendering a template may take. A message takes some hundred.
pub const MAX_TEMPLATE_STEPS: u64 = 1_000_000;

/// Stack of the thread that a template is rendered on; it takes no memory until it is used. A value that is nested by
/// every few steps is shown and freed by recursion.
pub(crate) const MAX_TEMPLATE_STACK: usize = 512 << 20;

/// Bytes that a template may write.
pub const MAX_TEMPLATE_OUTPUT: usize = 16 << 20;

/// Bytes of what a single filter makes.
pub const MAX_TEMPLATE_VALUE: usize = 16 << 20;

/// Elements of what a single filter makes; the engine's own `range` has the same bound.
pub const MAX_TEMPLATE_ELEMENTS: usize = 100_000;

/// Nesting of calls while a template is rendered.
pub const MAX_TEMPLATE_DEPTH: usize = 128;

/// Spaces that a template may indent by, and the width that it may format to.
pub const MAX_TEMPLATE_WIDTH: usize = 999;

const _: () = {
    assert!(MAX_PIECE_BYTES <= MAX_SPECIAL_BYTES && MAX_SPECIAL_BYTES <= MAX_WORD_BYTES);
    assert!(MAX_TOKENS < u32::MAX as usize, "tokens are u32, and one value is kept for none");
    assert!(MAX_WORD_BYTES < u32::MAX as usize);
};
