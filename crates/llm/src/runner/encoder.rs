//! Models that see a whole text at once: its embedding, or logits of each of its tokens.

use std::sync::Arc;

use oxcart_backend::Stream;
use oxcart_tensor::DType;
use zerocopy::IntoBytes;

use super::graphs::{Graphs, InputBytes};
use super::options::{CacheTypes, RunnerOptions};
use crate::model::net::{AttentionPath, StepShape, Style};
use crate::model::{Error, Model, Pooling};

/// How an encoder is set up.
#[derive(Clone, Copy, Debug, Default)]
pub struct EncoderOptions {
    /// How tokens' embeddings become one; as the file says if none is given.
    pub pooling: Option<Pooling>,
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
        let largest = StepShape {
            pooling: if hyper.fills_in() { Pooling::None } else { Pooling::Mean },
            ..RunnerOptions::default().largest_step(hyper)
        };
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
        self.must(!self.model().hyper().fills_in(), "make embeddings")?;
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
                asked => Err(Error::ContextFull { used: 0, asked, limit }),
            };
        }
        let count = tokens.len();
        let outputs = if self.pooling == Pooling::None { count } else { 1 };
        let shape = StepShape::alone(count, outputs, self.pooling);
        let step = self.graphs.step(shape)?;
        let (inputs, bytes, prepared) = (step.inputs, &mut self.input_bytes, &mut step.prepared);
        bytes.set(prepared, inputs.tokens, tokens.iter().map(|token| token.to_le_bytes()))?;
        bytes.set(prepared, inputs.positions, (0..count as i32).map(i32::to_le_bytes))?;
        let share = (count as f32).recip();
        bytes.set(prepared, inputs.mean, (0..count).map(|_| share.to_le_bytes()))?;
        let wanted = if self.pooling == Pooling::Last { count as i32 - 1 } else { 0 };
        bytes.set(prepared, inputs.wanted, [wanted.to_le_bytes()].into_iter())?;
        prepared.compute()?;
        self.result.clear();
        self.result.resize(prepared.graph().tensor(step.output)?.layout().elements(), 0.0);
        prepared.read_into(step.output, self.result.as_mut_bytes())?;
        self.graphs.model().check_files()?;
        Ok(&self.result)
    }
}
