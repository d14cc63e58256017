//! The frames that decoders share: every block reads the residual stream through norms, in two parts, and adds to it what they
//! give, one after the other or both at once; or several streams, one part after the other.
//!
//! Invariant: rows whose results are not wanted are dropped here, after the first part of the last block, and by no architecture
//! itself. Of several streams they are dropped after the last block, where the streams become one.

use oxcart_tensor::TensorId;

use super::Net;
use crate::model::error::Error;

/// The norms of a block, by the names of their weights; of the part with attention, or what stands in its place, and of the
/// feed-forward part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norms {
    /// Of what the two parts read.
    pub(crate) before: Option<[&'static str; 2]>,
    /// Of what the two parts give.
    pub(crate) after: Option<[&'static str; 2]>,
}

impl Norms {
    /// Before each part.
    pub(crate) const BEFORE: Norms = Norms { before: Some(["attn_norm", "ffn_norm"]), after: None };

    /// None: the parts have their own.
    pub(crate) const NONE: Norms = Norms { before: None, after: None };

    /// Before each part, the second one by a name that sounds like another norm.
    pub(crate) const BEFORE_BY_OTHER_NAME: Norms =
        Norms { before: Some(["attn_norm", "post_attention_norm"]), after: None };

    /// After each part.
    pub(crate) const AFTER: Norms =
        Norms { before: None, after: Some(["post_attention_norm", "post_ffw_norm"]) };

    /// Before and after each part.
    pub(crate) const AROUND: Norms = Norms { before: Norms::BEFORE.before, after: Norms::AFTER.after };
}

impl Net<'_> {
    /// From tokens to logits, as most families have it.
    pub(crate) fn decoder(
        &mut self,
        norms: Norms,
        attention: impl Fn(&mut Self, TensorId) -> Result<TensorId, Error>,
        feed_forward: impl Fn(&mut Self, TensorId) -> Result<TensorId, Error>,
    ) -> Result<TensorId, Error> {
        let x = self.token_embeddings()?;
        let x = self.blocks(x, norms, attention, feed_forward)?;
        self.logits(x)
    }

    /// All blocks, one after another, from the residual stream `x` to what it is after them. Where the same blocks of the file come
    /// several times over, the last norm may come between.
    pub(crate) fn blocks(
        &mut self,
        mut x: TensorId,
        norms: Norms,
        attention: impl Fn(&mut Self, TensorId) -> Result<TensorId, Error>,
        feed_forward: impl Fn(&mut Self, TensorId) -> Result<TensorId, Error>,
    ) -> Result<TensorId, Error> {
        for block in 0..self.block_count() {
            if block > 0 && self.hyper.blocks[block].tensors == 0 && self.hyper.norm_between_loops {
                x = self.final_norm_between(x)?;
            }
            x = self.one_block(block, x, norms, &attention, &feed_forward)?;
        }
        Ok(x)
    }

    /// As [`blocks`](Net::blocks), where a block has one part only.
    pub(crate) fn single_blocks(
        &mut self,
        mut x: TensorId,
        part: impl Fn(&mut Self, TensorId) -> Result<TensorId, Error>,
    ) -> Result<TensorId, Error> {
        for block in 0..self.block_count() {
            self.enter_block(block);
            let h = self.norm(x, "attn_norm")?;
            let change = part(self, h)?;
            let [change, residual] = self.keep_wanted([change, x])?;
            x = self.leave_block(change, residual)?;
        }
        Ok(x)
    }

    /// One block.
    pub(crate) fn one_block(
        &mut self,
        block: usize,
        x: TensorId,
        norms: Norms,
        attention: impl Fn(&mut Self, TensorId) -> Result<TensorId, Error>,
        feed_forward: impl Fn(&mut Self, TensorId) -> Result<TensorId, Error>,
    ) -> Result<TensorId, Error> {
        self.enter_block(block);
        let h = self.norm_at(x, norms.before, 0)?;
        let a = attention(self, h)?;
        let [a, residual] = self.keep_wanted([a, x])?;
        let a = self.norm_at(a, norms.after, 0)?;
        let x1 = self.add_to(a, residual)?;
        let h = self.norm_at(x1, norms.before, 1)?;
        let f = feed_forward(self, h)?;
        let f = self.norm_at(f, norms.after, 1)?;
        self.leave_block(f, x1)
    }

    fn norm_at(&mut self, x: TensorId, bases: Option<[&str; 2]>, part: usize) -> Result<TensorId, Error> {
        match bases {
            Some(bases) => self.norm(x, bases[part]),
            None => Ok(x),
        }
    }

    /// As [`blocks`](Net::blocks), with both parts reading the stream as it was before the block, through norms of these
    /// names or through the same one.
    pub(crate) fn parallel_blocks(
        &mut self,
        mut x: TensorId,
        [for_attention, for_feed_forward]: [&str; 2],
        attention: impl Fn(&mut Self, TensorId) -> Result<TensorId, Error>,
        feed_forward: impl Fn(&mut Self, TensorId) -> Result<TensorId, Error>,
    ) -> Result<TensorId, Error> {
        for block in 0..self.block_count() {
            self.enter_block(block);
            let h = self.norm(x, for_attention)?;
            let a = attention(self, h)?;
            let [a, h, residual] = self.keep_wanted([a, h, x])?;
            let h = match for_feed_forward == for_attention {
                true => h,
                false => self.norm(residual, for_feed_forward)?,
            };
            let f = feed_forward(self, h)?;
            let both = self.add(f, a)?;
            x = self.leave_block(both, residual)?;
        }
        Ok(x)
    }

    /// From tokens through all blocks of several residual streams, to what the streams are after them. Embeddings of n-grams are
    /// added where the model has them. [E, streams, T]
    pub(crate) fn stream_blocks(
        &mut self,
        norms: Norms,
        attention: impl Fn(&mut Self, TensorId) -> Result<TensorId, Error>,
        feed_forward: impl Fn(&mut Self, TensorId) -> Result<TensorId, Error>,
    ) -> Result<TensorId, Error> {
        let x = self.token_embeddings()?;
        let ngrams = self.ngram_embeddings()?;
        let mut x = self.equal_streams(x)?;
        for block in 0..self.block_count() {
            self.enter_block(block);
            if let Some(found) = ngrams.filter(|_| self.has_ngrams()) {
                x = self.add_ngrams(x, found)?;
            }
            let (h, into) = self.read_streams(x, "hc_attn")?;
            let h = self.norm_at(h, norms.before, 0)?;
            let a = attention(self, h)?;
            let a = self.norm_at(a, norms.after, 0)?;
            x = self.write_streams(a, x, into)?;
            let (h, into) = self.read_streams(x, "hc_ffn")?;
            let h = self.norm_at(h, norms.before, 1)?;
            let f = feed_forward(self, h)?;
            let f = self.norm_at(f, norms.after, 1)?;
            x = self.write_streams(f, x, into)?;
            self.name_block_result(x)?;
        }
        Ok(x)
    }
}
