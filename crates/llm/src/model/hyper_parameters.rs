//! What a file says about the model's size and shape.
//!
//! Invariant: [`HyperParameters::read`] is the only way to get one, and checks every number and every relation between
//! them before any tensor is looked at. So sizes computed from it neither overflow nor divide by zero.

mod attention;
mod experts;
mod indexer;
mod ngrams;
mod recurrent;
pub(crate) mod rope;
mod source;

pub use attention::{Latent, OneRow};
pub use experts::{Experts, Gating};
pub use indexer::{IndexRule, Indexer};
pub use ngrams::Ngrams;
pub use recurrent::{ChannelDelta, DecayRule, Rwkv, StateSpace};
pub use source::{Distances, Source};

use oxcart_gguf::Metadata;
use oxcart_tensor::ops::{Rope, Unary};

use super::arch::{self, Architecture, NormKind, Purpose};
use super::error::Error;
use super::keys::Keys;
use super::limits::{MAX_BLOCKS, MAX_CONTEXT, MAX_EMBEDDING, MAX_ROUNDS, MAX_STREAMS, MAX_VOCABULARY};
use crate::runner::PAGE_TOKENS;

/// How token embeddings become one vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// Not at all: a vector per token.
    #[default]
    None,
    /// Their mean.
    Mean,
    /// That of the first token.
    Cls,
    /// That of the last token.
    Last,
    /// Not a vector of the text, but how well it fits each of some labels: numbers that a head gives.
    Rank,
}

/// The head of models that rank texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranking {
    /// How many numbers it gives.
    pub labels: usize,
    /// Whether it reads the mean of all rows rather than the first one.
    pub of_mean: bool,
    /// What comes after its first matrix.
    pub(crate) function: Unary,
}

impl Ranking {
    fn read(keys: &Keys<'_>, traits: &arch::Traits) -> Result<Ranking, Error> {
        let labels = keys.strings("classifier.output_labels")?.unwrap_or(0).max(1);
        if labels > MAX_VOCABULARY {
            let rule = format!("must be at most {MAX_VOCABULARY}");
            return Err(keys.refuse("classifier.output_labels", labels, rule));
        }
        let stated =
            keys.count("classifier.pooling_type", NO_POOLING)?.filter(|&stated| stated != NO_POOLING);
        let of_mean = stated.map_or(traits.ranks_by_mean, |stated| stated == 1);
        Ok(Ranking { labels, of_mean, function: Unary::Tanh })
    }
}

/// The halves of models that read a text before they write another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Half {
    /// There are none.
    #[default]
    Whole,
    /// What reads.
    Reading,
    /// What writes.
    Writing,
}

impl Half {
    /// What names of its tensors begin with.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Half::Whole => "",
            Half::Reading => "enc.",
            Half::Writing => "dec.",
        }
    }
}

/// What may differ from block to block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Block {
    /// Query heads; none in blocks without attention.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Channels of a head of queries and of keys.
    pub key_size: usize,
    /// Channels of a head of values.
    pub value_size: usize,
    /// Channels of the dense feed-forward network.
    pub feed_forward: usize,
    /// Whether attention sees a window only.
    pub windowed: bool,
    /// Whether positions rotate its queries and keys.
    pub rotates: bool,
    /// Whether experts are its feed-forward network.
    pub has_experts: bool,
    /// Bound of what is inside its experts, if there is one.
    pub expert_limit: Option<f32>,
    /// Bound of what is inside the expert that every token uses, if there is one.
    pub shared_limit: Option<f32>,
    /// The block of the file whose tensors it has.
    pub tensors: usize,
    /// Which half of the model it belongs to.
    pub half: Half,
    /// What it remembers of a sequence.
    pub state: BlockState,
}

impl Block {
    /// Whether it remembers all tokens together.
    pub fn is_recurrent(&self) -> bool {
        self.state.recurrent.is_some()
    }
}

/// What a block remembers of a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockState {
    /// Of every token that can still be seen, if anything.
    pub rows: Option<TokenRows>,
    /// Of all tokens together, if anything.
    pub recurrent: Option<RecurrentState>,
    /// Of runs of tokens that were compressed, if anything.
    pub compressed: Option<CompressedRows>,
}

/// What a block remembers of each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRows {
    /// Channels of its keys.
    pub keys: usize,
    /// Channels of its values; none if they are the first of its keys.
    pub values: usize,
    /// Numbers that an index finds it by; none where there is no index.
    pub index: usize,
}

/// Kinds of runs: by themselves, and overlapping with the one before.
pub(crate) const RUN_KINDS: usize = 2;

/// What a block remembers of runs of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressedRows {
    /// Tokens of a run.
    pub run: usize,
    /// Whether the run before takes part in it.
    pub overlaps: bool,
    /// Channels of its key, which is its value, too.
    pub keys: usize,
    /// Channels of the key that an index finds it by; none where there is no index.
    pub index: usize,
    /// Numbers that are kept of each token until its run is compressed.
    pub pending: usize,
}

impl CompressedRows {
    /// Tokens that take part in a run.
    pub(crate) fn span(&self) -> usize {
        if self.overlaps { 2 * self.run } else { self.run }
    }

    /// Tokens for which there is a row: a page has one at least, which it needs if a run ends there.
    pub(crate) fn row_tokens(&self) -> usize {
        self.run.min(PAGE_TOKENS)
    }
}

/// What a block remembers of all tokens together, in `f32`. It can be copied and saved; to go back, it must be computed
/// again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecurrentState {
    /// Numbers that a convolution has seen last.
    pub convolution: usize,
    /// Numbers of the recurrence itself.
    pub state: usize,
    /// Numbers that the convolution of embeddings of n-grams has seen last.
    pub ngrams: usize,
}

/// How far back windowed blocks see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// So many tokens, the token itself included.
    Sliding(usize),
    /// All tokens since the last multiple of this position.
    Chunked(usize),
}

impl Window {
    /// The most tokens that a token sees.
    pub fn length(self) -> usize {
        match self {
            Window::Sliding(length) | Window::Chunked(length) => length,
        }
    }

    /// The first position that a token at `position` sees.
    pub(crate) fn first_seen(self, position: usize) -> usize {
        match self {
            Window::Sliding(length) => (position + 1).saturating_sub(length),
            Window::Chunked(length) => position - position % length,
        }
    }

    /// The first position that sees nothing before `first`.
    pub(crate) fn first_blind(self, first: usize) -> usize {
        match self {
            Window::Sliding(length) => first + length - 1,
            Window::Chunked(length) => first.next_multiple_of(length),
        }
    }
}

/// Factors by which some architectures multiply; 1 in others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// Of embeddings.
    pub embedding: f32,
    /// Of what blocks add.
    pub residual: f32,
    /// Of what blocks add to, where that is what they have read.
    pub stream: f32,
    /// Of logits.
    pub logits: f32,
    /// Of attention scores; by the size of heads if none is given.
    pub attention: Option<f32>,
    /// Of what attention gives.
    pub values: f32,
    /// Of what small experts of groups of others give.
    pub groves: f32,
}

impl Factors {
    const NONE: Factors = Factors {
        embedding: 1.0,
        residual: 1.0,
        stream: 1.0,
        logits: 1.0,
        attention: None,
        values: 1.0,
        groves: 1.0,
    };
}

/// Queries that grow with their positions: by `1 + scale * ln(1 + floor((position + offset) / length))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// How fast.
    pub scale: f32,
    /// Positions of a step.
    pub length: usize,
    /// By how much positions count as later than they are.
    pub offset: usize,
}

impl Temperature {
    /// The factor of queries at a position.
    pub(crate) fn at(&self, position: usize) -> f32 {
        let steps = ((position + self.offset) as f32 / self.length as f32).floor();
        (f64::from(steps) + 1.0).ln() as f32 * self.scale + 1.0
    }
}

/// Residual streams beside each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Streams {
    /// How many.
    pub count: usize,
    /// The least weight of one.
    pub epsilon: f32,
    /// How they are read and written.
    pub rule: StreamRule,
}

/// How residual streams are read and written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StreamRule {
    /// Each by a weight.
    Weighed {
        /// The largest weight of what is added to one.
        magnitude: f32,
    },
    /// As weighed, and mixed among each other, by weights that so many rounds make sum to one both ways.
    Mixed {
        /// The rounds.
        rounds: u32,
    },
    /// Channel by channel, by gates that two matrices give with so many channels between them.
    Gated {
        /// The channels.
        rank: usize,
    },
}

impl Streams {
    /// Reads those that are mixed among each other: four, which the op that balances their weights is made for.
    pub(crate) fn read_mixed(keys: &Keys<'_>) -> Result<Streams, Error> {
        let key = "hyper_connection.count";
        let count = keys.need_count(key, MAX_STREAMS)?;
        if count != 4 {
            return Err(keys.refuse(key, count, "must be 4"));
        }
        let rounds = keys.need_count("hyper_connection.sinkhorn_iterations", MAX_ROUNDS)?;
        let epsilon = keys.number("hyper_connection.epsilon")?.unwrap_or(0.0);
        Ok(Streams { count, epsilon, rule: StreamRule::Mixed { rounds: rounds as u32 } })
    }
}

/// Bounds below this are none.
const LEAST_LIMIT: f32 = 1e-6;

/// A model's size and shape.
#[derive(Clone, Debug)]
pub struct HyperParameters {
    pub(crate) architecture: &'static Architecture,
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
    /// Context of the training.
    pub context: usize,
    /// Channels between blocks.
    pub embedding: usize,
    /// The blocks, first to last.
    pub blocks: Vec<Block>,
    /// Blocks that come after these in the file and guess several tokens at once; they are not used.
    pub guessing_blocks: usize,
    /// Added to what norms divide by.
    pub norm_epsilon: f32,
    /// Rotary positions of blocks that see everything.
    pub rope: Rope,
    /// Rotary positions of blocks that see a window.
    pub rope_windowed: Rope,
    /// How far back windowed blocks see.
    pub window: Option<Window>,
    /// How much scores fall with the distance, at most (ALiBi), if they do.
    pub position_bias: Option<f32>,
    /// Bound of queries, keys and values, if there is one.
    pub qkv_limit: Option<f32>,
    /// Whether a token sees only what is before it.
    pub causal: bool,
    /// Bound of attention scores, if any.
    pub attention_soft_cap: Option<f32>,
    /// Bound of logits, if any.
    pub logit_soft_cap: Option<f32>,
    /// Experts, if any.
    pub experts: Option<Experts>,
    /// Attention with one short row per token, if it is of that kind.
    pub latent: Option<Latent>,
    /// The same of blocks that see a window, where it differs.
    pub latent_windowed: Option<Latent>,
    /// Attention with one row per token for all heads, if it is of that kind.
    pub one_row: Option<OneRow>,
    /// The index that says which tokens attention looks at, if there is one.
    pub indexer: Option<Indexer>,
    /// Residual streams, where there are several.
    pub streams: Option<Streams>,
    /// The recurrence of blocks that have one.
    pub state_space: Option<StateSpace>,
    /// The delta net with decays by channel of blocks that have one.
    pub channel_delta: Option<ChannelDelta>,
    /// The recurrence of RWKV, where it is one.
    pub rwkv: Option<Rwkv>,
    /// Tokens that short convolutions see, where blocks are such.
    pub short_convolution: usize,
    /// Factors by which it multiplies.
    pub factors: Factors,
    /// Queries that grow with their positions, if they do.
    pub temperature: Option<Temperature>,
    /// Whether both parts of a block read the stream as it was before, where architectures leave that to files.
    pub is_parallel: bool,
    /// Whether the last norm also comes between repetitions of the blocks, where they are repeated.
    pub norm_between_loops: bool,
    /// How many blocks a stack has, where stacks are repeated, and how many low ones come before each high one.
    pub stacks: Option<(usize, usize)>,
    /// Every so many blocks the stream is put aside and begins anew, where it does.
    pub checkpoint_period: Option<usize>,
    /// What gated networks have between their matrices, where the file says how far that goes.
    pub saturation: Option<(f32, Option<f32>)>,
    /// Whether gates go through `silu`, where architectures leave that to files.
    pub gated_by_silu: bool,
    /// Embeddings of n-grams, if there are any.
    pub ngrams: Option<Ngrams>,
    /// The text that is read before another is written, if there is one.
    pub source: Option<Source>,
    /// Kinds of distances that move scores, if they do.
    pub distances: Option<Distances>,
    /// Token types, of encoders.
    pub token_types: usize,
    /// What the file asks embeddings to be made by.
    pub pooling: Pooling,
    /// The head that ranks texts, where the file asks for that.
    pub ranking: Ranking,
    /// Keys of the file about the architecture that nothing here has a use for, and that say something.
    pub unread_keys: Vec<String>,
}

impl HyperParameters {
    /// Reads and checks everything.
    pub fn read(metadata: Metadata<'_>) -> Result<HyperParameters, Error> {
        let name = metadata.require("general.architecture")?.str()?;
        let architecture = arch::by_name(name)?;
        let keys = Keys::new(metadata, architecture.name);
        let traits = architecture.traits;

        let context = keys.need_count("context_length", MAX_CONTEXT)?;
        let embedding = keys.need_count("embedding_length", MAX_EMBEDDING)?;
        let count = keys.need_count("block_count", MAX_BLOCKS)?;
        let vocabulary = vocabulary(&keys)?;
        let window = attention::window(&keys, &traits)?;
        let mut blocks = attention::blocks(&keys, &traits, count, embedding, window)?;
        let guessing_blocks = guessing_blocks(&keys, count)?;
        blocks.truncate(count - guessing_blocks);
        let experts = experts::experts(&keys, &traits, &mut blocks)?;
        let norm_epsilon = norm_epsilon(&keys, traits.norm)?;
        let of_kind = |windowed: bool| {
            let is_such = |block: &&Block| block.heads > 0 && block.windowed == windowed;
            blocks.iter().find(is_such).or(blocks.iter().find(|block| block.heads > 0)).unwrap_or(&blocks[0])
        };
        let rope = rope::rope(&keys, &traits, of_kind(false), context)?;
        let rope_windowed = rope::rope_windowed(&keys, &traits, rope, of_kind(true))?;
        let token_types = token_types(&keys, &traits)?;
        let is_causal = traits.purpose == Purpose::Continue;
        let causal = keys.flag("attention.causal")?.unwrap_or(is_causal);
        if causal != is_causal {
            return Err(keys.refuse("attention.causal", causal, "is not so in this architecture"));
        }
        let soft_cap =
            |key, default: Option<f32>| -> Result<Option<f32>, Error> { Ok(keys.positive(key)?.or(default)) };
        let mut hyper = HyperParameters {
            architecture,
            vocabulary,
            context,
            embedding,
            norm_epsilon,
            rope,
            rope_windowed,
            window: window.map(Window::Sliding),
            position_bias: None,
            qkv_limit: None,
            causal,
            attention_soft_cap: match traits.attention_soft_cap {
                Some(default) => soft_cap("attn_logit_softcapping", Some(default))?,
                None => None,
            },
            logit_soft_cap: match traits.has_logit_soft_cap {
                true => soft_cap("final_logit_softcapping", traits.logit_soft_cap)?,
                false => None,
            },
            experts,
            latent: None,
            latent_windowed: None,
            one_row: None,
            indexer: None,
            streams: None,
            state_space: None,
            channel_delta: None,
            rwkv: None,
            short_convolution: 0,
            factors: Factors::NONE,
            temperature: None,
            is_parallel: false,
            norm_between_loops: false,
            stacks: None,
            checkpoint_period: None,
            saturation: None,
            gated_by_silu: false,
            ngrams: None,
            source: None,
            distances: None,
            token_types,
            pooling: pooling(&keys, &traits)?,
            ranking: Ranking::read(&keys, &traits)?,
            unread_keys: Vec::new(),
            blocks,
            guessing_blocks,
        };
        (architecture.complete)(&mut hyper, &keys)?;
        hyper.unread_keys = keys.unread();
        Ok(hyper)
    }

    /// The name of the architecture.
    pub fn architecture(&self) -> &'static str {
        self.architecture.name
    }

    /// Whether it makes embeddings rather than text.
    pub fn is_encoder(&self) -> bool {
        self.architecture.traits.purpose == Purpose::Embed
    }

    /// The pooling that needs most of a graph, and of the file.
    pub(crate) fn widest_pooling(&self) -> Pooling {
        match self.pooling {
            _ if !self.is_encoder() => Pooling::None,
            Pooling::Rank => Pooling::Rank,
            _ => Pooling::Mean,
        }
    }

    /// Whether it sees a text whole and gives logits of each of its tokens.
    pub fn fills_in(&self) -> bool {
        self.architecture.traits.purpose == Purpose::FillIn
    }

    /// Whether it sees a text whole, and remembers nothing.
    pub fn sees_whole(&self) -> bool {
        self.architecture.traits.purpose != Purpose::Continue
    }

    /// Whether some block remembers all tokens together, so that a sequence cannot go back.
    pub fn is_recurrent(&self) -> bool {
        self.blocks.iter().any(Block::is_recurrent)
    }

    /// Whether what blocks remember of a beginning is the same whatever comes after it, so that sequences can share it.
    pub(crate) fn shares_beginnings(&self) -> bool {
        !self.is_recurrent() && self.source.is_none()
    }

    /// Whether all that blocks remember of a token are keys that were rotated by its position, and values.
    pub(crate) fn keys_can_move(&self) -> bool {
        let is_plain = |block: &Block| block.state.recurrent.is_none() && block.state.compressed.is_none();
        self.architecture.traits.rope.is_some()
            && !self.rope.mode.has_sections()
            && self.position_bias.is_none()
            && self.latent.is_none()
            && self.indexer.is_none()
            && !matches!(self.window, Some(Window::Chunked(_)))
            && self.blocks.iter().all(is_plain)
    }

    /// Rotations are scaled in blocks that see everything, and not in windows.
    pub(crate) fn leave_windows_unscaled(&mut self) {
        self.rope_windowed = Rope { freq_scale: 1.0, ext_factor: 0.0, attn_factor: 1.0, ..self.rope };
    }

    /// Reads bounds of what is inside experts. Where the file has none for those that every token uses, they have none, or, if
    /// `same`, those of the others.
    pub(crate) fn read_limits(&mut self, keys: &Keys<'_>, same: bool) -> Result<(), Error> {
        let count = self.blocks.len() + self.guessing_blocks;
        let none = || vec![0.0; count];
        let experts = keys.numbers("swiglu_clamp_exp", count)?.unwrap_or_else(none);
        let shared = keys.numbers("swiglu_clamp_shexp", count)?;
        let shared = shared.unwrap_or_else(|| if same { experts.clone() } else { none() });
        for (index, block) in self.blocks.iter_mut().enumerate() {
            block.expert_limit = Some(experts[index]).filter(|&limit| limit > LEAST_LIMIT);
            block.shared_limit = Some(shared[index]).filter(|&limit| limit > LEAST_LIMIT);
        }
        Ok(())
    }

    /// Says which blocks are recurrent, and what they remember: as the file says, or all but every n-th.
    pub(crate) fn mark_recurrent(
        &mut self,
        keys: &Keys<'_>,
        period: usize,
        state: RecurrentState,
    ) -> Result<(), Error> {
        let count = self.blocks.len();
        let stated = keys.counts("attention.recurrent_layers", count + self.guessing_blocks, 1)?;
        let period = keys.count("full_attention_interval", MAX_BLOCKS)?.unwrap_or(period);
        for (index, block) in self.blocks.iter_mut().enumerate() {
            let is_recurrent = match &stated {
                Some(flags) => flags[index] != 0,
                None => !(index + 1).is_multiple_of(period),
            };
            if is_recurrent {
                block.state = BlockState { recurrent: Some(state), ..BlockState::default() };
            }
        }
        Ok(())
    }

    /// Gives blocks without heads of keys a recurrence.
    pub(crate) fn recur_without_heads(&mut self, space: StateSpace) {
        self.remember_without_heads(space.remembered());
        self.state_space = Some(space);
    }

    /// Gives blocks without heads of keys a state to remember with.
    pub(crate) fn remember_without_heads(&mut self, state: RecurrentState) {
        for block in self.blocks.iter_mut().filter(|block| block.kv_heads == 0) {
            block.state.recurrent = Some(state);
        }
    }

    /// Gives all blocks a recurrence of RWKV.
    pub(crate) fn recur_by(&mut self, rwkv: Rwkv) {
        self.remember_without_heads(rwkv.remembered(self.embedding));
        self.rwkv = Some(rwkv);
    }

    /// The compressed rows of each kind that some block has: of runs by themselves, and of runs that overlap.
    pub(crate) fn runs(&self) -> [Option<CompressedRows>; RUN_KINDS] {
        let compressed = || self.blocks.iter().filter_map(|block| block.state.compressed);
        [false, true].map(|overlaps| compressed().find(|rows| rows.overlaps == overlaps))
    }

    /// Whether what attention looks at can only be said by masks.
    pub(crate) fn needs_masks(&self) -> bool {
        self.indexer.is_some() || self.distances.is_some() || self.runs().iter().any(Option::is_some)
    }

    /// By kind of page, whether some block has rows of that kind: those that see everything, those that see a window. What is
    /// compressed is seen as long as everything is.
    pub(crate) fn page_kinds(&self) -> [bool; 2] {
        let has = |block: &Block, windowed: bool| {
            block.state.rows.is_some() && block.windowed == windowed
                || block.state.compressed.is_some() && !windowed
        };
        [false, true].map(|windowed| self.blocks.iter().any(|block| has(block, windowed)))
    }

    /// How far back rows of windowed blocks are kept: what a token sees of them, and what is not compressed yet.
    pub(crate) fn kept_window(&self) -> Option<Window> {
        let spans = self.blocks.iter().filter_map(|block| block.state.compressed).map(|rows| rows.span());
        match (self.window, spans.max()) {
            (Some(Window::Sliding(length)), Some(span)) => Some(Window::Sliding(length.max(span))),
            (window, _) => window,
        }
    }
}

fn norm_epsilon(keys: &Keys<'_>, norm: NormKind) -> Result<f32, Error> {
    let key = match norm {
        NormKind::Layer | NormKind::LayerAlone => "attention.layer_norm_epsilon",
        NormKind::Rms | NormKind::RmsAlone => "attention.layer_norm_rms_epsilon",
    };
    keys.metadata().require(&keys.name(key))?;
    let epsilon = keys.number(key)?.filter(|epsilon| *epsilon >= 0.0);
    epsilon.ok_or_else(|| keys.refuse(key, "negative", "must not be negative"))
}

fn vocabulary(keys: &Keys<'_>) -> Result<usize, Error> {
    let key = "tokenizer.ggml.tokens";
    let stated = keys.count("vocab_size", MAX_VOCABULARY)?;
    let Some(tokens) = keys.metadata().get(key) else {
        return stated.map_or_else(|| keys.need_count("vocab_size", MAX_VOCABULARY), Ok);
    };
    match tokens.strings()?.len() {
        count @ 1..=MAX_VOCABULARY => Ok(count),
        count => {
            let rule = format!("must be from 1 to {MAX_VOCABULARY}");
            Err(Error::parameter(key, format!("{count} tokens"), rule))
        }
    }
}

/// How many of the blocks guess several tokens at once. The others turn tokens into logits.
fn guessing_blocks(keys: &Keys<'_>, count: usize) -> Result<usize, Error> {
    let key = "nextn_predict_layers";
    match keys.count(key, MAX_BLOCKS)?.unwrap_or(0) {
        guessing if guessing < count => Ok(guessing),
        guessing => Err(keys.refuse(key, guessing, format!("must be below the {count} blocks there are"))),
    }
}

fn token_types(keys: &Keys<'_>, traits: &arch::Traits) -> Result<usize, Error> {
    if traits.purpose != Purpose::Embed {
        return Ok(0);
    }
    let key = "tokenizer.ggml.token_type_count";
    let Some(entry) = keys.metadata().get(key) else { return Ok(0) };
    match entry.usize()? {
        count @ 0..=MAX_VOCABULARY => Ok(count),
        count => Err(Error::parameter(key, count, format!("must be at most {MAX_VOCABULARY}"))),
    }
}

/// What some writers put for "not given": minus one.
const NO_POOLING: usize = u32::MAX as usize;

fn pooling(keys: &Keys<'_>, traits: &arch::Traits) -> Result<Pooling, Error> {
    Ok(match keys.count("pooling_type", NO_POOLING)?.unwrap_or(0) {
        0 | NO_POOLING => Pooling::None,
        1 => Pooling::Mean,
        2 => Pooling::Cls,
        3 => Pooling::Last,
        4 if traits.purpose == Purpose::Embed => Pooling::Rank,
        4 => return Err(keys.refuse("pooling_type", 4, "models that write cannot rank here")),
        other => return Err(keys.refuse("pooling_type", other, "must be from 0 to 4")),
    })
}
