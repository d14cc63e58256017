//! What a file says about the model's size and shape.
//!
//! Invariant: [`HyperParameters::read`] is the only way to get one, and checks every number and every relation between
//! them before any tensor is looked at. So sizes computed from it neither overflow nor divide by zero.

use oxcart_gguf::Metadata;
use oxcart_tensor::ops::{Rope, RopeMode};

use super::arch::{self, Architecture};
use super::error::Error;
use super::keys::Keys;
use super::limits::{
    MAX_BLOCKS, MAX_CONTEXT, MAX_EMBEDDING, MAX_EXPERTS, MAX_FEED_FORWARD, MAX_HEAD_SIZE, MAX_HEADS,
    MAX_VOCABULARY,
};

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
}

/// What may differ from block to block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Channels of the dense feed-forward network.
    pub feed_forward: usize,
    /// Whether attention sees a window only.
    pub windowed: bool,
    /// What it remembers of a sequence.
    pub state: BlockState,
}

/// What a block remembers of a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockState {
    /// Of every token that can still be seen, if anything.
    pub rows: Option<TokenRows>,
    /// Of all tokens together, if anything.
    pub recurrent: Option<RecurrentState>,
}

/// What a block remembers of each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRows {
    /// Channels of its keys.
    pub keys: usize,
    /// Channels of its values; none if they are the first of its keys.
    pub values: usize,
}

/// What a block remembers of all tokens together, in `f32`. It can be copied and saved; to go back, it must be computed
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentState {
    /// Numbers that a convolution has seen last.
    pub convolution: usize,
    /// Numbers of the recurrence itself.
    pub state: usize,
}

/// Experts of every block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// How many compute each token.
    pub used: usize,
    /// Channels of each.
    pub feed_forward: usize,
    /// Factor of their weights.
    pub weights_scale: f32,
}

/// A model's size and shape.
#[derive(Clone, Debug)]
pub struct HyperParameters {
    pub(crate) architecture: &'static dyn Architecture,
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
    /// Context of the training.
    pub context: usize,
    /// Channels between blocks.
    pub embedding: usize,
    /// The blocks, first to last.
    pub blocks: Vec<Block>,
    /// Channels of one head, for keys and values alike.
    pub head_size: usize,
    /// Added to what norms divide by.
    pub norm_epsilon: f32,
    /// Rotary positions of blocks that see everything.
    pub rope: Rope,
    /// Rotary positions of blocks that see a window.
    pub rope_windowed: Rope,
    /// How many tokens windowed blocks see, the token itself included.
    pub window: Option<usize>,
    /// Whether a token sees only what is before it.
    pub causal: bool,
    /// Bound of attention scores, if any.
    pub attention_soft_cap: Option<f32>,
    /// Bound of logits, if any.
    pub logit_soft_cap: Option<f32>,
    /// Experts, if any.
    pub experts: Option<Experts>,
    /// Token types, of encoders.
    pub token_types: usize,
    /// What the file asks embeddings to be made by.
    pub pooling: Pooling,
}

impl HyperParameters {
    /// Reads and checks everything.
    pub fn read(metadata: Metadata<'_>) -> Result<HyperParameters, Error> {
        let name = metadata.require("general.architecture")?.str()?;
        let architecture = arch::by_name(name)?;
        let keys = Keys::new(metadata, architecture.name());
        let traits = architecture.traits();

        let context = keys.need_count("context_length", 1, MAX_CONTEXT)?;
        let embedding = keys.need_count("embedding_length", 1, MAX_EMBEDDING)?;
        let count = keys.need_count("block_count", 1, MAX_BLOCKS)?;
        let vocabulary = vocabulary(&keys)?;
        let window = window(&keys, &traits)?;
        let mut blocks = blocks(&keys, &traits, count, window)?;
        let head_size = head_size(&keys, embedding, &blocks)?;
        if !traits.encoder {
            for block in &mut blocks {
                let channels = block.kv_heads * head_size;
                block.state.rows = Some(TokenRows { keys: channels, values: channels });
            }
        }
        let experts = experts(&keys, &traits, &blocks)?;
        for (index, block) in blocks.iter().enumerate() {
            if block.feed_forward == 0 && experts.is_none() {
                let rule = format!("block {index} has neither a feed-forward network nor experts");
                return Err(keys.refuse("feed_forward_length", 0, rule));
            }
        }
        let epsilon_key = match traits.layer_norm {
            true => "attention.layer_norm_epsilon",
            false => "attention.layer_norm_rms_epsilon",
        };
        keys.metadata().require(&keys.name(epsilon_key))?;
        let norm_epsilon = keys.number(epsilon_key)?.filter(|epsilon| *epsilon >= 0.0);
        let norm_epsilon =
            norm_epsilon.ok_or_else(|| keys.refuse(epsilon_key, "negative", "must not be negative"))?;

        let rope = rope(&keys, &traits, head_size, context)?;
        let rope_windowed = rope_windowed(&keys, &traits, rope)?;
        let token_types = token_types(&keys, &traits)?;
        let causal = keys.flag("attention.causal")?.unwrap_or(!traits.encoder);
        if causal == traits.encoder {
            return Err(keys.refuse("attention.causal", causal, "is not so in this architecture"));
        }
        let soft_cap =
            |key, default: Option<f32>| -> Result<Option<f32>, Error> { Ok(keys.positive(key)?.or(default)) };
        Ok(HyperParameters {
            architecture,
            vocabulary,
            context,
            embedding,
            head_size,
            norm_epsilon,
            rope,
            rope_windowed,
            window,
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
            token_types,
            pooling: pooling(&keys)?,
            blocks,
        })
    }

    /// The name of the architecture.
    pub fn architecture(&self) -> &'static str {
        self.architecture.name()
    }

    /// Whether it makes embeddings rather than text.
    pub fn is_encoder(&self) -> bool {
        self.architecture.traits().encoder
    }

    /// Whether some block remembers all tokens together, so that a sequence cannot go back.
    pub fn is_recurrent(&self) -> bool {
        self.blocks.iter().any(|block| block.state.recurrent.is_some())
    }

    /// Whether all that blocks remember of a token are keys that were rotated by its position, and values.
    pub(crate) fn rotates(&self) -> bool {
        self.architecture.traits().rope.is_some()
    }

    /// By kind of page, whether some block has rows of that kind: those that see everything, those that see a window.
    pub(crate) fn page_kinds(&self) -> [bool; 2] {
        [false, true]
            .map(|kind| self.blocks.iter().any(|block| block.state.rows.is_some() && block.windowed == kind))
    }
}

fn vocabulary(keys: &Keys<'_>) -> Result<usize, Error> {
    let key = "tokenizer.ggml.tokens";
    let Some(tokens) = keys.metadata().get(key) else {
        return keys.need_count("vocab_size", 1, MAX_VOCABULARY);
    };
    match tokens.strings()?.len() {
        count @ 1..=MAX_VOCABULARY => Ok(count),
        count => {
            let rule = format!("must be from 1 to {MAX_VOCABULARY}");
            Err(Error::parameter(key, format!("{count} tokens"), rule))
        }
    }
}

fn window(keys: &Keys<'_>, traits: &arch::Traits) -> Result<Option<usize>, Error> {
    let key = "attention.sliding_window";
    match traits.window {
        arch::Window::Ignored => Ok(None),
        arch::Window::Optional => Ok(keys.count(key, 0, MAX_CONTEXT)?.filter(|&window| window > 0)),
        arch::Window::Default(window) => Ok(Some(keys.count(key, 1, MAX_CONTEXT)?.unwrap_or(window))),
        arch::Window::Required => keys.need_count(key, 1, MAX_CONTEXT).map(Some),
    }
}

/// Which blocks see a window only: as an array says, or all but every n-th.
fn windowed(keys: &Keys<'_>, traits: &arch::Traits, blocks: usize) -> Result<Vec<bool>, Error> {
    let key = "attention.sliding_window_pattern";
    if let Some(flags) = keys.flags(key, blocks)? {
        return Ok(flags);
    }
    let period = keys.count(key, 0, MAX_BLOCKS)?.unwrap_or(traits.window_period);
    Ok((0..blocks).map(|block| period == 0 || block % period < period - 1).collect())
}

fn blocks(
    keys: &Keys<'_>,
    traits: &arch::Traits,
    count: usize,
    window: Option<usize>,
) -> Result<Vec<Block>, Error> {
    let key = "attention.head_count";
    let heads = match keys.counts(key, count, MAX_HEADS)? {
        Some(heads) => heads,
        None => vec![keys.need_count(key, 1, MAX_HEADS)?; count],
    };
    let kv_heads = keys.counts("attention.head_count_kv", count, MAX_HEADS)?.unwrap_or_else(|| heads.clone());
    let feed_forward =
        keys.counts("feed_forward_length", count, MAX_FEED_FORWARD)?.unwrap_or_else(|| vec![0; count]);
    let windowed = match window {
        Some(_) => windowed(keys, traits, count)?,
        None => vec![false; count],
    };
    let block = |index: usize| {
        let (heads, kv_heads) = (heads[index], kv_heads[index]);
        if heads == 0 {
            return Err(keys.refuse(key, 0, format!("block {index} needs heads")));
        }
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            let rule = format!("must divide the {heads} heads of block {index}");
            return Err(keys.refuse("attention.head_count_kv", kv_heads, rule));
        }
        let (feed_forward, windowed) = (feed_forward[index], windowed[index]);
        Ok(Block { heads, kv_heads, feed_forward, windowed, state: BlockState::default() })
    };
    (0..count).map(block).collect()
}

fn head_size(keys: &Keys<'_>, embedding: usize, blocks: &[Block]) -> Result<usize, Error> {
    let (key_length, value_length) = ("attention.key_length", "attention.value_length");
    let heads = blocks[0].heads;
    let keys_size = match keys.count(key_length, 1, MAX_HEAD_SIZE)? {
        Some(size) => size,
        None if embedding.is_multiple_of(heads) && embedding / heads <= MAX_HEAD_SIZE => embedding / heads,
        None => {
            let rule = format!("must divide {} ({embedding})", keys.name("embedding_length"));
            return Err(keys.refuse("attention.head_count", heads, rule));
        }
    };
    for key in [value_length, "attention.key_length_swa", "attention.value_length_swa"] {
        if let Some(size) = keys.count(key, 1, MAX_HEAD_SIZE)?.filter(|&size| size != keys_size) {
            let rule = format!("must be the size of the other heads, {keys_size}");
            return Err(keys.refuse(key, size, rule));
        }
    }
    Ok(keys_size)
}

fn experts(keys: &Keys<'_>, traits: &arch::Traits, blocks: &[Block]) -> Result<Option<Experts>, Error> {
    let count = keys.count("expert_count", 0, MAX_EXPERTS)?.unwrap_or(0);
    let used = keys.count("expert_used_count", 0, MAX_EXPERTS)?.unwrap_or(0);
    if used > count {
        let rule = format!("must not exceed the {count} experts there are");
        return Err(keys.refuse("expert_used_count", used, rule));
    }
    if (used == 0) != (count == 0) {
        return Err(keys.refuse("expert_used_count", used, format!("cannot be with {count} experts")));
    }
    let wrong = match (traits.experts, count) {
        (arch::ExpertUse::Never, 1..) => Some("this architecture has no experts"),
        (arch::ExpertUse::Always, 0) => Some("this architecture needs experts"),
        _ => None,
    };
    if let Some(rule) = wrong {
        return Err(keys.refuse("expert_count", count, rule));
    }
    if count == 0 {
        return Ok(None);
    }
    let dense = blocks[0].feed_forward;
    let own = keys.count("expert_feed_forward_length", 1, MAX_FEED_FORWARD)?;
    let feed_forward = match (traits.expert_size, own) {
        (arch::ExpertSize::Dense, _) => dense,
        (_, Some(own)) => own,
        (arch::ExpertSize::OwnOrShare, None) => dense / used,
        (arch::ExpertSize::Own, None) => {
            keys.need_count("expert_feed_forward_length", 1, MAX_FEED_FORWARD)?
        }
    };
    if feed_forward == 0 {
        return Err(keys.refuse("expert_feed_forward_length", 0, "experts need channels"));
    }
    let scale = keys.number("expert_weights_scale")?.filter(|&scale| scale != 0.0).unwrap_or(1.0);
    Ok(Some(Experts { count, used, feed_forward, weights_scale: scale }))
}

fn rope(keys: &Keys<'_>, traits: &arch::Traits, head_size: usize, context: usize) -> Result<Rope, Error> {
    let key = "rope.dimension_count";
    let dims = keys.count(key, 1, MAX_HEAD_SIZE)?.unwrap_or(head_size);
    let mode = traits.rope.unwrap_or(RopeMode::Neox);
    if traits.rope.is_some() {
        if dims > head_size || !dims.is_multiple_of(2) {
            return Err(keys.refuse(
                key,
                dims,
                format!("must be even, and at most the head size {head_size}"),
            ));
        }
        if traits.rotates_all && dims != head_size {
            return Err(keys.refuse(key, dims, format!("must be the head size {head_size}")));
        }
    }
    let mut rope = Rope::new(dims, mode, keys.positive("rope.freq_base")?.unwrap_or(10_000.0));
    rope.n_ctx_orig = keys.count("rope.scaling.original_context_length", 1, MAX_CONTEXT)?.unwrap_or(context);
    let factor = match keys.number("rope.scaling.factor")? {
        None => keys.number("rope.scale_linear")?,
        factor => factor,
    };
    let factor = match factor.unwrap_or(0.0) {
        0.0 => 1.0,
        factor if factor > 0.0 => factor,
        factor => return Err(keys.refuse("rope.scaling.factor", factor, "must not be negative")),
    };
    rope.attn_factor = keys.positive("rope.scaling.attn_factor")?.unwrap_or(1.0);
    let key = "rope.scaling.type";
    match keys.text(key)?.unwrap_or("linear") {
        "none" => {}
        // Long contexts scale by factors, of which the file has tensors.
        "linear" | "longrope" => rope.freq_scale = 1.0 / factor,
        "yarn" => {
            rope.freq_scale = 1.0 / factor;
            rope.ext_factor = 1.0;
            if factor < 1.0 {
                // The magnitude is taken as 1 there, and the op multiplies by what it thinks it is.
                rope.attn_factor /= 1.0 + 0.1 * factor.ln();
            }
        }
        other => return Err(keys.refuse(key, other, "must be none, linear, yarn or longrope")),
    }
    Ok(rope)
}

fn rope_windowed(keys: &Keys<'_>, traits: &arch::Traits, dense: Rope) -> Result<Rope, Error> {
    let mut rope = dense;
    if let Some((base, scale)) = traits.rope_windowed {
        (rope.freq_base, rope.freq_scale) = (base, scale);
    }
    if let Some(base) = keys.positive("rope.freq_base_swa")? {
        rope.freq_base = base;
    }
    let key = "rope.dimension_count_swa";
    if let Some(dims) = keys.count(key, 1, MAX_HEAD_SIZE)?.filter(|&dims| dims != dense.n_dims) {
        return Err(keys.refuse(key, dims, format!("must be that of the other blocks, {}", dense.n_dims)));
    }
    Ok(rope)
}

fn token_types(keys: &Keys<'_>, traits: &arch::Traits) -> Result<usize, Error> {
    if !traits.encoder {
        return Ok(0);
    }
    let key = "tokenizer.ggml.token_type_count";
    match keys.metadata().require(key)?.usize()? {
        count @ 1..=MAX_VOCABULARY => Ok(count),
        count => Err(Error::parameter(key, count, format!("must be from 1 to {MAX_VOCABULARY}"))),
    }
}

fn pooling(keys: &Keys<'_>) -> Result<Pooling, Error> {
    Ok(match keys.count("pooling_type", 0, 4)?.unwrap_or(0) {
        0 => Pooling::None,
        1 => Pooling::Mean,
        2 => Pooling::Cls,
        3 => Pooling::Last,
        other => return Err(keys.refuse("pooling_type", other, "ranking models cannot be run")),
    })
}
