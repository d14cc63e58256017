//! Every op, one file per family.
//!
//! A family has a `choose` function that picks the kernel for a node: its types, its layout and the processor's
//! instructions are known then, so the kernel itself asks nothing. [`choose`] is the list of families; `None` means that
//! this device cannot compute the node, and is what `supports_op` answers from.

mod activation;
mod arrange;
mod attention;
mod binary;
mod chunk;
mod conv;
mod copy;
mod delta_net;
mod dot;
mod elementwise;
mod fill;
mod fused;
mod gelu;
mod glu;
mod hyper_connections;
mod image;
mod lanes;
mod math;
mod matmul;
mod norm;
mod pool;
mod recurrent;
mod reduce;
mod rope;
mod rows;
mod soft_max;
mod sort;
mod sum;
#[cfg(test)]
mod testing;
mod train;
mod unary;

pub(crate) use fused::fuse;

use oxcart_tensor::{Op, TensorRef};

use crate::job::Kernel;
use crate::simd::Level;

/// The kernel for a node; `None` if there is none.
pub(crate) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    match node.op() {
        Op::Repeat(_)
        | Op::RepeatBack(_)
        | Op::Concat(_)
        | Op::Pad(_)
        | Op::PadReflect1d(_)
        | Op::Roll(_) => arrange::choose(node, level),
        Op::FlashAttnExt(_) | Op::PagedAttn(_) | Op::FlashAttnBack(_) | Op::LightningIndexer(_) => {
            attention::choose(node, level)
        }
        Op::Add(_)
        | Op::Sub(_)
        | Op::Mul(_)
        | Op::Div(_)
        | Op::Add1(_)
        | Op::AddId(_)
        | Op::Acc(_)
        | Op::Set(_) => binary::choose(node, level),
        Op::ConvTranspose1d(_)
        | Op::Im2col(_)
        | Op::Im2colBack(_)
        | Op::Im2col3d(_)
        | Op::Col2im1d(_)
        | Op::Conv2d(_)
        | Op::Conv3d(_)
        | Op::Conv2dDw(_)
        | Op::ConvTranspose2d(_) => conv::choose(node, level),
        Op::Dup(_) | Op::Cont(_) | Op::Cpy(_) | Op::Cast(_) => copy::choose(node, level),
        Op::SolveTri(_) | Op::GatedDeltaNet(_) => delta_net::choose(node, level),
        Op::Arange(_)
        | Op::Fill(_)
        | Op::Tri(_)
        | Op::Diag(_)
        | Op::DiagMaskInf(_)
        | Op::DiagMaskZero(_)
        | Op::TimestepEmbedding(_) => fill::choose(node, level),
        Op::Glu(_) => glu::choose(node, level),
        Op::Dsv4HcComb(_) | Op::Dsv4HcPre(_) | Op::Dsv4HcPost(_) => hyper_connections::choose(node, level),
        Op::Upscale(_) | Op::WinPart(_) | Op::WinUnpart(_) | Op::GetRelPos(_) | Op::AddRelPos(_) => {
            image::choose(node, level)
        }
        Op::MulMat(_) | Op::MulMatId(_) | Op::OutProd(_) => matmul::choose(node, level),
        Op::Norm(_) | Op::RmsNorm(_) | Op::RmsNormBack(_) | Op::GroupNorm(_) | Op::L2Norm(_) => {
            norm::choose(node, level)
        }
        Op::Pool1d(_) | Op::Pool2d(_) | Op::Pool2dBack(_) => pool::choose(node, level),
        Op::SsmConv(_) | Op::SsmScan(_) | Op::RwkvWkv6(_) | Op::GatedLinearAttn(_) | Op::RwkvWkv7(_) => {
            recurrent::choose(node, level)
        }
        Op::Sum(_) | Op::SumRows(_) | Op::Cumsum(_) | Op::Mean(_) | Op::Argmax(_) | Op::CountEqual(_) => {
            reduce::choose(node, level)
        }
        Op::Rope(_) | Op::RopeBack(_) => rope::choose(node, level),
        Op::GetRows(_) | Op::GetRowsBack(_) | Op::SetRows(_) => rows::choose(node, level),
        Op::SoftMax(_) | Op::SoftMaxBack(_) => soft_max::choose(node, level),
        Op::Argsort(_) | Op::TopK(_) => sort::choose(node, level),
        Op::CrossEntropyLoss(_) | Op::CrossEntropyLossBack(_) | Op::OptStepAdamw(_) | Op::OptStepSgd(_) => {
            train::choose(node, level)
        }
        Op::Unary(_)
        | Op::Sqr(_)
        | Op::Sqrt(_)
        | Op::Log(_)
        | Op::Sin(_)
        | Op::Cos(_)
        | Op::LeakyRelu(_)
        | Op::Clamp(_)
        | Op::Scale(_)
        | Op::SiluBack(_) => unary::choose(node, level),
        _ => None,
    }
}
