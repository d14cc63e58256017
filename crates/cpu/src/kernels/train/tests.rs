//! Losses and optimizers against their formulas.

use oxcart_tensor::{Graph, TensorId};

use super::*;
use crate::kernels::testing::{Level, Tensor, Trial, wide_numbers};

/// Rows of positive numbers that add up to one.
fn targets(len: usize, rows: usize) -> Vec<f32> {
    let raw: Vec<f32> = wide_numbers(8, len * rows).iter().map(|x| x.abs() + 0.01).collect();
    raw.chunks(len).flat_map(|row| row.iter().map(|x| x / row.iter().sum::<f32>())).collect()
}

#[test]
fn loss_and_gradient_are_those_of_the_formulas() {
    for (len, rows) in [(1, 300), (127, 30), (129, 200), (1000, 3)] {
        let (x, t) = (wide_numbers(7, len * rows), targets(len, rows));
        let inputs = [Tensor::f32([len, rows], &x), Tensor::f32([len, rows], &t)];
        let found =
            Trial::graph(&inputs, |graph, leaves| graph.cross_entropy_loss(leaves[0], leaves[1]).unwrap())
                .best();
        let (mut loss, mut slopes) = (0.0, Vec::new());
        for (x, t) in zip(x.chunks(len), t.chunks(len)) {
            let sum: f64 = x.iter().map(|&x| f64::from(x).exp()).sum();
            loss -=
                zip(x, t).map(|(&x, &t)| f64::from(t) * (f64::from(x) - sum.ln())).sum::<f64>() / rows as f64;
            let slope =
                |(x, t): (&f32, &f32)| (f64::from(*x).exp() / sum - f64::from(*t)) * 0.5 / rows as f64;
            slopes.extend(zip(x, t).map(slope));
        }
        let found = f64::from(found.values()[0]);
        assert!((found - loss).abs() < 1e-5 * loss.abs() + 1e-6, "{found} instead of {loss}");

        let inputs = [Tensor::f32(1, [0.5]), inputs[0].clone(), inputs[1].clone()];
        let found = Trial::graph(&inputs, |graph, leaves| {
            graph.cross_entropy_loss_back(leaves[0], leaves[1], leaves[2]).unwrap()
        })
        .best();
        for (y, exact) in zip(found.values(), slopes) {
            assert!((f64::from(y) - exact).abs() < 1e-6, "{y} instead of {exact}");
        }
    }
}

const SETTINGS: [f32; 7] = [0.01, 0.9, 0.99, 1e-8, 0.1, 2.0, 1.5];

fn adamw_build(graph: &mut Graph, leaves: &[TensorId]) -> TensorId {
    graph.opt_step_adamw(leaves[0], leaves[1], [leaves[2], leaves[3]], leaves[4]).unwrap()
}

#[test]
fn adamw_moves_parameter_and_moments() {
    for len in [1, 127, 128, 129, 30_000] {
        let values: [Vec<f32>; 4] = std::array::from_fn(|i| wide_numbers(20 + i as u64, len));
        let [w, g, m, v] = &values;
        let v: Vec<f32> = v.iter().map(|x| x.abs()).collect();
        let inputs = [
            Tensor::f32(len, w).param(),
            Tensor::f32(len, g),
            Tensor::f32(len, m),
            Tensor::f32(len, &v),
            Tensor::f32(7, SETTINGS),
        ];
        for level in Level::available() {
            let after = Trial::graph(&inputs, adamw_build).outcome(level).sources;
            let found: Vec<Vec<f32>> = after[..4].iter().map(Tensor::values).collect();
            for i in 0..len {
                let new_m = m[i] * 0.9 + g[i] * (1.0 - 0.9);
                let new_v = v[i] * 0.99 + g[i] * g[i] * (1.0 - 0.99);
                let new_w = w[i] * (1.0 - 0.01 * 0.1) - 0.01 * (new_m * 2.0) / ((new_v * 1.5).sqrt() + 1e-8);
                for (found, exact) in [(found[0][i], new_w), (found[2][i], new_m), (found[3][i], new_v)] {
                    assert!((found - exact).abs() < 1e-5, "{level}: {found} instead of {exact}");
                }
                assert_eq!(found[1][i], g[i]);
            }
        }
    }
}

#[test]
fn optimizers_leave_what_is_between_rows_alone() {
    let (ne, nb) = ([130, 100], [4, 600, 60_000, 60_000]);
    let view = |seed| Tensor::f32(15_000, wide_numbers(seed, 15_000)).strided(ne, nb);
    let (w, g, m) = (view(1), view(2), view(3));
    let v = Tensor::f32(15_000, [0.5; 15_000]).strided(ne, nb);
    let between =
        |bytes: &[u8]| -> Vec<u8> { bytes.chunks(600).flat_map(|row| row[520..].to_vec()).collect() };
    let inputs = [w.clone().param(), g.clone(), m, v, Tensor::f32(7, SETTINGS)];
    let after = Trial::graph(&inputs, adamw_build).outcome(Level::Scalar).sources;
    for slot in [0, 2, 3] {
        let (new, old) = (&after[slot].bytes, &inputs[slot].bytes);
        assert!(new != old && between(new) == between(old));
    }

    let inputs = [w.clone().param(), g, Tensor::f32(2, [0.1, 0.5])];
    let found =
        Trial::graph(&inputs, |graph, leaves| graph.opt_step_sgd(leaves[0], leaves[1], leaves[2]).unwrap())
            .best();
    assert!(between(&found.bytes) == between(&w.bytes));
    let (found, old) = (found.values(), w.values());
    let gradient = inputs[1].values();
    let exact = old[0] * (1.0 - 0.1 * 0.5) - 0.1 * gradient[0];
    assert!((found[0] - exact).abs() < 1e-6);
}
