use super::*;

type Changes = &'static [(&'static str, &'static str)];

const LAST: SsmScan = SsmScan { snapshots: 1, grouping: Grouping::Neighbours };

fn snapshots(snapshots: usize) -> SsmScan {
    SsmScan { snapshots, ..LAST }
}

/// States of 16 for heads of 8, 4 heads in 2 groups, 5 tokens in each of 3 sequences, 6 states to start from.
fn scan(changes: Changes) -> &'static [&'static str] {
    let base = [
        "f32[16, 8, 4, 6]",
        "f32[8, 4, 5, 3]",
        "f32[4, 5, 3]",
        "f32[1, 4]",
        "f32[16, 2, 5, 3]",
        "f32[16, 2, 5, 3]",
        "i32[3]",
    ];
    replaced::<SsmScan>(&base, changes)
}

/// Heads of 32, 3 of them, 6 tokens, 2 sequences.
const TOKENS: &str = "f32[32, 3, 6]";
const STATE: &str = "f32[3072, 2]";

fn wkv6(changes: Changes) -> &'static [&'static str] {
    replaced::<RwkvWkv6>(&[TOKENS, TOKENS, TOKENS, "f32[32, 3]", TOKENS, STATE], changes)
}

fn wkv7(changes: Changes) -> &'static [&'static str] {
    replaced::<RwkvWkv7>(&[TOKENS, TOKENS, TOKENS, TOKENS, TOKENS, TOKENS, STATE], changes)
}

fn linear(changes: Changes) -> &'static [&'static str] {
    replaced::<GatedLinearAttn>(&[TOKENS, TOKENS, TOKENS, TOKENS, STATE], changes)
}

#[rustfmt::skip]
pub(super) fn cases() -> Vec<Case> {
    let attn = GatedLinearAttn { scale: 0.5 };
    vec![
        makes(SsmConv, &["f32[9, 8, 2]", "f32[4, 8]"], "f32[8, 6, 2]"),
        makes(SsmConv, &["f32[9, 8, 2]@[4, 36, 512]", "f32[1, 8]"], "f32[8, 9, 2]"),
        makes(SsmConv, &["f32[3, 8, 2]", "f32[4, 8]"], "f32[8, 0, 2]"),
        makes(SsmConv, &["f32[9, 8, 0]", "f32[4, 8]"], "f32[8, 6, 0]"),
        refuses(SsmConv, &["f16[9, 8, 2]", "f32[4, 8]"], "a", "must be f32"),
        refuses(SsmConv, &["f32[9, 8, 2, 2]", "f32[4, 8]"], "a", "at most 3 dimensions"),
        refuses(SsmConv, &["f32[9, 8, 2]@[4, 64]", "f32[4, 8]"], "a", "planes of dimensions 0 and 1 must be contiguous"),
        refuses(SsmConv, &["f32[9, 8, 2]@[32, 4]", "f32[4, 8]"], "a", "planes of dimensions 0 and 1 must be contiguous"),
        refuses(SsmConv, &["f32[2, 8, 2]", "f32[4, 8]"], "a", "the 3 elements before the first token"),
        refuses(SsmConv, &["f32[9, 8, 2]", "f16[4, 8]"], "kernel", "must be f32"),
        refuses(SsmConv, &["f32[9, 8, 2]", "f32[4, 7]"], "kernel", "must be [4, 8]"),
        refuses(SsmConv, &["f32[9, 8, 2]", "f32[4, 8, 2]"], "kernel", "must be [4, 8]"),
        refuses(SsmConv, &["f32[9, 8, 2]", "f32[4, 8]@[4, 32]"], "kernel", "must be contiguous"),
        refuses(SsmConv, &["f32[9, 8, 2]", "f32[0, 8]"], "kernel", "at least one tap"),
        refuses(SsmConv, &["f32[9, 8, 2]", "f32[4, 8]"], "result", "cannot be computed in place").in_place(),

        // 8*4*5*3 outputs, then 16*8*4*3 for each snapshot.
        makes(LAST, scan(&[]), "f32[2016]"),
        makes(LAST, scan(&[("a", "f32[16, 4]")]), "f32[2016]"),
        makes(snapshots(7), scan(&[]), "f32[11232]"),
        makes(LAST, scan(&[("states", "f32[16, 8, 4, 0]")]), "f32[2016]"),
        makes(LAST, scan(&[("x", "f32[8, 4, 0, 3]"), ("dt", "f32[4, 0, 3]"), ("b", "f32[16, 2, 0, 3]"), ("c", "f32[16, 2, 0, 3]")]), "f32[1536]"),
        makes(LAST, scan(&[("b", "f32[16, 4, 5, 3]"), ("c", "f32[16, 4, 5, 3]")]), "f32[2016]"),
        // x, b and c in one buffer.
        makes(LAST, scan(&[("x", "f32[8, 4, 5, 3]@[4, 32, 384]"), ("b", "f32[16, 2, 5, 3]@[4, 64, 384]"), ("c", "f32[16, 2, 5, 3]@[4, 64, 384]")]), "f32[2016]"),
        refuses(LAST, scan(&[("states", "f16[16, 8, 4, 6]")]), "states", "must be f32"),
        refuses(LAST, scan(&[("states", "f32[16, 8, 4, 6]@[4, 128]")]), "states", "must be contiguous"),
        refuses(LAST, scan(&[("x", "f16[8, 4, 5, 3]")]), "x", "must be f32"),
        refuses(LAST, scan(&[("x", "f32[7, 4, 5, 3]")]), "x", "must be [8, 4, 5, 3]"),
        refuses(LAST, scan(&[("x", "f32[8, 5, 5, 3]")]), "x", "must be [8, 4, 5, 3]"),
        refuses(LAST, scan(&[("x", "f32[8, 4, 5, 3]@[4, 64]")]), "x", "planes of dimensions 0 and 1 must be contiguous"),
        refuses(LAST, scan(&[("dt", "bf16[4, 5, 3]")]), "dt", "must be f32"),
        refuses(LAST, scan(&[("dt", "f32[4, 6, 3]")]), "dt", "must be [4, 5, 3]"),
        refuses(LAST, scan(&[("dt", "f32[4, 5, 3]@[4, 32]")]), "dt", "must be contiguous"),
        refuses(LAST, scan(&[("a", "f16[1, 4]")]), "a", "must be f32"),
        refuses(LAST, scan(&[("a", "f32[8, 4]")]), "a", "needs 1 or 16 decays"),
        refuses(LAST, scan(&[("a", "f32[1, 3]")]), "a", "must be [1, 4]"),
        refuses(LAST, scan(&[("a", "f32[16, 4]@[16, 4]")]), "a", "must be contiguous"),
        refuses(LAST, scan(&[("b", "f16[16, 2, 5, 3]")]), "b", "must be f32"),
        refuses(LAST, scan(&[("b", "f32[8, 2, 5, 3]")]), "b", "must be [16, 2, 5, 3]"),
        refuses(LAST, scan(&[("b", "f32[16, 3, 5, 3]")]), "b", "dimension 1 must divide 4"),
        refuses(LAST, scan(&[("b", "f32[16, 0, 5, 3]")]), "b", "dimension 1 must divide 4"),
        refuses(LAST, scan(&[("b", "f32[16, 2, 5, 3]@[8, 128]")]), "b", "planes of dimensions 0 and 1 must be contiguous"),
        refuses(LAST, scan(&[("c", "f16[16, 2, 5, 3]")]), "c", "must be f32"),
        refuses(LAST, scan(&[("c", "f32[16, 1, 5, 3]")]), "c", "must be [16, 2, 5, 3] like b"),
        refuses(LAST, scan(&[("c", "f32[16, 2, 5, 3]@[4, 128]")]), "c", "planes of dimensions 0 and 1 must be contiguous"),
        refuses(LAST, scan(&[("ids", "i64[3]")]), "ids", "must be i32"),
        refuses(LAST, scan(&[("ids", "i32[4]")]), "ids", "must be [3]"),
        refuses(LAST, scan(&[("ids", "i32[3]@[8]")]), "ids", "must be contiguous"),
        refuses(snapshots(0), scan(&[]), "snapshots", "must be positive"),
        refuses(snapshots(2), scan(&[("a", "f32[16, 4]")]), "snapshots", "must be 1 with a decay per state element"),
        makes(snapshots((1 << 31) - 1), scan(&[]), "f32[3298534882272]"),
        refuses(snapshots(1 << 31), scan(&[]), "snapshots", "below 2^31"),
        refuses(LAST, scan(&[]), "result", "cannot be computed in place").in_place(),

        makes(RwkvWkv6, wkv6(&[]), "f32[96, 70]"),
        makes(RwkvWkv6, wkv6(&[("state", "f32[32, 1, 96]")]), "f32[96, 38]"),
        makes(RwkvWkv6, wkv6(&[("state", "f32[32, 6, 32, 3]")]), "f32[96, 198]"),
        refuses(RwkvWkv6, wkv6(&[("k", "f16[32, 3, 6]")]), "k", "must be f32"),
        refuses(RwkvWkv6, wkv6(&[("k", "f32[32, 3, 6]@[4, 256]")]), "k", "must be contiguous"),
        refuses(RwkvWkv6, wkv6(&[("k", "f32[32, 3, 6, 2]")]), "k", "at most 3 dimensions"),
        refuses(RwkvWkv6, wkv6(&[("v", "bf16[32, 3, 6]")]), "v", "must be f32"),
        refuses(RwkvWkv6, wkv6(&[("v", "f32[32, 3, 5]")]), "v", "must be [32, 3, 6] like k"),
        refuses(RwkvWkv6, wkv6(&[("v", "f32[32, 3, 6]@[12, 4]")]), "v", "must be contiguous"),
        refuses(RwkvWkv6, wkv6(&[("r", "bf16[32, 3, 6]")]), "r", "must be f32"),
        refuses(RwkvWkv6, wkv6(&[("r", "f32[32, 3, 5]")]), "r", "must be [32, 3, 6] like k"),
        refuses(RwkvWkv6, wkv6(&[("r", "f32[32, 3, 6]@[12, 4]")]), "r", "must be contiguous"),
        refuses(RwkvWkv6, wkv6(&[("td", "bf16[32, 3, 6]")]), "td", "must be f32"),
        refuses(RwkvWkv6, wkv6(&[("td", "f32[32, 3, 5]")]), "td", "must be [32, 3, 6] like k"),
        refuses(RwkvWkv6, wkv6(&[("td", "f32[32, 3, 6]@[12, 4]")]), "td", "must be contiguous"),
        refuses(RwkvWkv6, wkv6(&[("tf", "f16[32, 3]")]), "tf", "must be f32"),
        refuses(RwkvWkv6, wkv6(&[("tf", "f32[32, 3, 6]")]), "tf", "must be [32, 3]"),
        refuses(RwkvWkv6, wkv6(&[("tf", "f32[32, 3]@[12, 4]")]), "tf", "must be contiguous"),
        refuses(RwkvWkv6, wkv6(&[("state", "f16[3072, 2]")]), "state", "must be f32"),
        refuses(RwkvWkv6, wkv6(&[("state", "f32[3072, 2]@[4, 16384]")]), "state", "must be contiguous"),
        refuses(RwkvWkv6, wkv6(&[("state", "f32[3071, 2]")]), "state", "must hold 6144 elements"),
        refuses(RwkvWkv6, wkv6(&[("state", "f32[3072, 4]")]), "state", "the sequences, must divide the 6 tokens"),
        refuses(RwkvWkv6, wkv6(&[("state", "f32[3072, 12]")]), "state", "the sequences, must divide the 6 tokens"),
        refuses(RwkvWkv6, wkv6(&[("state", "f32[3072, 0]")]), "state", "the sequences, must divide the 6 tokens"),

        makes(RwkvWkv7, wkv7(&[]), "f32[96, 70]"),
        makes(RwkvWkv7, wkv7(&[("state", "f32[32, 3, 32, 3]")]), "f32[96, 102]"),
        refuses(RwkvWkv7, wkv7(&[("r", "f16[32, 3, 6]")]), "r", "must be f32"),
        refuses(RwkvWkv7, wkv7(&[("r", "f32[32, 3, 6]@[4, 256]")]), "r", "must be contiguous"),
        refuses(RwkvWkv7, wkv7(&[("r", "f32[32, 3, 6, 2]")]), "r", "at most 3 dimensions"),
        refuses(RwkvWkv7, wkv7(&[("w", "bf16[32, 3, 6]")]), "w", "must be f32"),
        refuses(RwkvWkv7, wkv7(&[("w", "f32[32, 3, 5]")]), "w", "must be [32, 3, 6] like r"),
        refuses(RwkvWkv7, wkv7(&[("w", "f32[32, 3, 6]@[12, 4]")]), "w", "must be contiguous"),
        refuses(RwkvWkv7, wkv7(&[("k", "bf16[32, 3, 6]")]), "k", "must be f32"),
        refuses(RwkvWkv7, wkv7(&[("k", "f32[32, 3, 5]")]), "k", "must be [32, 3, 6] like r"),
        refuses(RwkvWkv7, wkv7(&[("k", "f32[32, 3, 6]@[12, 4]")]), "k", "must be contiguous"),
        refuses(RwkvWkv7, wkv7(&[("v", "bf16[32, 3, 6]")]), "v", "must be f32"),
        refuses(RwkvWkv7, wkv7(&[("v", "f32[32, 3, 5]")]), "v", "must be [32, 3, 6] like r"),
        refuses(RwkvWkv7, wkv7(&[("v", "f32[32, 3, 6]@[12, 4]")]), "v", "must be contiguous"),
        refuses(RwkvWkv7, wkv7(&[("a", "bf16[32, 3, 6]")]), "a", "must be f32"),
        refuses(RwkvWkv7, wkv7(&[("a", "f32[32, 3, 5]")]), "a", "must be [32, 3, 6] like r"),
        refuses(RwkvWkv7, wkv7(&[("a", "f32[32, 3, 6]@[12, 4]")]), "a", "must be contiguous"),
        refuses(RwkvWkv7, wkv7(&[("b", "bf16[32, 3, 6]")]), "b", "must be f32"),
        refuses(RwkvWkv7, wkv7(&[("b", "f32[32, 3, 5]")]), "b", "must be [32, 3, 6] like r"),
        refuses(RwkvWkv7, wkv7(&[("b", "f32[32, 3, 6]@[12, 4]")]), "b", "must be contiguous"),
        refuses(RwkvWkv7, wkv7(&[("state", "f16[3072, 2]")]), "state", "must be f32"),
        refuses(RwkvWkv7, wkv7(&[("state", "f32[3072, 2]@[4, 16384]")]), "state", "must be contiguous"),
        refuses(RwkvWkv7, wkv7(&[("state", "f32[3071, 2]")]), "state", "must hold 6144 elements"),
        refuses(RwkvWkv7, wkv7(&[("state", "f32[3072, 4]")]), "state", "the sequences, must divide the 6 tokens"),
        refuses(RwkvWkv7, wkv7(&[("state", "f32[3072, 12]")]), "state", "the sequences, must divide the 6 tokens"),
        refuses(RwkvWkv7, wkv7(&[("state", "f32[3072, 0]")]), "state", "the sequences, must divide the 6 tokens"),

        makes(attn, linear(&[]), "f32[96, 70]"),
        makes(attn, linear(&[("state", "f32[32, 3, 32, 3]")]), "f32[96, 102]"),
        refuses(attn, linear(&[("k", "f16[32, 3, 6]")]), "k", "must be f32"),
        refuses(attn, linear(&[("k", "f32[32, 3, 6]@[4, 256]")]), "k", "must be contiguous"),
        refuses(attn, linear(&[("k", "f32[32, 3, 6, 2]")]), "k", "at most 3 dimensions"),
        refuses(attn, linear(&[("v", "bf16[32, 3, 6]")]), "v", "must be f32"),
        refuses(attn, linear(&[("v", "f32[32, 3, 5]")]), "v", "must be [32, 3, 6] like k"),
        refuses(attn, linear(&[("v", "f32[32, 3, 6]@[12, 4]")]), "v", "must be contiguous"),
        refuses(attn, linear(&[("q", "bf16[32, 3, 6]")]), "q", "must be f32"),
        refuses(attn, linear(&[("q", "f32[32, 3, 5]")]), "q", "must be [32, 3, 6] like k"),
        refuses(attn, linear(&[("q", "f32[32, 3, 6]@[12, 4]")]), "q", "must be contiguous"),
        refuses(attn, linear(&[("g", "bf16[32, 3, 6]")]), "g", "must be f32"),
        refuses(attn, linear(&[("g", "f32[32, 3, 5]")]), "g", "must be [32, 3, 6] like k"),
        refuses(attn, linear(&[("g", "f32[32, 3, 6]@[12, 4]")]), "g", "must be contiguous"),
        refuses(attn, linear(&[("state", "f16[3072, 2]")]), "state", "must be f32"),
        refuses(attn, linear(&[("state", "f32[3072, 2]@[4, 16384]")]), "state", "must be contiguous"),
        refuses(attn, linear(&[("state", "f32[3071, 2]")]), "state", "must hold 6144 elements"),
        refuses(attn, linear(&[("state", "f32[3072, 4]")]), "state", "the sequences, must divide the 6 tokens"),
        refuses(attn, linear(&[("state", "f32[3072, 12]")]), "state", "the sequences, must divide the 6 tokens"),
        refuses(attn, linear(&[("state", "f32[3072, 0]")]), "state", "the sequences, must divide the 6 tokens"),
    ]
}
