//! Nodes so large that threads run side by side for a while.

use oxcart_tensor::ops::{Argsort, Cast, Concat, Cpy, Dup, GetRows, Repeat, SetRows, SortOrder, Sum};
use oxcart_tensor::{DType, Layout, Op};

use crate::kernels::testing::{Tensor, Trial, wide_numbers};

fn matrix() -> Tensor {
    Tensor::f32([320, 515], wide_numbers(1, 320 * 515))
}

fn turned() -> Tensor {
    matrix().strided([515, 320], [4 * 320, 4, 4, 4])
}

fn rows(count: usize, limit: usize) -> Tensor {
    Tensor::of(DType::I32, count, (0..count).map(|i| (i * 31 % limit) as f32))
}

fn target(dtype: DType, ne: [usize; 2]) -> Tensor {
    let layout = Layout::packed(dtype, ne).unwrap();
    Tensor::new(layout, vec![0x3C; layout.byte_len()])
}

#[test]
fn threads_do_not_change_results() {
    let cases: [(Op, Vec<Tensor>); 10] = [
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
    for (op, inputs) in cases {
        Trial::of(op, &inputs.iter().collect::<Vec<_>>()).best();
    }
}
