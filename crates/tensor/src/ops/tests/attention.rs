use super::*;

const PLAIN: FlashAttnExt =
    FlashAttnExt { scale: 0.125, max_bias: 0.0, softcap: 0.0, precision: Precision::Any, n_kv_max: 0 };
const ALIBI: FlashAttnExt = FlashAttnExt { max_bias: 8.0, ..PLAIN };
/// The first number that does not fit a parameter word.
const LIMIT: usize = 1 << 31;
const PAGED: PagedAttn =
    PagedAttn { key_heads: 2, scale: 0.125, softcap: 0.0, max_bias: 0.0, window: 0, chunk: 0 };
const BACK: FlashAttnBack = FlashAttnBack { masked: true };

fn precise(precision: Precision) -> FlashAttnExt {
    FlashAttnExt { precision, ..PLAIN }
}

#[rustfmt::skip]
pub(super) fn cases() -> Vec<Case> {
    vec![
        makes(PLAIN, &["f32[64, 3, 4]", "f16[64, 10, 2]", "f16[64, 10, 2]"], "f32[64, 4, 3]"),
        makes(PLAIN, &["f32[64, 3, 4]", "f16[64, 10, 2]", "f16[64, 10, 2]", "f16[10, 3]", "f32[4]"], "f32[64, 4, 3]"),
        // Other head sizes, heads and types for keys and for values.
        makes(PLAIN, &["f32[192, 3, 8]", "q8_0[192, 10, 4]", "q4_0[128, 10, 2]", "-", "f32[8]"], "f32[128, 8, 3]"),
        makes(PLAIN, &["f32[256, 3, 8]", "q6_K[256, 10]", "bf16[40, 10, 8]"], "f32[40, 8, 3]"),
        // Heads and tokens exchanged; windows of a longer cache; values as the beginning of keys.
        makes(PLAIN, &["f32[64, 3, 4, 2]@[4, 1024, 256, 3072]", "f16[64, 10, 2, 2]@[2, 256, 128, 8192]", "f32[64, 10, 2, 2]@[4, 512, 256]"], "f32[64, 4, 3, 2]"),
        makes(PLAIN, &["f32[64, 3, 4]", "f16[64, 10, 1]@[2, 256]", "f16[32, 10, 1]@[2, 256]"], "f32[32, 4, 3]"),
        // A batch that shares keys or values; more values than keys.
        makes(PLAIN, &["f32[64, 3, 4, 6]", "f16[64, 10, 2, 3]", "f16[64, 12, 2, 2]"], "f32[64, 4, 3, 6]"),
        makes(PLAIN, &["f32[64, 3, 4, 6]", "f16[64, 10, 2]", "f16[64, 10, 2]", "f16[16, 64, 2, 3]"], "f32[64, 4, 3, 6]"),
        makes(PLAIN, &["f32[64, 3, 4]", "f16[64, 0, 2]", "f16[64, 0, 2]"], "f32[64, 4, 3]"),
        makes(PLAIN, &["f32[64, 0, 4]", "f16[64, 10, 2]", "f16[64, 10, 2]", "f16[10, 0]"], "f32[64, 4, 0]"),
        makes(ALIBI, &["f32[64, 3, 4]", "f16[64, 10, 2]", "f16[64, 10, 2]", "f16[10, 3]"], "f32[64, 4, 3]"),
        makes(precise(Precision::F32), &["f32[64, 3, 4]", "f16[64, 10, 2]", "f16[64, 10, 2]"], "f32[64, 4, 3]"),
        makes(FlashAttnExt { max_bias: -1.0, n_kv_max: LIMIT - 1, ..PLAIN }, &["f32[64, 3, 4]", "f16[64, 10, 2]", "f16[64, 10, 2]"], "f32[64, 4, 3]"),
        refuses(PLAIN, &["f16[64, 3, 4]", "f16[64, 10, 2]", "f16[64, 10, 2]"], "q", "must be f32"),
        refuses(PLAIN, &["f32[64, 3, 4]@[8, 512]", "f16[64, 10, 2]", "f16[64, 10, 2]"], "q", "must be one element"),
        refuses(PLAIN, &["f32[1, 3, 4]@[8, 4]", "f16[1, 10, 2]", "f16[1, 10, 2]"], "q", "must be one element"),
        refuses(PLAIN, &["f32[64, 3, 4]", "q8_1[64, 10, 2]", "f16[64, 10, 2]"], "k", "a type that can be a weight"),
        refuses(PLAIN, &["f32[64, 3, 4]", "i32[64, 10, 2]", "f16[64, 10, 2]"], "k", "type is i32"),
        refuses(PLAIN, &["f32[64, 3, 4]", "f16[32, 10, 2]", "f16[64, 10, 2]"], "k", "dimension 0 must be 64"),
        refuses(PLAIN, &["f32[64, 3, 4]", "f16[64, 10, 3]", "f16[64, 10, 2]"], "k", "dimension 2 must divide 4"),
        refuses(PLAIN, &["f32[64, 3, 4]", "f16[64, 10, 8]", "f16[64, 10, 2]"], "k", "dimension 2 must divide 4"),
        refuses(PLAIN, &["f32[64, 3, 4]", "f16[64, 10, 0]", "f16[64, 10, 2]"], "k", "dimension 2 must divide 4"),
        refuses(PLAIN, &["f32[64, 3, 4, 3]", "f16[64, 10, 2, 2]", "f16[64, 10, 2]"], "k", "dimension 3 must divide 3"),
        refuses(PLAIN, &["f32[64, 3, 4]", "f16[64, 10, 2]@[20, 2]", "f16[64, 10, 2]"], "k", "must be one element"),
        refuses(PLAIN, &["f32[64, 3, 4]", "f16[64, 10, 2]", "q8_K[256, 10, 2]"], "v", "a type that expands to f32"),
        refuses(PLAIN, &["f32[64, 3, 4]", "f16[64, 10, 2]", "f64[64, 10, 2]"], "v", "type is f64"),
        refuses(PLAIN, &["f32[64, 3, 4]", "f16[64, 10, 2]", "f16[64, 9, 2]"], "v", "a value for each of the 10 keys"),
        refuses(PLAIN, &["f32[64, 3, 4]", "f16[64, 10, 2]", "f16[64, 10, 3]"], "v", "dimension 2 must divide 4"),
        refuses(PLAIN, &["f32[64, 3, 4, 2]", "f16[64, 10, 2]", "f16[64, 10, 2, 4]"], "v", "dimension 3 must divide 2"),
        refuses(PLAIN, &["f32[64, 3, 4]", "f16[64, 10, 2]", "f16[64, 10, 2]@[20, 2]"], "v", "must be one element"),
        refuses(PLAIN, &["f32[64, 3, 4]", "f16[64, 10, 2]", "f16[64, 10, 2]", "f32[10, 3]"], "mask", "must be f16"),
        refuses(PLAIN, &["f32[64, 3, 4]", "f16[64, 10, 2]", "f16[64, 10, 2]", "f16[9, 3]"], "mask", "a column for each of the 10 keys"),
        refuses(PLAIN, &["f32[64, 3, 4]", "f16[64, 10, 2]", "f16[64, 10, 2]", "f16[10, 2]"], "mask", "a row for each of the 3 tokens"),
        refuses(PLAIN, &["f32[64, 3, 4]", "f16[64, 10, 2]", "f16[64, 10, 2]", "f16[10, 3, 3]"], "mask", "dimension 2 must divide 4"),
        refuses(PLAIN, &["f32[64, 3, 4]", "f16[64, 10, 2]", "f16[64, 10, 2]", "f16[10, 3, 1, 2]"], "mask", "dimension 3 must divide 1"),
        refuses(PLAIN, &["f32[64, 3, 4]", "f16[64, 10, 2]", "f16[64, 10, 2]", "f16[10, 3]@[2, 32]"], "mask", "must be contiguous"),
        refuses(PLAIN, &["f32[64, 3, 4]", "f16[64, 10, 2]", "f16[64, 10, 2]", "-", "f16[4]"], "sinks", "must be f32"),
        refuses(PLAIN, &["f32[64, 3, 4]", "f16[64, 10, 2]", "f16[64, 10, 2]", "-", "f32[2]"], "sinks", "must be [4] (one sink per head)"),
        refuses(PLAIN, &["f32[64, 3, 4]", "f16[64, 10, 2]", "f16[64, 10, 2]", "-", "f32[4]@[8]"], "sinks", "must be contiguous"),
        refuses(ALIBI, &["f32[64, 3, 4]", "f16[64, 10, 2]", "f16[64, 10, 2]"], "max_bias", "needs a mask"),
        refuses(FlashAttnExt { max_bias: f32::NAN, ..PLAIN }, &["f32[64, 3, 4]", "f16[64, 10, 2]", "f16[64, 10, 2]", "f16[10, 3]"], "max_bias", "must be a number"),
        refuses(FlashAttnExt { n_kv_max: LIMIT, ..PLAIN }, &["f32[64, 3, 4]", "f16[64, 10, 2]", "f16[64, 10, 2]"], "n_kv_max", "below 2^31"),
        refuses(precise(Precision::Bf16), &["f32[64, 3, 4]", "f16[64, 10, 2]", "f16[64, 10, 2]"], "precision", "must be any or f32"),
        refuses(precise(Precision::F16), &["f32[64, 3, 4]", "f16[64, 10, 2]", "f16[64, 10, 2]"], "precision", "is F16"),
        refuses(PLAIN, &["f32[64, 3, 3]", "f16[64, 10, 3]", "f16[64, 10, 3]"], "result", "cannot be computed in place").in_place(),
        refuses(PLAIN, &["f32[64, 3, 4]", "f16[64, 10, 2]", "f16[64, 10, 2]"], "result", "type is f16").typed(DType::F16),

        makes(PAGED, &["f32[64, 4, 3]", "f16[128, 640]", "f16[128, 640]", "i32[5, 2]", "i32[2, 3]"], "f32[64, 4, 3]"),
        makes(PAGED, &["f32[64, 4, 3]", "q8_0[128, 640]", "q4_0[64, 640]", "i32[5, 2]", "i32[2, 3]", "f32[4]"], "f32[32, 4, 3]"),
        makes(PagedAttn { max_bias: 8.0, window: LIMIT - 1, chunk: LIMIT - 1, ..PAGED }, &["f32[64, 4, 3]", "f16[128, 64]", "f16[128, 64]", "i32[5, 2]", "i32[2, 3]"], "f32[64, 4, 3]"),
        // Queries of a wider row, values as the beginning of keys, a table with room to grow, nothing at all.
        makes(PagedAttn { key_heads: 1, ..PAGED }, &["f32[96, 4, 3]@[4, 512, 2048]", "bf16[96, 64]@[2, 256]", "bf16[64, 64]@[2, 256]", "i32[5, 2]@[4, 32]", "i32[2, 3]@[4, 16]"], "f32[64, 4, 3]"),
        makes(PAGED, &["f32[64, 4, 0]", "f16[128, 0]", "f16[128, 0]", "i32[0, 0]", "i32[2, 0]"], "f32[64, 4, 0]"),
        refuses(PAGED, &["f16[64, 4, 3]", "f16[128, 64]", "f16[128, 64]", "i32[1, 2]", "i32[2, 3]"], "q", "must be f32"),
        refuses(PAGED, &["f32[64, 3, 3]", "f16[128, 64]", "f16[128, 64]", "i32[1, 2]", "i32[2, 3]"], "q", "a multiple of key_heads"),
        refuses(PAGED, &["f32[64, 4, 3, 2]", "f16[128, 64]", "f16[128, 64]", "i32[1, 2]", "i32[2, 3]"], "q", "at most 3 dimensions"),
        refuses(PAGED, &["f32[64, 4, 3]@[8, 512]", "f16[128, 64]", "f16[128, 64]", "i32[1, 2]", "i32[2, 3]"], "q", "must be one element"),
        refuses(PAGED, &["f32[64, 4, 3]", "q8_1[128, 64]", "f16[128, 64]", "i32[1, 2]", "i32[2, 3]"], "keys", "a type that can be a weight"),
        refuses(PAGED, &["f32[64, 4, 3]", "f16[64, 64]", "f16[128, 64]", "i32[1, 2]", "i32[2, 3]"], "keys", "the heads of a cell"),
        refuses(PAGED, &["f32[64, 4, 3]", "f16[128, 65]", "f16[128, 65]", "i32[1, 2]", "i32[2, 3]"], "keys", "whole pages of 64"),
        refuses(PAGED, &["f32[64, 4, 3]", "f16[128, 64, 2]", "f16[128, 64]", "i32[1, 2]", "i32[2, 3]"], "keys", "at most 2 dimensions"),
        refuses(PAGED, &["f32[64, 4, 3]", "f16[128, 64]@[128, 2]", "f16[128, 64]", "i32[1, 2]", "i32[2, 3]"], "keys", "must be one element"),
        // Heads that begin in the middle of a block.
        refuses(PAGED, &["f32[16, 4, 3]", "q8_0[32, 64]", "f16[128, 64]", "i32[1, 2]", "i32[2, 3]"], "keys", "the heads of a cell"),
        refuses(PAGED, &["f32[64, 4, 3]", "f16[128, 64]", "q8_0[32, 64]", "i32[1, 2]", "i32[2, 3]"], "values", "the heads of a cell"),
        refuses(PAGED, &["f32[64, 4, 3]", "f16[128, 64]", "q8_K[512, 64]", "i32[1, 2]", "i32[2, 3]"], "values", "a type that expands to f32"),
        refuses(PAGED, &["f32[64, 4, 3]", "f16[128, 64]", "f16[127, 64]", "i32[1, 2]", "i32[2, 3]"], "values", "the heads of a cell"),
        refuses(PAGED, &["f32[64, 4, 3]", "f16[128, 64]", "f16[128, 128]", "i32[1, 2]", "i32[2, 3]"], "values", "dimension 1 must be 64"),
        refuses(PAGED, &["f32[64, 4, 3]", "f16[128, 64]", "f16[128, 64]@[128, 2]", "i32[1, 2]", "i32[2, 3]"], "values", "must be one element"),
        refuses(PAGED, &["f32[64, 4, 3]", "f16[128, 64]", "f16[128, 64]", "f32[1, 2]", "i32[2, 3]"], "table", "must be i32"),
        refuses(PAGED, &["f32[64, 4, 3]", "f16[128, 64]", "f16[128, 64]", "i32[3, 2]@[8, 4]", "i32[2, 3]"], "table", "rows must be contiguous"),
        refuses(PAGED, &["f32[64, 4, 3]", "f16[128, 64]", "f16[128, 64]", "i32[1, 2, 2]", "i32[2, 3]"], "table", "at most 2 dimensions"),
        refuses(PAGED, &["f32[64, 4, 3]", "f16[128, 64]", "f16[128, 64]", "i32[1, 2]", "i64[2, 3]"], "tokens", "must be i32"),
        refuses(PAGED, &["f32[64, 4, 3]", "f16[128, 64]", "f16[128, 64]", "i32[1, 2]", "i32[2, 4]"], "tokens", "must be [2, 3]"),
        refuses(PAGED, &["f32[64, 4, 3]", "f16[128, 64]", "f16[128, 64]", "i32[1, 2]", "i32[2, 3]@[12, 4]"], "tokens", "rows must be contiguous"),
        refuses(PAGED, &["f32[64, 4, 3]", "f16[128, 64]", "f16[128, 64]", "i32[1, 2]", "i32[2, 3]", "f16[4]"], "sinks", "must be f32"),
        refuses(PAGED, &["f32[64, 4, 3]", "f16[128, 64]", "f16[128, 64]", "i32[1, 2]", "i32[2, 3]", "f32[2]"], "sinks", "one sink per head"),
        refuses(PagedAttn { key_heads: 0, ..PAGED }, &["f32[64, 4, 3]", "f16[128, 64]", "f16[128, 64]", "i32[1, 2]", "i32[2, 3]"], "key_heads", "must be positive"),
        refuses(PagedAttn { window: LIMIT, ..PAGED }, &["f32[64, 4, 3]", "f16[128, 64]", "f16[128, 64]", "i32[1, 2]", "i32[2, 3]"], "window", "below 2^31"),
        refuses(PagedAttn { chunk: LIMIT, ..PAGED }, &["f32[64, 4, 3]", "f16[128, 64]", "f16[128, 64]", "i32[1, 2]", "i32[2, 3]"], "chunk", "below 2^31"),
        refuses(PagedAttn { max_bias: f32::NAN, ..PAGED }, &["f32[64, 4, 3]", "f16[128, 64]", "f16[128, 64]", "i32[1, 2]", "i32[2, 3]"], "max_bias", "must be a number"),

        // 64*3*4 + 64*10*2 + 10*64*2, each a multiple of 4 already; then 3, 6 and 6 rounded up.
        makes(BACK, &["f32[64, 3, 4]", "f32[64, 10, 2]", "f32[10, 64, 2]", "f32[64, 3, 4]"], "f32[3328]"),
        makes(BACK, &["f32[3, 1]", "f32[3, 2]", "f32[2, 3]", "f32[3, 1]"], "f32[20]"),
        makes(FlashAttnBack { masked: false }, &["f32[4, 0]", "f32[4, 2]", "f32[2, 4]", "f32[4, 0]"], "f32[16]"),
        refuses(BACK, &["f16[64, 3, 4]", "f32[64, 10, 2]", "f32[10, 64, 2]", "f32[64, 3, 4]"], "q", "must be f32"),
        refuses(BACK, &["f32[64, 3, 4]@[4, 512]", "f32[64, 10, 2]", "f32[10, 64, 2]", "f32[64, 3, 4]"], "q", "must be contiguous"),
        refuses(BACK, &["f32[64, 3, 4]", "f16[64, 10, 2]", "f32[10, 64, 2]", "f32[64, 3, 4]"], "k", "must be f32"),
        refuses(BACK, &["f32[64, 3, 4]", "f32[32, 10, 2]", "f32[10, 64, 2]", "f32[64, 3, 4]"], "k", "dimension 0 must be 64"),
        refuses(BACK, &["f32[64, 3, 4]", "f32[64, 10, 3]", "f32[10, 64, 3]", "f32[64, 3, 4]"], "k", "dimension 2 must divide 4"),
        refuses(BACK, &["f32[64, 3, 4, 2]", "f32[64, 10, 2]", "f32[10, 64, 2]", "f32[64, 3, 4]"], "k", "dimension 3 must be 2"),
        refuses(BACK, &["f32[64, 3, 4]", "f32[64, 10, 2]", "f32[64, 10, 2]", "f32[64, 3, 4]"], "v", "must be [10, 64, 2]"),
        refuses(BACK, &["f32[64, 3, 4]", "f32[64, 10, 2]", "f32[10, 64, 2]@[256, 4]", "f32[64, 3, 4]"], "v", "must be contiguous"),
        refuses(BACK, &["f32[64, 3, 4]", "f32[64, 10, 2]", "f32[10, 64, 2]", "f32[64, 4, 3]"], "gradient", "must be [64, 3, 4] like q"),
        refuses(BACK, &["f32[64, 3, 4]", "f32[64, 10, 2]", "f32[10, 64, 2]", "f32[64, 3, 4]@[4, 1024, 256]"], "gradient", "must be contiguous"),

        makes(LightningIndexer, &["f32[64, 4, 3]", "f16[64, 1, 9]", "f32[4, 3]", "f16[9, 3]"], "f32[9, 3]"),
        makes(LightningIndexer, &["f32[64, 4, 3, 6]", "q8_0[64, 1, 9, 6]", "f32[4, 3, 1, 6]", "f16[9, 3, 1, 2]"], "f32[9, 3, 1, 6]"),
        makes(LightningIndexer, &["f32[64, 4, 3]@[4, 768, 256]", "f32[64, 1, 9]@[4, 256, 512]", "f32[4, 3]@[4, 32]", "f16[9, 3]@[2, 64]"], "f32[9, 3]"),
        makes(LightningIndexer, &["f32[64, 4, 0]", "bf16[64, 1, 9]", "f32[4, 0]", "f16[9, 0]"], "f32[9, 0]"),
        refuses(LightningIndexer, &["f16[64, 4, 3]", "f16[64, 1, 9]", "f32[4, 3]", "f16[9, 3]"], "q", "must be f32"),
        refuses(LightningIndexer, &["f32[64, 4, 3]@[16, 4]", "f16[64, 1, 9]", "f32[4, 3]", "f16[9, 3]"], "q", "rows must be contiguous"),
        refuses(LightningIndexer, &["f32[64, 4, 3]", "q8_1[64, 1, 9]", "f32[4, 3]", "f16[9, 3]"], "k", "a type that expands to f32"),
        refuses(LightningIndexer, &["f32[64, 4, 3]", "f16[32, 1, 9]", "f32[4, 3]", "f16[9, 3]"], "k", "must be [64, 1, 9]"),
        refuses(LightningIndexer, &["f32[64, 4, 3]", "f16[64, 4, 9]", "f32[4, 3]", "f16[9, 3]"], "k", "must be [64, 1, 9]"),
        refuses(LightningIndexer, &["f32[64, 4, 3, 2]", "f16[64, 1, 9]", "f32[4, 3, 1, 2]", "f16[9, 3]"], "k", "must be [64, 1, 9, 2]"),
        refuses(LightningIndexer, &["f32[64, 4, 3]", "f16[64, 1, 9]@[18, 2, 2]", "f32[4, 3]", "f16[9, 3]"], "k", "rows must be contiguous"),
        refuses(LightningIndexer, &["f32[64, 4, 3]", "f16[64, 1, 9]", "f16[4, 3]", "f16[9, 3]"], "weights", "must be f32"),
        refuses(LightningIndexer, &["f32[64, 4, 3]", "f16[64, 1, 9]", "f32[3, 4]", "f16[9, 3]"], "weights", "must be [4, 3]"),
        refuses(LightningIndexer, &["f32[64, 4, 3]", "f16[64, 1, 9]", "f32[4, 3]@[12, 4]", "f16[9, 3]"], "weights", "rows must be contiguous"),
        refuses(LightningIndexer, &["f32[64, 4, 3]", "f16[64, 1, 9]", "f32[4, 3]", "f32[9, 3]"], "mask", "must be f16"),
        refuses(LightningIndexer, &["f32[64, 4, 3]", "f16[64, 1, 9]", "f32[4, 3]", "f16[10, 3]"], "mask", "dimension 0 must be 9"),
        refuses(LightningIndexer, &["f32[64, 4, 3]", "f16[64, 1, 9]", "f32[4, 3]", "f16[9, 4]"], "mask", "dimension 1 must be 3"),
        refuses(LightningIndexer, &["f32[64, 4, 3]", "f16[64, 1, 9]", "f32[4, 3]", "f16[9, 3, 4]"], "mask", "dimension 2 must be 1"),
        refuses(LightningIndexer, &["f32[64, 4, 3, 3]", "f16[64, 1, 9, 3]", "f32[4, 3, 1, 3]", "f16[9, 3, 1, 2]"], "mask", "dimension 3 must divide 3"),
        refuses(LightningIndexer, &["f32[64, 4, 3]", "f16[64, 1, 9]", "f32[4, 3]", "f16[9, 3]@[6, 2]"], "mask", "rows must be contiguous"),
    ]
}

#[test]
fn keys_and_values_of_every_type() {
    for dtype in DType::all() {
        let mut graph = Graph::new();
        let [q, other] = [DType::F32, DType::F16].map(|dtype| graph.leaf(dtype, [256, 3]).unwrap());
        let cache = graph.leaf(dtype, [256, 3]).unwrap();
        let key = graph.leaf(dtype, [256, 1, 9]).unwrap();
        let (weights, mask) =
            (graph.leaf(DType::F32, [3, 1]).unwrap(), graph.leaf(DType::F16, [9, 1]).unwrap());
        let as_keys = graph.flash_attn_ext([q, cache, other], None, None, PLAIN);
        assert_eq!(as_keys.is_ok(), dtype.dot_partner().is_some(), "{dtype}");
        let as_values = graph.flash_attn_ext([q, other, cache], None, None, PLAIN);
        assert_eq!(as_values.is_ok(), dtype.decodes(), "{dtype}");
        let indexed = graph.lightning_indexer(q, key, weights, mask);
        assert_eq!(indexed.is_ok(), dtype.decodes(), "{dtype}");
    }
}
