//! An operation to words.

use oxcart_tensor::ops::*;
use oxcart_tensor::{Layout, Op};

use super::{HINTS, ORDERS, POOLS, PRECISIONS, ParamError, ROPE_MODES, TRIANGLES};
use crate::wire::dialect::Dialect;
use crate::wire::limits::MAX_ITERATIONS;
use crate::wire::op_code::OpCode;

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
