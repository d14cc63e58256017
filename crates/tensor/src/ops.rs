//! Every operation: its parameters, its sources, its rules and its result.
//!
//! One file per family, and in it for each op one struct (its parameters) with an [`Operation`] impl (its description
//! and its checks) and one constructor method on [`Graph`](crate::Graph). To add an op, write those in the file of
//! its family and name it below, in the `pub use` of its file and in the `operations!` list; then two tests fail until
//! the table of its family covers it. Nothing else in this crate changes.
//!
//! Invariant: [`Operation::infer`] accepts exactly the sources and parameters with which the op has a meaning, so that a
//! kernel needs no checks of its own except for index values that live in tensor data.

mod arrange;
mod attention;
mod binary;
mod check;
mod conv;
mod copy;
mod delta_net;
mod error;
mod fill;
mod glu;
mod hyper_connections;
mod image;
mod map;
mod matmul;
mod norm;
mod pool;
mod recurrent;
mod reduce;
mod region;
mod rope;
mod rows;
mod soft_max;
mod sort;
mod train;
mod unary;
mod view;
mod work;

pub use arrange::{Concat, Diag, Pad, PadReflect1d, Repeat, RepeatBack, Roll};
pub use attention::{FlashAttnBack, FlashAttnExt, LightningIndexer, PagedAttn};
pub use binary::{Add, Add1, AddId, Div, Mul, Sub};
pub use check::{Args, Operand, Source};
pub use conv::{
    Col2im1d, Conv2d, Conv2dDw, Conv3d, ConvGeometry, ConvTranspose1d, ConvTranspose2d, Im2col, Im2col3d,
    Im2colBack, Im2colGeometry,
};
pub use copy::{Cast, Cont, Cpy, Dup};
pub use delta_net::{GatedDeltaNet, SolveTri};
pub use error::{OpError, Reason, WantedDType};
pub use fill::{Arange, DiagMaskInf, DiagMaskZero, Fill, TimestepEmbedding, Tri, Triangle};
pub use glu::{Glu, GluKind, SiluBack};
pub use hyper_connections::{Dsv4HcComb, Dsv4HcPost, Dsv4HcPre};
pub use image::{AddRelPos, GetRelPos, ScaleMode, Upscale, WinPart, WinUnpart};
pub use map::{Clamp, Cos, LeakyRelu, Log, Scale, Sin, Sqr, Sqrt};
pub use matmul::{Hint, MulMat, MulMatId, OutProd, Precision};
pub use norm::{GroupNorm, L2Norm, Norm, RmsNorm, RmsNormBack};
pub use pool::{Pool1d, Pool2d, Pool2dBack, PoolKind, PoolWindow};
pub use recurrent::{GatedLinearAttn, Grouping, RwkvWkv6, RwkvWkv7, SsmConv, SsmScan};
pub use reduce::{Argmax, CountEqual, Cumsum, Mean, Sum, SumRows};
pub use region::{Acc, Region, Set};
pub use rope::{Rope, RopeBack, RopeMode};
pub use rows::{GetRows, GetRowsBack, SetRows};
pub use soft_max::{SoftMax, SoftMaxBack};
pub use sort::{Argsort, SortOrder, TopK};
pub use train::{CrossEntropyLoss, CrossEntropyLossBack, OptStepAdamw, OptStepSgd};
pub use unary::Unary;
pub use view::{Permute, Reshape, Transpose, View};
pub use work::Sizes;

use crate::layout::Layout;

/// Which programs use an op; it decides nothing, but tells a reader where an op belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Category {
    /// Decoder language models and embeddings.
    Language,
    /// State-space, RWKV and delta-net models.
    Recurrent,
    /// Vision, audio and diffusion.
    Vision,
    /// Training and backward passes.
    Training,
}

/// One place for a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceInfo {
    /// The name that errors use.
    pub name: &'static str,
    /// Whether a node may do without it.
    pub optional: bool,
}

/// What is true of an op whatever its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpInfo {
    /// ggml's name, for example `MUL_MAT`.
    pub name: &'static str,
    /// Which programs use it.
    pub category: Category,
    /// Its sources, in ggml's order.
    pub sources: &'static [SourceInfo],
    /// Whether running a graph does anything for it; views only relabel memory.
    pub computes: bool,
    /// Whether a caller may ask for the result to share the memory of source 0.
    pub in_place: bool,
    /// Slot of the source that the result of a node shares memory with, where it shares any: that of an op that changes one of
    /// its sources, else 0. No kernel expects another source to be the result, unless the op also `reuses` it.
    pub result_in: usize,
    /// Slots of sources whose memory a planner may give to the result when they die and have the same layout. Kernels of the op
    /// are correct when the result is any one of them, so they read of it only what they are about to write.
    pub reuses: &'static [usize],
    /// Slots of sources that the op writes to besides its result. No two of what an op writes share memory.
    pub also_writes: &'static [usize],
}

impl OpInfo {
    const fn new(name: &'static str, category: Category, sources: &'static [SourceInfo]) -> OpInfo {
        OpInfo {
            name,
            category,
            sources,
            computes: true,
            in_place: false,
            result_in: 0,
            reuses: &[],
            also_writes: &[],
        }
    }

    const fn result_in(self, slot: usize) -> OpInfo {
        OpInfo { result_in: slot, ..self }
    }

    const fn in_place(self) -> OpInfo {
        OpInfo { in_place: true, ..self }
    }

    const fn reuses(self, slots: &'static [usize]) -> OpInfo {
        OpInfo { reuses: slots, ..self }
    }

    const fn also_writes(self, slots: &'static [usize]) -> OpInfo {
        OpInfo { also_writes: slots, ..self }
    }

    const fn only_relabels(self) -> OpInfo {
        OpInfo { computes: false, ..self }
    }
}

const fn need(name: &'static str) -> SourceInfo {
    SourceInfo { name, optional: false }
}

const fn may(name: &'static str) -> SourceInfo {
    SourceInfo { name, optional: true }
}

/// Where the result of an op lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// In memory of its own.
    Fresh(Layout),
    /// In the memory of a source.
    Alias {
        /// Slot of that source.
        source: usize,
        /// Bytes from the source's first byte.
        offset: usize,
        /// What is seen there.
        layout: Layout,
    },
}

impl Outcome {
    /// The whole of the source that an op changes, under its own layout.
    fn changed(info: &OpInfo, source: &Operand) -> Outcome {
        Outcome::Alias { source: info.result_in, offset: 0, layout: source.layout() }
    }

    /// Type, extents and strides of the result.
    pub fn layout(&self) -> Layout {
        match *self {
            Outcome::Fresh(layout) | Outcome::Alias { layout, .. } => layout,
        }
    }
}

/// An op as a value: its parameters, what is always true of it, and its rules.
pub trait Operation: Copy + Into<Op> {
    /// What is true whatever the parameters.
    const INFO: OpInfo;

    /// Checks sources and parameters, and says what the result is.
    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError>;

    /// How much work a node is, in multiplications or elements that are looked at: within a factor of two, where tensor data
    /// does not decide it, and else at most so much.
    fn work(&self, sizes: &Sizes) -> u64;
}

macro_rules! operations {
    ($($op:ident,)*) => {
        /// An operation with its parameters; what a node does.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Op {
            /// Nothing: a leaf, whose contents come from outside the graph.
            None,
            $(#[doc = concat!("See [`", stringify!($op), "`].")] $op($op),)*
        }

        $(impl From<$op> for Op {
            fn from(op: $op) -> Op {
                Op::$op(op)
            }
        })*

        $(impl TryFrom<Op> for $op {
            type Error = Op;

            /// The op as what it is; any other op comes back.
            fn try_from(op: Op) -> Result<$op, Op> {
                match op {
                    Op::$op(op) => Ok(op),
                    other => Err(other),
                }
            }
        })*

        impl Op {
            /// What is true of each op whatever its parameters; leaves are not listed.
            pub const ALL: &[OpInfo] = &[$(<$op as Operation>::INFO,)*];

            /// What is true of this op whatever its parameters.
            pub const fn info(&self) -> &'static OpInfo {
                match self {
                    Op::None => &LEAF,
                    $(Op::$op(_) => &<$op as Operation>::INFO,)*
                }
            }

            /// Checks sources and parameters, and says what the result is. `None` for leaves, which no op makes.
            pub(crate) fn infer(&self, args: &Args<'_>) -> Option<Result<Outcome, OpError>> {
                match self {
                    Op::None => None,
                    $(Op::$op(op) => Some(op.infer(args)),)*
                }
            }

            /// About how much work a node of these extents is; see [`Operation::work`].
            pub(crate) fn work(&self, sizes: &Sizes) -> u64 {
                match self {
                    Op::None => 0,
                    $(Op::$op(op) => op.work(sizes),)*
                }
            }
        }
    };
}

const LEAF: OpInfo = OpInfo::new("NONE", Category::Language, &[]).only_relabels();

operations! {
    Dup, Add, AddId, Add1, Acc, Sub, Mul, Div, Sqr, Sqrt, Log, Sin, Cos,
    Sum, SumRows, Cumsum, Mean, Argmax, CountEqual,
    Repeat, RepeatBack, Concat, SiluBack,
    Norm, RmsNorm, RmsNormBack, GroupNorm, L2Norm,
    MulMat, MulMatId, OutProd,
    Scale, Set, Cpy, Cast, Cont, Reshape, View, Permute, Transpose,
    GetRows, GetRowsBack, SetRows, Diag, DiagMaskInf, DiagMaskZero,
    SoftMax, SoftMaxBack, Rope, RopeBack, Clamp,
    ConvTranspose1d, Im2col, Im2colBack, Im2col3d, Col2im1d, Conv2d, Conv3d, Conv2dDw, ConvTranspose2d,
    Pool1d, Pool2d, Pool2dBack, Upscale, Pad, PadReflect1d, Roll,
    Arange, TimestepEmbedding, Argsort, TopK, LeakyRelu, Tri, Fill,
    FlashAttnExt, PagedAttn, FlashAttnBack,
    SsmConv, SsmScan, WinPart, WinUnpart, GetRelPos, AddRelPos,
    RwkvWkv6, GatedLinearAttn, RwkvWkv7, SolveTri, GatedDeltaNet,
    LightningIndexer, Dsv4HcComb, Dsv4HcPre, Dsv4HcPost,
    Unary, CrossEntropyLoss, CrossEntropyLossBack, OptStepAdamw, OptStepSgd, Glu,
}

impl Op {
    /// ggml's name, for example `MUL_MAT`.
    pub const fn name(&self) -> &'static str {
        self.info().name
    }

    /// The name a person wants to see: the function of a unary or gated op rather than its family.
    pub fn label(&self) -> &'static str {
        match self {
            Op::Unary(unary) => unary.name(),
            Op::Glu(glu) => glu.kind.name(),
            op => op.name(),
        }
    }
}

#[cfg(test)]
mod tests;
