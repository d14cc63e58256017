//! Elements and blocks moved: the twins of `arrange.cu`, and which copies need more than moving.

use oxcart_tensor::{DType, Op, TensorRef};
use zerocopy::{Immutable, IntoBytes};

use super::{count, packed, rows};
use crate::driver::Address;
use crate::images::Family;
use crate::plan::{Builder, Done, Refused, Tensor};

const THREADS: u32 = 256;

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct MoveParams {
    a: Tensor,
    y: Tensor,
    count: i64,
    size: i32,
    packed: i32,
}

/// DUP, CONT, CPY and CAST.
pub(super) fn copy(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let source = node.source(0).ok_or(Refused::Unsupported)?;
    let (from, to) = (source.dtype(), node.dtype());
    let is_plain = |dtype| matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::I32);
    if from == to {
        return move_pieces(node, source, b);
    }
    if to.is_quantized() {
        return rows::encode(node, b);
    }
    if from.is_quantized() {
        return rows::decode(node, b);
    }
    if !is_plain(from) || !is_plain(to) {
        return Err(Refused::Unsupported);
    }
    let (a, y) = (b.source(node, 0)?, b.tensor(node)?);
    let params = MoveParams { a, y, count: count(node), size: 0, packed: packed(&[source, node]).into() };
    b.launch_each(Family::Arrange, "convert", node.layout().elements(), THREADS, &params);
    Ok(())
}

fn move_pieces(node: TensorRef<'_>, source: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let (a, y) = (b.source(node, 0)?, b.tensor(node)?);
    if packed(&[source, node]) {
        b.copy(Address(y.data), Address(a.data), node.byte_len());
        return Ok(());
    }
    let dtype = node.dtype();
    let size = dtype.block_bytes();
    if let (2 | 4, Some(name)) = (size, transposition(source, node)) {
        let params = MoveParams { a, y, count: 0, size: size as i32, packed: 0 };
        let [n0, n1, n2, n3] = source.ne().extents();
        let planes = n2 * n3;
        if let (Ok(x), Ok(height)) = (u32::try_from(n1.div_ceil(32)), u32::try_from(n0.div_ceil(32)))
            && height <= u32::from(u16::MAX)
            && planes <= usize::from(u16::MAX)
        {
            b.launch(Family::Arrange, name, ([x, height, planes as u32], THREADS, 0), &params);
            return Ok(());
        }
    }
    let pieces = node.layout().elements() / dtype.block_len();
    let params = MoveParams {
        a: a.in_blocks(dtype),
        y: y.in_blocks(dtype),
        count: pieces as i64,
        size: size as i32,
        packed: 0,
    };
    b.launch_each(Family::Arrange, "move", pieces, THREADS, &params);
    Ok(())
}

/// The kernel for a copy whose source has its columns next to each other, as a transposed matrix has, and its result its rows.
fn transposition(source: TensorRef<'_>, node: TensorRef<'_>) -> Option<&'static str> {
    let size = node.dtype().block_bytes();
    let fits = source.ne() == node.ne()
        && source.layout().nb()[1] == size
        && source.layout().nb()[0] != size
        && node.layout().nb()[0] == size
        && source.ne()[0] >= 8
        && source.ne()[1] >= 8;
    fits.then_some(if size == 2 { "transpose_2" } else { "transpose_4" })
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct ArrangeParams {
    a: Tensor,
    b: Tensor,
    y: Tensor,
    count: i64,
    left: [i64; 4],
    op: i32,
    dim: i32,
    size: i32,
    unused: i32,
}

pub(super) fn arrange(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let signed = |n: [usize; 4]| n.map(|n| n as i64);
    let source = node.source(0).ok_or(Refused::Unsupported)?;
    let (op, dim, left) = match *node.op() {
        Op::Concat(concat) => (0, concat.dim as i32, [0; 4]),
        Op::Repeat(_) => (1, 0, [0; 4]),
        Op::Roll(roll) => (2, 0, roll.shift.map(i64::from)),
        Op::Pad(pad) if pad.circular => (4, 0, signed(pad.left)),
        Op::Pad(pad) => (3, 0, signed(pad.left)),
        Op::PadReflect1d(pad) => (5, 0, [pad.left as i64, 0, 0, 0]),
        Op::WinPart(part) => {
            let across = source.ne()[1].div_ceil(part.window);
            (6, 0, [part.window as i64, across as i64, 0, 0])
        }
        Op::WinUnpart(part) => {
            let across = part.width.div_ceil(part.window);
            (7, 0, [part.window as i64, across as i64, 0, 0])
        }
        Op::GetRelPos(_) => (8, 0, [0; 4]),
        _ => return Err(Refused::Unsupported),
    };
    let dtype = node.dtype();
    let a = b.source(node, 0)?;
    let second = if node.source(1).is_some() { b.source(node, 1)? } else { Tensor::NONE };
    let pieces = node.layout().elements() / dtype.block_len();
    let params = ArrangeParams {
        a: a.in_blocks(dtype),
        b: second.in_blocks(dtype),
        y: b.tensor(node)?.in_blocks(dtype),
        count: pieces as i64,
        left,
        op,
        dim,
        size: dtype.block_bytes() as i32,
        unused: 0,
    };
    b.launch_each(Family::Arrange, "arrange", pieces, THREADS, &params);
    Ok(())
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct RelPosParams {
    a: Tensor,
    pw: Tensor,
    ph: Tensor,
    y: Tensor,
    count: i64,
    side: i64,
}

pub(super) fn add_rel_pos(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let side = node.source(1).ok_or(Refused::Unsupported)?.ne()[0] as i64;
    let (a, pw, ph, y) = (b.source(node, 0)?, b.source(node, 1)?, b.source(node, 2)?, b.tensor(node)?);
    let params = RelPosParams { a, pw, ph, y, count: count(node), side };
    b.launch_each(Family::Arrange, "add_rel_pos", node.layout().elements(), THREADS, &params);
    Ok(())
}
