//! Linear attention whose heads forget at a fixed pace (lightning attention).

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::Unary;

use super::layers::Scale;
use super::{Bias, Block, Gate, Net};
use crate::model::error::Error;
use crate::runner::state::StateTensor;

impl Net<'_> {
    /// Linear attention instead of attention, normed and gated. [E, T]
    pub(crate) fn lightning_attention(&mut self, x: TensorId) -> Result<TensorId, Error> {
        let Block { heads, key_size: size, .. } = self.block();
        let tokens = self.step.tokens;
        let all = self.product(x, "attn_qkv", 3 * size * heads, Bias::None, Scale::None)?;
        let all = self.graph.unary(all, Unary::Silu)?;
        let all = self.graph.reshape(all, [3 * size, heads, tokens])?;
        let mut whole = |first| -> Result<TensorId, Error> {
            let part = self.part(all, first, size)?;
            Ok(self.graph.cont(part)?)
        };
        let (q, k, v) = (whole(0)?, whole(size)?, whole(2 * size)?);
        let kept = self.fixed_decays([size, heads, tokens])?;
        let states = self.recall(StateTensor::Recurrent)?;
        let result = self.graph.gated_linear_attn([k, v, q, kept, states], 1.0)?;
        let y = self.flat_result(result, [size, heads])?;
        let y = self.rms_norm(y, "attn_norm_2")?;
        let y = self.gated_result(y, x, Gate::Channels, Unary::Sigmoid)?;
        self.product(y, "attn_output", self.hyper.embedding, Bias::None, Scale::None)
    }

    /// What heads keep of their states from token to token: the first ones forget fastest, and so do the first blocks.
    fn fixed_decays(&mut self, shape @ [_, heads, _]: [usize; 3]) -> Result<TensorId, Error> {
        let depth = self.block_index() as f32 / (self.block_count().max(2) - 1) as f32;
        let pace = 1.0 - depth + 1e-5;
        let numbers = self.graph.arange(1.0, heads as f32 + 1.0, 1.0)?;
        // 2^(-8 h / H), as slopes that fall with the distance have it.
        let logarithms = self.graph.scale(numbers, -8.0 * std::f32::consts::LN_2 / heads as f32)?;
        let slopes = self.graph.unary(logarithms, Unary::Exp)?;
        let slopes = self.graph.scale(slopes, -pace)?;
        let kept = self.graph.unary(slopes, Unary::Exp)?;
        let kept = self.graph.reshape(kept, [1, heads])?;
        Ok(self.graph.repeat(kept, shape)?)
    }
}
