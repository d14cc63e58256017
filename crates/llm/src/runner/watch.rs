//! Looking at what is computed on the way, node by node: for tools that want more of a model than its logits.
//!
//! Invariant: a watch that fails ends the call as any other error does, so that sequences are as they were.

use std::ops::ControlFlow;

use oxcart_backend::Buffers;
use oxcart_sched::{Observer, Prepared};
use oxcart_tensor::TensorRef;

use crate::model::Error;

/// Sees nodes just after they were computed. What a node reads is still there then.
pub(crate) trait Watch {
    /// Whether it wants to see this node. Nodes that it does not want to see are computed together.
    fn wants(&self, node: TensorRef<'_>) -> bool;

    /// Sees a node.
    fn look(&mut self, node: TensorRef<'_>, buffers: &Buffers) -> Result<(), Error>;
}

/// Runs a graph, watched if someone watches.
pub(super) fn run(prepared: &mut Prepared, watch: Option<&mut dyn Watch>) -> Result<(), Error> {
    let Some(watch) = watch else { return Ok(prepared.compute()?) };
    let mut watched = Watched { watch, error: None };
    prepared.compute_observed(&mut watched)?;
    watched.error.map_or(Ok(()), Err)
}

/// A watch, and what went wrong with it.
struct Watched<'w> {
    watch: &'w mut dyn Watch,
    error: Option<Error>,
}

impl Observer for Watched<'_> {
    fn wants(&mut self, node: TensorRef<'_>) -> bool {
        self.watch.wants(node)
    }

    fn look(&mut self, node: TensorRef<'_>, buffers: &Buffers) -> ControlFlow<()> {
        match self.watch.look(node, buffers) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.error = Some(error);
                ControlFlow::Break(())
            }
        }
    }
}
