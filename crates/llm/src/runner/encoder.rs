//! Models that see a whole text at once: its embedding, or logits of each of its tokens.

use std::sync::Arc;

use oxcart_backend::Stream;
use oxcart_tensor::DType;
use oxcart_tensor::quant::to_f16;
use zerocopy::IntoBytes;

use super::graphs::{Graphs, InputBytes};
use super::options::{CacheTypes, RunnerOptions};
use super::sources::set_distances_in_whole;
use crate::model::net::{AttentionPath, StepShape, Style};
use crate::model::{Error, Model, Pooling, Window};

/// How an encoder is set up.
#[derive(Clone, Copy, Debug, Default)]
pub struct EncoderOptions {
    /// How tokens' embeddings become one; as the file says if none is given.
    pub pooling: Option<Pooling>,
}

/// What tokens see of the text that they are in.
#[derive(Clone, Copy, Debug)]
struct Sight {
    path: AttentionPath,
    /// Half of it lies before a token and half behind it.
    window: Option<Window>,
    /// Whether tokens count less the further they are away.
    by_distance: bool,
}

impl Sight {
    /// What a token sees of another one: a number that is added to its score.
    fn of(self, distance: usize) -> f32 {
        match self.window {
            Some(window) if distance > window.length() / 2 => f32::NEG_INFINITY,
            _ if self.by_distance => -(distance as f32),
            _ => 0.0,
        }
    }

    /// Bytes of a mask for so many tokens.
    fn bytes(self, tokens: usize) -> usize {
        tokens * self.path.mask_rows(tokens) * self.path.mask_type().block_bytes()
    }

    fn fill(self, mask: &mut [u8], tokens: usize) {
        let seen = (0..tokens).flat_map(|row| (0..tokens).map(move |at| self.of(row.abs_diff(at))));
        match self.path.mask_type() {
            DType::F16 => {
                let cells = mask.as_chunks_mut().0.iter_mut();
                cells.zip(seen).for_each(|(cell, number)| *cell = to_f16(number).to_le_bytes());
            }
            _ => {
                let cells = mask.as_chunks_mut().0.iter_mut();
                cells.zip(seen).for_each(|(cell, number)| *cell = number.to_le_bytes());
            }
        }
    }
}

/// Computes embeddings of texts, or logits of their tokens, one text at a time.
#[derive(Debug)]
pub struct Encoder {
    graphs: Graphs,
    pooling: Pooling,
    input_bytes: InputBytes,
    result: Vec<f32>,
}

impl Encoder {
    /// An encoder on streams of the devices that the model was loaded for, in the same order.
    pub fn new(
        model: Arc<Model>,
        streams: Vec<Box<dyn Stream>>,
        options: EncoderOptions,
    ) -> Result<Encoder, Error> {
        let hyper = model.hyper();
        if !hyper.sees_whole() {
            let architecture = hyper.architecture();
            return Err(Error::NotThatKind { architecture, what: "be used as encoders" });
        }
        let pooling = match hyper.fills_in() {
            true => Pooling::None,
            false => options.pooling.unwrap_or(hyper.pooling),
        };
        let path = AttentionPath::Flash { mask_rows: 1 };
        let style = Style { path, cache: CacheTypes::both(DType::F16), long_context: false };
        let mut graphs = Graphs::new(Arc::clone(&model), streams, style)?;
        let largest =
            StepShape { pooling: hyper.widest_pooling(), ..RunnerOptions::default().largest_step(hyper) };
        if !graphs.attends(&*model.file().survey(largest, style)?)? {
            graphs.style.path = AttentionPath::Plain;
        }
        Ok(Encoder { graphs, pooling, input_bytes: InputBytes::default(), result: Vec::new() })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        self.graphs.model()
    }

    /// The embedding of a text: one vector, or one per token without pooling. Not normalized.
    pub fn embed(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        let ranks = self.pooling == Pooling::Rank;
        self.must(!ranks && !self.model().hyper().fills_in(), "make embeddings")?;
        self.rows(tokens)
    }

    /// What a model that ranks texts says of one: a number for each of its labels, or one of how well a question and an answer, both
    /// in the text as the model wants them, fit each other. As its head gives them.
    pub fn rank(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        self.must(self.pooling == Pooling::Rank, "rank texts")?;
        self.rows(tokens)
    }

    /// Logits of every token of a text where it stands, one row after another.
    pub fn logits(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        self.must(self.model().hyper().fills_in(), "give logits of a whole text")?;
        self.rows(tokens)
    }

    fn must(&self, does: bool, what: &'static str) -> Result<(), Error> {
        match does {
            true => Ok(()),
            false => Err(Error::NotThatKind { architecture: self.model().hyper().architecture(), what }),
        }
    }

    fn rows(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        let hyper = self.model().hyper();
        let (vocabulary, limit) = (hyper.vocabulary, hyper.context);
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
            return Err(Error::NoSuchToken { token, vocabulary });
        }
        if tokens.is_empty() || tokens.len() > limit {
            return match tokens.len() {
                0 => Err(Error::setting("the text", "empty", "it needs at least one token")),
                asked => Err(Error::ContextFull { used: 0, asked, limit, trained: limit }),
            };
        }
        let count = tokens.len();
        let outputs = if self.pooling == Pooling::None { count } else { 1 };
        let shape = StepShape::alone(count, outputs, self.pooling);
        let path = self.graphs.style.path;
        let (window, by_distance) = (hyper.window, hyper.position_bias.is_some());
        let distances = hyper.distances;
        let step = self.graphs.step(shape)?;
        if let Some(distances) = distances {
            set_distances_in_whole(step, distances, &mut self.input_bytes)?;
        }
        let (inputs, bytes, prepared) = (step.inputs, &mut self.input_bytes, &mut step.prepared);
        bytes.set(prepared, inputs.tokens, tokens.iter().map(|token| token.to_le_bytes()))?;
        bytes.set(prepared, inputs.positions, (0..count as i32).map(i32::to_le_bytes))?;
        let share = (count as f32).recip();
        bytes.set(prepared, inputs.mean, (0..count).map(|_| share.to_le_bytes()))?;
        let wanted = if self.pooling == Pooling::Last { count as i32 - 1 } else { 0 };
        bytes.set(prepared, inputs.wanted, [wanted.to_le_bytes()].into_iter())?;
        for (mask, window) in inputs.masks.into_iter().zip([None, window]) {
            let sight = Sight { path, window, by_distance };
            bytes.fill(prepared, mask, sight.bytes(count), |mask| sight.fill(mask, count))?;
        }
        prepared.compute()?;
        self.result.clear();
        self.result.resize(prepared.graph().tensor(step.output)?.layout().elements(), 0.0);
        prepared.read_into(step.output, self.result.as_mut_bytes())?;
        self.graphs.model().check_files()?;
        Ok(&self.result)
    }
}
