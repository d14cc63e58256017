//! Nodes to steps: which kernel computes a node, and with which parameters.
//!
//! One file per family of kernels, each with the twins of the structures that its kernels take. [`add`] is the one place that
//! maps an op to a family; whether it finds steps is also the answer to what the device supports.
//!
//! Invariant: a structure here has the fields of its twin in `kernels/`, in the same order, without padding; tests compare
//! their sizes wherever a kernel is launched on the emulated card.

mod arrange;
mod attention;
mod bands;
mod conv;
mod elementwise;
mod fused;
mod matvec;
mod norm;
mod product;
mod recurrent;
mod reduce;
mod rope;
mod rows;
mod soft_max;
mod sort;
mod tiles;

use oxcart_backend::Error;
use oxcart_tensor::{Op, TensorRef};

use crate::driver::CardInfo;
use crate::plan::{Builder, Done, Refused};

/// Whether there are kernels for a node.
pub(crate) fn supports(node: TensorRef<'_>, info: &CardInfo) -> bool {
    node.layout().is_empty() || add(node, &mut Builder::survey(info)).is_ok()
}

/// Adds the steps of nodes that follow each other.
pub(crate) fn add_all(nodes: &[TensorRef<'_>], builder: &mut Builder<'_>) -> Result<(), Error> {
    let mut nodes = fused::Nodes::new(nodes);
    for at in 0..nodes.list.len() {
        if nodes.done[at] {
            continue;
        }
        let (node, before) = (nodes.list[at], builder.step_count());
        builder.begin_node();
        let fused = if builder.exact() { Ok(false) } else { fused::add(&mut nodes, at, builder) };
        let added = match fused {
            Ok(true) => Ok(()),
            // There is no kernel for all of them, perhaps because of what was found on the way.
            Ok(false) | Err(Refused::Unsupported) => {
                builder.take_back(before);
                builder.begin_node();
                add(node, builder)
            }
            Err(failed) => Err(failed),
        };
        added.map_err(|refused| match refused {
            Refused::Failed(error) => error,
            Refused::Unsupported => Error::Unsupported {
                device: builder.info().name.clone(),
                what: format!("{} ({})", node.op().label(), node.label()),
            },
        })?;
    }
    Ok(())
}

/// Adds the steps of one node.
fn add(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    match node.op() {
        Op::Unary(_)
        | Op::Sqr(_)
        | Op::Sqrt(_)
        | Op::Log(_)
        | Op::Sin(_)
        | Op::Cos(_)
        | Op::Scale(_)
        | Op::Clamp(_)
        | Op::LeakyRelu(_)
        | Op::Fill(_) => elementwise::map(node, b),
        Op::Add(_) | Op::Sub(_) | Op::Mul(_) | Op::Div(_) | Op::Add1(_) => elementwise::binary(node, b),
        Op::AddId(_) => elementwise::add_id(node, b),
        Op::Glu(glu) => elementwise::glu(node, *glu, b),
        Op::SiluBack(_) => elementwise::silu_back(node, b),
        Op::Acc(_) | Op::Set(_) => elementwise::region(node, b),
        Op::Arange(_)
        | Op::Tri(_)
        | Op::DiagMaskInf(_)
        | Op::DiagMaskZero(_)
        | Op::Diag(_)
        | Op::TimestepEmbedding(_) => elementwise::make(node, b),
        Op::Dup(_) | Op::Cont(_) | Op::Cpy(_) | Op::Cast(_) => arrange::copy(node, b),
        Op::Concat(_)
        | Op::Repeat(_)
        | Op::Roll(_)
        | Op::Pad(_)
        | Op::PadReflect1d(_)
        | Op::WinPart(_)
        | Op::WinUnpart(_)
        | Op::GetRelPos(_) => arrange::arrange(node, b),
        Op::AddRelPos(_) => arrange::add_rel_pos(node, b),
        Op::Sum(_)
        | Op::SumRows(_)
        | Op::Mean(_)
        | Op::Cumsum(_)
        | Op::Argmax(_)
        | Op::CountEqual(_)
        | Op::RepeatBack(_) => reduce::add(node, b),
        Op::GetRows(_) | Op::SetRows(_) | Op::GetRowsBack(_) => rows::add(node, b),
        Op::Norm(_) | Op::RmsNorm(_) | Op::L2Norm(_) | Op::RmsNormBack(_) | Op::GroupNorm(_) => {
            norm::add(node, b)
        }
        Op::SoftMax(_) | Op::SoftMaxBack(_) | Op::CrossEntropyLoss(_) | Op::CrossEntropyLossBack(_) => {
            soft_max::add(node, b)
        }
        Op::Rope(_) | Op::RopeBack(_) => rope::add(node, b),
        Op::Argsort(_) | Op::TopK(_) => sort::add(node, b),
        Op::Im2col(_)
        | Op::Im2colBack(_)
        | Op::Im2col3d(_)
        | Op::Col2im1d(_)
        | Op::Conv2d(_)
        | Op::Conv3d(_)
        | Op::Conv2dDw(_)
        | Op::ConvTranspose1d(_)
        | Op::ConvTranspose2d(_)
        | Op::Pool1d(_)
        | Op::Pool2d(_)
        | Op::Pool2dBack(_)
        | Op::Upscale(_) => conv::add(node, b),
        Op::SsmConv(_)
        | Op::SsmScan(_)
        | Op::RwkvWkv6(_)
        | Op::RwkvWkv7(_)
        | Op::GatedLinearAttn(_)
        | Op::GatedDeltaNet(_)
        | Op::SolveTri(_)
        | Op::Dsv4HcComb(_)
        | Op::Dsv4HcPre(_)
        | Op::Dsv4HcPost(_)
        | Op::OptStepAdamw(_)
        | Op::OptStepSgd(_) => recurrent::add(node, b),
        Op::FlashAttnExt(_) | Op::PagedAttn(_) => attention::add(node, b),
        Op::MulMat(_) | Op::MulMatId(_) | Op::OutProd(_) | Op::LightningIndexer(_) => product::add(node, b),
        _ => Err(Refused::Unsupported),
    }
}

/// Elements of a tensor, as kernels count them.
fn count(tensor: TensorRef<'_>) -> i64 {
    tensor.layout().elements() as i64
}

/// Whether some tensors are packed.
fn packed(tensors: &[TensorRef<'_>]) -> bool {
    tensors.iter().all(|tensor| tensor.layout().is_contiguous())
}
