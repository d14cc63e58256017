//! Recurrences, hyper-connections and optimizer steps: the twins of `recurrent.cu`.

use oxcart_tensor::ops::Grouping;
use oxcart_tensor::{Op, TensorRef};
use zerocopy::{Immutable, IntoBytes};

use super::count;
use crate::images::Family;
use crate::plan::{Builder, Done, Refused, Tensor};

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct SsmConvParams {
    a: Tensor,
    kernel: Tensor,
    y: Tensor,
    count: i64,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct ScanParams {
    source: [Tensor; 7],
    y: u64,
    width: i64,
    rows: i64,
    heads: i64,
    tokens: i64,
    sequences: i64,
    snapshots: i64,
    groups: i64,
    batch: i64,
    faults: u64,
    scale: f32,
    in_turn: i32,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct SolveParams {
    a: Tensor,
    b: Tensor,
    y: Tensor,
    count: i64,
    unused: i64,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct HyperParams {
    source: [Tensor; 4],
    y: Tensor,
    count: i64,
    scale: f32,
    eps: f32,
    iterations: i32,
    gated: i32,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct OptimizerParams {
    parameter: Tensor,
    gradient: Tensor,
    m: Tensor,
    v: Tensor,
    settings: u64,
    count: i64,
}

/// The longest row of a state that a warp can have in registers.
const LONGEST_ROW: i64 = 256;

const FAMILY: Family = Family::Recurrent;

pub(super) fn add(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    match *node.op() {
        Op::SsmConv(_) => {
            let (a, kernel, y) = (b.source(node, 0)?, b.source(node, 1)?, b.tensor(node)?);
            let params = SsmConvParams { a, kernel, y, count: count(node) };
            b.launch_each(FAMILY, "ssm_conv", node.layout().elements(), 256, &params);
            Ok(())
        }
        Op::SolveTri(_) => {
            let (a, right, y) = (b.source(node, 0)?, b.source(node, 1)?, b.tensor(node)?);
            let [columns, _, planes, volumes] = node.ne().extents();
            let all = columns * planes * volumes;
            let params = SolveParams { a, b: right, y, count: all as i64, unused: 0 };
            b.launch(FAMILY, "solve_tri", ([all.div_ceil(128) as u32, 1, 1], 128, 0), &params);
            Ok(())
        }
        Op::SsmScan(_)
        | Op::RwkvWkv6(_)
        | Op::RwkvWkv7(_)
        | Op::GatedLinearAttn(_)
        | Op::GatedDeltaNet(_) => scan(node, b),
        Op::Dsv4HcComb(_) | Op::Dsv4HcPre(_) | Op::Dsv4HcPost(_) => hyper(node, b),
        Op::OptStepAdamw(_) | Op::OptStepSgd(_) => optimizer(node, b),
        _ => Err(Refused::Unsupported),
    }
}

fn scan(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let mut source = [Tensor::NONE; 7];
    let slots = node.sources().len();
    for (slot, place) in source.iter_mut().enumerate().take(slots) {
        *place = b.source(node, slot)?;
    }
    let per_token = source[0].ne;
    let mut params = ScanParams {
        source,
        y: b.tensor(node)?.data,
        width: per_token[0],
        rows: per_token[0],
        heads: per_token[1],
        tokens: per_token[2],
        sequences: 1,
        snapshots: 1,
        groups: 1,
        batch: 1,
        faults: b.faults(),
        scale: 1.0,
        in_turn: 0,
    };
    let name = match *node.op() {
        Op::SsmScan(op) => {
            [params.width, params.rows, params.heads, _] = source[0].ne;
            [_, _, params.tokens, params.sequences] = source[1].ne;
            params.snapshots = op.snapshots as i64;
            params.groups = source[4].ne[1];
            params.in_turn = (op.grouping == Grouping::InTurn).into();
            "ssm_scan"
        }
        Op::GatedDeltaNet(op) => {
            let [size, heads, tokens, sequences] = source[2].ne;
            (params.width, params.rows, params.heads, params.tokens) = (size, size, heads, tokens);
            params.sequences = sequences;
            params.snapshots = op.snapshots as i64;
            (params.groups, params.batch) = (source[0].ne[1], source[0].ne[3]);
            params.scale = 1.0 / (size as f32).sqrt();
            "gated_delta_net"
        }
        Op::RwkvWkv6(_) => {
            params.sequences = source[5].ne[1];
            "rwkv_wkv6"
        }
        Op::GatedLinearAttn(op) => {
            params.sequences = source[4].ne[1];
            params.scale = op.scale;
            "gated_linear_attn"
        }
        Op::RwkvWkv7(_) => {
            params.sequences = source[6].ne[1];
            "rwkv_wkv7"
        }
        _ => return Err(Refused::Unsupported),
    };
    let by_columns = matches!(node.op(), Op::RwkvWkv6(_) | Op::GatedLinearAttn(_));
    if !matches!(node.op(), Op::SsmScan(_) | Op::GatedDeltaNet(_)) {
        // Tokens of all sequences follow each other.
        params.tokens /= params.sequences.max(1);
    }
    if !by_columns && params.width > LONGEST_ROW {
        return Err(Refused::Unsupported);
    }
    let units = params.rows * params.heads * params.sequences;
    let per_block = if by_columns { 128 } else { 4 };
    let blocks = u32::try_from(units.max(1).div_euclid(per_block) + 1).map_err(|_| Refused::Unsupported)?;
    b.launch(FAMILY, name, ([blocks, 1, 1], 128, 0), &params);
    Ok(())
}

fn hyper(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let mut source = [Tensor::NONE; 4];
    for (slot, place) in source.iter_mut().enumerate() {
        if node.source(slot).is_some() {
            *place = b.source(node, slot)?;
        }
    }
    let mut params = HyperParams {
        source,
        y: b.tensor(node)?,
        count: count(node),
        scale: 1.0,
        eps: 0.0,
        iterations: 0,
        gated: 0,
    };
    let name = match *node.op() {
        Op::Dsv4HcComb(op) => {
            (params.eps, params.iterations) = (op.eps, op.iterations as i32);
            params.count = node.ne()[2] as i64;
            "hc_comb"
        }
        Op::Dsv4HcPre(op) => {
            (params.scale, params.gated) = (op.scale, op.gated.into());
            "hc_pre"
        }
        _ => "hc_post",
    };
    let threads = params.count as usize;
    if name == "hc_comb" {
        b.launch(FAMILY, name, ([threads.div_ceil(128).max(1) as u32, 1, 1], 128, 0), &params);
    } else {
        b.launch_each(FAMILY, name, threads, 256, &params);
    }
    Ok(())
}

fn optimizer(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let (parameter, gradient) = (b.tensor(node)?, b.source(node, 1)?);
    let (m, v, settings, name) = match node.op() {
        Op::OptStepAdamw(_) => {
            let moment = |slot: usize| node.source(slot).ok_or(Refused::Unsupported);
            (b.tensor(moment(2)?)?, b.tensor(moment(3)?)?, b.source(node, 4)?.data, "adamw")
        }
        _ => (Tensor::NONE, Tensor::NONE, b.source(node, 2)?.data, "sgd"),
    };
    let params = OptimizerParams { parameter, gradient, m, v, settings, count: count(node) };
    b.launch_each(FAMILY, name, node.layout().elements(), 256, &params);
    Ok(())
}
