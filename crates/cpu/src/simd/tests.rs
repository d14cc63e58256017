//! Every token against the scalar one, lane by lane.

use half::{bf16, f16};

use super::{Compiled, Level, MAX_LANES, Simd, for_each_level};

/// As many numbers as the longest vector has.
type Vector = [f32; MAX_LANES];

/// What every operation makes of two lanes' worth of numbers.
#[inline(always)]
fn everything<S: Simd>(s: S, a: &Vector, b: &Vector, out: &mut Vec<Vector>) {
    let halves = a.map(f16::from_f32);
    let brains = a.map(bf16::from_f32);
    let bytes = a.map(|x| x as i8);
    let mut results = [[0.0; MAX_LANES]; 14];
    for at in (0..MAX_LANES).step_by(S::LANES) {
        let (x, y) = (s.load(&a[at..]), s.load(&b[at..]));
        let whole = s.round(s.min(s.max(x, s.splat(-100.0)), s.splat(100.0)));
        let values = [
            s.add(x, y),
            s.sub(x, y),
            s.mul(x, y),
            s.div(x, y),
            s.max(x, y),
            s.min(x, y),
            s.round(x),
            s.pow2(s.where_greater(whole, whole, whole, s.splat(3.0))),
            s.where_greater(x, y, x, s.splat(0.5)),
            s.load_f16(&halves[at..]),
            s.load_bf16(&brains[at..]),
            s.splat_f16(halves[0]),
            s.load_i8(&bytes[at..]),
            s.scale(s.splat(1.25), whole),
        ];
        for (result, value) in results.iter_mut().zip(values) {
            s.store(value, &mut result[at..]);
        }
    }
    out.extend(results);
}

const EVERYTHING: Compiled<fn(&Vector, &Vector, &mut Vec<Vector>)> =
    for_each_level!(everything: fn(a: &Vector, b: &Vector, out: &mut Vec<Vector>));

#[test]
fn every_level_computes_what_scalar_computes() {
    let special =
        [0.0, -0.0, 1.0, -1.5, 2.5, 3.5, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40, 65504.0];
    for shift in 0..special.len() {
        let a = std::array::from_fn(|i| special[(i + shift) % special.len()]);
        let b = std::array::from_fn(|i| special[(i * 7 + shift * 3) % special.len()]);
        let mut expected = Vec::new();
        EVERYTHING.at(Level::Scalar)(&a, &b, &mut expected);
        for level in Level::available() {
            let mut found = Vec::new();
            EVERYTHING.at(level)(&a, &b, &mut found);
            for (op, (found, expected)) in found.iter().zip(&expected).enumerate() {
                for lane in 0..MAX_LANES {
                    let (found, expected) = (found[lane], expected[lane]);
                    let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
                    assert!(
                        same,
                        "{level} operation {op}: {found} instead of {expected} from {} and {}",
                        a[lane], b[lane]
                    );
                }
            }
        }
    }
}

/// The sums of the lanes of four vectors, each as long as the instruction set's are.
#[inline(always)]
fn folds<S: Simd>(s: S, from: &[Vector; 4]) -> ([f32; 4], usize) {
    let [a, b, c, d] = from;
    (s.fold_four([s.load(a), s.load(b), s.load(c), s.load(d)]), S::LANES)
}

type Folds = fn(&[Vector; 4]) -> ([f32; 4], usize);

const FOLDS: Compiled<Folds> = for_each_level!(folds: fn(from: &[Vector; 4]) -> ([f32; 4], usize));

#[test]
fn lanes_are_folded_by_halves() {
    let vectors: [Vector; 4] = std::array::from_fn(|v| {
        std::array::from_fn(|i| ((i * 7919 + v * 104_729) % 1009) as f32 * 1.7e-3 - 0.8)
    });
    for level in Level::available() {
        let (found, lanes) = FOLDS.at(level)(&vectors);
        for (found, vector) in found.iter().zip(&vectors) {
            let mut left = vector[..lanes].to_vec();
            while left.len() > 1 {
                let (low, high) = left.split_at(left.len() / 2);
                left = low.iter().zip(high).map(|(low, high)| low + high).collect();
            }
            assert_eq!(found.to_bits(), left[0].to_bits(), "{level}");
        }
    }
}
