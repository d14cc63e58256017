use super::*;

/// Heads of 16, 4 of them, 2 for queries and keys, 5 tokens in each of 3 sequences.
fn net(changes: &'static [(&'static str, &'static str)]) -> &'static [&'static str] {
    let base = [
        "f32[16, 2, 5, 3]",
        "f32[16, 2, 5, 3]",
        "f32[16, 4, 5, 3]",
        "f32[1, 4, 5, 3]",
        "f32[1, 4, 5, 3]",
        "f32[16, 16, 4, 3]",
    ];
    replaced::<GatedDeltaNet>(&base, changes)
}

#[rustfmt::skip]
pub(super) fn cases() -> Vec<Case> {
    let last = GatedDeltaNet { snapshots: 1 };
    vec![
        makes(SolveTri, &["f32[8, 8, 2, 3]", "f32[5, 8, 2, 3]"], "f32[5, 8, 2, 3]"),
        makes(SolveTri, &["f32[1]", "f32[1]"], "f32[1]"),
        makes(SolveTri, &["f32[8, 8, 0]", "f32[5, 8, 0]"], "f32[5, 8, 0]"),
        makes(SolveTri, &["f32[0, 0]", "f32[5, 0]"], "f32[5, 0]"),
        refuses(SolveTri, &["f16[8, 8]", "f32[5, 8]"], "a", "must be f32"),
        refuses(SolveTri, &["f32[8, 7]", "f32[5, 8]"], "a", "dimension 1 must be 8 (matrices must be square)"),
        refuses(SolveTri, &["f32[8, 8]@[32, 4]", "f32[5, 8]"], "a", "must be contiguous"),
        refuses(SolveTri, &["f32[8, 8]", "f16[5, 8]"], "b", "must be f32"),
        refuses(SolveTri, &["f32[8, 8]", "f32[8, 5]"], "b", "must be [8, 8]"),
        refuses(SolveTri, &["f32[8, 8]", "f32[5, 8, 2]"], "b", "must be [5, 8]"),
        refuses(SolveTri, &["f32[8, 8, 1, 3]", "f32[5, 8]"], "b", "must be [5, 8, 1, 3]"),
        refuses(SolveTri, &["f32[8, 8]", "f32[5, 8]@[4, 32]"], "b", "must be contiguous"),
        refuses(SolveTri, &["f32[8, 8]", "f32[8, 8]"], "result", "cannot be computed in place").in_place(),

        // 5*3 rows of outputs, then 16*3 for each snapshot.
        makes(last, net(&[]), "f32[64, 63]"),
        makes(last, net(&[("g", "f32[16, 4, 5, 3]")]), "f32[64, 63]"),
        makes(GatedDeltaNet { snapshots: 7 }, net(&[]), "f32[64, 351]"),
        makes(last, net(&[("q", "f32[16, 1, 5, 1]"), ("k", "f32[16, 1, 5, 1]")]), "f32[64, 63]"),
        makes(last, net(&[("q", "f32[16, 2, 5, 3]@[4, 320, 64]"), ("k", "f32[16, 2, 5, 3]@[4, 128]"), ("v", "f32[16, 4, 5, 3]@[4, 64, 1024]")]), "f32[64, 63]"),
        makes(last, net(&[("q", "f32[16, 2, 0, 3]"), ("k", "f32[16, 2, 0, 3]"), ("v", "f32[16, 4, 0, 3]"), ("g", "f32[1, 4, 0, 3]"), ("beta", "f32[1, 4, 0, 3]")]), "f32[64, 48]"),
        refuses(last, net(&[("q", "f16[16, 2, 5, 3]")]), "q", "must be f32"),
        refuses(last, net(&[("q", "f32[8, 2, 5, 3]")]), "q", "dimension 0 must be 16"),
        refuses(last, net(&[("q", "f32[16, 3, 5, 3]")]), "q", "dimension 1 must divide 4"),
        refuses(last, net(&[("q", "f32[16, 0, 5, 3]")]), "q", "dimension 1 must divide 4"),
        refuses(last, net(&[("q", "f32[16, 2, 4, 3]")]), "q", "dimension 2 must be 5"),
        refuses(last, net(&[("q", "f32[16, 2, 5, 2]")]), "q", "dimension 3 must divide 3"),
        refuses(last, net(&[("q", "f32[16, 2, 5, 3]@[8, 128]")]), "q", "rows must be contiguous"),
        refuses(last, net(&[("k", "f16[16, 2, 5, 3]")]), "k", "must be f32"),
        refuses(last, net(&[("k", "f32[16, 4, 5, 3]")]), "k", "must be [16, 2, 5, 3] like q"),
        refuses(last, net(&[("k", "f32[16, 2, 5, 3]@[8, 4]")]), "k", "rows must be contiguous"),
        refuses(last, net(&[("v", "f16[16, 4, 5, 3]")]), "v", "must be f32"),
        refuses(last, net(&[("v", "f32[16, 4, 5, 3]@[16, 4]")]), "v", "rows must be contiguous"),
        refuses(last, net(&[("g", "f16[1, 4, 5, 3]")]), "g", "must be f32"),
        refuses(last, net(&[("g", "f32[8, 4, 5, 3]")]), "g", "needs 1 or 16 gates"),
        refuses(last, net(&[("g", "f32[1, 2, 5, 3]")]), "g", "must be [1, 4, 5, 3]"),
        refuses(last, net(&[("g", "f32[1, 4, 5, 3]@[4, 8]")]), "g", "must be contiguous"),
        refuses(last, net(&[("beta", "f16[1, 4, 5, 3]")]), "beta", "must be f32"),
        refuses(last, net(&[("beta", "f32[16, 4, 5, 3]")]), "beta", "must be [1, 4, 5, 3]"),
        refuses(last, net(&[("beta", "f32[1, 4, 5, 3]@[4, 20, 4]")]), "beta", "must be contiguous"),
        refuses(last, net(&[("state", "f16[16, 16, 4, 3]")]), "state", "must be f32"),
        refuses(last, net(&[("state", "f32[16, 16, 2, 3]")]), "state", "must be [16, 16, 4, 3]"),
        refuses(last, net(&[("state", "f32[16, 16, 4, 3]@[64, 4]")]), "state", "must be contiguous"),
        refuses(GatedDeltaNet { snapshots: 0 }, net(&[]), "snapshots", "must be positive"),
        refuses(GatedDeltaNet { snapshots: 1 << 31 }, net(&[]), "snapshots", "below 2^31"),
    ]
}
