//! One family for each op: its extents, its sources, its parameters.

use oxcart_tensor::ops::{
    Acc, Add, Add1, AddId, AddRelPos, Arange, Argmax, Argsort, Cast, Clamp, Col2im1d, Concat, Cont, Conv2d,
    Conv2dDw, Conv3d, ConvGeometry, ConvTranspose1d, ConvTranspose2d, Cos, CountEqual, Cpy, CrossEntropyLoss,
    CrossEntropyLossBack, Cumsum, Diag, DiagMaskInf, DiagMaskZero, Div, Dsv4HcComb, Dsv4HcPost, Dsv4HcPre,
    Dup, Fill, FlashAttnBack, FlashAttnExt, GatedDeltaNet, GatedLinearAttn, GetRelPos, GetRows, GetRowsBack,
    Glu, GluKind, GroupNorm, Grouping, Hint, Im2col, Im2col3d, Im2colBack, Im2colGeometry, L2Norm, LeakyRelu,
    LightningIndexer, Log, Mean, Mul, MulMat, MulMatId, Norm, OptStepAdamw, OptStepSgd, OutProd, Pad,
    PadReflect1d, PagedAttn, Permute, Pool1d, Pool2d, Pool2dBack, PoolKind, PoolWindow, Precision, Region,
    Repeat, RepeatBack, Reshape, RmsNorm, RmsNormBack, Roll, Rope, RopeBack, RopeMode, RwkvWkv6, RwkvWkv7,
    Scale, ScaleMode, Set, SetRows, SiluBack, Sin, SoftMax, SoftMaxBack, SolveTri, SortOrder, Sqr, Sqrt,
    SsmConv, SsmScan, Sub, Sum, SumRows, TimestepEmbedding, TopK, Transpose, Tri, Triangle, Unary, Upscale,
    View, WinPart, WinUnpart,
};
use oxcart_tensor::{DType, Op, Shape, TensorId};

use super::Making;

const FLOATS: [DType; 2] = [DType::F32, DType::F16];

/// A node of an op.
pub(super) fn node(op: &str, m: &mut Making<'_>) -> Option<TensorId> {
    match op {
        "SQR" => map(m, Sqr),
        "SQRT" => map(m, Sqrt),
        "LOG" => map(m, Log),
        "SIN" => map(m, Sin),
        "COS" => map(m, Cos),
        "SCALE" => map(m, Scale { scale: 2.0, bias: 1.0 }),
        "CLAMP" => map(m, Clamp { min: -1.0, max: 1.0 }),
        "LEAKY_RELU" => map(m, LeakyRelu { slope: 0.1 }),
        "UNARY" => {
            let function = m.draws.pick(&[Unary::Abs, Unary::Gelu, Unary::Softplus, Unary::Silu, Unary::Exp]);
            map(m, function)
        }
        "CUMSUM" => map(m, Cumsum),
        "NORM" => map(m, Norm { eps: 1e-5 }),
        "RMS_NORM" => map(m, RmsNorm { eps: 1e-5 }),
        "L2_NORM" => map(m, L2Norm { eps: 1e-5 }),
        "GROUP_NORM" => {
            let groups = m.draws.param(8);
            map(m, GroupNorm { groups, eps: 1e-5 })
        }
        "SUM" => map(m, Sum),
        "SUM_ROWS" => map(m, SumRows),
        "MEAN" => map(m, Mean),
        "DUP" => map(m, Dup),
        "FILL" => map(m, Fill { value: 1.0 }),
        "DIAG_MASK_INF" => {
            let n_past = m.draws.extent(100);
            map(m, DiagMaskInf { n_past })
        }
        "DIAG_MASK_ZERO" => {
            let n_past = m.draws.extent(100);
            map(m, DiagMaskZero { n_past })
        }
        "TRANSPOSE" => map(m, Transpose),
        "PERMUTE" => map(m, Permute { axes: [1, 0, 2, 3] }),
        "ARGMAX" => {
            let [row, rows, ..] = m.draws.shape();
            let a = m.f32([row, rows])?;
            m.apply(Argmax, &[a])
        }
        "ARGSORT" => map(m, Argsort { order: SortOrder::Ascending }),
        "TOP_K" => {
            let ne = m.draws.shape();
            let (a, k) = (m.f32(ne)?, m.draws.up_to(ne[0].max(1)));
            m.apply(TopK { k }, &[a])
        }
        "SOFT_MAX" => soft_max(m),
        "SOFT_MAX_BACK" => pair(m, SoftMaxBack { scale: 1.0 }),
        "RMS_NORM_BACK" => pair(m, RmsNormBack { eps: 1e-5 }),
        "SILU_BACK" => pair(m, SiluBack),
        "CROSS_ENTROPY_LOSS" => pair(m, CrossEntropyLoss),
        "CROSS_ENTROPY_LOSS_BACK" => {
            let ne = m.draws.shape();
            let (g, a, b) = (m.packed(DType::F32, 1)?, m.packed(DType::F32, ne)?, m.packed(DType::F32, ne)?);
            m.apply(CrossEntropyLossBack, &[g, a, b])
        }
        "ADD" => broadcast(m, Add),
        "SUB" => broadcast(m, Sub),
        "MUL" => broadcast(m, Mul),
        "DIV" => broadcast(m, Div),
        "ADD1" => {
            let ne = m.draws.shape();
            let (a, b) = (m.f32(ne)?, m.f32(1)?);
            m.apply(Add1, &[a, b])
        }
        "ADD_ID" => add_id(m),
        "ACC" | "SET" => region(m, op == "ACC"),
        "CPY" | "CAST" | "CONT" | "RESHAPE" | "VIEW" => copy(m, op),
        "COUNT_EQUAL" => {
            let ne = m.draws.shape();
            let (a, b) = (m.leaf(DType::I32, ne)?, m.leaf(DType::I32, ne)?);
            m.apply(CountEqual, &[a, b])
        }
        "REPEAT" | "REPEAT_BACK" => repeat(m, op == "REPEAT"),
        "CONCAT" => concat(m),
        "PAD" | "PAD_REFLECT_1D" | "ROLL" => pad(m, op),
        "DIAG" => {
            let (n, planes) = (m.draws.extent(300), m.draws.extent(8));
            let a = m.f32([n, 1, planes])?;
            m.apply(Diag, &[a])
        }
        "TRI" => {
            let (n, planes) = (m.draws.extent(300), m.draws.extent(8));
            let (a, keep) =
                (m.f32([n, n, planes])?, m.draws.pick(&[Triangle::Upper, Triangle::LowerWithDiagonal]));
            m.apply(Tri { keep }, &[a])
        }
        "ARANGE" => {
            let stop = m.draws.param(1 << 20) as f32;
            m.apply(Arange { start: 0.0, stop, step: 1.0 }, &[])
        }
        "TIMESTEP_EMBEDDING" => {
            let (steps, dim) = (m.draws.extent(300), m.draws.param(300));
            let a = m.packed(DType::F32, steps)?;
            m.apply(TimestepEmbedding { dim, max_period: 10_000 }, &[a])
        }
        "GLU" => glu(m),
        "MUL_MAT" => mul_mat(m),
        "MUL_MAT_ID" => mul_mat_id(m),
        "OUT_PROD" => {
            let [wide, deep, high, planes] =
                [m.draws.extent(500), m.draws.extent(60), m.draws.extent(60), m.draws.extent(3)];
            let (a, b) = (m.f32([wide, deep, planes])?, m.f32([high, deep, planes])?);
            m.apply(OutProd, &[a, b])
        }
        "GET_ROWS" => {
            let ([row, rows, ..], count) = (m.draws.shape(), m.draws.extent(100));
            let dtype = m.draws.pick(&[DType::F32, DType::F16, DType::Q8_0]);
            let (a, ids) = (m.leaf(dtype, [whole(dtype, row), rows])?, m.leaf(DType::I32, count)?);
            m.apply(GetRows, &[a, ids])
        }
        "GET_ROWS_BACK" => {
            let ([row, rows, ..], count) = (m.draws.shape(), m.draws.param(100));
            let (a, ids) = (m.f32([row, rows])?, m.packed(DType::I32, rows)?);
            m.apply(GetRowsBack { rows: count }, &[a, ids])
        }
        "SET_ROWS" => set_rows(m),
        "ROPE" | "ROPE_BACK" => rope(m, op == "ROPE"),
        "FLASH_ATTN_EXT" => flash(m),
        "FLASH_ATTN_BACK" => flash_back(m),
        "PAGED_ATTN" => paged(m),
        "LIGHTNING_INDEXER" => indexer(m),
        "CONV_2D" | "CONV_2D_DW" | "IM2COL" | "IM2COL_BACK" => planes(m, op),
        "CONV_3D" | "IM2COL_3D" => volumes(m, op == "CONV_3D"),
        "CONV_TRANSPOSE_1D" | "CONV_TRANSPOSE_2D" => transposed(m, op == "CONV_TRANSPOSE_1D"),
        "COL2IM_1D" => {
            let (channels, kernel, positions) = (m.draws.param(8), m.draws.param(30), m.draws.param(300));
            let (stride, crop) = (m.draws.param(8), m.draws.below(3));
            let a = m.packed(DType::F32, [kernel.checked_mul(channels)?, positions])?;
            m.apply(Col2im1d { stride, channels, crop }, &[a])
        }
        "POOL_1D" | "POOL_2D" | "POOL_2D_BACK" => pool(m, op),
        "UPSCALE" => upscale(m),
        "WIN_PART" | "WIN_UNPART" | "GET_REL_POS" | "ADD_REL_POS" => windows(m, op),
        "SSM_CONV" => {
            let [taps, channels, tokens, sequences] =
                [m.draws.param(8), m.draws.extent(300), m.draws.extent(60), m.draws.extent(3)];
            let a = m.packed(DType::F32, [(taps - 1).checked_add(tokens)?, channels, sequences])?;
            let kernel = m.packed(DType::F32, [taps, channels])?;
            m.apply(SsmConv, &[a, kernel])
        }
        "SSM_SCAN" => ssm_scan(m),
        "RWKV_WKV6" | "RWKV_WKV7" | "GATED_LINEAR_ATTN" => linear(m, op),
        "GATED_DELTA_NET" => delta_net(m),
        "SOLVE_TRI" => {
            let (n, columns, planes) = (m.draws.extent(100), m.draws.extent(100), m.draws.extent(4));
            let (a, b) = (m.packed(DType::F32, [n, n, planes])?, m.packed(DType::F32, [columns, n, planes])?);
            m.apply(SolveTri, &[a, b])
        }
        "DSV4_HC_COMB" | "DSV4_HC_PRE" | "DSV4_HC_POST" => hyper_connections(m, op),
        "OPT_STEP_ADAMW" | "OPT_STEP_SGD" => step(m, op == "OPT_STEP_SGD"),
        _ => panic!("there is no family for {op}"),
    }
}

/// So many elements, in whole blocks.
fn whole(dtype: DType, len: usize) -> usize {
    len.next_multiple_of(dtype.block_len())
}

/// An op of one source of any shape.
fn map(m: &mut Making<'_>, op: impl Into<Op>) -> Option<TensorId> {
    let ne = m.draws.shape();
    let a = m.f32(ne)?;
    m.apply(op, &[a])
}

/// An op of two sources of one shape.
fn pair(m: &mut Making<'_>, op: impl Into<Op>) -> Option<TensorId> {
    let ne = m.draws.shape();
    let (a, b) = (m.f32(ne)?, m.f32(ne)?);
    m.apply(op, &[a, b])
}

/// An op whose second source repeats.
fn broadcast(m: &mut Making<'_>, op: impl Into<Op>) -> Option<TensorId> {
    let ne = m.draws.shape();
    let part = ne.map(|n| if m.draws.flip() { n } else { 1 });
    let (a, b) = (m.f32(ne)?, m.f32(part)?);
    m.apply(op, &[a, b])
}

fn soft_max(m: &mut Making<'_>) -> Option<TensorId> {
    let ne = m.draws.shape();
    let a = m.f32(ne)?;
    let op = SoftMax { scale: 1.0, max_bias: 0.0 };
    if m.draws.flip() {
        return m.apply(op, &[a]);
    }
    let dtype = m.draws.pick(&FLOATS);
    let mask = m.leaf(dtype, [ne[0], ne[1]])?;
    m.apply(op, &[a, mask])
}

fn add_id(m: &mut Making<'_>) -> Option<TensorId> {
    let ([row, used, tokens, _], rows) = (m.draws.shape(), m.draws.param(8));
    let (a, b, ids) = (m.f32([row, used, tokens])?, m.f32([row, rows])?, m.leaf(DType::I32, [used, tokens])?);
    m.apply(AddId, &[a, b, ids])
}

fn region(m: &mut Making<'_>, adds: bool) -> Option<TensorId> {
    let ne = m.draws.shape();
    let part = ne.map(|n| m.draws.up_to(n.max(1)).min(n));
    let (a, b) = (m.packed(DType::F32, ne)?, m.f32(part)?);
    let [_, rows @ ..] = m.graph.tensor(a).ok()?.layout().nb();
    let region = Region { strides: rows, offset: 0 };
    if adds { m.apply(Acc(region), &[a, b]) } else { m.apply(Set(region), &[a, b]) }
}

fn copy(m: &mut Making<'_>, op: &str) -> Option<TensorId> {
    let [row, others @ ..] = m.draws.shape();
    let types = [DType::F32, DType::F16, DType::Q8_0, DType::Q4_0];
    let (from, to) = (m.draws.pick(&FLOATS), m.draws.pick(&types));
    let ne = Shape::from([whole(to, row), others[0], others[1], others[2]]);
    match op {
        "CPY" => {
            let (a, b) = (m.leaf(from, ne)?, m.packed(to, ne)?);
            m.apply(Cpy, &[a, b])
        }
        "CAST" => {
            let a = m.leaf(from, ne)?;
            m.apply(Cast { dtype: to }, &[a])
        }
        "CONT" => {
            let a = m.leaf(from, ne)?;
            m.apply(Cont { ne }, &[a])
        }
        "RESHAPE" => {
            let a = m.packed(from, ne)?;
            let all = ne.elements()?;
            m.apply(Reshape { ne: Shape::from(all) }, &[a])
        }
        _ => {
            let a = m.packed(from, ne)?;
            let nb = m.graph.tensor(a).ok()?.layout().nb();
            m.apply(View { ne, nb, offset: 0 }, &[a])
        }
    }
}

fn repeat(m: &mut Making<'_>, forward: bool) -> Option<TensorId> {
    let few = [m.draws.extent(300), m.draws.extent(20), m.draws.extent(3), m.draws.extent(2)];
    let mut many = few;
    for n in &mut many {
        *n = n.checked_mul(m.draws.param(6))?;
    }
    if forward {
        let a = m.f32(few)?;
        m.apply(Repeat { ne: many.into() }, &[a])
    } else {
        let a = m.f32(many)?;
        m.apply(RepeatBack { ne: few.into() }, &[a])
    }
}

fn concat(m: &mut Making<'_>) -> Option<TensorId> {
    let (ne, dim) = (m.draws.shape(), m.draws.below(4));
    let mut other = ne;
    other[dim] = m.draws.extent(50);
    let (a, b) = (m.f32(ne)?, m.f32(other)?);
    m.apply(Concat { dim }, &[a, b])
}

fn pad(m: &mut Making<'_>, op: &str) -> Option<TensorId> {
    let ne = m.draws.shape();
    let a = m.f32(ne)?;
    match op {
        "PAD" => {
            let [left, right] = [0; 2].map(|_| ne.map(|_| m.draws.extent(20)));
            let circular = m.draws.flip();
            m.apply(Pad { left, right, circular }, &[a])
        }
        "PAD_REFLECT_1D" => {
            let [left, right] = [0; 2].map(|_| m.draws.below(ne[0].max(1)));
            m.apply(PadReflect1d { left, right }, &[a])
        }
        _ => {
            let shift = ne.map(|n| i32::try_from(m.draws.below(n.max(1))).unwrap_or(0));
            m.apply(Roll { shift }, &[a])
        }
    }
}

fn glu(m: &mut Making<'_>) -> Option<TensorId> {
    let [row, others @ ..] = m.draws.shape();
    let op = Glu { kind: m.draws.pick(&[GluKind::Swiglu, GluKind::Reglu, GluKind::Geglu]), swapped: false };
    if m.draws.flip() {
        let a = m.f32([row.checked_mul(2)?, others[0], others[1], others[2]])?;
        return m.apply(op, &[a]);
    }
    let ne = [row, others[0], others[1], others[2]];
    let (a, b) = (m.f32(ne)?, m.f32(ne)?);
    m.apply(op, &[a, b])
}

/// Types of weights, of every way to multiply them.
const WEIGHTS: [DType; 6] = [DType::F32, DType::F16, DType::BF16, DType::Q4_0, DType::Q8_0, DType::Q4_K];

fn mul_mat(m: &mut Making<'_>) -> Option<TensorId> {
    if m.draws.below(8) == 0 {
        let (k, columns) = (1 << m.draws.below(10), m.draws.extent(60));
        let (a, b) = (m.f32([k, k])?, m.f32([k, columns])?);
        return m.apply(MulMat { hint: Hint::Hadamard, ..MulMat::default() }, &[a, b]);
    }
    let (dtype, k) = (m.draws.pick(&WEIGHTS), m.draws.extent(2000));
    let [rows, columns, planes, repeats] =
        [m.draws.extent(300), m.draws.extent(100), m.draws.extent(2), m.draws.param(2)];
    let k = whole(dtype, k);
    let a = m.leaf(dtype, [k, rows, planes])?;
    let b = m.f32([k, columns, planes.checked_mul(repeats)?])?;
    m.apply(MulMat::default(), &[a, b])
}

fn mul_mat_id(m: &mut Making<'_>) -> Option<TensorId> {
    let (dtype, k) = (m.draws.pick(&WEIGHTS), m.draws.extent(500));
    let [rows, matrices, used, tokens] =
        [m.draws.extent(200), m.draws.param(16), m.draws.param(4), m.draws.extent(40)];
    let (k, used) = (whole(dtype, k), used.min(matrices));
    let a = m.leaf(dtype, [k, rows, matrices])?;
    let (b, ids) = (m.f32([k, 1, tokens])?, m.leaf(DType::I32, [used, tokens])?);
    m.apply(
        MulMatId { accumulate: Precision::Any, weights: Precision::Any, activations: Precision::Any },
        &[a, b, ids],
    )
}

fn set_rows(m: &mut Making<'_>) -> Option<TensorId> {
    let ([row, rows, planes, _], count) = (m.draws.shape(), m.draws.param(100));
    let dtype = m.draws.pick(&[DType::F32, DType::F16, DType::Q8_0]);
    let row = whole(dtype, row);
    let (values, target) = (m.f32([row, rows, planes])?, m.packed(dtype, [row, count, planes])?);
    let ids = m.leaf(DType::I64, [rows])?;
    m.apply(SetRows, &[values, ids, target])
}

fn rope(m: &mut Making<'_>, forward: bool) -> Option<TensorId> {
    let [row, heads, tokens, _] =
        [m.draws.extent(100), m.draws.extent(30), m.draws.extent(60), m.draws.extent(1)];
    let row = row.checked_mul(2)?;
    let rope = Rope {
        n_dims: row,
        mode: m.draws.pick(&[RopeMode::Normal, RopeMode::Neox]),
        n_ctx_orig: 0,
        freq_base: 10_000.0,
        freq_scale: 1.0,
        ext_factor: 0.0,
        attn_factor: 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        sections: [0; 4],
        first_channel: 0,
    };
    let (a, positions) = (m.f32([row, heads, tokens])?, m.packed(DType::I32, tokens)?);
    if forward { m.apply(rope, &[a, positions]) } else { m.apply(RopeBack(rope), &[a, positions]) }
}

fn flash(m: &mut Making<'_>) -> Option<TensorId> {
    let [d, dv, tokens, keys] =
        [m.draws.extent(128), m.draws.extent(128), m.draws.extent(60), m.draws.extent(600)];
    let (key_heads, group, dtype) =
        (m.draws.param(3), m.draws.param(4), m.draws.pick(&[DType::F32, DType::F16, DType::Q8_0]));
    let (d, dv) = (whole(dtype, d), whole(dtype, dv));
    let q = m.f32([d, tokens, key_heads.checked_mul(group)?])?;
    let (k, v) = (m.leaf(dtype, [d, keys, key_heads])?, m.leaf(dtype, [dv, keys, key_heads])?);
    let op = FlashAttnExt { scale: 1.0, max_bias: 0.0, softcap: 0.0, precision: Precision::Any, n_kv_max: 0 };
    m.apply(op, &[q, k, v])
}

fn flash_back(m: &mut Making<'_>) -> Option<TensorId> {
    let [d, tokens, keys, heads] =
        [m.draws.extent(64), m.draws.extent(60), m.draws.extent(60), m.draws.extent(4)];
    let (q, k) = (m.packed(DType::F32, [d, tokens, heads])?, m.packed(DType::F32, [d, keys, heads])?);
    let (v, g) = (m.packed(DType::F32, [keys, d, heads])?, m.packed(DType::F32, [d, tokens, heads])?);
    let masked = m.draws.flip();
    m.apply(FlashAttnBack { masked }, &[q, k, v, g])
}

/// All tokens are the last of their sequence's pages.
fn paged(m: &mut Making<'_>) -> Option<TensorId> {
    let [d, heads, tokens, pages] =
        [m.draws.extent(128), m.draws.param(3), m.draws.param(8), m.draws.param(8)];
    let group = m.draws.param(4);
    let d = d.checked_mul(2)?;
    let q = m.f32([d, heads.checked_mul(group)?, tokens])?;
    let row = d.checked_mul(heads)?;
    let (keys, values) =
        (m.leaf(DType::F16, [row, PagedAttn::PAGE])?, m.leaf(DType::F16, [row, PagedAttn::PAGE])?);
    let (table, places) = (m.leaf(DType::I32, [pages, tokens])?, m.packed(DType::I32, [2, tokens])?);
    let last = i32::try_from(pages.checked_mul(PagedAttn::PAGE)? - 1).ok()?;
    m.data.push((places, (0..tokens).flat_map(|token| [token as i32, last]).collect()));
    let op = PagedAttn { key_heads: heads, scale: 1.0, softcap: 0.0, max_bias: 0.0, window: 0, chunk: 0 };
    m.apply(op, &[q, keys, values, table, places])
}

fn indexer(m: &mut Making<'_>) -> Option<TensorId> {
    let [d, heads, tokens, keys] =
        [m.draws.extent(128), m.draws.extent(16), m.draws.extent(40), m.draws.extent(300)];
    let (q, k) = (m.f32([d, heads, tokens])?, m.leaf(DType::F16, [d, 1, keys])?);
    let (weights, mask) = (m.f32([heads, tokens])?, m.leaf(DType::F16, [keys, tokens])?);
    m.apply(LightningIndexer, &[q, k, weights, mask])
}

/// How a kernel moves: taps and pixels along each axis, and the geometry.
fn movement<const N: usize>(m: &mut Making<'_>, most: usize) -> ([usize; N], [usize; N], ConvGeometry<N>) {
    let (mut kernel, mut image, mut geometry) = ([1; N], [1; N], ConvGeometry::DENSE);
    for axis in 0..N {
        kernel[axis] = m.draws.param(7);
        image[axis] = m.draws.param(most);
        let word = |n: usize| u32::try_from(n).unwrap_or(1).min(1 << 24);
        geometry.stride[axis] = word(m.draws.param(3));
        geometry.dilation[axis] = word(m.draws.param(2));
        let reach = (kernel[axis] - 1).saturating_mul(geometry.dilation[axis] as usize);
        // Enough that there is a position, and sometimes much more.
        let needed = reach.saturating_sub(image[axis]) / 2 + 1;
        let more = if m.draws.flip() { 0 } else { m.draws.extent(4) };
        geometry.pad[axis] = u32::try_from(needed + more).unwrap_or(1).min(1 << 24);
    }
    (kernel, image, geometry)
}

fn planes(m: &mut Making<'_>, op: &str) -> Option<TensorId> {
    let ([kw, kh], [w, h], geometry) = movement::<2>(m, 40);
    let (channels, filters, batch) = (m.draws.param(16), m.draws.param(16), m.draws.param(2));
    let (dtype, lines) = (m.draws.pick(&FLOATS), Im2colGeometry::Plane(geometry));
    match op {
        "CONV_2D" => {
            let kernel = m.packed(dtype, [kw, kh, channels, filters])?;
            let image = m.f32([w, h, channels, batch])?;
            m.apply(Conv2d { geometry }, &[kernel, image])
        }
        "CONV_2D_DW" => {
            let (kernel, image) =
                (m.packed(dtype, [kw, kh, 1, channels])?, m.packed(DType::F32, [w, h, channels, batch])?);
            m.apply(Conv2dDw { geometry }, &[kernel, image])
        }
        "IM2COL" => {
            let (kernel, image) =
                (m.packed(dtype, [kw, kh, channels, filters])?, m.f32([w, h, channels, batch])?);
            m.apply(Im2col { geometry: lines, dtype: DType::F32 }, &[kernel, image])
        }
        _ => {
            let (kernel, image) =
                (m.packed(DType::F32, [kw, kh, channels, filters])?, m.f32([w, h, channels, batch])?);
            let unfolded = m.apply(Im2col { geometry: lines, dtype: DType::F32 }, &[kernel, image])?;
            let ne = m.graph.tensor(unfolded).ok()?.ne();
            let gradient = m.packed(DType::F32, ne)?;
            let ne = [w, h, channels, batch].into();
            m.apply(Im2colBack { geometry: lines, ne }, &[gradient, kernel])
        }
    }
}

fn volumes(m: &mut Making<'_>, direct: bool) -> Option<TensorId> {
    let ([kw, kh, kd], [w, h, d], geometry) = movement::<3>(m, 16);
    let (channels, filters, batch) = (m.draws.param(4), m.draws.param(8), m.draws.param(2));
    let dtype = if direct { m.draws.pick(&FLOATS) } else { DType::F32 };
    let kernel = m.packed(dtype, [kw, kh, kd, channels.checked_mul(filters)?])?;
    let image = m.f32([w, h, d, channels.checked_mul(batch)?])?;
    if direct {
        m.apply(Conv3d { geometry, channels, batch, filters }, &[kernel, image])
    } else {
        m.apply(Im2col3d { geometry, channels, dtype: DType::F32 }, &[kernel, image])
    }
}

fn transposed(m: &mut Making<'_>, line: bool) -> Option<TensorId> {
    let [kw, kh, filters, channels] =
        [m.draws.param(7), m.draws.param(7), m.draws.param(8), m.draws.param(16)];
    let ([w, h, batch], stride) =
        ([m.draws.param(30), m.draws.param(30), m.draws.param(2)], m.draws.param(3));
    let dtype = m.draws.pick(&FLOATS);
    if line {
        let (kernel, image) = (m.leaf(dtype, [kw, filters, channels])?, m.f32([w, channels])?);
        return m.apply(ConvTranspose1d { stride }, &[kernel, image]);
    }
    let (kernel, image) = (m.leaf(dtype, [kw, kh, filters, channels])?, m.f32([w, h, channels, batch])?);
    m.apply(ConvTranspose2d { stride }, &[kernel, image])
}

fn pool(m: &mut Making<'_>, op: &str) -> Option<TensorId> {
    let (kernel, image, geometry) = movement::<2>(m, 100);
    let word = |n: usize| u32::try_from(n).unwrap_or(1);
    let (kernel, kind) = (kernel.map(word), m.draws.pick(&[PoolKind::Max, PoolKind::Avg]));
    let window = PoolWindow { kernel, stride: geometry.stride, pad: geometry.pad };
    let planes = m.draws.extent(8);
    if op == "POOL_1D" {
        let window = PoolWindow { kernel: [kernel[0]], stride: [window.stride[0]], pad: [window.pad[0]] };
        let a = m.f32([image[0], planes.checked_mul(16)?])?;
        return m.apply(Pool1d { kind, window }, &[a]);
    }
    let a = m.f32([image[0], image[1], planes])?;
    let pooled = m.apply(Pool2d { kind, window }, &[a])?;
    if op == "POOL_2D" {
        return Some(pooled);
    }
    let ne = m.graph.tensor(pooled).ok()?.ne();
    let (gradient, a) = (m.packed(DType::F32, ne)?, m.packed(DType::F32, [image[0], image[1], planes])?);
    m.apply(Pool2dBack { kind, window }, &[gradient, a])
}

fn upscale(m: &mut Making<'_>) -> Option<TensorId> {
    let [from, to] =
        [0; 2].map(|_| [m.draws.param(60), m.draws.param(60), m.draws.param(3), m.draws.param(2)]);
    let mode = m.draws.pick(&[ScaleMode::Nearest, ScaleMode::Bilinear, ScaleMode::Bicubic]);
    let antialias = mode == ScaleMode::Bilinear && m.draws.flip();
    let (a, align_corners) = (m.f32(from)?, m.draws.flip());
    m.apply(Upscale { ne: to.into(), mode, align_corners, antialias }, &[a])
}

fn windows(m: &mut Making<'_>, op: &str) -> Option<TensorId> {
    let [channels, width, height, window] =
        [m.draws.extent(100), m.draws.param(40), m.draws.param(40), m.draws.param(9)];
    match op {
        "WIN_PART" => {
            let a = m.packed(DType::F32, [channels, width, height])?;
            m.apply(WinPart { window }, &[a])
        }
        "WIN_UNPART" => {
            let count = width.div_ceil(window).checked_mul(height.div_ceil(window))?;
            let a = m.packed(DType::F32, [channels, window, window, count])?;
            m.apply(WinUnpart { width, height, window }, &[a])
        }
        "GET_REL_POS" => {
            let a = m.packed(DType::F16, [channels, width.checked_mul(2)? - 1])?;
            m.apply(GetRelPos { size: width }, &[a])
        }
        _ => {
            let (a, rows) = (width.checked_mul(width)?, channels.checked_mul(height)?);
            let a = m.packed(DType::F32, [a, rows])?;
            let ne = [width, channels, height];
            let (pw, ph) = (m.packed(DType::F32, ne)?, m.packed(DType::F32, ne)?);
            m.apply(AddRelPos, &[a, pw, ph])
        }
    }
}

fn ssm_scan(m: &mut Making<'_>) -> Option<TensorId> {
    let [width, dim, heads, tokens] =
        [m.draws.extent(64), m.draws.extent(32), m.draws.param(4), m.draws.extent(20)];
    let (sequences, snapshots, groups) = (m.draws.param(3), m.draws.param(3), 1);
    let states = m.packed(DType::F32, [width, dim, heads, sequences])?;
    let x = m.packed(DType::F32, [dim, heads, tokens, sequences])?;
    let dt = m.packed(DType::F32, [heads, tokens, sequences])?;
    let a = m.packed(DType::F32, [1, heads])?;
    let [b, c] = [0; 2].map(|_| m.packed(DType::F32, [width, groups, tokens, sequences]));
    let ids = m.packed(DType::I32, sequences)?;
    m.apply(SsmScan { snapshots, grouping: Grouping::Neighbours }, &[states, x, dt, a, b?, c?, ids])
}

fn linear(m: &mut Making<'_>, op: &str) -> Option<TensorId> {
    let [size, heads, tokens, sequences] =
        [m.draws.extent(64), m.draws.param(4), m.draws.param(10), m.draws.param(2)];
    let rows = |m: &mut Making<'_>| m.packed(DType::F32, [size, heads, tokens.checked_mul(sequences)?]);
    let mut sources = Vec::new();
    let state = size.checked_mul(size)?.checked_mul(heads)?;
    let op: Op = match op {
        "RWKV_WKV6" => {
            for _ in 0..3 {
                sources.push(rows(m)?);
            }
            sources.push(m.packed(DType::F32, [size, heads])?);
            sources.push(rows(m)?);
            RwkvWkv6.into()
        }
        "RWKV_WKV7" => {
            for _ in 0..6 {
                sources.push(rows(m)?);
            }
            RwkvWkv7.into()
        }
        _ => {
            for _ in 0..4 {
                sources.push(rows(m)?);
            }
            GatedLinearAttn { scale: 1.0 }.into()
        }
    };
    sources.push(m.packed(DType::F32, [state, sequences])?);
    m.apply(op, &sources)
}

fn delta_net(m: &mut Making<'_>) -> Option<TensorId> {
    let [size, heads, tokens, batch] =
        [m.draws.extent(64), m.draws.param(4), m.draws.extent(10), m.draws.param(2)];
    let (gates, snapshots) = (if m.draws.flip() { 1 } else { size }, m.draws.param(3));
    let [q, k, v] = [0; 3].map(|_| m.f32([size, heads, tokens, batch]));
    let g = m.packed(DType::F32, [gates, heads, tokens, batch])?;
    let beta = m.packed(DType::F32, [1, heads, tokens, batch])?;
    let state = m.packed(DType::F32, [size, size, heads, batch])?;
    m.apply(GatedDeltaNet { snapshots }, &[q?, k?, v?, g, beta, state])
}

fn hyper_connections(m: &mut Making<'_>, op: &str) -> Option<TensorId> {
    let (width, streams, tokens) = (m.draws.extent(500), m.draws.extent(6), m.draws.extent(40));
    match op {
        "DSV4_HC_COMB" => {
            let iterations = u32::try_from(m.draws.param(20)).ok()?;
            let (mixes, scale, base) = (m.f32([24, tokens])?, m.f32(3)?, m.f32(24)?);
            m.apply(Dsv4HcComb { eps: 1e-6, iterations }, &[mixes, scale, base])
        }
        "DSV4_HC_PRE" => {
            let gated = m.draws.flip();
            let x = m.f32([width, streams, tokens])?;
            let weights = if gated { m.f32([width, streams, tokens])? } else { m.f32([streams, tokens])? };
            m.apply(Dsv4HcPre { scale: 1.0, gated }, &[x, weights])
        }
        _ => {
            let (x, residual) = (m.f32([width, tokens])?, m.f32([width, streams, tokens])?);
            let (post, comb) = (m.f32([streams, tokens])?, m.f32([streams, streams, tokens])?);
            match m.draws.flip() {
                true => m.apply(Dsv4HcPost, &[x, residual, post, comb]),
                false => m.apply(Dsv4HcPost, &[x, residual, post]),
            }
        }
    }
}

fn step(m: &mut Making<'_>, plain: bool) -> Option<TensorId> {
    let ne = m.draws.shape();
    let (a, gradient) = (m.packed(DType::F32, ne)?, m.packed(DType::F32, ne)?);
    m.graph.mark_param(a).ok()?;
    if plain {
        let settings = m.packed(DType::F32, 2)?;
        return m.apply(OptStepSgd, &[a, gradient, settings]);
    }
    let [first, second] = [0; 2].map(|_| m.packed(DType::F32, ne));
    let settings = m.packed(DType::F32, 7)?;
    m.apply(OptStepAdamw, &[a, gradient, first?, second?, settings])
}
