//! A graph as text, one tensor per line.

use std::fmt;

use super::{Flags, Graph, TensorId, TensorRef};

/// Shows a graph's leaves and nodes in order. Made by [`Graph::dump`].
#[derive(Clone, Copy, Debug)]
pub struct Dump<'a>(&'a Graph);

impl Graph {
    /// The ordered part of the graph as text.
    pub const fn dump(&self) -> Dump<'_> {
        Dump(self)
    }
}

impl Dump<'_> {
    /// `%3  node_1  = MUL_MAT(a: %0, b: %2) f32[32, 3] uses 1 output`, names padded to `width`.
    fn line(&self, f: &mut fmt::Formatter<'_>, id: TensorId, width: usize) -> fmt::Result {
        let graph = self.0;
        let Ok(tensor) = graph.tensor(id) else { return Ok(()) };
        write!(f, "  {:<5} {:<width$}", id.to_string(), self.name(id))?;
        if !tensor.is_leaf() {
            write!(f, " = {}(", tensor.op().label())?;
            self.sources(f, tensor)?;
            write!(f, ")")?;
        }
        write!(f, " {} uses {}", tensor.layout(), graph.use_count(id))?;
        if let Some(view) = tensor.view() {
            write!(f, " view of {}+{}", view.root, view.offset)?;
        }
        if let Some(storage) = tensor.storage().filter(|_| tensor.view().is_none()) {
            write!(f, " in {}+{}", storage.buffer, storage.offset)?;
        }
        for (flag, name) in [(Flags::INPUT, "input"), (Flags::OUTPUT, "output"), (Flags::PARAM, "param")] {
            if tensor.has(flag) {
                write!(f, " {name}")?;
            }
        }
        if !tensor.is_leaf() && !tensor.has(Flags::COMPUTE) {
            write!(f, " skipped")?;
        }
        writeln!(f)
    }

    /// A name can come from a file or a peer: nothing in it may reach a terminal unescaped.
    fn name(&self, id: TensorId) -> String {
        self.0.label(id).escape_debug().to_string()
    }

    fn list(&self, f: &mut fmt::Formatter<'_>, what: &str, ids: &[TensorId]) -> fmt::Result {
        writeln!(f, "{} {what}", ids.len())?;
        // One long name must not push everything else off the screen.
        let width = ids.iter().map(|&id| self.name(id).chars().count()).max().unwrap_or(0).min(32);
        ids.iter().try_for_each(|&id| self.line(f, id, width))
    }

    fn sources(&self, f: &mut fmt::Formatter<'_>, tensor: TensorRef<'_>) -> fmt::Result {
        let names = tensor.op().info().sources;
        let present =
            tensor.source_ids().iter().zip(names).filter_map(|(id, spec)| Some((id.as_ref()?, spec)));
        for (place, (id, spec)) in present.enumerate() {
            let separator = if place == 0 { "" } else { ", " };
            write!(f, "{separator}{}: {id}", spec.name)?;
        }
        Ok(())
    }
}

impl fmt::Display for Dump<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.list(f, "leaves", self.0.leaves())?;
        self.list(f, "nodes", self.0.nodes())
    }
}
