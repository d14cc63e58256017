use proptest::prelude::*;

use super::*;

fn line(kernel: u32, stride: u32, pad: u32) -> Pool1d {
    Pool1d { kind: PoolKind::Max, window: PoolWindow { kernel: [kernel], stride: [stride], pad: [pad] } }
}

fn window(kernel: [u32; 2], stride: [u32; 2], pad: [u32; 2]) -> PoolWindow<2> {
    PoolWindow { kernel, stride, pad }
}

fn plane(kernel: [u32; 2], stride: [u32; 2], pad: [u32; 2]) -> Pool2d {
    Pool2d { kind: PoolKind::Avg, window: window(kernel, stride, pad) }
}

fn back(kind: PoolKind, kernel: [u32; 2]) -> Pool2dBack {
    Pool2dBack { kind, window: window(kernel, [2, 2], [0, 0]) }
}

/// The first number that does not fit a parameter word.
const LIMIT: u32 = 1 << 31;

#[rustfmt::skip]
pub(super) fn cases() -> Vec<Case> {
    let halves = plane([2, 2], [2, 2], [0, 0]);
    vec![
        makes(line(2, 2, 0), &["f32[13, 3]"], "f32[6, 3]"),
        makes(line(3, 2, 1), &["f16[13, 3, 2, 2]"], "f32[7, 3, 2, 2]"),
        makes(line(13, 1, 0), &["f32[13, 3]@[4, 64]"], "f32[1, 3]"),
        makes(line(2, 1, 3), &["f32[0, 3]"], "f32[5, 3]"),
        makes(line(2, 2, 0), &["f32[13, 0]"], "f32[6, 0]"),
        makes(line(2, LIMIT - 1, 0), &["f32[13]"], "f32[1]"),
        // There are 15 positions, but peers count in f32.
        makes(line(LIMIT - 1, 1, 1 << 30), &["f32[13]"], "f32[1]"),
        refuses(line(2, 2, 0), &["bf16[13, 3]"], "a", "one of f32, f16"),
        refuses(line(2, 2, 0), &["i32[13, 3]"], "a", "type is i32"),
        refuses(line(2, 2, 0), &["q8_0[32, 3]"], "a", "type is q8_0"),
        refuses(line(2, 2, 0), &["f32[13, 3]@[12, 4]"], "a", "rows must be contiguous"),
        refuses(line(2, 2, 0), &["f32[13, 3, 2]@[4, 64, 256]"], "a", "one common distance"),
        refuses(line(0, 2, 0), &["f32[13, 3]"], "kernel", "must be positive"),
        refuses(line(LIMIT, 2, 0), &["f32[13, 3]"], "kernel", "below 2^31"),
        refuses(line(2, 0, 0), &["f32[13, 3]"], "stride", "must be positive"),
        refuses(line(2, LIMIT, 0), &["f32[13, 3]"], "stride", "below 2^31"),
        refuses(line(2, 2, LIMIT), &["f32[13, 3]"], "pad", "below 2^31"),
        refuses(line(14, 1, 0), &["f32[13, 3]"], "window", "leaves no position in 13 elements along axis 0"),
        refuses(line(14, 3, 0), &["f32[13, 3]"], "window", "leaves no position"),
        refuses(line(2, 1, 0), &["f32[0, 3]"], "window", "leaves no position in 0 elements"),
        refuses(line(1, 1, 0), &["f32[13, 3]"], "result", "cannot be computed in place").in_place(),

        makes(halves, &["f32[10, 9, 2]"], "f32[5, 4, 2]"),
        makes(plane([3, 2], [2, 1], [1, 1]), &["f16[10, 9, 2, 3]"], "f32[5, 10, 2, 3]"),
        makes(halves, &["f32[10, 9, 2, 3]@[4, 64, 1024]"], "f32[5, 4, 2, 3]"),
        makes(halves, &["f32[10, 9, 2]@[4, 40, 1024]"], "f32[5, 4, 2]"),
        makes(halves, &["f32[10, 9, 0]"], "f32[5, 4, 0]"),
        refuses(halves, &["bf16[10, 9, 2]"], "a", "one of f32, f16"),
        refuses(halves, &["f64[10, 9, 2]"], "a", "type is f64"),
        refuses(halves, &["f32[10, 9, 2]@[36, 4]"], "a", "rows must be contiguous"),
        refuses(halves, &["f32[10, 9, 2, 3]@[4, 40, 360, 1024]"], "a", "planes must lie at one common distance"),
        refuses(plane([2, 0], [2, 2], [0, 0]), &["f32[10, 9, 2]"], "kernel", "must be positive"),
        refuses(plane([LIMIT, 2], [2, 2], [0, 0]), &["f32[10, 9, 2]"], "kernel", "below 2^31"),
        refuses(plane([2, 2], [0, 2], [0, 0]), &["f32[10, 9, 2]"], "stride", "must be positive"),
        refuses(plane([2, 2], [2, LIMIT], [0, 0]), &["f32[10, 9, 2]"], "stride", "below 2^31"),
        refuses(plane([2, 2], [2, 2], [0, LIMIT]), &["f32[10, 9, 2]"], "pad", "below 2^31"),
        refuses(plane([11, 2], [2, 2], [0, 0]), &["f32[10, 9, 2]"], "window", "in 10 elements along axis 0"),
        refuses(plane([2, 10], [2, 2], [0, 0]), &["f32[10, 9, 2]"], "window", "in 9 elements along axis 1"),
        refuses(halves, &["f32[10, 9, 2]"], "result", "type is f16").typed(DType::F16),

        makes(back(PoolKind::Max, [2, 2]), &["f32[5, 4, 2]", "f32[10, 9, 2]"], "f32[10, 9, 2]"),
        makes(back(PoolKind::Avg, [3, 2]), &["f32[4, 4, 2, 3]", "f16[10, 9, 2, 3]@[2, 32]"], "f32[10, 9, 2, 3]"),
        refuses(back(PoolKind::Max, [2, 2]), &["f16[5, 4, 2]", "f32[10, 9, 2]"], "gradient", "must be f32"),
        refuses(back(PoolKind::Max, [2, 2]), &["f32[5, 5, 2]", "f32[10, 9, 2]"], "gradient", "must be [5, 4, 2]"),
        refuses(back(PoolKind::Max, [2, 2]), &["f32[5, 4, 3]", "f32[10, 9, 2]"], "gradient", "must be [5, 4, 2]"),
        refuses(back(PoolKind::Max, [2, 2]), &["f32[5, 4, 2]@[4, 32]", "f32[10, 9, 2]"], "gradient", "must be contiguous"),
        refuses(back(PoolKind::Max, [2, 2]), &["f32[5, 4, 2]", "bf16[10, 9, 2]"], "a", "one of f32, f16"),
        refuses(back(PoolKind::Max, [2, 2]), &["f32[5, 4, 2]", "f32[10, 9, 2]@[36, 4]"], "a", "rows must be contiguous"),
        refuses(back(PoolKind::Max, [0, 2]), &["f32[5, 4, 2]", "f32[10, 9, 2]"], "kernel", "must be positive"),
        refuses(back(PoolKind::Max, [2, 10]), &["f32[5, 4, 2]", "f32[10, 9, 2]"], "window", "along axis 1"),
    ]
}

/// Extent of the source, kernel, stride and pad along one axis.
fn axis() -> impl Strategy<Value = [u32; 4]> {
    (0..12_u32, 1..6_u32, 1..5_u32, 0..4_u32)
        .prop_map(|(len, kernel, stride, pad)| [len, kernel, stride, pad])
}

/// Positions at which the whole window lies within the padded source.
fn count([len, kernel, stride, pad]: [u32; 4]) -> Option<usize> {
    let starts = (0..).step_by(stride as usize);
    Some(starts.take_while(|start: &u32| start + kernel <= len + 2 * pad).count()).filter(|&n| n > 0)
}

proptest! {
    #[test]
    fn extents_count_positions(x in axis(), y in axis()) {
        let [kernel, stride, pad] = std::array::from_fn(|i| [x[i + 1], y[i + 1]]);
        let mut graph = Graph::new();
        let a = graph.leaf(DType::F32, [x[0] as usize, y[0] as usize, 2]).unwrap();
        let made = graph.pool_2d(a, PoolKind::Max, PoolWindow { kernel, stride, pad });
        let ne = made.ok().map(|id| graph.tensor(id).unwrap().ne());
        prop_assert_eq!(ne, count(x).zip(count(y)).map(|(x, y)| Shape::from([x, y, 2])));

        let window = PoolWindow { kernel: [x[1]], stride: [x[2]], pad: [x[3]] };
        let made = graph.pool_1d(a, PoolKind::Avg, window);
        let ne = made.ok().map(|id| graph.tensor(id).unwrap().ne());
        prop_assert_eq!(ne, count(x).map(|x| Shape::from([x, y[0] as usize, 2])));
    }
}
