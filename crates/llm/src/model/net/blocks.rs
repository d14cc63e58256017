//! The frame that decoders share: every block reads the residual stream through norms, in two parts, and adds to it what they
//! give.
//!
//! Invariant: rows whose results are not wanted are dropped here, after the first part of the last block, and by no architecture
//! itself.

use oxcart_tensor::TensorId;

use super::Net;
use crate::model::error::Error;

/// The norms of a block, by the names of their weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norms {
    /// Of what attention reads, or what stands in its place.
    attention: &'static str,
    /// Of what the feed-forward part reads.
    feed_forward: &'static str,
    /// Of what the two parts give.
    results: Option<[&'static str; 2]>,
}

impl Norms {
    /// Before each part.
    pub(crate) const BEFORE: Norms =
        Norms { attention: "attn_norm", feed_forward: "ffn_norm", results: None };

    /// Before each part, the second one by a name that sounds like another norm.
    pub(crate) const BEFORE_BY_OTHER_NAME: Norms =
        Norms { feed_forward: "post_attention_norm", ..Norms::BEFORE };

    /// Before and after each part.
    pub(crate) const AROUND: Norms =
        Norms { results: Some(["post_attention_norm", "post_ffw_norm"]), ..Norms::BEFORE };
}

impl Net<'_> {
    /// All blocks, one after another, from the residual stream `x` to what it is after them.
    pub(crate) fn blocks(
        &mut self,
        mut x: TensorId,
        norms: Norms,
        attention: impl Fn(&mut Self, TensorId) -> Result<TensorId, Error>,
        feed_forward: impl Fn(&mut Self, TensorId) -> Result<TensorId, Error>,
    ) -> Result<TensorId, Error> {
        for block in 0..self.block_count() {
            self.enter_block(block);
            let h = self.rms_norm(x, norms.attention)?;
            let a = attention(self, h)?;
            let [a, residual] = self.keep_wanted([a, x])?;
            let a = match norms.results {
                Some([base, _]) => self.rms_norm(a, base)?,
                None => a,
            };
            let x1 = self.add_to(a, residual)?;
            let h = self.rms_norm(x1, norms.feed_forward)?;
            let f = feed_forward(self, h)?;
            let f = match norms.results {
                Some([_, base]) => self.rms_norm(f, base)?,
                None => f,
            };
            x = self.leave_block(f, x1)?;
        }
        Ok(x)
    }
}
