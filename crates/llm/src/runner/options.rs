//! How a runner is set up.

use oxcart_tensor::DType;

use super::sequence::KINDS;
use crate::model::limits::{MAX_BATCH, MAX_CONTEXT, MAX_SEQUENCES};
use crate::model::net::{AttentionPath, StepShape};
use crate::model::{Error, HyperParameters, Pooling};

/// How attention is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttentionChoice {
    /// In one op that finds the pages of each sequence, where all devices can; else as they can.
    #[default]
    Auto,
    /// In ggml's op, over everything that is held, with a mask.
    Flash,
    /// As products around a softmax, with a mask.
    Plain,
}

impl AttentionChoice {
    /// Each of them.
    pub const ALL: [AttentionChoice; 3] =
        [AttentionChoice::Auto, AttentionChoice::Flash, AttentionChoice::Plain];

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            AttentionChoice::Auto => "auto",
            AttentionChoice::Flash => "flash",
            AttentionChoice::Plain => "plain",
        }
    }
}

/// How a runner is set up.
#[derive(Clone, Copy, Debug)]
pub struct RunnerOptions {
    /// Tokens that a sequence may have; those of the training if 0.
    pub context: usize,
    /// Sequences that may be open at a time.
    pub sequences: usize,
    /// Tokens of all sequences together; as many as all of them may have if 0.
    pub tokens: usize,
    /// Tokens computed at a time.
    pub batch: usize,
    /// Type of keys and values: f32, f16, q8_0 or q4_0.
    pub cache_type: DType,
    /// Type of values, if it is another one than that of keys.
    pub value_type: Option<DType>,
    /// How attention is computed.
    pub attention: AttentionChoice,
}

impl Default for RunnerOptions {
    fn default() -> RunnerOptions {
        RunnerOptions {
            context: 4096,
            sequences: 1,
            tokens: 0,
            batch: 512,
            cache_type: DType::F16,
            value_type: None,
            attention: AttentionChoice::Auto,
        }
    }
}

/// The types in which keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheTypes {
    pub(crate) keys: DType,
    pub(crate) values: DType,
}

impl CacheTypes {
    /// One type of both.
    pub(crate) const fn both(dtype: DType) -> CacheTypes {
        CacheTypes { keys: dtype, values: dtype }
    }

    fn is_quantized(self) -> bool {
        self.keys.is_quantized() || self.values.is_quantized()
    }
}

impl RunnerOptions {
    /// The types of keys and of values.
    pub(crate) fn cache_types(&self) -> CacheTypes {
        CacheTypes { keys: self.cache_type, values: self.value_type.unwrap_or(self.cache_type) }
    }

    /// Refuses what makes no sense, and fills in what was left open.
    pub(crate) fn checked(mut self, hyper: &HyperParameters) -> Result<RunnerOptions, Error> {
        if self.context == 0 {
            self.context = hyper.context;
        }
        if self.context > MAX_CONTEXT {
            return Err(Error::setting(
                "the context",
                self.context,
                format!("must be at most {MAX_CONTEXT}"),
            ));
        }
        if !(1..=MAX_SEQUENCES).contains(&self.sequences) {
            let rule = format!("must be from 1 to {MAX_SEQUENCES}");
            return Err(Error::setting("the number of sequences", self.sequences, rule));
        }
        let most = self.context.saturating_mul(self.sequences);
        if self.tokens == 0 {
            self.tokens = most;
        }
        self.tokens = self.tokens.clamp(self.context, most).min(MAX_CONTEXT);
        if !(1..=MAX_BATCH).contains(&self.batch) {
            return Err(Error::setting("the batch", self.batch, format!("must be from 1 to {MAX_BATCH}")));
        }
        self.batch = self.batch.min(self.tokens.max(1));
        let types = self.cache_types();
        let wrong = |dtype: DType, rule: String| Err(Error::setting("the type of the cache", dtype, rule));
        for dtype in [types.keys, types.values] {
            if !matches!(dtype, DType::F32 | DType::F16 | DType::Q8_0 | DType::Q4_0) {
                return wrong(dtype, "must be f32, f16, q8_0 or q4_0".into());
            }
            if dtype.is_quantized() && self.attention == AttentionChoice::Plain {
                return wrong(dtype, "needs attention in one op".into());
            }
            if dtype.is_quantized() && hyper.distances.is_some() {
                return wrong(dtype, format!("{} models need f16 or f32", hyper.architecture()));
            }
        }
        for block in &hyper.blocks {
            let Some(rows) = block.state.rows else { continue };
            // Values without rows of their own are channels of keys.
            let of_values = if rows.values > 0 { types.values } else { types.keys };
            for (size, dtype) in [(block.key_size, types.keys), (block.value_size, of_values)] {
                if !size.is_multiple_of(dtype.block_len()) {
                    return wrong(dtype, format!("heads of {size} channels are not whole blocks"));
                }
            }
        }
        Ok(self)
    }

    /// A step that needs at least as much as any in the course of generating text: as many tokens as are computed at a time,
    /// of as many sequences as there may be.
    pub(crate) fn largest_step(&self, hyper: &HyperParameters) -> StepShape {
        let most = self.sequences.min(self.batch);
        let sequences = if hyper.is_recurrent() { most } else { 1 };
        let tokens = self.batch.next_multiple_of(sequences);
        let outputs = if hyper.fills_in() { tokens } else { most };
        let runs = hyper.runs().map(|rows| rows.map_or(0, |rows| tokens / rows.run + most));
        StepShape {
            tokens,
            outputs,
            sequences,
            cells: [0; KINDS],
            runs,
            pooling: Pooling::None,
            reads: false,
            largest: 0,
        }
    }

    /// Ways of computing attention, the preferred first.
    pub(crate) fn paths(&self, hyper: &HyperParameters) -> &'static [AttentionPath] {
        const FLASH: AttentionPath = AttentionPath::Flash { mask_rows: 1 };
        const OLD_FLASH: AttentionPath = AttentionPath::Flash { mask_rows: 64 };
        let types = self.cache_types();
        // An f32 cache is there to be exact, which ggml's op is not on all devices.
        let is_exact = types == CacheTypes::both(DType::F32);
        if hyper.distances.is_some() {
            // One op does not add what distances do.
            return &[AttentionPath::Plain];
        }
        if hyper.needs_masks() {
            // What an index finds is a mask.
            return match self.attention {
                AttentionChoice::Plain => &[AttentionPath::Plain],
                AttentionChoice::Auto if is_exact => &[AttentionPath::Plain],
                AttentionChoice::Auto if !types.is_quantized() => &[FLASH, AttentionPath::Plain],
                AttentionChoice::Flash | AttentionChoice::Auto => &[FLASH],
            };
        }
        match self.attention {
            AttentionChoice::Plain => &[AttentionPath::Plain],
            AttentionChoice::Flash => &[FLASH, OLD_FLASH],
            AttentionChoice::Auto if is_exact => &[AttentionPath::Paged, AttentionPath::Plain],
            AttentionChoice::Auto if !types.is_quantized() => {
                &[AttentionPath::Paged, FLASH, OLD_FLASH, AttentionPath::Plain]
            }
            AttentionChoice::Auto => &[AttentionPath::Paged, FLASH, OLD_FLASH],
        }
    }
}
