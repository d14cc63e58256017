//! Nodes large enough for several real threads, which must give the bytes that one gives.

use oxcart_tensor::ops::{Argsort, Cast, Concat, Cpy, Dup, GetRows, Repeat, SetRows, SortOrder, Sum};
use oxcart_tensor::{DType, Layout, Op};

use crate::kernels::testing::{Input, Place, noise, run};
use crate::simd::Level;

fn matrix() -> Input {
    Input::f32([320, 515], &noise(320 * 515, 1))
}

fn turned() -> Input {
    matrix().strided([515, 320], [4 * 320, 4, 4, 4])
}

fn rows(count: usize, limit: usize) -> Input {
    Input::i32(count, &(0..count).map(|i| (i * 31 % limit) as i32).collect::<Vec<_>>())
}

fn target(dtype: DType, ne: [usize; 2]) -> Input {
    let layout = Layout::packed(dtype, ne).unwrap();
    Input::new(layout, vec![0x3C; layout.byte_len()])
}

#[test]
fn threads_do_not_change_results() {
    let cases: [(Op, Vec<Input>); 10] = [
        (Dup.into(), vec![matrix()]),
        (Dup.into(), vec![turned()]),
        (Cast { dtype: DType::F16 }.into(), vec![turned()]),
        (Cpy.into(), vec![matrix(), target(DType::Q8_0, [515 * 32, 10])]),
        (Sum.into(), vec![matrix()]),
        (Concat { dim: 1 }.into(), vec![turned(), turned()]),
        (Repeat { ne: [640, 515].into() }.into(), vec![matrix()]),
        (GetRows.into(), vec![matrix(), rows(700, 515)]),
        (SetRows.into(), vec![matrix(), rows(515, 70), target(DType::Q4_0, [320, 70])]),
        (Argsort { order: SortOrder::Descending }.into(), vec![matrix()]),
    ];
    let level = *Level::available().last().unwrap();
    for (op, inputs) in cases {
        let compute = |threads| {
            run(level, threads, &inputs, Place::Fresh, |graph, leaves| {
                let sources: Vec<_> = leaves.iter().copied().map(Some).collect();
                graph.apply(op, &sources).unwrap()
            })
            .unwrap()
        };
        let one = compute(1);
        for threads in [2, 3, 5] {
            assert!(compute(threads) == one, "{} with {threads} threads", op.label());
        }
    }
}
