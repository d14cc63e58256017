use super::*;

fn repeat(ne: impl Into<Shape>) -> Repeat {
    Repeat { ne: ne.into() }
}

fn repeat_back(ne: impl Into<Shape>) -> RepeatBack {
    RepeatBack { ne: ne.into() }
}

fn pad(left: [usize; 4], right: [usize; 4]) -> Pad {
    Pad { left, right, circular: false }
}

fn go_round(left: [usize; 4], right: [usize; 4]) -> Pad {
    Pad { left, right, circular: true }
}

fn reflect(left: usize, right: usize) -> PadReflect1d {
    PadReflect1d { left, right }
}

#[rustfmt::skip]
pub(super) fn cases() -> Vec<Case> {
    let concat = |dim| Concat { dim };
    let roll = |shift| Roll { shift };
    vec![
        takes(concat(0), &["?[256, 3]", "?[512, 3]"], "f32 f16 bf16 f64 i8 i16 i32 i64 q1_0 q2_0 q4_0 q4_1 q5_0 q5_1 q8_0 q8_1 q2_K q3_K q4_K q5_K q6_K q8_K iq1_s iq1_m iq2_xxs iq2_xs iq2_s iq3_xxs iq3_s iq4_nl iq4_xs tq1_0 tq2_0 mxfp4 nvfp4"),
        makes(concat(0), &["f32[4, 3]", "f32[5, 3]"], "f32[9, 3]"),
        makes(concat(1), &["f32[4, 3]", "f32[4, 5]"], "f32[4, 8]"),
        makes(concat(2), &["f32[4, 3, 2]", "f32[4, 3]"], "f32[4, 3, 3]"),
        makes(concat(3), &["f32[4, 3]", "f32[4, 3]"], "f32[4, 3, 1, 2]"),
        makes(concat(0), &["q8_0[32, 3]@[34, 68]", "q8_0[64, 3]"], "q8_0[96, 3]"),
        makes(concat(1), &["f32[0, 3]", "f32[0, 2]"], "f32[0, 5]"),
        makes(concat(1), &["f32[4, 0]", "f32[4, 2]@[8, 4]"], "f32[4, 2]"),
        makes(concat(0), &["i8[4, 3]@[3, 1]", "i8[4, 3]"], "i8[8, 3]"),
        makes(concat(0), &["f16[4, 3]", "f16[4, 3]@[6, 2]"], "f16[8, 3]"),
        makes(concat(1), &["i64[4, 3, 2]@[8, 32, 128]", "i64[4, 3, 2]@[8, 32, 256]"], "i64[4, 6, 2]"),
        refuses(concat(1), &["i64[4, 3]@[24, 8]", "i64[4, 3]"], "a", "rows must be contiguous"),
        refuses(concat(1), &["f64[4, 3]", "f64[4, 3]@[24, 8]"], "b", "rows must be contiguous"),
        refuses(concat(1), &["f32[4, 3]", "f16[4, 3]"], "b", "must be f32, the type of a"),
        refuses(concat(1), &["f32[4, 3]", "f32[5, 3]"], "b", "dimension 0 must be 4 (as in a)"),
        refuses(concat(0), &["f32[4, 3]", "f32[4, 5]"], "b", "dimension 1 must be 3"),
        refuses(concat(0), &["f32[4, 3, 2]", "f32[4, 3]"], "b", "dimension 2 must be 2"),
        refuses(concat(0), &["f32[4, 3, 1, 2]", "f32[4, 3]"], "b", "dimension 3 must be 2"),
        refuses(concat(4), &["f32[4, 3]", "f32[4, 3]"], "dim", "is 4, must be below 4"),
        refuses(concat(usize::MAX), &["f32[4, 3]", "f32[4, 3]"], "dim", "must be below 4"),
        refuses(concat(0), &["f32[1152921504606846976, 0]", "f32[1152921504606846976, 0]"], "result", "too large"),
        refuses(concat(0), &["f32[4]", "f32[0]"], "result", "cannot be computed in place").in_place(),

        takes(repeat([512]), &["?[256]"], "f32 f16 bf16 i16 i32"),
        makes(repeat([4, 3]), &["f32[4, 3]"], "f32[4, 3]"),
        makes(repeat([8, 3, 10, 6]), &["f32[4, 3, 5, 2]"], "f32[8, 3, 10, 6]"),
        makes(repeat([4, 6]), &["i16[1, 3]"], "i16[4, 6]"),
        makes(repeat([4, 6]), &["f16[4, 3]@[2, 64]"], "f16[4, 6]"),
        makes(repeat([8, 3]), &["f32[4, 3]@[4, 0]"], "f32[8, 3]"),
        makes(repeat([4, 0]), &["f32[4, 3]"], "f32[4, 0]"),
        makes(repeat([7, 0]), &["f32[4, 0]"], "f32[7, 0]"),
        refuses(repeat([4, 3]), &["f32[4, 0]"], "ne", "must be whole multiples of [4, 0]"),
        refuses(repeat([6]), &["f32[4]"], "ne", "must be whole multiples of [4]"),
        refuses(repeat([4, 5]), &["f32[4, 3]"], "ne", "must be whole multiples of [4, 3]"),
        refuses(repeat([4, 3, 5]), &["f32[4, 3, 2]"], "ne", "must be whole multiples of [4, 3, 2]"),
        refuses(repeat([4, 3, 2, 1]), &["f32[4, 3, 2, 2]"], "ne", "must be whole multiples of [4, 3, 2, 2]"),
        refuses(repeat([4, usize::MAX]), &["f32[4]"], "result", "too large"),
        refuses(repeat([4, 6]), &["f32[4, 3]@[12, 4]"], "a", "the stride of dimension 0 must be one element"),
        refuses(repeat([4, 6]), &["f32[1, 3]@[12, 4]"], "a", "the stride of dimension 0 must be one element"),
        refuses(repeat([4]), &["f32[4]"], "result", "cannot be computed in place").in_place(),

        takes(repeat_back([256]), &["?[512]"], "f32"),
        makes(repeat_back([4, 3, 5, 2]), &["f32[8, 3, 10, 6]"], "f32[4, 3, 5, 2]"),
        makes(repeat_back([1]), &["f32[8, 3, 2]@[4, 64, 256]"], "f32[1]"),
        makes(repeat_back([3]), &["f32[0]"], "f32[3]"),
        makes(repeat_back([0]), &["f32[0]"], "f32[0]"),
        refuses(repeat_back([3]), &["f32[8]"], "ne", "must divide [8]"),
        refuses(repeat_back([8, 1, 3]), &["f32[8, 1, 2]"], "ne", "must divide [8, 1, 2]"),
        refuses(repeat_back([0]), &["f32[8]"], "ne", "must divide [8]"),
        refuses(repeat_back([4]), &["f32[8, 3]@[12, 4]"], "a", "rows must be contiguous"),

        takes(Diag, &["?[256]"], "f32"),
        makes(Diag, &["f32[4, 1, 3, 2]"], "f32[4, 4, 3, 2]"),
        makes(Diag, &["f32[4, 1, 3]@[4, 16, 64]"], "f32[4, 4, 3]"),
        makes(Diag, &["f32[0]"], "f32[0, 0]"),
        refuses(Diag, &["f32[4, 3]"], "a", "dimension 1 must be 1"),
        refuses(Diag, &["f32[4, 0]"], "a", "dimension 1 must be 1"),
        refuses(Diag, &["f32[4]@[8]"], "a", "rows must be contiguous"),
        refuses(Diag, &["f32[4294967296, 1, 0]"], "result", "too large"),

        takes(roll([-255, 0, 0, 0]), &["?[256]"], "f32"),
        makes(roll([3, 2, 1, 0]), &["f32[4, 3, 2]"], "f32[4, 3, 2]"),
        makes(roll([-3, -2, -1, -4]), &["f32[4, 3, 2, 5]"], "f32[4, 3, 2, 5]"),
        makes(roll([0; 4]), &["f32[4, 3]@[4, 32]"], "f32[4, 3]"),
        makes(roll([1, 0, 0, 0]), &["f32[4, 2, 3]@[4, 48, 16]"], "f32[4, 2, 3]"),
        refuses(roll([4, 0, 0, 0]), &["f32[4, 3]"], "shift", "must be shorter than each extent"),
        refuses(roll([0, -3, 0, 0]), &["f32[4, 3]"], "shift", "must be shorter than each extent"),
        refuses(roll([0, 0, 1, 0]), &["f32[4, 3]"], "shift", "must be shorter than each extent"),
        refuses(roll([0, 0, 0, i32::MIN]), &["f32[4, 3]"], "shift", "must be shorter than each extent"),
        refuses(roll([0; 4]), &["f32[4, 0]"], "shift", "must be shorter than each extent"),
        refuses(roll([0; 4]), &["f32[4, 3]@[12, 4]"], "a", "the stride of dimension 0 must be one element"),
        refuses(roll([0; 4]), &["f32[4]"], "result", "cannot be computed in place").in_place(),

        takes(pad([1; 4], [0; 4]), &["?[256]"], "f32"),
        makes(pad([1, 0, 2, 3], [4, 5, 0, 6]), &["f32[4, 3, 2]"], "f32[9, 8, 4, 10]"),
        makes(pad([0; 4], [0; 4]), &["f32[4, 3]@[12, 4]"], "f32[4, 3]"),
        makes(pad([9, 0, 0, 0], [0; 4]), &["f32[4]"], "f32[13]"),
        makes(pad([0, 2, 0, 0], [0; 4]), &["f32[4, 0]"], "f32[4, 2]"),
        makes(go_round([4, 3, 0, 0], [4, 3, 0, 0]), &["f32[4, 3]@[12, 4]"], "f32[12, 9]"),
        makes(go_round([0; 4], [0; 4]), &["f32[4, 0]"], "f32[4, 0]"),
        refuses(go_round([5, 0, 0, 0], [0; 4]), &["f32[4, 3]"], "padding", "must not go round more than once"),
        refuses(go_round([0; 4], [0, 4, 0, 0]), &["f32[4, 3]"], "padding", "must not go round more than once"),
        refuses(go_round([0, 1, 0, 0], [0; 4]), &["f32[4, 0]"], "padding", "must not go round more than once"),
        refuses(pad([1; 4], [0; 4]), &["f16[4]"], "a", "type is f16, must be f32"),
        makes(pad([0; 4], [i32::MAX as usize, 0, 0, 0]), &["f32[4]"], "f32[2147483651]"),
        refuses(pad([0; 4], [1 << 31, 0, 0, 0]), &["f32[4]"], "padding", "must be below 2^31"),
        refuses(pad([usize::MAX, 0, 0, 0], [0; 4]), &["f32[4]"], "padding", "must be below 2^31"),
        refuses(pad([i32::MAX as usize, i32::MAX as usize, 0, 0], [0; 4]), &["f32[4]"], "result", "too large"),
        refuses(pad([0; 4], [0; 4]), &["f32[4]"], "result", "cannot be computed in place").in_place(),

        takes(reflect(255, 255), &["?[256]"], "f32"),
        makes(reflect(3, 3), &["f32[4, 3]"], "f32[10, 3]"),
        makes(reflect(0, 1), &["f32[4, 0]"], "f32[5, 0]"),
        refuses(reflect(4, 0), &["f32[4, 3]"], "left", "must be shorter than a row"),
        refuses(reflect(0, 4), &["f32[4, 3]"], "right", "must be shorter than a row"),
        refuses(reflect(0, usize::MAX), &["f32[4, 3]"], "right", "must be below 2^31"),
        refuses(reflect(0, 0), &["f32[0, 3]"], "left", "must be shorter than a row"),
        refuses(reflect(1, 1), &["f32[4, 3]@[4, 32]"], "a", "must be contiguous"),
    ]
}
