//! Every bound on what a vocabulary, a template or a request may ask for, named once.

/// Tokens of a vocabulary. The largest in use have some 260,000.
pub const MAX_TOKENS: usize = 1 << 24;
/// Tokens of a vocabulary of which the file has only the number.
pub const MAX_NAMELESS_TOKENS: usize = 1 << 20;

/// Bytes of one piece. The longest in use, runs of spaces or dashes, have some hundred.
pub const MAX_PIECE_BYTES: usize = 1 << 16;

/// Bytes that a table of a vocabulary may replace at a time, and replace them by. The longest in use have some thirty.
pub(crate) const MAX_REPLACEMENT_BYTES: usize = 128;

/// Bytes of all special tokens together: the automaton that finds them takes a multiple of this.
pub const MAX_SPECIAL_BYTES: usize = 1 << 24;

/// Bytes of a word that merges work on at a time, which takes some forty times as much memory. A longer word is cut; no
/// model has room for one.
pub(crate) const MAX_WORD_BYTES: usize = 1 << 24;

/// Bytes of a chat template's source.
pub const MAX_TEMPLATE_BYTES: usize = 1 << 20;

/// Steps that rendering a template may take. A message takes some hundred.
pub const MAX_TEMPLATE_STEPS: u64 = 1_500_000;

/// Stack of the thread that a template is rendered on; it takes no memory until it is used. A value that is nested by
/// every few steps is shown and freed by recursion.
pub(crate) const MAX_TEMPLATE_STACK: usize = 512 << 20;

/// Bytes that a template may write.
pub const MAX_TEMPLATE_OUTPUT: usize = 16 << 20;

/// Bytes of any one value of a template, with all that is in it.
pub const MAX_TEMPLATE_VALUE: usize = 16 << 20;

/// Bytes of values that a template may look at and make, all in all. A message is looked at some ten times.
pub const MAX_TEMPLATE_WORK: u64 = 128 << 20;

/// Nesting of expressions and statements in a template.
pub const MAX_TEMPLATE_NESTING: usize = 500;

/// Elements of what a single filter makes; the engine's own `range` has the same bound.
pub const MAX_TEMPLATE_ELEMENTS: usize = 100_000;

/// Nesting of calls while a template is rendered.
pub const MAX_TEMPLATE_DEPTH: usize = 128;

/// Spaces that a template may indent by, and the width that it may format to.
pub const MAX_TEMPLATE_WIDTH: usize = 999;

/// Bytes of an answer that are held back to find out whether they are a call of a tool, or what an argument is.
pub const MAX_CALL_HELD: usize = 1 << 20;

/// Bytes of what stands before a call or a message, of the name of a tool, and of the name of an argument, in an answer.
pub const MAX_CALL_HEADER: usize = 4096;

/// Tags within tags in an argument of a call.
pub const MAX_CALL_DEPTH: usize = 64;

/// Tokens whose logits a request may change, and tokens that end repetitions. Time per token is in proportion.
pub const MAX_LOGIT_BIASES: usize = 1 << 20;

/// Likeliest tokens that a request may ask for with every token.
pub const MAX_TOP_LOGPROBS: usize = 1 << 16;

/// Strings at which a request may ask an answer to end. Each is looked for with every byte.
pub const MAX_STOP_STRINGS: usize = 256;

/// Bytes of all of them.
pub const MAX_STOP_BYTES: usize = 1 << 16;

/// Bytes of a regular expression or grammar. The compiler's time is up to quadratic in it.
pub const MAX_GRAMMAR_BYTES: usize = 1 << 16;

/// Nesting of groups in a grammar, and of values in a JSON schema.
pub const MAX_GRAMMAR_DEPTH: usize = 64;

/// Values in a JSON schema: objects, arrays, strings, numbers.
pub const MAX_SCHEMA_VALUES: usize = 20_000;

/// Bytes of all names and strings in a JSON schema.
pub const MAX_SCHEMA_BYTES: usize = 1 << 18;

/// Properties that an object of a JSON schema may name, and how many it may require. The compiler's time is quadratic in it.
pub const MAX_SCHEMA_PROPERTIES: usize = 1000;

/// Patterns for names of properties in a JSON schema. Each is compared with every other.
pub const MAX_PATTERN_PROPERTIES: usize = 32;

/// The largest bound of a number in a JSON schema, either way: where `f64` ceases to be exact.
pub const MAX_SCHEMA_NUMBER: i64 = 1 << 53;

/// The largest bound of a count in a JSON schema: characters, items, properties.
pub const MAX_SCHEMA_COUNT: usize = 1_000_000;

/// What all `multipleOf` of a JSON schema divide, in units of their last digit. Its square fits `u32`.
pub const MAX_SCHEMA_MULTIPLE: u64 = 50_000;

/// Digits of a number in JSON that a model may write in a row, unless the schema demands more. 64-bit numbers have up to 20.
pub const MAX_NUMBER_DIGITS: u8 = 20;

/// Grammars that are kept compiled, for each vocabulary.
pub const MAX_CACHED_GRAMMARS: usize = 64;

/// Stack of the thread that a grammar is compiled on; it takes no memory until it is used. Rules that use rules in a row
/// are followed by recursion.
pub(crate) const MAX_GRAMMAR_STACK: usize = 512 << 20;

/// Steps, of about a tenth of a microsecond, that may be taken to compile the expressions of a grammar.
pub const MAX_GRAMMAR_FUEL: u64 = 1_000_000;

/// Steps that may be taken to find out what an answer may begin with.
pub const MAX_START_FUEL: u64 = 500_000;

/// Symbols in all rules of a grammar.
pub const MAX_GRAMMAR_SYMBOLS: usize = 200_000;

/// Steps that may be taken on expressions to find out which tokens may come next.
pub const MAX_MASK_FUEL: u64 = 200_000;

/// Partial readings that may be made to find out which tokens may come next.
pub const MAX_MASK_ITEMS: usize = 50_000;

/// Partial readings of an answer at one place.
pub const MAX_ROW_ITEMS: usize = 2000;

/// States of the automaton that is built of a grammar's expressions as answers need them, at up to two kilobytes each.
pub const MAX_LEXER_STATES: usize = 50_000;

/// Tokens of a vocabulary that constraints can be made for.
pub(crate) const MAX_TRIE_TOKENS: usize = 1 << 22;

/// Nodes of the tree of all tokens' bytes; it counts them with 22 bits.
pub(crate) const MAX_TRIE_NODES: usize = (1 << 22) - 1;

/// Bytes of a token that is longer than any constraint allows; the tree counts levels with ten bits.
pub(crate) const MAX_TRIE_TOKEN_BYTES: usize = 1 << 10;

const _: () = {
    assert!(MAX_SCHEMA_MULTIPLE * MAX_SCHEMA_MULTIPLE < u32::MAX as u64);
    assert!(MAX_TRIE_TOKENS < (1 << 24), "the tree keeps tokens in 24 bits");
    assert!(MAX_PIECE_BYTES <= MAX_SPECIAL_BYTES && MAX_SPECIAL_BYTES <= MAX_WORD_BYTES);
    assert!(MAX_TOKENS < u32::MAX as usize, "tokens are u32, and one value is kept for none");
    assert!(MAX_WORD_BYTES < u32::MAX as usize);
};
