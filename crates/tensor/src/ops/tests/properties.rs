//! Rules that hold for all shapes: broadcasting, and views that stay inside.

use proptest::prelude::*;

use super::*;

fn extents(max: usize) -> impl Strategy<Value = [usize; 4]> {
    prop::array::uniform4(0..=max)
}

/// A shape and one that may or may not repeat into it.
fn shape_and_part() -> impl Strategy<Value = ([usize; 4], [usize; 4])> {
    (extents(6), prop::array::uniform4(0_usize..4)).prop_map(|(whole, how)| {
        let part = std::array::from_fn(|i| match how[i] {
            0 => whole[i],
            1 => 1,
            2 if whole[i] % 2 == 0 => whole[i] / 2,
            _ => whole[i].div_ceil(2),
        });
        (whole, part)
    })
}

/// The definition of repeating, by brute force: some whole number of copies fills the target.
fn repeats(part: [usize; 4], whole: [usize; 4]) -> bool {
    if part.contains(&0) {
        return whole.contains(&0);
    }
    (0..4).all(|i| (0..=whole[i]).any(|copies| copies * part[i] == whole[i]))
}

/// A root, and a view asked of it: extents, strides in elements and an offset in elements.
#[derive(Debug, Clone)]
struct AskedView {
    root: [usize; 4],
    ne: [usize; 4],
    steps: [usize; 4],
    offset: usize,
}

fn asked_view() -> impl Strategy<Value = AskedView> {
    (extents(4), extents(4), prop::array::uniform4(0_usize..40), 0_usize..300, any::<bool>()).prop_map(
        |(root, ne, mut steps, offset, adjacent)| {
            steps[0] = if adjacent { 1 } else { steps[0] };
            AskedView { root, ne, steps, offset }
        },
    )
}

/// Element offsets a view touches, relative to the root.
fn touched(asked: &AskedView) -> Vec<usize> {
    let AskedView { ne, steps, offset, .. } = asked;
    let mut all = Vec::new();
    for i3 in 0..ne[3] {
        for i2 in 0..ne[2] {
            for i1 in 0..ne[1] {
                for i0 in 0..ne[0] {
                    all.push(offset + i0 * steps[0] + i1 * steps[1] + i2 * steps[2] + i3 * steps[3]);
                }
            }
        }
    }
    all
}

proptest! {
    #[test]
    fn binary_ops_broadcast_exactly_what_repeats((whole, part) in shape_and_part()) {
        let mut graph = Graph::new();
        let a = graph.leaf(DType::F32, whole).unwrap();
        let b = graph.leaf(DType::F32, part).unwrap();
        for op in [Op::Add(Add), Op::Sub(Sub), Op::Mul(Mul), Op::Div(Div)] {
            let result = graph.apply(op, &[Some(a), Some(b)]);
            prop_assert_eq!(result.is_ok(), repeats(part, whole), "{} of {:?} and {:?}", op.name(), whole, part);
            if let Ok(id) = result {
                prop_assert_eq!(graph.tensor(id).unwrap().ne(), Shape::from(whole));
            }
        }
    }

    #[test]
    fn repeat_makes_exactly_what_it_was_asked_for((whole, part) in shape_and_part()) {
        let mut graph = Graph::new();
        let a = graph.leaf(DType::F32, part).unwrap();
        let result = graph.repeat(a, whole);
        prop_assert_eq!(result.is_ok(), repeats(part, whole));
        if let Ok(tiled) = result {
            // And its gradient goes back, unless there is nothing to sum.
            let back = graph.repeat_back(tiled, part);
            prop_assert!(back.is_ok() || part.contains(&0), "{:?}", back);
        }
    }

    #[test]
    fn a_view_never_reaches_outside_its_root(asked in asked_view()) {
        let mut graph = Graph::new();
        let root = graph.leaf(DType::F32, asked.root).unwrap();
        let elements = asked.root.iter().product::<usize>();
        let inside = touched(&asked).iter().all(|&element| element < elements)
            && (!asked.ne.contains(&0) || asked.offset <= elements);
        let nb = asked.steps.map(|step| step * 4);
        let view = View { ne: asked.ne.into(), nb, offset: asked.offset * 4 };
        let result = graph.apply(view, &[Some(root)]);
        prop_assert_eq!(result.is_ok(), inside, "{:?}: {:?}", asked, result);
        // The constructor asks for the same when elements of a row are adjacent.
        if asked.steps[0] == 1 {
            let same = graph.view(root, asked.ne, &nb[1..], asked.offset * 4);
            prop_assert_eq!(same.is_ok(), inside);
        }
    }

    #[test]
    fn views_of_views_stay_inside_too(outer in asked_view(), inner in asked_view()) {
        let mut graph = Graph::new();
        let root = graph.leaf(DType::F32, outer.root).unwrap();
        let bytes = graph.tensor(root).unwrap().layout().byte_len();
        let mut from = root;
        for w in [&outer, &inner] {
            let view = View { ne: w.ne.into(), nb: w.steps.map(|step| step * 4), offset: w.offset * 4 };
            let Ok(id) = graph.apply(view, &[Some(from)]) else { break };
            from = id;
        }
        for id in graph.ids() {
            let tensor = graph.tensor(id).unwrap();
            let Some(view) = tensor.view() else { continue };
            prop_assert_eq!(view.root, root);
            prop_assert!(view.offset + tensor.layout().byte_len() <= bytes);
        }
    }

    #[test]
    fn what_is_written_through_a_view_never_overlaps(asked in asked_view(), in_place in any::<bool>()) {
        let mut graph = Graph::new();
        let root = graph.leaf(DType::F32, asked.root).unwrap();
        let view = View { ne: asked.ne.into(), nb: asked.steps.map(|step| step * 4), offset: asked.offset * 4 };
        let Ok(target) = graph.apply(view, &[Some(root)]) else { return Ok(()) };
        let written = if in_place {
            graph.apply_in_place(Norm { eps: 1e-5 }, &[Some(target)])
        } else {
            let source = graph.leaf(DType::F32, asked.ne).unwrap();
            graph.cpy(source, target)
        };
        let mut elements = touched(&asked);
        elements.sort_unstable();
        let distinct = elements.windows(2).all(|pair| pair[0] != pair[1]);
        if written.is_ok() {
            prop_assert!(distinct);
        }
    }

    #[test]
    fn mul_mat_groups_batches(ne in extents(4), batch in prop::array::uniform2(0_usize..=4)) {
        let [k, m, a2, a3] = ne;
        let [b2, b3] = batch;
        let mut graph = Graph::new();
        let a = graph.leaf(DType::F32, [k, m, a2, a3]).unwrap();
        let b = graph.leaf(DType::F32, [k, 5, b2, b3]).unwrap();
        let result = graph.mul_mat(a, b);
        // A packed tensor of empty rows counts as transposed, and nothing divides by zero batches.
        let allowed = k > 0 && a2 > 0 && a3 > 0 && b2 % a2 == 0 && b3 % a3 == 0;
        prop_assert_eq!(result.is_ok(), allowed, "{:?} {:?}", ne, batch);
        if let Ok(id) = result {
            prop_assert_eq!(graph.tensor(id).unwrap().ne(), Shape::from([m, 5, b2, b3]));
        }
    }
}
