//! What each op accepts and refuses, as tables: one file per family, one line per case.
//!
//! Sources are written as layouts print themselves: `f32[4, 3]`, with strides `f32[4, 3]@[4, 32]` (missing outer
//! strides follow from the inner ones), `param f32[4]` for a trainable parameter, `-` for an absent optional source.
//! Where a case is about types, `?` stands for each of them in turn.

mod arrange;
mod attention;
mod binary;
mod conv;
mod copy;
mod delta_net;
mod fill;
mod glu;
mod hyper_connections;
mod image;
mod map;
mod matmul;
mod norm;
mod pool;
mod properties;
mod recurrent;
mod reduce;
mod region;
mod rope;
mod rows;
mod soft_max;
mod sort;
mod train;
mod unary;
mod view;

use std::collections::BTreeSet;

use super::*;
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, Node, TensorId, ViewOf};
use crate::shape::Shape;

/// One request at the door and what must come of it.
#[derive(Debug)]
struct Case {
    op: Op,
    sources: &'static [&'static str],
    in_place: bool,
    dtype: Option<DType>,
    want: Want,
}

#[derive(Debug)]
enum Want {
    /// A new tensor that prints like this.
    Fresh(&'static str),
    /// The memory of a source, seen like this at a byte offset.
    Alias(usize, usize, &'static str),
    /// An error about this operand, whose text contains this.
    Refused(&'static str, &'static str),
    /// These types in place of `?`, and a complaint about the type from all others.
    Types(&'static str),
}

impl Case {
    fn new(op: impl Into<Op>, sources: &'static [&'static str], want: Want) -> Case {
        Case { op: op.into(), sources, in_place: false, dtype: None, want }
    }

    fn is_accepted(&self) -> bool {
        matches!(self.want, Want::Fresh(_) | Want::Alias(..))
    }

    /// Knocks at the door of a graph that holds the sources.
    fn ask(&self, graph: &mut Graph, sources: &[Option<TensorId>]) -> Result<TensorId, Error> {
        graph.insert(Node { op: self.op, sources, in_place: self.in_place, dtype: self.dtype })
    }

    /// The result is asked to share the memory of source 0.
    fn in_place(self) -> Case {
        Case { in_place: true, ..self }
    }

    /// The result is asked to have this type.
    fn typed(self, dtype: DType) -> Case {
        Case { dtype: Some(dtype), ..self }
    }
}

/// `op` on `sources` makes a new tensor.
fn makes(op: impl Into<Op>, sources: &'static [&'static str], result: &'static str) -> Case {
    Case::new(op, sources, Want::Fresh(result))
}

/// `op` on `sources` gives a view of source `slot`.
fn shares(
    op: impl Into<Op>,
    sources: &'static [&'static str],
    slot: usize,
    offset: usize,
    result: &'static str,
) -> Case {
    Case::new(op, sources, Want::Alias(slot, offset, result))
}

/// `op` on `sources` is refused because of `operand`.
fn refuses(
    op: impl Into<Op>,
    sources: &'static [&'static str],
    operand: &'static str,
    because: &'static str,
) -> Case {
    Case::new(op, sources, Want::Refused(operand, because))
}

/// The sources of an op with many, a few of `base` replaced by name.
fn replaced<O: Operation>(
    base: &[&'static str],
    changes: &[(&str, &'static str)],
) -> &'static [&'static str] {
    let mut sources = base.to_vec();
    for (name, text) in changes {
        let slot = O::INFO.sources.iter().position(|source| source.name == *name);
        sources[slot.unwrap_or_else(|| panic!("{} has no {name}", O::INFO.name))] = text;
    }
    sources.leak()
}

/// `op` accepts exactly these types where its sources say `?`.
fn takes(op: impl Into<Op>, sources: &'static [&'static str], types: &'static str) -> Case {
    Case::new(op, sources, Want::Types(types))
}

fn all_cases() -> Vec<Case> {
    [
        arrange::cases(),
        attention::cases(),
        binary::cases(),
        conv::cases(),
        copy::cases(),
        delta_net::cases(),
        fill::cases(),
        glu::cases(),
        hyper_connections::cases(),
        image::cases(),
        map::cases(),
        matmul::cases(),
        norm::cases(),
        pool::cases(),
        recurrent::cases(),
        reduce::cases(),
        region::cases(),
        rope::cases(),
        rows::cases(),
        soft_max::cases(),
        sort::cases(),
        train::cases(),
        unary::cases(),
        view::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Numbers of a bracketed list: `[4, 3]`.
fn numbers(list: &str) -> Vec<usize> {
    let inner =
        list.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or_else(|| panic!("{list}"));
    inner.split(',').map(|n| n.trim().parse().unwrap_or_else(|_| panic!("{list}"))).collect()
}

/// A layout as it prints itself.
fn layout(text: &str) -> Layout {
    let (head, strides) = text.split_once('@').map_or((text, None), |(head, strides)| (head, Some(strides)));
    let (dtype, extents) = head.split_at(head.find('[').unwrap_or_else(|| panic!("{text}")));
    let dtype: DType = dtype.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    let mut ne = [1; 4];
    let given = numbers(extents);
    ne[..given.len()].copy_from_slice(&given);
    let Some(strides) = strides else {
        return Layout::packed(dtype, ne).unwrap_or_else(|error| panic!("{text}: {error}"));
    };
    let given = numbers(strides);
    let mut nb = [0; 4];
    for i in 0..4 {
        nb[i] = given.get(i).copied().unwrap_or_else(|| nb[i - 1] * ne[i - 1]);
    }
    Layout::strided(dtype, ne, nb).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn source(graph: &mut Graph, text: &str) -> Option<TensorId> {
    if text == "-" {
        return None;
    }
    let (param, text) = text.strip_prefix("param ").map_or((false, text), |text| (true, text));
    let id = graph.leaf_with_layout(layout(text)).unwrap();
    if param {
        graph.mark_param(id).unwrap();
    }
    Some(id)
}

/// What is wrong with a case about types, if anything.
fn complaint_about_types(case: &Case, want: &str) -> Option<String> {
    let mut accepted = Vec::new();
    for dtype in DType::all() {
        let mut graph = Graph::new();
        let fill_in = |text: &&str| source(&mut graph, &text.replace('?', dtype.name()));
        let sources: Vec<_> = case.sources.iter().map(fill_in).collect();
        match case.ask(&mut graph, &sources) {
            Ok(_) => accepted.push(dtype.name()),
            Err(Error::Op(error)) if matches!(*error.reason, Reason::DType { .. }) => {}
            Err(error) => return Some(format!("refused: {error}")),
        }
    }
    let accepted = accepted.join(" ");
    (accepted != want).then(|| format!("takes {accepted}"))
}

/// What is wrong with a case, if anything.
fn complaint(case: &Case) -> Option<String> {
    if let Want::Types(want) = case.want {
        return complaint_about_types(case, want);
    }
    let mut graph = Graph::new();
    let sources: Vec<_> = case.sources.iter().map(|text| source(&mut graph, text)).collect();
    let before = graph.len();
    let result = case.ask(&mut graph, &sources);
    let found = result.as_ref().map(|&id| graph.tensor(id).unwrap());
    match (&case.want, found) {
        (Want::Fresh(want), Ok(tensor)) => {
            let text = tensor.layout().to_string();
            (text != *want || tensor.view().is_some())
                .then(|| format!("made {text}, view {:?}", tensor.view()))
        }
        (&Want::Alias(slot, offset, want), Ok(tensor)) => {
            let text = tensor.layout().to_string();
            let view = sources[slot].map(|root| ViewOf { root, offset });
            (text != want || tensor.view() != view).then(|| format!("made {text}, view {:?}", tensor.view()))
        }
        (&Want::Refused(operand, because), Err(Error::Op(error))) => {
            let named = error.op == case.op.name() && error.operand == operand;
            let unchanged = graph.len() == before;
            let fits = named && unchanged && error.to_string().contains(because);
            (!fits).then(|| format!("refused with: {error}"))
        }
        (_, Ok(tensor)) => Some(format!("accepted: {}", tensor.layout())),
        (_, Err(error)) => Some(format!("refused: {error}")),
    }
}

#[test]
fn every_case_of_every_table() {
    let complaints: Vec<_> = all_cases()
        .iter()
        .filter_map(|case| complaint(case).map(|complaint| format!("{case:?}\n    {complaint}")))
        .collect();
    assert!(complaints.is_empty(), "{} cases failed:\n{}", complaints.len(), complaints.join("\n"));
}

/// The tables are complete: each op is accepted somewhere, and each of its sources is the culprit of some refusal.
#[test]
fn every_op_and_every_source_is_covered() {
    let cases = all_cases();
    let accepted: BTreeSet<_> = cases.iter().filter(|c| c.is_accepted()).map(|c| c.op.name()).collect();
    let refused: BTreeSet<_> = cases
        .iter()
        .filter_map(|c| match c.want {
            Want::Refused(operand, _) => Some((c.op.name(), operand)),
            _ => None,
        })
        .collect();
    let mut missing = Vec::new();
    for info in Op::ALL {
        if !accepted.contains(info.name) {
            missing.push(format!("{} is never accepted", info.name));
        }
        for source in info.sources.iter().filter(|source| !refused.contains(&(info.name, source.name))) {
            missing.push(format!("{} never refuses {}", info.name, source.name));
        }
    }
    // View, reshape, permute and transpose accept any tensor; what they refuse is their own result. Of the kernel of
    // IM2COL_3D only the extents count, and a bad one is a kernel that does not fit.
    missing.retain(|line| {
        *line != "IM2COL_3D never refuses kernel"
            && !["VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE", "DUP", "CONT"]
                .iter()
                .any(|op| *line == format!("{op} never refuses a"))
    });
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn every_op_wants_its_sources() {
    for info in Op::ALL.iter().filter(|info| info.sources.iter().any(|source| !source.optional)) {
        let case = all_cases().into_iter().find(|c| c.op.name() == info.name && c.is_accepted());
        let case = case.unwrap_or_else(|| panic!("no accepted case of {}", info.name));
        for (slot, spec) in info.sources.iter().enumerate().filter(|(_, spec)| !spec.optional) {
            let mut graph = Graph::new();
            let mut sources: Vec<_> = case.sources.iter().map(|text| source(&mut graph, text)).collect();
            sources[slot] = None;
            let error = graph.apply(case.op, &sources).unwrap_err();
            assert_eq!(error.to_string(), format!("{}: {}: is missing", info.name, spec.name));
        }
    }
}

#[test]
fn surplus_sources_are_refused() {
    let mut graph = Graph::new();
    let a = graph.leaf(DType::F32, [4]).unwrap();
    let error = graph.apply(Sqr, &[Some(a), Some(a)]).unwrap_err();
    assert_eq!(error.to_string(), "SQR: sources: 2 given, at most 1 possible");
    let error = graph.apply(Sqr, &[Some(a); 11]).unwrap_err();
    assert_eq!(error.to_string(), "SQR: sources: 11 given, at most 1 possible");
}

#[test]
fn names_are_unique() {
    let names: BTreeSet<_> = Op::ALL.iter().map(|info| info.name).collect();
    assert_eq!(names.len(), Op::ALL.len());
}

#[test]
fn ops_stay_small() {
    assert!(size_of::<Op>() <= 80, "{}", size_of::<Op>());
}

/// The ops that a planner may compute over a dying source.
#[test]
fn ops_that_reuse_a_source() {
    let listed: BTreeSet<_> = [
        "FILL",
        "SCALE",
        "DIAG_MASK_ZERO",
        "DIAG_MASK_INF",
        "ADD",
        "ADD_ID",
        "ADD1",
        "SUB",
        "MUL",
        "DIV",
        "SQR",
        "SQRT",
        "LOG",
        "UNARY",
        "ROPE",
        "ROPE_BACK",
        "SILU_BACK",
        "RMS_NORM",
        "RMS_NORM_BACK",
        "CLAMP",
        "SOFT_MAX",
        "SOFT_MAX_BACK",
    ]
    .into();
    let found: BTreeSet<_> =
        Op::ALL.iter().filter(|info| !info.reuses.is_empty()).map(|info| info.name).collect();
    assert_eq!(found, listed);
}
