//! The sixteen words in which an operation's parameters travel, to a typed [`Op`] and back.
//!
//! What ggml keeps only in the shape of a result (how often to repeat, how many rows) is taken from there. A word that has
//! no meaning for its operation is refused, so that a peer with another numbering shows at once.

use oxcart_tensor::ops::*;
use oxcart_tensor::{DType, Layout, Op, Shape};

use super::dialect::Dialect;
use super::limits::MAX_ITERATIONS;
use super::op_code::OpCode;

/// Why words do not make an operation, or an operation no words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamError {
    /// A word outside what its operation knows.
    #[error("{}: parameter {word} is {value}", op.name())]
    Word {
        /// The operation.
        op: OpCode,
        /// Which word.
        word: usize,
        /// What it holds.
        value: i32,
    },
    /// An operation that carries addresses of its sender.
    #[error("{} holds addresses of the sender's functions", op.name())]
    Callback {
        /// The operation.
        op: OpCode,
    },
    /// An operation, or a kind of it, that a dialect has no number for.
    #[error("{name} does not exist in dialect {dialect}")]
    Unknown {
        /// Its name.
        name: &'static str,
        /// The dialect.
        dialect: &'static str,
    },
    /// A number that does not fit its word.
    #[error("{name}: a parameter does not fit into 32 bits")]
    TooLarge {
        /// The operation.
        name: &'static str,
    },
}

/// What an operation's parameters are read from.
#[derive(Clone, Copy, Debug)]
pub struct Params<'a> {
    /// The dialect they are written in.
    pub dialect: &'a Dialect,
    /// The operation.
    pub op: OpCode,
    /// The words.
    pub words: [i32; 16],
    /// What the sender says the result looks like.
    pub result: Layout,
    /// What source 0 looks like, if there is one.
    pub first: Option<Layout>,
    /// Whether the node names itself as its second source, which is how a cast is written.
    pub names_itself: bool,
}

impl Params<'_> {
    fn bad<T>(&self, word: usize) -> Result<T, ParamError> {
        Err(ParamError::Word { op: self.op, word, value: self.words[word] })
    }

    fn f32(&self, word: usize) -> f32 {
        f32::from_bits(self.words[word].cast_unsigned())
    }

    fn bool(&self, word: usize) -> Result<bool, ParamError> {
        match self.words[word] {
            0 => Ok(false),
            1 => Ok(true),
            _ => self.bad(word),
        }
    }

    fn size(&self, word: usize) -> Result<usize, ParamError> {
        usize::try_from(self.words[word]).or_else(|_| self.bad(word))
    }

    fn sizes<const N: usize>(&self, from: usize) -> Result<[u32; N], ParamError> {
        let mut sizes = [0; N];
        for (i, size) in sizes.iter_mut().enumerate() {
            *size = u32::try_from(self.words[from + i]).or_else(|_| self.bad(from + i))?;
        }
        Ok(sizes)
    }

    fn one_of<T: Copy>(&self, word: usize, choices: &[(i32, T)]) -> Result<T, ParamError> {
        let value = self.words[word];
        choices
            .iter()
            .find_map(|&(number, choice)| (number == value).then_some(choice))
            .map_or_else(|| self.bad(word), Ok)
    }

    fn precision(&self, word: usize) -> Result<Precision, ParamError> {
        self.one_of(word, &PRECISIONS)
    }

    /// Strides, then pads, then dilations, each `N` words.
    fn geometry<const N: usize>(&self) -> Result<ConvGeometry<N>, ParamError> {
        Ok(ConvGeometry { stride: self.sizes(0)?, pad: self.sizes(N)?, dilation: self.sizes(2 * N)? })
    }

    fn im2col(&self) -> Result<Im2colGeometry, ParamError> {
        if self.bool(6)? {
            return Ok(Im2colGeometry::Plane(self.geometry()?));
        }
        let ConvGeometry { stride: [stride, _], pad: [pad, _], dilation: [dilation, _] } = self.geometry()?;
        Ok(Im2colGeometry::Line(ConvGeometry { stride: [stride], pad: [pad], dilation: [dilation] }))
    }

    /// Kernels, then strides, then pads, each `N` words after the kind.
    fn pool<const N: usize>(&self) -> Result<PoolWindow<N>, ParamError> {
        Ok(PoolWindow { kernel: self.sizes(1)?, stride: self.sizes(1 + N)?, pad: self.sizes(1 + 2 * N)? })
    }

    fn region(&self) -> Result<Region, ParamError> {
        let [a, b, c] = [self.size(0)?, self.size(1)?, self.size(2)?];
        Ok(Region { strides: [a, b, c], offset: self.size(3)? })
    }

    fn rope(&self) -> Result<Rope, ParamError> {
        Ok(Rope {
            n_dims: self.size(1)?,
            mode: self.one_of(2, &ROPE_MODES)?,
            n_ctx_orig: self.size(4)?,
            freq_base: self.f32(5),
            freq_scale: self.f32(6),
            ext_factor: self.f32(7),
            attn_factor: self.f32(8),
            beta_fast: self.f32(9),
            beta_slow: self.f32(10),
            sections: self.sizes(11)?,
            first_channel: self.size(15)?,
        })
    }

    fn upscale(&self, ne: Shape) -> Result<Upscale, ParamError> {
        const ALIGN_CORNERS: i32 = 256;
        const ANTIALIAS: i32 = 512;
        let word = self.words[0];
        if word & !(0xff | ALIGN_CORNERS | ANTIALIAS) != 0 {
            return self.bad(0);
        }
        let mode = match word & 0xff {
            0 => ScaleMode::Nearest,
            1 => ScaleMode::Bilinear,
            2 if !self.dialect.is_classic => ScaleMode::Bicubic,
            _ => return self.bad(0),
        };
        Ok(Upscale { ne, mode, align_corners: word & ALIGN_CORNERS != 0, antialias: word & ANTIALIAS != 0 })
    }

    fn pad(&self) -> Result<Pad, ParamError> {
        let (mut left, mut right) = ([0; 4], [0; 4]);
        if self.dialect.is_classic {
            // Only at the end, and as much as the result is larger.
            let from = self.first.map_or([0; 4], |first| first.ne().extents());
            for (dim, right) in right.iter_mut().enumerate() {
                *right = self.result.ne()[dim].saturating_sub(from[dim]);
            }
            return Ok(Pad { left, right, circular: false });
        }
        for dim in 0..4 {
            (left[dim], right[dim]) = (self.size(2 * dim)?, self.size(2 * dim + 1)?);
        }
        Ok(Pad { left, right, circular: self.bool(8)? })
    }

    fn unary(&self) -> Result<Unary, ParamError> {
        let name = self.size(0).ok().and_then(|number| self.dialect.unary.get(number).copied());
        let xielu =
            Unary::Xielu { alpha_n: self.f32(1), alpha_p: self.f32(2), beta: self.f32(3), eps: self.f32(4) };
        let known = PLAIN_UNARY.iter().copied().chain([xielu]).find(|unary| Some(unary.name()) == name);
        known.map_or_else(|| self.bad(0), Ok)
    }

    fn glu(&self) -> Result<Glu, ParamError> {
        let name = self.size(0).ok().and_then(|number| self.dialect.glu.get(number).copied());
        let (alpha, limit) = (self.f32(2), self.f32(3));
        let limited = [GluKind::SwigluOai { alpha, limit }, GluKind::SwigluClamp { limit }];
        let known = PLAIN_GLU.iter().copied().chain(limited).find(|kind| Some(kind.name()) == name);
        let kind = known.map_or_else(|| self.bad(0), Ok)?;
        Ok(Glu { kind, swapped: self.bool(1)? })
    }

    /// How many states a recurrence keeps; older dialects leave the word empty and mean one.
    fn snapshots(&self) -> Result<usize, ParamError> {
        Ok(self.size(0)?.max(1))
    }

    /// The operation.
    pub fn decode(&self) -> Result<Op, ParamError> {
        let (ne, dtype) = (self.result.ne(), self.result.dtype());
        Ok(match self.op {
            OpCode::None => Op::None,
            OpCode::Dup => Dup.into(),
            OpCode::Add => Add.into(),
            OpCode::AddId => AddId.into(),
            OpCode::Add1 => Add1.into(),
            OpCode::Acc => Acc(self.region()?).into(),
            OpCode::Sub => Sub.into(),
            OpCode::Mul => Mul.into(),
            OpCode::Div => Div.into(),
            OpCode::Sqr => Sqr.into(),
            OpCode::Sqrt => Sqrt.into(),
            OpCode::Log => Log.into(),
            OpCode::Sin => Sin.into(),
            OpCode::Cos => Cos.into(),
            OpCode::Sum => Sum.into(),
            OpCode::SumRows => SumRows.into(),
            OpCode::Cumsum => Cumsum.into(),
            OpCode::Mean => Mean.into(),
            OpCode::Argmax => Argmax.into(),
            OpCode::CountEqual => CountEqual.into(),
            OpCode::Repeat => Repeat { ne }.into(),
            OpCode::RepeatBack => RepeatBack { ne }.into(),
            OpCode::Concat => Concat { dim: self.size(0)? }.into(),
            OpCode::SiluBack => SiluBack.into(),
            OpCode::Norm => Norm { eps: self.f32(0) }.into(),
            OpCode::RmsNorm => RmsNorm { eps: self.f32(0) }.into(),
            OpCode::RmsNormBack => RmsNormBack { eps: self.f32(0) }.into(),
            OpCode::GroupNorm => GroupNorm { groups: self.size(0)?, eps: self.f32(1) }.into(),
            OpCode::L2Norm => L2Norm { eps: self.f32(0) }.into(),
            OpCode::MulMat => MulMat {
                accumulate: self.precision(0)?,
                hint: self.one_of(1, &HINTS)?,
                weights: self.precision(2)?,
                activations: self.precision(3)?,
            }
            .into(),
            OpCode::MulMatId => MulMatId {
                accumulate: self.precision(0)?,
                weights: self.precision(2)?,
                activations: self.precision(3)?,
            }
            .into(),
            OpCode::OutProd => OutProd.into(),
            OpCode::Scale => Scale { scale: self.f32(0), bias: self.f32(1) }.into(),
            OpCode::Set => Set(self.region()?).into(),
            OpCode::Cpy if self.names_itself => Cast { dtype }.into(),
            OpCode::Cpy => Cpy.into(),
            OpCode::Cont => Cont { ne }.into(),
            OpCode::Reshape => Reshape { ne }.into(),
            OpCode::View => {
                let words = [self.words[0], self.words[1]].map(|word| u64::from(word.cast_unsigned()));
                let offset = usize::try_from(words[0] | words[1] << 32).or_else(|_| self.bad(1))?;
                View { ne, nb: self.result.nb(), offset }.into()
            }
            OpCode::Permute => {
                Permute { axes: [self.size(0)?, self.size(1)?, self.size(2)?, self.size(3)?] }.into()
            }
            OpCode::Transpose => Transpose.into(),
            OpCode::GetRows => GetRows.into(),
            OpCode::GetRowsBack => GetRowsBack { rows: ne[1] }.into(),
            OpCode::SetRows => SetRows.into(),
            OpCode::Diag => Diag.into(),
            OpCode::DiagMaskInf => DiagMaskInf { n_past: self.size(0)? }.into(),
            OpCode::DiagMaskZero => DiagMaskZero { n_past: self.size(0)? }.into(),
            OpCode::SoftMax => SoftMax { scale: self.f32(0), max_bias: self.f32(1) }.into(),
            // A gradient with ALiBi has no meaning; zero is the only bias it knows.
            OpCode::SoftMaxBack if self.f32(1) != 0.0 => return self.bad(1),
            OpCode::SoftMaxBack => SoftMaxBack { scale: self.f32(0) }.into(),
            OpCode::Rope => self.rope()?.into(),
            OpCode::RopeBack => RopeBack(self.rope()?).into(),
            OpCode::Clamp => Clamp { min: self.f32(0), max: self.f32(1) }.into(),
            OpCode::ConvTranspose1d => match (self.words[1], self.words[2]) {
                (0, 1) => ConvTranspose1d { stride: self.size(0)? }.into(),
                (0, _) => return self.bad(2),
                _ => return self.bad(1),
            },
            OpCode::Im2col => Im2col { geometry: self.im2col()?, dtype }.into(),
            OpCode::Im2colBack => Im2colBack { geometry: self.im2col()?, ne }.into(),
            OpCode::Im2col3d => {
                Im2col3d { geometry: self.geometry()?, channels: self.size(9)?, dtype }.into()
            }
            OpCode::Col2im1d => {
                Col2im1d { stride: self.size(0)?, channels: self.size(1)?, crop: self.size(2)? }.into()
            }
            OpCode::Conv2d => Conv2d { geometry: self.geometry()? }.into(),
            OpCode::Conv3d => {
                let (channels, batch, filters) = (self.size(9)?, self.size(10)?, self.size(11)?);
                Conv3d { geometry: self.geometry()?, channels, batch, filters }.into()
            }
            OpCode::Conv2dDw => Conv2dDw { geometry: self.geometry()? }.into(),
            OpCode::ConvTranspose2d => ConvTranspose2d { stride: self.size(0)? }.into(),
            OpCode::Pool1d => Pool1d { kind: self.one_of(0, &POOLS)?, window: self.pool()? }.into(),
            OpCode::Pool2d => Pool2d { kind: self.one_of(0, &POOLS)?, window: self.pool()? }.into(),
            OpCode::Pool2dBack => Pool2dBack { kind: self.one_of(0, &POOLS)?, window: self.pool()? }.into(),
            OpCode::Upscale => self.upscale(ne)?.into(),
            OpCode::Pad => self.pad()?.into(),
            OpCode::PadReflect1d => PadReflect1d { left: self.size(0)?, right: self.size(1)? }.into(),
            OpCode::Roll => {
                Roll { shift: [self.words[0], self.words[1], self.words[2], self.words[3]] }.into()
            }
            OpCode::Arange => Arange { start: self.f32(0), stop: self.f32(1), step: self.f32(2) }.into(),
            OpCode::TimestepEmbedding => {
                let [max_period] = self.sizes(1)?;
                TimestepEmbedding { dim: self.size(0)?, max_period }.into()
            }
            OpCode::Argsort => Argsort { order: self.one_of(0, &ORDERS)? }.into(),
            OpCode::TopK => TopK { k: ne[0] }.into(),
            OpCode::LeakyRelu => LeakyRelu { slope: self.f32(0) }.into(),
            OpCode::Tri => Tri { keep: self.one_of(0, &TRIANGLES)? }.into(),
            OpCode::Fill => Fill { value: self.f32(0) }.into(),
            OpCode::FlashAttnExt => FlashAttnExt {
                scale: self.f32(0),
                max_bias: self.f32(1),
                softcap: self.f32(2),
                precision: self.precision(3)?,
                n_kv_max: self.size(4)?,
            }
            .into(),
            OpCode::PagedAttn => PagedAttn {
                key_heads: self.size(0)?,
                scale: self.f32(1),
                softcap: self.f32(2),
                max_bias: self.f32(3),
                window: self.size(4)?,
                chunk: self.size(5)?,
            }
            .into(),
            OpCode::FlashAttnBack => FlashAttnBack { masked: self.bool(0)? }.into(),
            OpCode::SsmConv => SsmConv.into(),
            OpCode::SsmScan => {
                let grouping = if self.dialect.is_classic { Grouping::InTurn } else { Grouping::Neighbours };
                SsmScan { snapshots: self.snapshots()?, grouping }.into()
            }
            OpCode::WinPart => WinPart { window: self.size(2)? }.into(),
            OpCode::WinUnpart => WinUnpart { width: ne[1], height: ne[2], window: self.size(0)? }.into(),
            OpCode::GetRelPos => GetRelPos { size: ne[1] }.into(),
            OpCode::AddRelPos => AddRelPos.into(),
            OpCode::RwkvWkv6 => RwkvWkv6.into(),
            OpCode::GatedLinearAttn => GatedLinearAttn { scale: self.f32(0) }.into(),
            OpCode::RwkvWkv7 => RwkvWkv7.into(),
            OpCode::SolveTri => SolveTri.into(),
            OpCode::GatedDeltaNet => GatedDeltaNet { snapshots: self.snapshots()? }.into(),
            OpCode::LightningIndexer => LightningIndexer.into(),
            OpCode::Dsv4HcComb => {
                let [iterations] = self.sizes(1)?;
                if iterations > MAX_ITERATIONS {
                    return self.bad(1);
                }
                Dsv4HcComb { eps: self.f32(0), iterations }.into()
            }
            // Before writes went unanswered, this one had no parameters.
            OpCode::Dsv4HcPre if self.dialect.answers_writes => Dsv4HcPre { scale: 1.0, gated: false }.into(),
            OpCode::Dsv4HcPre => Dsv4HcPre { scale: self.f32(0), gated: self.bool(1)? }.into(),
            OpCode::Dsv4HcPost => Dsv4HcPost.into(),
            OpCode::Unary => self.unary()?.into(),
            OpCode::CrossEntropyLoss => CrossEntropyLoss.into(),
            OpCode::CrossEntropyLossBack => CrossEntropyLossBack.into(),
            OpCode::OptStepAdamw => OptStepAdamw.into(),
            OpCode::OptStepSgd => OptStepSgd.into(),
            OpCode::Glu => self.glu()?.into(),
            OpCode::MapCustom1 | OpCode::MapCustom2 | OpCode::MapCustom3 | OpCode::Custom => {
                return Err(ParamError::Callback { op: self.op });
            }
        })
    }
}

const PRECISIONS: [(i32, Precision); 6] = [
    (0, Precision::Any),
    (10, Precision::F32),
    (15, Precision::Bf16),
    (20, Precision::F16),
    (30, Precision::Q8),
    (40, Precision::Q4),
];
const HINTS: [(i32, Hint); 2] = [(0, Hint::None), (1, Hint::Hadamard)];
const POOLS: [(i32, PoolKind); 2] = [(0, PoolKind::Max), (1, PoolKind::Avg)];
const ORDERS: [(i32, SortOrder); 2] = [(0, SortOrder::Ascending), (1, SortOrder::Descending)];
const TRIANGLES: [(i32, Triangle); 4] = [
    (0, Triangle::UpperWithDiagonal),
    (1, Triangle::Upper),
    (2, Triangle::LowerWithDiagonal),
    (3, Triangle::Lower),
];
const ROPE_MODES: [(i32, RopeMode); 5] = [
    (0, RopeMode::Normal),
    (2, RopeMode::Neox),
    (8, RopeMode::Mrope),
    (24, RopeMode::Vision),
    (40, RopeMode::Imrope),
];
#[rustfmt::skip]
const PLAIN_UNARY: [Unary; 21] = {
    use Unary::*;
    [
        Abs, Sgn, Neg, Step, Tanh, Elu, Relu, Sigmoid, Gelu, GeluQuick, Silu, Hardswish, Hardsigmoid, Exp, Expm1,
        Softplus, GeluErf, Floor, Ceil, Round, Trunc,
    ]
};
const PLAIN_GLU: [GluKind; 5] =
    [GluKind::Reglu, GluKind::Geglu, GluKind::Swiglu, GluKind::GegluErf, GluKind::GegluQuick];

fn number_of<T: PartialEq>(choice: T, choices: &[(i32, T)]) -> i32 {
    choices
        .iter()
        .find_map(|(number, known)| (*known == choice).then_some(*number))
        .unwrap_or_else(|| unreachable!("every choice is listed"))
}

/// Words under construction.
struct Writer {
    name: &'static str,
    words: [i32; 16],
}

impl Writer {
    fn f32(&mut self, word: usize, value: f32) {
        self.words[word] = value.to_bits().cast_signed();
    }

    fn bool(&mut self, word: usize, value: bool) {
        self.words[word] = i32::from(value);
    }

    fn size(&mut self, word: usize, value: usize) -> Result<(), ParamError> {
        self.words[word] = i32::try_from(value).map_err(|_| ParamError::TooLarge { name: self.name })?;
        Ok(())
    }

    fn sizes(&mut self, from: usize, values: &[u32]) -> Result<(), ParamError> {
        for (i, &value) in values.iter().enumerate() {
            self.words[from + i] =
                i32::try_from(value).map_err(|_| ParamError::TooLarge { name: self.name })?;
        }
        Ok(())
    }

    fn geometry<const N: usize>(&mut self, geometry: &ConvGeometry<N>) -> Result<(), ParamError> {
        self.sizes(0, &geometry.stride)?;
        self.sizes(N, &geometry.pad)?;
        self.sizes(2 * N, &geometry.dilation)
    }

    fn im2col(&mut self, geometry: &Im2colGeometry) -> Result<(), ParamError> {
        match geometry {
            Im2colGeometry::Plane(geometry) => {
                self.bool(6, true);
                self.geometry(geometry)
            }
            Im2colGeometry::Line(ConvGeometry { stride: [stride], pad: [pad], dilation: [dilation] }) => self
                .geometry(&ConvGeometry { stride: [*stride, 0], pad: [*pad, 0], dilation: [*dilation, 0] }),
        }
    }

    fn pool<const N: usize>(&mut self, kind: PoolKind, window: &PoolWindow<N>) -> Result<(), ParamError> {
        self.words[0] = number_of(kind, &POOLS);
        self.sizes(1, &window.kernel)?;
        self.sizes(1 + N, &window.stride)?;
        self.sizes(1 + 2 * N, &window.pad)
    }

    fn region(&mut self, region: &Region, in_place: bool) -> Result<(), ParamError> {
        for (word, &stride) in region.strides.iter().enumerate() {
            // A stride over one element means nothing and may be of any size.
            self.words[word] = i32::try_from(stride).unwrap_or(0);
        }
        self.bool(4, in_place);
        self.size(3, region.offset)
    }

    fn rope(&mut self, rope: &Rope) -> Result<(), ParamError> {
        self.size(1, rope.n_dims)?;
        self.words[2] = number_of(rope.mode, &ROPE_MODES);
        self.size(4, rope.n_ctx_orig)?;
        self.f32(5, rope.freq_base);
        self.f32(6, rope.freq_scale);
        self.f32(7, rope.ext_factor);
        self.f32(8, rope.attn_factor);
        self.f32(9, rope.beta_fast);
        self.f32(10, rope.beta_slow);
        self.sizes(11, &rope.sections)?;
        self.size(15, rope.first_channel)
    }
}

/// The words of an operation, and what it is called on the wire. `in_place` says that the result is a view of source 0,
/// `first` what that source looks like.
pub fn encode_params(
    op: &Op,
    in_place: bool,
    first: Option<&Layout>,
    dialect: &Dialect,
) -> Result<(OpCode, [i32; 16]), ParamError> {
    let name = op.name();
    let unknown = ParamError::Unknown { name, dialect: dialect.name };
    let code = code_of(op).filter(|&code| dialect.op_number(code).is_some()).ok_or(unknown)?;
    let mut w = Writer { name, words: [0; 16] };
    match op {
        Op::Acc(Acc(region)) | Op::Set(Set(region)) => w.region(region, in_place)?,
        Op::Concat(op) => w.size(0, op.dim)?,
        Op::LeakyRelu(op) => w.f32(0, op.slope),
        Op::Unary(unary) => {
            w.words[0] = position(unary.name(), dialect.unary, dialect)?;
            if let Unary::Xielu { alpha_n, alpha_p, beta, eps } = *unary {
                [alpha_n, alpha_p, beta, eps]
                    .into_iter()
                    .zip(1..)
                    .for_each(|(value, word)| w.f32(word, value));
            }
        }
        Op::Glu(glu) => {
            w.words[0] = position(glu.kind.name(), dialect.glu, dialect)?;
            w.bool(1, glu.swapped);
            match glu.kind {
                GluKind::SwigluOai { alpha, limit } => {
                    w.f32(2, alpha);
                    w.f32(3, limit);
                }
                GluKind::SwigluClamp { limit } => w.f32(3, limit),
                _ => {}
            }
        }
        Op::Norm(Norm { eps })
        | Op::RmsNorm(RmsNorm { eps })
        | Op::RmsNormBack(RmsNormBack { eps })
        | Op::L2Norm(L2Norm { eps }) => w.f32(0, *eps),
        Op::GroupNorm(op) => {
            w.size(0, op.groups)?;
            w.f32(1, op.eps);
        }
        Op::MulMat(op) => {
            w.words[0] = number_of(op.accumulate, &PRECISIONS);
            w.words[1] = number_of(op.hint, &HINTS);
            w.words[2] = number_of(op.weights, &PRECISIONS);
            w.words[3] = number_of(op.activations, &PRECISIONS);
        }
        Op::MulMatId(op) => {
            w.words[0] = number_of(op.accumulate, &PRECISIONS);
            w.words[2] = number_of(op.weights, &PRECISIONS);
            w.words[3] = number_of(op.activations, &PRECISIONS);
        }
        Op::Scale(op) => {
            w.f32(0, op.scale);
            w.f32(1, op.bias);
        }
        Op::View(op) => {
            let offset = op.offset as u64;
            w.words[0] = (offset as u32).cast_signed();
            w.words[1] = ((offset >> 32) as u32).cast_signed();
        }
        Op::Permute(op) => {
            for (word, &axis) in op.axes.iter().enumerate() {
                w.size(word, axis)?;
            }
        }
        Op::DiagMaskInf(DiagMaskInf { n_past }) | Op::DiagMaskZero(DiagMaskZero { n_past }) => {
            w.size(0, *n_past)?
        }
        Op::SoftMax(op) => {
            w.f32(0, op.scale);
            w.f32(1, op.max_bias);
        }
        Op::SoftMaxBack(op) => w.f32(0, op.scale),
        Op::Rope(rope) | Op::RopeBack(RopeBack(rope)) => w.rope(rope)?,
        Op::Clamp(op) => {
            w.f32(0, op.min);
            w.f32(1, op.max);
        }
        Op::ConvTranspose1d(op) => {
            w.size(0, op.stride)?;
            w.words[2] = 1;
        }
        Op::Im2col(op) => w.im2col(&op.geometry)?,
        Op::Im2colBack(op) => w.im2col(&op.geometry)?,
        Op::Im2col3d(op) => {
            w.geometry(&op.geometry)?;
            w.size(9, op.channels)?;
        }
        Op::Col2im1d(op) => {
            w.size(0, op.stride)?;
            w.size(1, op.channels)?;
            w.size(2, op.crop)?;
        }
        Op::Conv2d(Conv2d { geometry }) | Op::Conv2dDw(Conv2dDw { geometry }) => w.geometry(geometry)?,
        Op::Conv3d(op) => {
            w.geometry(&op.geometry)?;
            w.size(9, op.channels)?;
            w.size(10, op.batch)?;
            w.size(11, op.filters)?;
        }
        Op::ConvTranspose2d(op) => w.size(0, op.stride)?,
        Op::Pool1d(op) => w.pool(op.kind, &op.window)?,
        Op::Pool2d(op) => w.pool(op.kind, &op.window)?,
        Op::Pool2dBack(op) => w.pool(op.kind, &op.window)?,
        Op::Upscale(op) => {
            let mode = match op.mode {
                ScaleMode::Nearest => 0,
                ScaleMode::Bilinear => 1,
                ScaleMode::Bicubic => 2,
            };
            w.words[0] = mode | i32::from(op.align_corners) << 8 | i32::from(op.antialias) << 9;
        }
        Op::Pad(op) if dialect.is_classic && (op.circular || op.left != [0; 4]) => {
            return Err(ParamError::Unknown { name, dialect: dialect.name });
        }
        Op::Pad(_) if dialect.is_classic => {}
        Op::Pad(op) => {
            for dim in 0..4 {
                w.size(2 * dim, op.left[dim])?;
                w.size(2 * dim + 1, op.right[dim])?;
            }
            w.bool(8, op.circular);
        }
        Op::PadReflect1d(op) => {
            w.size(0, op.left)?;
            w.size(1, op.right)?;
        }
        Op::Roll(op) => w.words[..4].copy_from_slice(&op.shift),
        Op::Arange(op) => {
            w.f32(0, op.start);
            w.f32(1, op.stop);
            w.f32(2, op.step);
        }
        Op::TimestepEmbedding(op) => {
            w.size(0, op.dim)?;
            w.sizes(1, &[op.max_period])?;
        }
        Op::Argsort(op) => w.words[0] = number_of(op.order, &ORDERS),
        Op::Tri(op) => w.words[0] = number_of(op.keep, &TRIANGLES),
        Op::Fill(op) => w.f32(0, op.value),
        Op::FlashAttnExt(op) => {
            w.f32(0, op.scale);
            w.f32(1, op.max_bias);
            w.f32(2, op.softcap);
            w.words[3] = number_of(op.precision, &PRECISIONS);
            // Only a hint, and unknown to most dialects.
            if !dialect.answers_writes {
                w.size(4, op.n_kv_max)?;
            }
        }
        Op::PagedAttn(op) => {
            w.size(0, op.key_heads)?;
            w.f32(1, op.scale);
            w.f32(2, op.softcap);
            w.f32(3, op.max_bias);
            w.size(4, op.window)?;
            w.size(5, op.chunk)?;
        }
        Op::FlashAttnBack(op) => w.bool(0, op.masked),
        // Older dialects keep exactly one state and leave the word empty.
        Op::SsmScan(SsmScan { grouping: Grouping::InTurn, .. }) if !dialect.is_classic => {
            return Err(ParamError::Unknown { name, dialect: dialect.name });
        }
        Op::SsmScan(SsmScan { snapshots, .. }) | Op::GatedDeltaNet(GatedDeltaNet { snapshots }) => {
            match (dialect.has_use_counts, snapshots) {
                (true, _) => w.size(0, *snapshots)?,
                (false, 1) => {}
                (false, _) => return Err(ParamError::Unknown { name, dialect: dialect.name }),
            }
        }
        Op::WinPart(op) => {
            // How many windows there are follows from the image; peers read it all the same.
            let image = first.map_or([0; 4], |first| first.ne().extents());
            w.size(0, image[1].div_ceil(op.window.max(1)))?;
            w.size(1, image[2].div_ceil(op.window.max(1)))?;
            w.size(2, op.window)?;
        }
        Op::WinUnpart(op) => w.size(0, op.window)?,
        Op::AddRelPos(_) => w.bool(0, in_place),
        Op::GatedLinearAttn(op) => w.f32(0, op.scale),
        // No worker of ours takes it.
        Op::Dsv4HcComb(op) if op.iterations > MAX_ITERATIONS => {
            return Err(ParamError::Unknown { name, dialect: dialect.name });
        }
        Op::Dsv4HcComb(op) => {
            w.f32(0, op.eps);
            w.sizes(1, &[op.iterations])?;
        }
        Op::Dsv4HcPre(op) if dialect.answers_writes && (op.gated || op.scale != 1.0) => {
            return Err(ParamError::Unknown { name, dialect: dialect.name });
        }
        Op::Dsv4HcPre(_) if dialect.answers_writes => {}
        Op::Dsv4HcPre(op) => {
            w.f32(0, op.scale);
            w.bool(1, op.gated);
        }
        _ => {}
    }
    Ok((code, w.words))
}

/// The position of a function in a dialect's list.
fn position(name: &'static str, list: &[&str], dialect: &Dialect) -> Result<i32, ParamError> {
    (0..)
        .zip(list)
        .find_map(|(number, &known)| (known == name).then_some(number))
        .ok_or(ParamError::Unknown { name, dialect: dialect.name })
}

/// What an operation is called on the wire.
fn code_of(op: &Op) -> Option<OpCode> {
    // A cast travels as a copy into itself.
    let name = if matches!(op, Op::Cast(_)) { Cpy::INFO.name } else { op.name() };
    OpCode::named(name)
}

/// Types that a dialect has.
impl Dialect {
    /// The type with this number, if the dialect has it.
    pub fn dtype(&self, number: u32) -> Option<DType> {
        oxcart_tensor::dtype_from_id(number).filter(|_| number < self.type_count)
    }

    /// The number of a type, if the dialect has it.
    pub fn dtype_number(&self, dtype: DType) -> Option<u32> {
        Some(oxcart_tensor::dtype_id(dtype)).filter(|&number| number < self.type_count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_op_has_a_code_and_every_code_an_op() {
        let names: Vec<_> = Op::ALL.iter().map(|info| info.name).collect();
        for name in &names {
            assert!(OpCode::named(name).is_some() || *name == Cast::INFO.name, "{name}");
        }
        for code in OpCode::GGML.iter().chain(OpCode::OWN) {
            let callback = code.name().contains("CUSTOM");
            assert!(callback || code == &OpCode::None || names.contains(&code.name()), "{}", code.name());
        }
    }

    fn params(op: OpCode, words: [i32; 16], dialect: &'static Dialect) -> Params<'static> {
        let result = Layout::packed(DType::F32, [8, 4, 2, 1]).unwrap();
        Params { dialect, op, words, result, first: Some(result), names_itself: false }
    }

    #[test]
    fn words_out_of_range_are_refused() {
        let refused = |op, word: usize, value| {
            let mut words = [0; 16];
            words[word] = value;
            assert_eq!(
                params(op, words, Dialect::newest()).decode(),
                Err(ParamError::Word { op, word, value }),
                "{} {word} {value}",
                op.name()
            );
        };
        for value in [-1, 22, i32::MAX, i32::MIN] {
            refused(OpCode::Unary, 0, value);
        }
        refused(OpCode::Glu, 0, 7);
        refused(OpCode::Glu, 1, 2);
        refused(OpCode::MulMat, 0, 11);
        refused(OpCode::MulMat, 1, 2);
        refused(OpCode::Rope, 2, 1);
        refused(OpCode::Rope, 1, -2);
        refused(OpCode::Argsort, 0, 2);
        refused(OpCode::Tri, 0, 4);
        refused(OpCode::Pool2d, 0, 2);
        refused(OpCode::Upscale, 0, 3);
        refused(OpCode::Upscale, 0, 1024);
        refused(OpCode::Acc, 3, -4);
    }

    #[test]
    fn callbacks_are_refused_in_every_numbering() {
        for dialect in Dialect::all() {
            for (number, &op) in (0..).zip(dialect.ops).filter(|(_, op)| op.name().contains("CUSTOM")) {
                assert_eq!(dialect.op(number), Some(op));
                let decoded = params(op, [0; 16], dialect).decode();
                assert_eq!(decoded, Err(ParamError::Callback { op }));
            }
        }
    }

    #[test]
    fn what_a_dialect_lacks_is_refused_when_written() {
        let classic = Dialect::classic();
        let unknown =
            |op: Op| matches!(encode_params(&op, false, None, classic), Err(ParamError::Unknown { .. }));
        assert!(unknown(Unary::Floor.into()));
        assert!(unknown(TopK { k: 3 }.into()));
        let scan = SsmScan { snapshots: 1, grouping: Grouping::InTurn };
        assert!(unknown(SsmScan { snapshots: 2, ..scan }.into()));
        assert!(!unknown(scan.into()));
        assert_eq!(params(OpCode::SsmScan, [0; 16], classic).decode(), Ok(scan.into()));
        assert!(encode_params(&scan.into(), false, None, Dialect::newest()).is_err());
        let rounds = |iterations| {
            let op = Dsv4HcComb { eps: 1e-6, iterations };
            encode_params(&op.into(), false, None, Dialect::newest()).is_ok()
        };
        assert!(rounds(MAX_ITERATIONS) && !rounds(MAX_ITERATIONS + 1));
        assert!(unknown(Pad { left: [1, 0, 0, 0], right: [0; 4], circular: false }.into()));
        let erf = |dialect| encode_params(&Unary::GeluErf.into(), false, None, dialect).unwrap().1[0];
        assert_eq!(erf(classic), 14);
        assert_eq!(erf(Dialect::newest()), 16);
    }
}
