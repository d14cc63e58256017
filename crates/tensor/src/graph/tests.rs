//! Order, use counts, roles, storage, text and pictures, on graphs small enough to check by eye.

use super::*;
use crate::ops::{Scale, Sqr};

/// `out = (w · x) + (w · x)²`, and a second branch that is not asked for.
struct Example {
    graph: Graph,
    w: TensorId,
    x: TensorId,
    product: TensorId,
    square: TensorId,
    out: TensorId,
    unused: TensorId,
}

fn example() -> Example {
    let mut graph = Graph::new();
    let w = graph.leaf(DType::F16, [8, 4]).unwrap();
    let x = graph.leaf(DType::F32, [8, 2]).unwrap();
    let product = graph.mul_mat(w, x).unwrap();
    let unused = graph.scale(product, 2.0).unwrap();
    let square = graph.sqr(product).unwrap();
    let out = graph.add(product, square).unwrap();
    for (id, name) in [(w, "w"), (x, "x"), (out, "out")] {
        graph.set_name(id, name).unwrap();
    }
    graph.mark_input(x).unwrap();
    graph.mark_output(out).unwrap();
    Example { graph, w, x, product, square, out, unused }
}

#[test]
fn expanding_visits_sources_left_to_right() {
    let Example { mut graph, w, x, product, square, out, unused } = example();
    assert!(graph.nodes().is_empty());
    graph.expand(out).unwrap();
    assert_eq!(graph.nodes(), [product, square, out]);
    assert_eq!(graph.leaves(), [w, x]);
    assert_eq!((graph.slot(square), graph.slot(x)), (Some(Slot::Node(1)), Some(Slot::Leaf(1))));
    assert_eq!(graph.slot(unused), None);

    // A second output adds only what is new.
    graph.expand(unused).unwrap();
    assert_eq!(graph.nodes(), [product, square, out, unused]);
    // Expanding again changes nothing.
    graph.expand(out).unwrap();
    assert_eq!(graph.nodes().len(), 4);
}

#[test]
fn use_counts_count_source_places_of_ordered_nodes() {
    let Example { mut graph, w, product, square, out, unused, .. } = example();
    assert_eq!(graph.use_count(product), 0);
    graph.expand(out).unwrap();
    assert_eq!([w, product, square, out].map(|id| graph.use_count(id)), [1, 2, 1, 0]);
    graph.expand(unused).unwrap();
    assert_eq!(graph.use_count(product), 3);

    let twice = graph.mul(out, out).unwrap();
    graph.expand(twice).unwrap();
    assert_eq!(graph.use_count(out), 2);
}

#[test]
fn parameters_are_nodes() {
    let mut graph = Graph::new();
    let weights = graph.leaf(DType::F32, [4]).unwrap();
    let gradient = graph.leaf(DType::F32, [4]).unwrap();
    let settings = graph.leaf(DType::F32, [2]).unwrap();
    graph.mark_param(weights).unwrap();
    let step = graph.opt_step_sgd(weights, gradient, settings).unwrap();
    graph.expand(step).unwrap();
    assert_eq!(graph.nodes(), [weights, step]);
    assert_eq!(graph.leaves(), [gradient, settings]);
    assert!(matches!(graph.mark_param(gradient), Err(Error::Role { .. })));
}

#[test]
fn only_the_chosen_alternative_is_computed() {
    let Example { mut graph, product, square, out, unused, .. } = example();
    graph.expand_select(&[out, unused], 1).unwrap();
    let computed: Vec<_> =
        graph.nodes().iter().copied().filter(|&id| graph.tensor(id).unwrap().has(Flags::COMPUTE)).collect();
    assert_eq!(graph.nodes(), [product, square, out, unused]);
    assert_eq!(computed, [product, unused]);
    // Asking for it later marks what it needs, too.
    graph.expand(out).unwrap();
    assert!([square, out].iter().all(|&id| graph.tensor(id).unwrap().has(Flags::COMPUTE)));
    let error = graph.expand_select(&[out], 1).unwrap_err();
    assert_eq!(error, Error::NoSuchAlternative { index: 1, count: 1 });
}

#[test]
fn an_order_from_elsewhere_is_checked() {
    let Example { mut graph, w, x, product, square, out, .. } = example();
    assert_eq!(graph.append(out, true), Err(Error::OutOfOrder { id: out, source_id: product }));
    for id in [x, w, product, square, out] {
        graph.append(id, id == out).unwrap();
    }
    assert_eq!(graph.leaves(), [x, w]);
    assert_eq!(graph.nodes(), [product, square, out]);
    assert_eq!(graph.append(out, true), Err(Error::AlreadyInOrder { id: out }));
}

#[test]
fn a_hundred_thousand_nodes_deep() {
    let mut graph = Graph::new();
    let mut last = graph.leaf(DType::F32, [1]).unwrap();
    for _ in 0..100_000 {
        last = graph.apply(Sqr, &[Some(last)]).unwrap();
    }
    graph.expand(last).unwrap();
    assert_eq!(graph.nodes().len(), 100_000);
}

#[test]
fn ranges_are_windows_on_the_order() {
    let Example { mut graph, w, x, product, square, out, .. } = example();
    graph.expand(out).unwrap();
    let all = graph.range(0..3).unwrap();
    assert_eq!(all.inputs(), [w, x]);
    let tail = graph.range(1..3).unwrap();
    assert_eq!((tail.nodes(), tail.positions()), ([square, out].as_slice(), 1..3));
    assert_eq!(tail.inputs(), [product]);
    assert_eq!(tail.graph().use_count(product), 2);
    assert!(graph.range(2..5).is_none());
    assert!(graph.range(1..1).unwrap().nodes().is_empty());
}

#[test]
fn clearing_the_order_keeps_the_tensors() {
    let Example { mut graph, product, out, .. } = example();
    graph.expand(out).unwrap();
    graph.clear_order();
    assert!(graph.nodes().is_empty() && graph.leaves().is_empty() && graph.len() == 6);
    assert_eq!(graph.use_count(product), 0);
    assert!(!graph.tensor(product).unwrap().has(Flags::COMPUTE));
    graph.expand(out).unwrap();
    assert_eq!(graph.nodes().len(), 3);
}

#[test]
fn ids_of_other_graphs_are_refused() {
    let Example { out, .. } = example();
    let mut small = Graph::new();
    let a = small.leaf(DType::F32, [4]).unwrap();
    let stranger = Error::NoSuchTensor { id: out, count: 1 };
    assert_eq!(small.add(a, out), Err(stranger.clone()));
    assert_eq!(small.expand(out), Err(stranger.clone()));
    assert_eq!(small.append(out, true), Err(stranger.clone()));
    assert_eq!(small.set_name(out, "x"), Err(stranger.clone()));
    assert_eq!(small.mark_output(out), Err(stranger));
    assert_eq!(small.use_count(out), 0);
}

#[test]
fn roles_have_rules() {
    let Example { mut graph, x, product, out, .. } = example();
    assert!(graph.tensor(x).unwrap().has(Flags::INPUT));
    assert!(matches!(graph.mark_input(product), Err(Error::Role { role: "an input", .. })));
    assert!(matches!(graph.mark_loss(out), Err(Error::Role { .. })));
    let loss = graph.sum(out).unwrap();
    graph.mark_loss(loss).unwrap();

    // An output protects the memory it shows.
    let view = graph.view(product, [2, 2], &[16], 0).unwrap();
    graph.mark_output(view).unwrap();
    assert!(graph.tensor(product).unwrap().has(Flags::OUTPUT));
}

#[test]
fn storage_is_checked_against_its_buffer() {
    let Example { mut graph, w, x, .. } = example();
    let at = |offset| Storage { buffer: BufferId(7), offset };
    graph.bind(w, at(64), 128).unwrap();
    assert_eq!(graph.storage(w).unwrap(), Some(at(64)));
    assert_eq!(graph.storage(x).unwrap(), None);
    let error = graph.bind(w, at(66), 128).unwrap_err();
    assert_eq!(error.to_string(), "%0 of 64 bytes does not fit at byte 66 of buffer 7, which has 128");
    assert!(matches!(graph.bind(w, at(usize::MAX - 1), 128), Err(Error::OutsideBuffer { .. })));
    assert_eq!(graph.bind(x, at(2), 128), Err(Error::Misaligned { id: x, offset: 2, align: 4 }));

    let rows = graph.view(w, [8, 2], &[], 32).unwrap();
    assert_eq!(graph.storage(rows).unwrap(), Some(at(96)));
    assert_eq!(graph.bind(rows, at(0), 128), Err(Error::BindView { id: rows, root: w }));
    graph.unbind(w).unwrap();
    assert_eq!(graph.storage(rows).unwrap(), None);
}

#[test]
fn in_place_results_share_the_first_source() {
    let Example { mut graph, product, .. } = example();
    let scaled = graph.apply_in_place(Scale { scale: 2.0, bias: 0.0 }, &[Some(product)]).unwrap();
    assert_eq!(graph.tensor(scaled).unwrap().view(), Some(ViewOf { root: product, offset: 0 }));
    let again = graph.apply_in_place(Sqr, &[Some(scaled)]).unwrap();
    assert_eq!(graph.tensor(again).unwrap().view(), Some(ViewOf { root: product, offset: 0 }));
}

#[test]
fn names_are_short_and_can_be_taken_away() {
    let Example { mut graph, w, product, .. } = example();
    assert_eq!(graph.label(product), "tensor_2");
    assert_eq!(graph.set_name(w, &"n".repeat(64)), Err(Error::NameTooLong { len: 64 }));
    graph.set_name(w, &"n".repeat(63)).unwrap();
    assert_eq!(graph.label(w).len(), 63);
    graph.set_name(w, "").unwrap();
    assert_eq!(graph.tensor(w).unwrap().name(), None);
}

#[test]
fn dump_shows_the_order() {
    let Example { mut graph, w, out, .. } = example();
    graph.expand(out).unwrap();
    graph.bind(w, Storage { buffer: BufferId(1), offset: 32 }, 1024).unwrap();
    let view = graph.view(out, [2, 2], &[16], 8).unwrap();
    graph.expand_uncomputed(view).unwrap();
    let expected = "\
2 leaves
  %0    w f16[8, 4] uses 1 in buffer 1+32
  %1    x f32[8, 2] uses 1 input
4 nodes
  %2    node_0 = MUL_MAT(a: %0, b: %1) f32[4, 2] uses 2
  %4    node_1 = SQR(a: %2) f32[4, 2] uses 1
  %5    out    = ADD(a: %2, b: %4) f32[4, 2] uses 1 output
  %6    node_3 = VIEW(a: %5) f32[2, 2]@[4, 16] uses 0 view of %5+8 skipped
";
    assert_eq!(graph.dump().to_string(), expected);
}

#[test]
fn names_cannot_break_text_or_pictures() {
    let mut graph = Graph::new();
    let a = graph.leaf(DType::F32, [1]).unwrap();
    graph.set_name(a, "\u{1b}[31m\"; evil \\\n").unwrap();
    let b = graph.sqr(a).unwrap();
    graph.expand(b).unwrap();
    let text = graph.dump().to_string();
    assert!(!text.contains('\u{1b}') && text.lines().count() == 4, "{text}");
    let picture = graph.dot(|_| Some("\"\n".into())).to_string();
    assert!(!picture.contains('\u{1b}'));
    assert!(picture.contains("\\\"; evil \\\\\u{fffd}"), "{picture}");
}

#[test]
fn pictures_colour_by_label() {
    let Example { mut graph, product, square, out, .. } = example();
    graph.expand(out).unwrap();
    let picture = graph.dot(|id| (id == product || id == square).then(|| "CPU".to_owned())).to_string();
    assert_eq!(picture.matches("#a6cee3").count(), 3, "two nodes and the legend: {picture}");
    assert!(picture.contains("t2 [label=\"MUL_MAT\\nnode_0\\nf32[4, 2]\", shape=box"), "{picture}");
    assert!(picture.contains("t0 -> t2 [label=\"a\"];"), "{picture}");
    assert!(picture.contains("l0 [label=\"CPU\""), "{picture}");
    assert!(!graph.dot(|_| None).to_string().contains("legend"));
}

#[test]
fn a_source_can_be_exchanged_for_a_leaf_of_the_same_layout() {
    let Example { mut graph, w, product, square, out, .. } = example();
    graph.expand(out).unwrap();
    let copy = graph.leaf(DType::F32, [4, 2]).unwrap();
    graph.replace_source(out, 0, copy).unwrap();
    assert_eq!(graph.sources(out).unwrap(), [Some(copy), Some(square)]);
    assert_eq!([product, copy].map(|id| graph.use_count(id)), [1, 1]);
    assert_eq!(graph.leaves().last(), Some(&copy));

    let other = graph.leaf(DType::F32, [2, 4]).unwrap();
    assert!(matches!(graph.replace_source(out, 1, other), Err(Error::Role { .. })));
    assert!(matches!(graph.replace_source(out, 1, product), Err(Error::Role { .. })));
    assert!(matches!(graph.replace_source(out, 2, copy), Err(Error::Role { .. })));
    let view = graph.view(w, [8, 2], &[], 0).unwrap();
    let twin = graph.leaf(DType::F16, [8, 4]).unwrap();
    assert!(matches!(graph.replace_source(view, 0, twin), Err(Error::Role { .. })));
}

#[test]
fn nothing_is_written_twice_by_one_node() {
    let mut graph = Graph::new();
    let [weights, gradient, m, v] = [(); 4].map(|()| graph.leaf(DType::F32, [4]).unwrap());
    let settings = graph.leaf(DType::F32, [7]).unwrap();
    graph.mark_param(weights).unwrap();
    let mut refused = |moments: [TensorId; 2]| {
        graph.opt_step_adamw(weights, gradient, moments, settings).unwrap_err().to_string()
    };
    let why = "shares memory with something else that the op writes";
    assert_eq!(refused([m, m]), format!("OPT_STEP_ADAMW: v: {why}"));
    assert_eq!(refused([weights, v]), format!("OPT_STEP_ADAMW: m: {why}"));
    assert!(graph.opt_step_adamw(weights, gradient, [m, v], settings).is_ok());
}
