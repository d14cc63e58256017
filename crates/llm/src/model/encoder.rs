//! Embeddings: a model that sees a whole text at once.

use std::sync::Arc;

use oxcart_backend::Stream;
use oxcart_tensor::DType;

use super::error::Error;
use super::hyper::Pooling;
use super::net::{AttentionPath, StepShape, Style};
use super::step::{Stage, Step, TensorIo};
use super::weights::Model;

/// How an encoder is set up.
#[derive(Clone, Copy, Debug, Default)]
pub struct EncoderOptions {
    /// How tokens' embeddings become one; as the file says if none is given.
    pub pooling: Option<Pooling>,
}

/// Computes embeddings of texts, one at a time.
#[derive(Debug)]
pub struct Encoder {
    step: Option<Step>,
    stage: Stage,
    pooling: Pooling,
    io: TensorIo,
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
        if !hyper.is_encoder() {
            let architecture = hyper.architecture();
            return Err(Error::NotThatKind { architecture, what: "be used as encoders" });
        }
        let pooling = options.pooling.unwrap_or(hyper.pooling);
        let path = AttentionPath::Flash { mask_rows: 1 };
        let style = Style { path, cache_type: DType::F32, long_context: false };
        let mut stage = Stage::new(model, streams, style)?;
        let shape = StepShape { tokens: 2, outputs: 2, cells: [0; 2], pooling };
        if !stage.attends_in_one_op(shape)? {
            stage.style.path = AttentionPath::Plain;
        }
        Ok(Encoder { step: None, stage, pooling, io: TensorIo::default(), result: Vec::new() })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.stage.model
    }

    /// The embedding of a text: one vector, or one per token without pooling. Not normalized.
    pub fn embed(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        let hyper = self.stage.model.hyper();
        let (vocabulary, limit) = (hyper.vocabulary, hyper.context);
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
            return Err(Error::NoSuchToken { token, vocabulary });
        }
        if tokens.is_empty() || tokens.len() > limit {
            return match tokens.len() {
                0 => Err(Error::setting("the text", "empty", "an embedding needs at least one token")),
                asked => Err(Error::ContextFull { used: 0, asked, limit }),
            };
        }
        let count = tokens.len();
        let shape =
            StepShape { tokens: count, outputs: self.outputs(count), cells: [0; 2], pooling: self.pooling };
        let step = match self.step.take().filter(|step| step.shape == shape) {
            Some(step) => step,
            None => self.stage.prepare(shape)?,
        };
        let step = self.step.insert(step);
        let (inputs, io, prepared) = (step.inputs, &mut self.io, &mut step.prepared);
        io.set(prepared, inputs.tokens, tokens.iter().map(|token| token.to_le_bytes()))?;
        io.set(prepared, inputs.positions, (0..count as i32).map(i32::to_le_bytes))?;
        let share = (count as f32).recip();
        io.set(prepared, inputs.mean, (0..count).map(|_| share.to_le_bytes()))?;
        let wanted = if self.pooling == Pooling::Last { count as i32 - 1 } else { 0 };
        io.set(prepared, inputs.wanted, [wanted.to_le_bytes()].into_iter())?;
        prepared.compute()?;
        self.result.clear();
        io.read(prepared, step.output, &mut self.result)?;
        self.stage.model.check_files()?;
        Ok(&self.result)
    }

    fn outputs(&self, tokens: usize) -> usize {
        if self.pooling == Pooling::None { tokens } else { 1 }
    }
}
