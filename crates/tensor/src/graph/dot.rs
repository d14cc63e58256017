//! A graph as a Graphviz picture.

use std::fmt;

use super::{Flags, Graph, TensorId};

/// Fill colours, handed out to labels in the order they are met; light enough for black text, and told apart by
/// people who see few colours.
const PALETTE: [&str; 8] =
    ["#a6cee3", "#fdbf6f", "#b2df8a", "#cab2d6", "#fb9a99", "#ffff99", "#c7e9c0", "#d9d9d9"];

/// Shows the ordered part of a graph in Graphviz' DOT language. Made by [`Graph::dot`].
#[derive(Debug)]
pub struct Dot<'a> {
    graph: &'a Graph,
    /// Per tensor, the index of its label.
    labels_of: Vec<Option<usize>>,
    labels: Vec<String>,
}

impl Graph {
    /// A picture in which tensors with the same label have the same colour, the labels explained in a legend.
    /// Tensors without a label stay white.
    ///
    /// ```
    /// use oxcart_tensor::{DType, Graph};
    ///
    /// let mut graph = Graph::new();
    /// let x = graph.leaf(DType::F32, [4])?;
    /// let y = graph.sqr(x)?;
    /// graph.expand(y)?;
    /// let picture = graph.dot(|id| (id == y).then(|| "CPU".to_owned())).to_string();
    /// assert!(picture.starts_with("digraph"));
    /// # Ok::<(), oxcart_tensor::Error>(())
    /// ```
    pub fn dot(&self, label: impl Fn(TensorId) -> Option<String>) -> Dot<'_> {
        let mut dot = Dot { graph: self, labels_of: vec![None; self.len()], labels: Vec::new() };
        for &id in self.leaves().iter().chain(self.nodes()) {
            dot.labels_of[id.index()] = label(id).map(|label| dot.intern(label));
        }
        dot
    }
}

impl Dot<'_> {
    fn intern(&mut self, label: String) -> usize {
        self.labels.iter().position(|known| *known == label).unwrap_or_else(|| {
            self.labels.push(label);
            self.labels.len() - 1
        })
    }

    fn colour(&self, id: TensorId) -> &'static str {
        self.labels_of[id.index()].map_or("#ffffff", |label| PALETTE[label % PALETTE.len()])
    }

    fn node(&self, f: &mut fmt::Formatter<'_>, id: TensorId) -> fmt::Result {
        let Ok(tensor) = self.graph.tensor(id) else { return Ok(()) };
        let name = escape(&self.graph.label(id));
        let (shape, text) = if tensor.is_leaf() {
            ("ellipse", name)
        } else {
            ("box", format!("{}\\n{name}", tensor.op().label()))
        };
        let mut style = String::from("filled");
        if tensor.view().is_some() && !tensor.computes() {
            style += ",dashed";
        }
        if tensor.has(Flags::OUTPUT) {
            style += ",bold";
        }
        writeln!(
            f,
            "  t{} [label=\"{text}\\n{}\", shape={shape}, style=\"{style}\", fillcolor=\"{}\"];",
            id.index(),
            tensor.layout(),
            self.colour(id),
        )
    }

    fn edges(&self, f: &mut fmt::Formatter<'_>, id: TensorId) -> fmt::Result {
        let Ok(tensor) = self.graph.tensor(id) else { return Ok(()) };
        let names = tensor.op().info().sources;
        for (source, spec) in tensor.source_ids().iter().zip(names) {
            let Some(source) = source else { continue };
            // With a single source its role is plain.
            let role = if names.len() > 1 { spec.name } else { "" };
            writeln!(f, "  t{} -> t{} [label=\"{role}\"];", source.index(), id.index())?;
        }
        Ok(())
    }

    fn legend(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.labels.is_empty() {
            return Ok(());
        }
        writeln!(f, "  subgraph cluster_legend {{")?;
        writeln!(f, "    label=\"\"; color=\"#999999\";")?;
        for (index, label) in self.labels.iter().enumerate() {
            let colour = PALETTE[index % PALETTE.len()];
            let label = escape(label);
            writeln!(
                f,
                "    l{index} [label=\"{label}\", shape=box, style=filled, fillcolor=\"{colour}\"];"
            )?;
        }
        writeln!(f, "  }}")
    }
}

/// Names come from files and peers: quotes, backslashes and control characters must not end the string.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => escaped.extend(['\\', c]),
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

impl fmt::Display for Dot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "digraph oxcart {{")?;
        writeln!(
            f,
            "  rankdir=TB; node [fontname=\"Helvetica\", fontsize=10]; edge [fontname=\"Helvetica\", fontsize=8, color=\"#555555\"];"
        )?;
        for &id in self.graph.leaves().iter().chain(self.graph.nodes()) {
            self.node(f, id)?;
        }
        for &id in self.graph.nodes() {
            self.edges(f, id)?;
        }
        self.legend(f)?;
        writeln!(f, "}}")
    }
}
