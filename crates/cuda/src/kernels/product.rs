//! Matrix products: which way is the best for their shapes and types, and the twins of `product.cu`.

use oxcart_tensor::ops::Hint;
use oxcart_tensor::{DType, Op, TensorRef};
use zerocopy::{Immutable, IntoBytes};

use super::{bands, count, matvec, tiles};
use crate::images::Family;
use crate::plan::{Builder, Done, Refused, Tensor};

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct ProductParams {
    a: Tensor,
    b: Tensor,
    y: Tensor,
    count: i64,
    ids: u64,
    ids_nb: [i64; 2],
    faults: u64,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct IndexerParams {
    q: Tensor,
    k: Tensor,
    w: Tensor,
    mask: Tensor,
    y: Tensor,
}

const FAMILY: Family = Family::Product;

/// The most blocks along the second and third dimension of a grid.
const MOST_BLOCKS: usize = 65535;

pub(super) fn add(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    match node.op() {
        Op::MulMat(op) => match op.hint {
            Hint::Hadamard => hadamard(node, b),
            Hint::None => mul_mat(node, b),
        },
        Op::MulMatId(_) => mul_mat_id(node, b),
        Op::OutProd(_) => {
            let (a, right, y) = (b.source(node, 0)?, b.source(node, 1)?, b.tensor(node)?);
            let params =
                ProductParams { a, b: right, y, count: count(node), ids: 0, ids_nb: [0; 2], faults: 0 };
            b.launch_each(FAMILY, "outer", node.layout().elements(), 256, &params);
            Ok(())
        }
        Op::LightningIndexer(_) => {
            let [q, k, w, mask] =
                [b.source(node, 0)?, b.source(node, 1)?, b.source(node, 2)?, b.source(node, 3)?];
            let params = IndexerParams { q, k, w, mask, y: b.tensor(node)? };
            let [keys, tokens, _, batch] = node.ne().extents();
            if tokens > MOST_BLOCKS || batch > MOST_BLOCKS {
                return Err(Refused::Unsupported);
            }
            b.launch(
                FAMILY,
                "indexer",
                ([keys.div_ceil(4) as u32, tokens as u32, batch as u32], 128, 0),
                &params,
            );
            Ok(())
        }
        _ => Err(Refused::Unsupported),
    }
}

fn is_plain(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

fn mul_mat(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let (Some(weights), Some(columns)) = (node.source(0), node.source(1)) else {
        return Err(Refused::Unsupported);
    };
    if !is_plain(columns.dtype()) {
        return Err(Refused::Unsupported);
    }
    let (a, right, y) = (b.source(node, 0)?, b.source(node, 1)?, b.tensor(node)?);
    let (around, early) = (tiles::Around::default(), b.is_constant(weights));
    let product = tiles::Product { dtype: weights.dtype(), weights: a, x: right, y, around, early };
    if b.exact() {
        // One way for every number of columns.
        if tiles::is_flat(b.info(), node, &product) && bands::suits(b.info(), &[product], usize::MAX) {
            return bands::launch_all(&product, b);
        }
        if weights.dtype() == DType::F32 && matvec::suits(node, &a, &right, usize::MAX) {
            return matvec::launch(matvec::params(a, right, y), weights.dtype(), b);
        }
    } else if matvec::suits(node, &a, &right, matvec::MOST_COLUMNS) {
        return matvec::launch(matvec::params(a, right, y), weights.dtype(), b);
    } else if tiles::suits(b.info(), node, &product) {
        return tiles::launch(&product, b);
    }
    let params = ProductParams { a, b: right, y, count: count(node), ids: 0, ids_nb: [0; 2], faults: 0 };
    let [m, n, p, q] = node.ne().extents();
    let (name, per_row, per_column, threads) = if is_plain(weights.dtype()) {
        ("product_plain", 64, 64, 256)
    } else {
        ("product_blocks", 4, 4, 128)
    };
    let grid = [m.div_ceil(per_row), n.div_ceil(per_column), p * q];
    if grid[1] > MOST_BLOCKS || grid[2] > MOST_BLOCKS {
        return Err(Refused::Unsupported);
    }
    b.launch(FAMILY, name, (grid.map(|n| n as u32), threads, 0), &params);
    Ok(())
}

/// The product with a Hadamard matrix, whose columns fit the memory of a block.
fn hadamard(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let columns = node.source(1).ok_or(Refused::Unsupported)?;
    let [k, n, p, q] = columns.ne().extents();
    let shared = 4 * k;
    let fits = is_plain(columns.dtype())
        && k.is_power_of_two()
        && shared <= b.info().shared_memory as usize
        && i32::try_from(n).is_ok()
        && p * q <= MOST_BLOCKS
        && columns.layout().nb()[0] == columns.dtype().block_bytes();
    if !fits {
        return Err(Refused::Unsupported);
    }
    let (a, right, y) = (b.source(node, 0)?, b.source(node, 1)?, b.tensor(node)?);
    let params = ProductParams { a, b: right, y, count: 0, ids: 0, ids_nb: [0; 2], faults: 0 };
    b.launch(FAMILY, "hadamard", ([n as u32, (p * q) as u32, 1], 256, shared as u32), &params);
    Ok(())
}

fn mul_mat_id(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let (Some(weights), Some(columns)) = (node.source(0), node.source(1)) else {
        return Err(Refused::Unsupported);
    };
    if !is_plain(columns.dtype()) {
        return Err(Refused::Unsupported);
    }
    let (a, right, ids, y) = (b.source(node, 0)?, b.source(node, 1)?, b.source(node, 2)?, b.tensor(node)?);
    let most = if b.exact() { MOST_BLOCKS } else { matvec::MOST_EXPERT_COLUMNS };
    if matvec::suits_experts(node, &a, &right, most) {
        return matvec::add_experts(node, [a, right, ids, y], b);
    }
    if tiles::suits_experts(b.info(), node, &a) {
        return tiles::launch_experts(weights.dtype(), [a, right, ids, y], b);
    }
    let [m, used, tokens, _] = node.ne().extents();
    if used > MOST_BLOCKS || tokens > MOST_BLOCKS {
        return Err(Refused::Unsupported);
    }
    let faults = b.faults();
    let params =
        ProductParams { a, b: right, y, count: 0, ids: ids.data, ids_nb: [ids.nb[0], ids.nb[1]], faults };
    b.launch(
        FAMILY,
        "product_experts",
        ([m.div_ceil(4) as u32, used as u32, tokens as u32], 128, 0),
        &params,
    );
    Ok(())
}
