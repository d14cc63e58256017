use super::*;

#[rustfmt::skip]
pub(super) fn cases() -> Vec<Case> {
    let ascending = Argsort { order: SortOrder::Ascending };
    let descending = Argsort { order: SortOrder::Descending };
    let top = |k| TopK { k };
    vec![
        takes(ascending, &["?[256]"], "f32"),
        makes(ascending, &["f32[4, 3, 2, 5]"], "i32[4, 3, 2, 5]"),
        makes(descending, &["f32[4, 3, 2]@[4, 32]"], "i32[4, 3, 2]"),
        makes(descending, &["f32[0, 3]"], "i32[0, 3]"),
        makes(ascending, &["f32[2147483647, 0]"], "i32[2147483647, 0]"),
        refuses(ascending, &["f32[2147483648, 0]"], "a", "rows must have less than 2^31 elements"),
        refuses(ascending, &["f32[4, 3]@[12, 4]"], "a", "one common distance"),
        refuses(descending, &["f32[4, 3, 2]@[4, 16, 64]"], "a", "one common distance"),
        refuses(ascending, &["f32[4]"], "result", "type is i64").typed(DType::I64),
        refuses(ascending, &["f32[4]"], "result", "cannot be computed in place").in_place(),

        takes(top(2), &["?[256]"], "f32"),
        makes(top(0), &["f32[4, 3]"], "i32[0, 3]"),
        makes(top(1), &["f32[4, 3, 2, 5]"], "i32[1, 3, 2, 5]"),
        makes(top(4), &["f32[4, 3, 2]@[4, 32]"], "i32[4, 3, 2]"),
        refuses(top(5), &["f32[4, 3]"], "k", "is 5, must not exceed the row length"),
        refuses(top(usize::MAX), &["f32[4, 3]"], "k", "must not exceed the row length"),
        refuses(top(1), &["f32[0, 3]"], "k", "must not exceed the row length"),
        refuses(top(1), &["f32[2147483648, 0]"], "a", "rows must have less than 2^31 elements"),
        refuses(top(1), &["f32[4, 3]@[12, 4]"], "a", "one common distance"),
        refuses(top(1), &["f32[4, 3, 2]@[4, 16, 64]"], "a", "one common distance"),
    ]
}
