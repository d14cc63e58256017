//! A stream that is put aside every few blocks and begins anew; parts read a mixture of what was put aside and of what there is,
//! weighed by scores of their own.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::Dsv4HcPre;

use super::{Net, Section};
use crate::model::error::Error;

/// Streams that were put aside, first to last. [E, count, T]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Checkpoints {
    stack: Option<TensorId>,
}

impl Net<'_> {
    /// Puts the stream aside.
    pub(crate) fn put_aside(&mut self, aside: &mut Checkpoints, x: TensorId) -> Result<(), Error> {
        let row = self.graph.reshape(x, [self.hyper.embedding, 1, self.step.tokens])?;
        aside.stack = Some(match aside.stack {
            Some(stack) => self.graph.concat(stack, row, 1)?,
            None => row,
        });
        Ok(())
    }

    /// The mixture of the stream and of those put aside, by the scores that weights of this name give their norms. [E, T]
    pub(crate) fn mixture(
        &mut self,
        aside: &Checkpoints,
        x: TensorId,
        base: &str,
    ) -> Result<TensorId, Error> {
        let name = format!("{base}.weight");
        let Some(stack) = aside.stack else {
            self.pass_over(&name);
            return Ok(x);
        };
        let weights = self.weight(&name, self.hyper.embedding)?;
        let shape = self.graph.tensor(stack)?.ne();
        let (count, tokens) = (shape[1], shape[2]);
        let before = self.scores(stack, weights)?; // [1, count, T]
        let before = self.graph.reshape(before, [count, tokens])?;
        let now = self.scores(x, weights)?; // [1, T]
        let scores = self.graph.concat(before, now, 0)?;
        let shares = self.graph.soft_max(scores)?; // [count + 1, T]
        let [float, row, ..] = self.graph.tensor(shares)?.layout().nb();
        let before = self.graph.view(shares, [count, tokens], &[row], 0)?;
        let before = self.graph.cont(before)?;
        let now = self.graph.view(shares, [1, tokens], &[row], count * float)?;
        let now = self.graph.cont(now)?;
        let before = self.graph.dsv4_hc_pre(stack, before, Dsv4HcPre { scale: 1.0, gated: false })?;
        let now = self.graph.mul(x, now)?;
        self.add(before, now)
    }

    /// The products of norms and weights. [1, ..]
    fn scores(&mut self, x: TensorId, weights: TensorId) -> Result<TensorId, Error> {
        let normal = self.norm_alone(x)?;
        let products = self.graph.mul(normal, weights)?;
        Ok(self.graph.sum_rows(products)?)
    }

    /// The mixture that logits are made of, of the tokens whose results are wanted. [E, outputs]
    pub(crate) fn last_mixture(
        &mut self,
        aside: Checkpoints,
        x: TensorId,
        base: &str,
    ) -> Result<TensorId, Error> {
        let (x, aside) = match aside.stack {
            None => (self.keep_wanted([x])?[0], aside),
            Some(stack) => {
                let shape = self.graph.tensor(stack)?.ne();
                let rows = self.graph.reshape(stack, [shape[0] * shape[1], shape[2]])?;
                let [x, rows] = self.keep_wanted([x, rows])?;
                let kept = self.graph.tensor(rows)?.ne()[1];
                let stack = self.graph.reshape(rows, [shape[0], shape[1], kept])?;
                (x, Checkpoints { stack: Some(stack) })
            }
        };
        self.enter(Section::Output);
        self.mixture(&aside, x, base)
    }
}
