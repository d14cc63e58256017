//! The placement of a graph as a picture: a lane for each stream, a box for each split, an arrow for each copy.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use oxcart_backend::ByteSize;
use oxcart_tensor::TensorId;
use oxcart_tensor::graph::Slot;

use crate::prepared::Prepared;
use crate::split::{Split, SplitInput};

const LANE_HEIGHT: usize = 150;
const LABEL_WIDTH: usize = 290;
/// Where arrows from outside the graph begin.
const OUTSIDE: usize = 120;
const BOX_WIDTH: usize = 190;
const BOX_HEIGHT: usize = 92;
const GAP: usize = 140;
const TOP: usize = 56;

/// Fills of the lanes, light enough for black text.
const FILLS: [&str; 6] = ["#a6cee3", "#fdbf6f", "#b2df8a", "#cab2d6", "#fb9a99", "#ffff99"];

impl Prepared {
    /// A picture of the placement, as SVG: time goes from left to right.
    pub fn svg(&self) -> String {
        let lanes = self.streams.len();
        let (width, height) =
            (LABEL_WIDTH + self.splits.len() * (BOX_WIDTH + GAP) + 20, TOP + lanes * LANE_HEIGHT + 10);
        let mut svg = String::new();
        // Writing to a string cannot fail.
        let _ = self.draw(&mut svg, width, height);
        svg
    }

    fn draw(&self, svg: &mut String, width: usize, height: usize) -> std::fmt::Result {
        writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"11\">"
        )?;
        writeln!(
            svg,
            "<defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0 8 4 0 8z\" fill=\"#555\"/></marker></defs>"
        )?;
        writeln!(svg, "<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>")?;
        let summary = format!(
            "{} nodes in {} splits, {} copies",
            self.graph().nodes().len(),
            self.splits.len(),
            self.copy_count()
        );
        writeln!(svg, "<text x=\"12\" y=\"24\" font-size=\"15\" font-weight=\"bold\">{summary}</text>")?;
        for id in self.streams.ids() {
            self.draw_lane(svg, id.index(), width)?;
        }
        for (index, split) in self.splits.iter().enumerate() {
            self.draw_split(svg, index, split)?;
        }
        for (index, split) in self.splits.iter().enumerate() {
            for (place, input) in split.inputs.iter().enumerate() {
                self.draw_arrow(svg, index, split, input, place)?;
            }
        }
        // After all arrows, so that none crosses a name.
        for (index, split) in self.splits.iter().enumerate() {
            for (place, input) in split.inputs.iter().enumerate() {
                self.draw_name(svg, index, split, input, place)?;
            }
        }
        writeln!(svg, "</svg>")
    }

    fn draw_lane(&self, svg: &mut String, lane: usize, width: usize) -> std::fmt::Result {
        let y = TOP + lane * LANE_HEIGHT;
        let fill = if lane.is_multiple_of(2) { "#f7f7f7" } else { "#ffffff" };
        let Ok(id) = self.streams.id(lane) else { return Ok(()) };
        let name = escape(self.stream_name(id));
        let nodes: usize = self.splits.iter().filter(|s| s.stream == id).map(|s| s.nodes.len()).sum();
        writeln!(
            svg,
            "<rect x=\"0\" y=\"{y}\" width=\"{width}\" height=\"{LANE_HEIGHT}\" fill=\"{fill}\"/>"
        )?;
        let middle = y + LANE_HEIGHT / 2;
        writeln!(svg, "<text x=\"12\" y=\"{middle}\" font-size=\"14\" font-weight=\"bold\">{name}</text>")?;
        writeln!(svg, "<text x=\"12\" y=\"{}\" fill=\"#666\">{nodes} nodes</text>", middle + 16)
    }

    /// Upper left corner of a split's box.
    fn corner(&self, index: usize) -> (usize, usize) {
        let lane = self.splits[index].stream.index();
        (LABEL_WIDTH + index * (BOX_WIDTH + GAP), TOP + lane * LANE_HEIGHT + (LANE_HEIGHT - BOX_HEIGHT) / 2)
    }

    fn draw_split(&self, svg: &mut String, index: usize, split: &Split) -> std::fmt::Result {
        let (x, y) = self.corner(index);
        let fill = FILLS[split.stream.index() % FILLS.len()];
        writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{BOX_WIDTH}\" height=\"{BOX_HEIGHT}\" rx=\"6\" fill=\"{fill}\" stroke=\"#333\"/>"
        )?;
        let mut lines = vec![(format!("split {index}: {} nodes", split.nodes.len()), true)];
        lines.extend(self.first_and_last(split).map(|line| (line, false)));
        lines.extend(self.commonest_ops(split).into_iter().map(|line| (line, false)));
        for (row, (line, bold)) in lines.iter().enumerate() {
            let weight = if *bold { " font-weight=\"bold\"" } else { "" };
            writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\"{weight}>{}</text>",
                x + 8,
                y + 17 + 16 * row,
                escape(line)
            )?;
        }
        Ok(())
    }

    fn first_and_last(&self, split: &Split) -> Option<String> {
        let graph = self.graph();
        let names: Vec<String> = graph.nodes()[split.nodes.clone()]
            .iter()
            .filter(|&&id| graph.tensor(id).is_ok_and(|tensor| tensor.computes()))
            .map(|&id| graph.label(id))
            .collect();
        Some(format!("{} … {}", short(names.first()?, 13), short(names.last()?, 13)))
    }

    fn commonest_ops(&self, split: &Split) -> Vec<String> {
        let graph = self.graph();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for &id in &graph.nodes()[split.nodes.clone()] {
            if let Ok(tensor) = graph.tensor(id)
                && tensor.computes()
            {
                *counts.entry(tensor.op().label()).or_default() += 1;
            }
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|&(name, count)| (std::cmp::Reverse(count), name));
        counts.iter().take(3).map(|(name, count)| format!("{count} × {name}")).collect()
    }

    /// The split that makes a tensor, unless it comes from outside.
    fn maker(&self, id: TensorId) -> Option<usize> {
        let graph = self.graph();
        let Some(Slot::Node(position)) = graph.slot(id) else { return None };
        self.splits.iter().position(|split| split.nodes.contains(&position))
    }

    /// Where an input meets its split.
    fn entry(&self, index: usize, split: &Split, place: usize) -> (usize, usize) {
        let (x, y) = self.corner(index);
        (x, y + BOX_HEIGHT * (place + 1) / (split.inputs.len() + 1))
    }

    fn draw_arrow(
        &self,
        svg: &mut String,
        index: usize,
        split: &Split,
        input: &SplitInput,
        place: usize,
    ) -> std::fmt::Result {
        let (to_x, to_y) = self.entry(index, split, place);
        let (from_x, from_y) = match self.maker(input.source) {
            Some(maker) => {
                let (x, y) = self.corner(maker);
                (x + BOX_WIDTH, y + BOX_HEIGHT / 2)
            }
            None => (OUTSIDE, TOP + input.from.index() * LANE_HEIGHT + LANE_HEIGHT / 2),
        };
        let bend = to_x.saturating_sub(from_x).clamp(20, GAP);
        writeln!(
            svg,
            "<path d=\"M{from_x} {from_y} C{} {from_y} {} {to_y} {to_x} {to_y}\" fill=\"none\" stroke=\"#555\" \
             marker-end=\"url(#tip)\"/>",
            from_x + bend,
            to_x.saturating_sub(bend),
        )
    }

    fn draw_name(
        &self,
        svg: &mut String,
        index: usize,
        split: &Split,
        input: &SplitInput,
        place: usize,
    ) -> std::fmt::Result {
        let (x, y) = self.entry(index, split, place);
        let graph = self.graph();
        let len = graph.tensor(input.source).map_or(0, |source| source.byte_len());
        let text = format!("{} {}", short(&graph.label(input.source), 18), ByteSize(len as u64));
        writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" font-size=\"10\" fill=\"#333\" stroke=\"#fff\" \
             stroke-width=\"3\" paint-order=\"stroke\">{}</text>",
            x - 10,
            y - 3,
            escape(&text)
        )
    }
}

/// At most `max` characters, the middle left out.
fn short(text: &str, max: usize) -> String {
    let chars: Vec<char> = text.chars().collect();
    if chars.len() <= max {
        return text.to_owned();
    }
    let half = (max - 1) / 2;
    chars[..half].iter().chain(&['…']).chain(&chars[chars.len() - half..]).collect()
}

/// Names come from files and peers.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}
