//! The op of a case, from the name and the sixteen words the reference keeps it in.
//!
//! # Panics
//!
//! Everything in here panics on a file that is not what it should be: cases are made by tools, not by strangers.

use oxcart_tensor::ops::*;
use oxcart_tensor::{Layout, Shape};
use serde_json::Value;

use crate::json::text;

/// The parameters as the reference stores them: 32-bit words.
#[derive(Clone, Copy, Debug)]
struct Words([i32; 16]);

impl Words {
    fn of(case: &Value) -> Words {
        let word = |i: usize| case["op_params"][i].as_i64().and_then(|n| n.try_into().ok());
        Words(std::array::from_fn(|i| word(i).unwrap_or_else(|| panic!("bad word {i}: {case}"))))
    }

    fn f32(&self, i: usize) -> f32 {
        f32::from_bits(self.0[i] as u32)
    }

    fn bool(&self, i: usize) -> bool {
        self.0[i] != 0
    }

    fn size(&self, i: usize) -> usize {
        usize::try_from(self.0[i]).unwrap_or_else(|_| panic!("negative word {i}: {}", self.0[i]))
    }

    fn sizes<const N: usize>(&self, from: usize) -> [u32; N] {
        std::array::from_fn(|i| self.0[from + i] as u32)
    }

    /// Strides, then pads, then dilations, each `N` words.
    fn window<const N: usize>(&self) -> Window<N> {
        Window { stride: self.sizes(0), pad: self.sizes(N), dilation: self.sizes(2 * N) }
    }

    fn im2col(&self) -> Im2colWindow {
        if self.bool(6) {
            return Im2colWindow::Plane(self.window());
        }
        let Window { stride: [stride, _], pad: [pad, _], dilation: [dilation, _] } = self.window();
        Im2colWindow::Line(Window { stride: [stride], pad: [pad], dilation: [dilation] })
    }

    /// Kernels, then strides, then pads, each `N` words after the kind.
    fn pool<const N: usize>(&self) -> PoolWindow<N> {
        PoolWindow { kernel: self.sizes(1), stride: self.sizes(1 + N), pad: self.sizes(1 + 2 * N) }
    }

    fn pool_kind(&self) -> PoolKind {
        *pick(&[PoolKind::Max, PoolKind::Avg], self.size(0))
    }

    fn precision(&self, i: usize) -> Precision {
        match self.0[i] {
            0 => Precision::Any,
            10 => Precision::F32,
            15 => Precision::Bf16,
            20 => Precision::F16,
            30 => Precision::Q8,
            40 => Precision::Q4,
            other => panic!("precision {other}"),
        }
    }

    fn region(&self) -> Region {
        Region { strides: [self.size(0), self.size(1), self.size(2)], offset: self.size(3) }
    }

    fn rope(&self) -> Rope {
        let mode = match self.0[2] {
            0 => RopeMode::Normal,
            2 => RopeMode::Neox,
            8 => RopeMode::Mrope,
            24 => RopeMode::Vision,
            40 => RopeMode::Imrope,
            other => panic!("rope mode {other}"),
        };
        Rope {
            n_dims: self.size(1),
            mode,
            n_ctx_orig: self.size(4),
            freq_base: self.f32(5),
            freq_scale: self.f32(6),
            ext_factor: self.f32(7),
            attn_factor: self.f32(8),
            beta_fast: self.f32(9),
            beta_slow: self.f32(10),
            sections: self.sizes(11),
            first_channel: self.size(15),
        }
    }

    fn upscale(&self, ne: Shape) -> Upscale {
        let mode = *pick(&[ScaleMode::Nearest, ScaleMode::Bilinear, ScaleMode::Bicubic], self.size(0) & 0xff);
        let flag = |bit: u32| self.0[0] & (1 << bit) != 0;
        Upscale { ne, mode, align_corners: flag(8), antialias: flag(9) }
    }
}

fn pick<T>(names: &[T], number: usize) -> &T {
    names.get(number).unwrap_or_else(|| panic!("there is no number {number}"))
}

/// The op of a case. What the reference keeps only in the shape of its result is read from there.
pub(crate) fn decode(case: &Value, result: Layout) -> Op {
    let p = Words::of(case);
    let (ne, dtype) = (result.ne(), result.dtype());
    match text(&case["op"]) {
        "DUP" => Dup.into(),
        "ADD" => Add.into(),
        "ADD_ID" => AddId.into(),
        "ADD1" => Add1.into(),
        "ACC" => Acc(p.region()).into(),
        "SUB" => Sub.into(),
        "MUL" => Mul.into(),
        "DIV" => Div.into(),
        "SQR" => Sqr.into(),
        "SQRT" => Sqrt.into(),
        "LOG" => Log.into(),
        "SIN" => Sin.into(),
        "COS" => Cos.into(),
        "SUM" => Sum.into(),
        "SUM_ROWS" => SumRows.into(),
        "CUMSUM" => Cumsum.into(),
        "MEAN" => Mean.into(),
        "ARGMAX" => Argmax.into(),
        "COUNT_EQUAL" => CountEqual.into(),
        "REPEAT" => Repeat { ne }.into(),
        "REPEAT_BACK" => RepeatBack { ne }.into(),
        "CONCAT" => Concat { dim: p.size(0) }.into(),
        "SILU_BACK" => SiluBack.into(),
        "NORM" => Norm { eps: p.f32(0) }.into(),
        "RMS_NORM" => RmsNorm { eps: p.f32(0) }.into(),
        "RMS_NORM_BACK" => RmsNormBack { eps: p.f32(0) }.into(),
        "GROUP_NORM" => GroupNorm { groups: p.size(0), eps: p.f32(1) }.into(),
        "L2_NORM" => L2Norm { eps: p.f32(0) }.into(),
        "MUL_MAT" => MulMat {
            accumulate: p.precision(0),
            hint: *pick(&[Hint::None, Hint::Hadamard], p.size(1)),
            weights: p.precision(2),
            activations: p.precision(3),
        }
        .into(),
        "MUL_MAT_ID" => {
            MulMatId { accumulate: p.precision(0), weights: p.precision(2), activations: p.precision(3) }
                .into()
        }
        "OUT_PROD" => OutProd.into(),
        "SCALE" => Scale { scale: p.f32(0), bias: p.f32(1) }.into(),
        "SET" => Set(p.region()).into(),
        // A cast names itself as its target.
        "CPY" if case["src"][1].get("same_as").is_some() => Cast { dtype }.into(),
        "CPY" => Cpy.into(),
        "CONT" => Cont { ne }.into(),
        "GET_ROWS" => GetRows.into(),
        "GET_ROWS_BACK" => GetRowsBack { rows: ne[1] }.into(),
        "SET_ROWS" => SetRows.into(),
        "DIAG" => Diag.into(),
        "DIAG_MASK_INF" => DiagMaskInf { n_past: p.size(0) }.into(),
        "DIAG_MASK_ZERO" => DiagMaskZero { n_past: p.size(0) }.into(),
        "SOFT_MAX" => SoftMax { scale: p.f32(0), max_bias: p.f32(1) }.into(),
        "SOFT_MAX_BACK" => SoftMaxBack { scale: p.f32(0) }.into(),
        "ROPE" => p.rope().into(),
        "ROPE_BACK" => RopeBack(p.rope()).into(),
        "CLAMP" => Clamp { min: p.f32(0), max: p.f32(1) }.into(),
        "CONV_TRANSPOSE_1D" => ConvTranspose1d { stride: p.size(0) }.into(),
        "IM2COL" => Im2col { window: p.im2col(), dtype }.into(),
        "IM2COL_BACK" => Im2colBack { window: p.im2col(), ne }.into(),
        "IM2COL_3D" => Im2col3d { window: p.window(), channels: p.size(9), dtype }.into(),
        "COL2IM_1D" => Col2im1d { stride: p.size(0), channels: p.size(1), crop: p.size(2) }.into(),
        "CONV_2D" => Conv2d { window: p.window() }.into(),
        "CONV_3D" => {
            let (channels, batch, filters) = (p.size(9), p.size(10), p.size(11));
            Conv3d { window: p.window(), channels, batch, filters }.into()
        }
        "CONV_2D_DW" => Conv2dDw { window: p.window() }.into(),
        "CONV_TRANSPOSE_2D" => ConvTranspose2d { stride: p.size(0) }.into(),
        "POOL_1D" => Pool1d { kind: p.pool_kind(), window: p.pool() }.into(),
        "POOL_2D" => Pool2d { kind: p.pool_kind(), window: p.pool() }.into(),
        "POOL_2D_BACK" => Pool2dBack { kind: p.pool_kind(), window: p.pool() }.into(),
        "UPSCALE" => p.upscale(ne).into(),
        "PAD" => Pad {
            left: [p.size(0), p.size(2), p.size(4), p.size(6)],
            right: [p.size(1), p.size(3), p.size(5), p.size(7)],
            circular: p.bool(8),
        }
        .into(),
        "PAD_REFLECT_1D" => PadReflect1d { left: p.size(0), right: p.size(1) }.into(),
        "ROLL" => Roll { shift: [p.0[0], p.0[1], p.0[2], p.0[3]] }.into(),
        "ARANGE" => Arange { start: p.f32(0), stop: p.f32(1), step: p.f32(2) }.into(),
        "TIMESTEP_EMBEDDING" => TimestepEmbedding { dim: p.size(0), max_period: p.0[1] as u32 }.into(),
        "ARGSORT" => {
            Argsort { order: *pick(&[SortOrder::Ascending, SortOrder::Descending], p.size(0)) }.into()
        }
        "TOP_K" => TopK { k: ne[0] }.into(),
        "LEAKY_RELU" => LeakyRelu { slope: p.f32(0) }.into(),
        "TRI" => {
            use Triangle::*;
            Tri { keep: *pick(&[UpperWithDiagonal, Upper, LowerWithDiagonal, Lower], p.size(0)) }.into()
        }
        "FILL" => Fill { value: p.f32(0) }.into(),
        "FLASH_ATTN_EXT" => FlashAttnExt {
            scale: p.f32(0),
            max_bias: p.f32(1),
            softcap: p.f32(2),
            precision: p.precision(3),
            n_kv_max: p.size(4),
        }
        .into(),
        "SSM_CONV" => SsmConv.into(),
        "SSM_SCAN" => SsmScan { snapshots: p.size(0) }.into(),
        "WIN_PART" => WinPart { window: p.size(2) }.into(),
        "WIN_UNPART" => WinUnpart { width: ne[1], height: ne[2], window: p.size(0) }.into(),
        "GET_REL_POS" => GetRelPos { size: ne[1] }.into(),
        "ADD_REL_POS" => AddRelPos.into(),
        "RWKV_WKV6" => RwkvWkv6.into(),
        "GATED_LINEAR_ATTN" => GatedLinearAttn { scale: p.f32(0) }.into(),
        "RWKV_WKV7" => RwkvWkv7.into(),
        "SOLVE_TRI" => SolveTri.into(),
        "GATED_DELTA_NET" => GatedDeltaNet { snapshots: p.size(0) }.into(),
        "LIGHTNING_INDEXER" => LightningIndexer.into(),
        "DSV4_HC_COMB" => Dsv4HcComb { eps: p.f32(0), iterations: p.0[1] as u32 }.into(),
        "DSV4_HC_PRE" => Dsv4HcPre { scale: p.f32(0), gated: p.bool(1) }.into(),
        "DSV4_HC_POST" => Dsv4HcPost.into(),
        "UNARY" => unary(text(&case["desc"]), &p).into(),
        "CROSS_ENTROPY_LOSS" => CrossEntropyLoss.into(),
        "CROSS_ENTROPY_LOSS_BACK" => CrossEntropyLossBack.into(),
        "OPT_STEP_ADAMW" => OptStepAdamw.into(),
        "OPT_STEP_SGD" => OptStepSgd.into(),
        "GLU" => Glu { kind: glu(text(&case["desc"]), &p), swapped: p.bool(1) }.into(),
        other => panic!("no op is called {other}"),
    }
}

#[rustfmt::skip]
fn unary(name: &str, p: &Words) -> Unary {
    use Unary::*;
    let xielu = Xielu { alpha_n: p.f32(1), alpha_p: p.f32(2), beta: p.f32(3), eps: p.f32(4) };
    let functions = [
        Abs, Sgn, Neg, Step, Tanh, Elu, Relu, Sigmoid, Gelu, GeluQuick, Silu, Hardswish, Hardsigmoid, Exp, Expm1,
        Softplus, GeluErf, xielu, Floor, Ceil, Round, Trunc,
    ];
    let function = *pick(&functions, p.size(0));
    assert_eq!(function.name(), name);
    function
}

fn glu(name: &str, p: &Words) -> GluKind {
    use GluKind::*;
    let (alpha, limit) = (p.f32(2), p.f32(3));
    let kinds =
        [Reglu, Geglu, Swiglu, SwigluOai { alpha, limit }, GegluErf, GegluQuick, SwigluClamp { limit }];
    let kind = *pick(&kinds, p.size(0));
    assert_eq!(kind.name(), name);
    kind
}
