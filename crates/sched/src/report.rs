//! What was decided, for people: as text, as a graph, as a picture of lanes.

use std::fmt;

use oxcart_backend::ByteSize;
use oxcart_tensor::TensorId;

use crate::prepared::Prepared;
use crate::streams::StreamId;

/// Shows the splits, what is copied for each, and where each node runs and why. Made by [`Prepared::report`].
#[derive(Clone, Copy, Debug)]
pub struct Report<'a>(&'a Prepared);

impl Prepared {
    /// What was decided, as text.
    pub const fn report(&self) -> Report<'_> {
        Report(self)
    }

    /// The graph in Graphviz' language, coloured by stream.
    pub fn dot(&self) -> String {
        let label = |id: TensorId| self.assignment(id).map(|(stream, _)| self.stream_name(stream).to_owned());
        self.graph().dot(label).to_string()
    }

    /// The name of a stream.
    pub fn stream_name(&self, id: StreamId) -> &str {
        self.streams.stream(id).name()
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prepared = self.0;
        let graph = prepared.graph();
        writeln!(f, "{} splits, {} copies", prepared.splits().len(), prepared.copy_count())?;
        for (index, split) in prepared.splits().iter().enumerate() {
            writeln!(
                f,
                "split {index} on {}: {} nodes",
                prepared.stream_name(split.stream),
                split.nodes.len()
            )?;
            for input in &split.inputs {
                let len = graph.tensor(input.source).map_or(0, |source| source.layout().byte_len());
                let (name, from) = (graph.label(input.source), prepared.stream_name(input.from));
                writeln!(f, "  <- {} ({}) from {from}", name.escape_debug(), ByteSize(len as u64))?;
            }
            for &id in &graph.nodes()[split.nodes.clone()] {
                let Ok(node) = graph.tensor(id) else { continue };
                if !node.computes() {
                    continue;
                }
                let cause = prepared.assignment(id).map_or(String::new(), |(_, cause)| cause.to_string());
                let (op, name) = (node.op().label(), node.label());
                writeln!(
                    f,
                    "     {op:<16} {:<24} {:<28} {cause}",
                    name.escape_debug().to_string(),
                    node.layout().to_string()
                )?;
            }
        }
        Ok(())
    }
}
