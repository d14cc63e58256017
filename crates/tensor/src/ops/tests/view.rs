use super::*;

fn view(ne: impl Into<Shape>, nb: [usize; 4], offset: usize) -> View {
    View { ne: ne.into(), nb, offset }
}

#[rustfmt::skip]
pub(super) fn cases() -> Vec<Case> {
    vec![
        shares(view([2, 2], [4, 16, 32, 32], 4), &["f32[4, 3]"], 0, 4, "f32[2, 2]@[4, 16]"),
        shares(view([4], [4, 16, 16, 16], 32), &["f32[4, 3]"], 0, 32, "f32[4]"),
        shares(view([4, 3], [4, 0, 0, 0], 0), &["f32[4]"], 0, 0, "f32[4, 3]@[4, 0]"),
        shares(view([64, 2], [18, 72, 144, 144], 36), &["q4_0[128, 2]"], 0, 36, "q4_0[64, 2]@[18, 72]"),
        shares(view([0, 2], [4, 0, 0, 0], 48), &["f32[4, 3]"], 0, 48, "f32[0, 2]"),
        refuses(view([4, 3], [4, 16, 48, 48], 4), &["f32[4, 3]"], "result", "bytes 4..+48 reach outside the 48 bytes"),
        refuses(view([4, 3], [4, 20, 60, 60], 0), &["f32[4, 3]"], "result", "reach outside"),
        refuses(view([1], [4, 4, 4, 4], usize::MAX - 3), &["f32[4]"], "result", "reach outside"),
        refuses(view([0], [4, 4, 4, 4], 52), &["f32[4, 3]"], "result", "reach outside"),
        refuses(view([2], [4, 4, 4, 4], 2), &["f32[4]"], "offset", "must be a whole number of blocks"),
        refuses(view([32], [18, 18, 18, 18], 9), &["q4_0[128]"], "offset", "must be a whole number of blocks"),
        refuses(view([16], [18, 18, 18, 18], 0), &["q4_0[128]"], "result", "not a whole number of q4_0 blocks"),
        refuses(view([64], [36, 72, 72, 72], 0), &["q4_0[128]"], "result", "must be adjacent"),
        refuses(view([2, 2], [4, 6, 12, 12], 0), &["f32[8]"], "result", "stride 6 of dimension 1"),
        refuses(view([1 << 40, 1 << 40], [4, 4, 4, 4], 0), &["f32[8]"], "result", "too large"),
        refuses(view([4], [4, 4, 4, 4], 0), &["f32[4]"], "result", "cannot be computed in place").in_place(),
        refuses(view([4], [4, 4, 4, 4], 0), &["f32[4]"], "result", "type is f16").typed(DType::F16),

        shares(Reshape { ne: [6, 2].into() }, &["f32[4, 3]"], 0, 0, "f32[6, 2]"),
        shares(Reshape { ne: [32, 4].into() }, &["q4_0[64, 2]"], 0, 0, "q4_0[32, 4]"),
        shares(Reshape { ne: [0, 7].into() }, &["f32[4, 0]"], 0, 0, "f32[0, 7]"),
        refuses(Reshape { ne: [5, 2].into() }, &["f32[4, 3]"], "result", "the number of elements differs"),
        refuses(Reshape { ne: [12].into() }, &["f32[4, 3]@[12, 4]"], "result", "not contiguous"),
        refuses(Reshape { ne: [16, 8].into() }, &["q4_0[64, 2]"], "result", "not a whole number"),

        shares(Permute { axes: [2, 0, 1, 3] }, &["f32[2, 3, 5]"], 0, 0, "f32[3, 5, 2]@[8, 24, 4]"),
        shares(Permute { axes: [0, 2, 1, 3] }, &["q8_0[32, 3, 2]"], 0, 0, "q8_0[32, 2, 3]@[34, 102, 34]"),
        refuses(Permute { axes: [0, 0, 1, 3] }, &["f32[2, 3, 5]"], "result", "not a permutation"),
        refuses(Permute { axes: [4, 0, 1, 3] }, &["f32[2, 3, 5]"], "result", "not a permutation"),
        refuses(Permute { axes: [1, 0, 2, 3] }, &["q8_0[32, 32]"], "result", "dimension 0 of a q8_0 tensor cannot be moved"),

        shares(Transpose, &["f16[4, 3]"], 0, 0, "f16[3, 4]@[8, 2]"),
        refuses(Transpose, &["q8_0[32, 32]"], "result", "cannot be moved"),
    ]
}

#[test]
fn views_of_views_look_into_the_root() {
    let mut graph = Graph::new();
    let root = graph.leaf(DType::F32, [8, 4]).unwrap();
    let rows = graph.view(root, [8, 2], &[], 64).unwrap();
    let tail = graph.view(rows, [2, 2], &[32], 24).unwrap();
    assert_eq!(graph.tensor(tail).unwrap().view(), Some(ViewOf { root, offset: 88 }));
    // Past the middle view, but inside the root: what counts is the memory.
    assert!(graph.view(rows, [8, 2], &[], 0).is_ok());
    let error = graph.view(tail, [4, 2], &[32], 0).unwrap_err();
    assert_eq!(
        error.to_string(),
        "VIEW: result: bytes 88..+48 reach outside the 128 bytes of the viewed tensor"
    );
}

#[test]
fn strides_left_out_are_packed() {
    let mut graph = Graph::new();
    let a = graph.leaf(DType::F32, [8, 4, 2]).unwrap();
    let check = |graph: &mut Graph, ne: &[usize], strides: &[usize], nb| {
        let ne: [usize; 4] = std::array::from_fn(|i| ne.get(i).copied().unwrap_or(1));
        let id = graph.view(a, ne, strides, 0).unwrap();
        assert_eq!(graph.tensor(id).unwrap().layout().nb(), nb);
    };
    check(&mut graph, &[4], &[], [4, 16, 16, 16]);
    check(&mut graph, &[4, 2], &[32], [4, 32, 64, 64]);
    check(&mut graph, &[4, 2, 2], &[32, 128], [4, 32, 128, 256]);
    check(&mut graph, &[4, 2, 2, 1], &[32, 128, 256], [4, 32, 128, 256]);
}

#[test]
fn views_that_cannot_be_represented_are_refused() {
    let mut graph = Graph::new();
    let a = graph.leaf(DType::F32, [64]).unwrap();
    let mut refused = |ne: [usize; 3], strides: &[usize], because: &str| {
        let error = graph.view(a, ne, strides, 0).unwrap_err().to_string();
        assert!(error.contains(because), "{error}");
    };
    refused([4, 2, 2], &[1 << 63], "stride 18446744073709551615 of dimension 2");
    refused([4, 2, 1], &[1 << 63], "too large");
    refused([usize::MAX / 2, 2, 1], &[], "stride 18446744073709551615 of dimension 1");
    refused([4, 2, 1], &[16, 32, 64, 128], "strides: 4 given, at most 3 possible");
    // A stride that leads nowhere does not matter.
    assert!(graph.view(a, [4, 1], &[1 << 63], 0).is_ok());
}
