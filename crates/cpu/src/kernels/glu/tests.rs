use oxcart_tensor::Graph;

use super::*;
use crate::kernels::testing::{Input, decode, noise, run_every_way};

const KINDS: [GluKind; 7] = [
    GluKind::Reglu,
    GluKind::Geglu,
    GluKind::Swiglu,
    GluKind::SwigluOai { alpha: 1.702, limit: 2.0 },
    GluKind::GegluErf,
    GluKind::GegluQuick,
    GluKind::SwigluClamp { limit: 1.5 },
];

fn accepts(kind: GluKind, dtype: DType) -> bool {
    let mut graph = Graph::new();
    let leaf = graph.leaf(dtype, 2).unwrap();
    graph.glu(leaf, kind).is_ok()
}

#[test]
fn halves_and_two_sources_agree() {
    for len in [1, 127, 128, 129, 1000] {
        let rows = 26_000 / len + 1;
        let (x, g) = (noise(len * rows, 3), noise(len * rows, 4));
        let side_by_side = |left: &[f32], right: &[f32], odd: &[f32]| -> Vec<f32> {
            let rows = left.chunks(len).zip(right.chunks(len));
            rows.flat_map(|(l, r)| [l, r, odd].concat()).collect()
        };
        let (plain, swapped) = (side_by_side(&x, &g, &[]), side_by_side(&g, &x, &[9.0]));
        for kind in KINDS {
            for dtype in
                [DType::F32, DType::F16, DType::BF16].into_iter().filter(|&dtype| accepts(kind, dtype))
            {
                let split = [Input::of(dtype, [len, rows], &x), Input::of(dtype, [len, rows], &g)];
                let two = run_every_way(&split, &[], |graph, leaves| {
                    graph.glu_split(leaves[0], leaves[1], kind).unwrap()
                });
                let one =
                    run_every_way(&[Input::of(dtype, [2 * len, rows], &plain)], &[], |graph, leaves| {
                        graph.glu(leaves[0], kind).unwrap()
                    });
                assert!(one == two, "{} {dtype} {len}", kind.name());
                let odd = [Input::of(dtype, [2 * len + 1, rows], &swapped)];
                let one =
                    run_every_way(&odd, &[], |graph, leaves| graph.glu_swapped(leaves[0], kind).unwrap());
                assert!(one == two, "{} {dtype} {len}, swapped", kind.name());
            }
        }
    }
}

#[test]
fn values_are_those_of_the_formulas() {
    let (x, g) = (noise(1000, 5), noise(1000, 6));
    let silu = |x: f64, alpha: f64| x / (1.0 + (-alpha * x).exp());
    for kind in KINDS {
        let inputs = [Input::f32(1000, &x), Input::f32(1000, &g)];
        let found =
            run_every_way(&inputs, &[], |graph, leaves| graph.glu_split(leaves[0], leaves[1], kind).unwrap());
        for (i, y) in decode(DType::F32, &found).into_iter().enumerate() {
            let (x, g) = (f64::from(x[i]), f64::from(g[i]));
            let gelu = 0.5 * x * (1.0 + (0.797_884_560_802_865_4 * x * (1.0 + 0.044_715 * x * x)).tanh());
            let (exact, tolerance) = match kind {
                GluKind::Reglu => (x.max(0.0) * g, 1e-6),
                GluKind::Geglu => (gelu * g, 1e-2),
                GluKind::Swiglu => (silu(x, 1.0) * g, 1e-5),
                GluKind::SwigluOai { .. } => (silu(x.min(2.0), 1.702) * (g.clamp(-2.0, 2.0) + 1.0), 1e-5),
                GluKind::GegluErf => (0.5 * x * (1.0 + libm::erf(x * 0.5f64.sqrt())) * g, 1e-5),
                GluKind::GegluQuick => (silu(x, 1.702) * g, 1e-2),
                GluKind::SwigluClamp { .. } => (silu(x.min(1.5), 1.0) * g.clamp(-1.5, 1.5), 1e-5),
            };
            assert!((f64::from(y) - exact).abs() < tolerance, "{} {y} instead of {exact}", kind.name());
        }
    }
}
