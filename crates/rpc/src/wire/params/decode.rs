//! Words to an operation.

use oxcart_tensor::ops::*;
use oxcart_tensor::{Layout, Op, Shape};

use super::{HINTS, ORDERS, PLAIN_GLU, PLAIN_UNARY, POOLS, PRECISIONS, ParamError, ROPE_MODES, TRIANGLES};
use crate::wire::dialect::Dialect;
use crate::wire::limits::MAX_ITERATIONS;
use crate::wire::op_code::OpCode;

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
