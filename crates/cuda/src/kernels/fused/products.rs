//! Products that read the same columns, with the norm before and the sums after them.

use oxcart_tensor::ops::{Glu, GluKind};
use oxcart_tensor::{DType, Op, TensorId, TensorRef};

use super::memory::{Span, may_move};
use super::{Nodes, is_passing};
use crate::kernels::elementwise::glu_kind;
use crate::kernels::{matvec, tiles};
use crate::plan::{Builder, Refused, Tensor};

/// The most products of one launch.
const MOST: usize = 3;

/// A product and the sums that follow it.
#[derive(Clone, Debug)]
struct Item<'g> {
    product: TensorRef<'g>,
    /// Places of all its nodes.
    places: Vec<usize>,
    bias: Option<TensorRef<'g>>,
    residual: Option<TensorRef<'g>>,
    /// What is written.
    result: TensorRef<'g>,
}

/// A norm whose result only products read.
#[derive(Clone, Copy, Debug)]
struct NormBefore<'g> {
    source: TensorRef<'g>,
    weights: Option<TensorRef<'g>>,
    eps: f32,
}

/// Products of one launch, or of launches that follow each other.
#[derive(Debug)]
struct Group<'g> {
    items: Vec<Item<'g>>,
    norm: Option<NormBefore<'g>>,
    /// The unit that gates the first product by the second, and its place.
    gated: Option<(TensorRef<'g>, Glu, usize)>,
    /// Of many columns: the product that is all that the unit is for.
    down: Option<Item<'g>>,
}

/// Begins with a norm: with its weights and all products that read it.
pub(in crate::kernels) fn after_norm(
    nodes: &mut Nodes<'_, '_>,
    at: usize,
    b: &mut Builder<'_>,
) -> Result<bool, Refused> {
    let norm = nodes.list[at];
    let Op::RmsNorm(op) = *norm.op() else { return Ok(false) };
    let Some(source) = norm.source(0) else { return Ok(false) };
    // The product with weights that repeat over rows.
    let weighted = nodes.only_reader(at).filter(|(_, reader)| matches!(reader.op(), Op::Mul(_)));
    let (last, weights) = match weighted {
        Some((place, product)) => {
            let [Some(x), Some(y)] = [product.source(0), product.source(1)] else { return Ok(false) };
            let other = if x.id() == norm.id() { y } else { x };
            let fits = other.dtype() == DType::F32
                && other.layout().is_contiguous()
                && other.ne().extents() == [norm.ne()[0], 1, 1, 1]
                && product.ne() == norm.ne();
            if !fits || !may_move(nodes, (at, place), &[], b)? {
                return Ok(false);
            }
            (place, Some(other))
        }
        None => (at, None),
    };
    let result = nodes.list[last];
    let readers = nodes.list[last].graph().use_count(result.id()) as usize;
    if result.has(oxcart_tensor::graph::Flags::OUTPUT) || result.view().is_some() || readers == 0 {
        return Ok(false);
    }
    let flat =
        source.dtype() == DType::F32 && source.layout().is_contiguous() && result.layout().is_contiguous();
    let first = nodes.ahead(last).find(|(_, node)| reads_columns(*node, result.id()));
    let Some((first, _)) = first.filter(|_| flat) else { return Ok(false) };
    let Some(mut group) = gather(nodes, first, (at, &[at, last]), b)? else { return Ok(false) };
    let read: usize = group.items.len();
    if read != readers {
        return Ok(false);
    }
    group.norm = Some(NormBefore { source, weights, eps: op.eps });
    // All of it happens where the norm is.
    let members = places(&group);
    for &place in &members {
        if !may_move(nodes, (at, place), &[members.as_slice(), &[at, last]].concat(), b)? {
            return Ok(false);
        }
    }
    if !emit(&group, b)? {
        return Ok(false);
    }
    for place in members.into_iter().chain([at, last]) {
        nodes.done[place] = true;
    }
    Ok(true)
}

/// Begins with a product.
pub(in crate::kernels) fn add(
    nodes: &mut Nodes<'_, '_>,
    at: usize,
    b: &mut Builder<'_>,
) -> Result<bool, Refused> {
    let Some(group) = gather(nodes, at, (at, &[]), b)? else { return Ok(false) };
    let members = places(&group);
    for &place in &members {
        if place != at && !may_move(nodes, (at, place), &members, b)? {
            return Ok(false);
        }
    }
    if members.len() < 2 || !emit(&group, b)? {
        return Ok(false);
    }
    for place in members {
        nodes.done[place] = true;
    }
    Ok(true)
}

fn places(group: &Group<'_>) -> Vec<usize> {
    let mut all: Vec<usize> = group.items.iter().flat_map(|item| item.places.clone()).collect();
    all.extend(group.gated.map(|(_, _, place)| place));
    all.extend(group.down.iter().flat_map(|down| &down.places));
    all
}

/// Whether a node is a product of weights with these columns.
fn reads_columns(node: TensorRef<'_>, columns: TensorId) -> bool {
    let weights = |source: TensorRef<'_>| source.is_leaf();
    matches!(node.op(), Op::MulMat(op) if op.hint == oxcart_tensor::ops::Hint::None)
        && node.source(1).is_some_and(|source| source.id() == columns)
        && node.source(0).is_some_and(weights)
}

/// The product at a place and others that read the same columns and can be computed with it at `from`, nodes of the same launch
/// in between not counting.
fn gather<'g>(
    nodes: &Nodes<'_, 'g>,
    at: usize,
    (from, before): (usize, &[usize]),
    b: &mut Builder<'_>,
) -> Result<Option<Group<'g>>, Refused> {
    let product = nodes.list[at];
    let Some(columns) = product.source(1) else { return Ok(None) };
    if !reads_columns(product, columns.id()) {
        return Ok(None);
    }
    let mut items = vec![item(nodes, at, b)?];
    let weights = product.source(0);
    let alike = |other: TensorRef<'_>| {
        let (Some(a), Some(b)) = (weights, other.source(0)) else { return false };
        a.dtype() == b.dtype() && a.ne()[0] == b.ne()[0] && a.layout().nb()[1] == b.layout().nb()[1]
    };
    for (place, other) in nodes.ahead(at) {
        if items.len() == MOST || !reads_columns(other, columns.id()) {
            continue;
        }
        let next = item(nodes, place, b)?;
        let own = items.iter().chain([&next]).flat_map(|item| item.places.clone());
        let with: Vec<usize> = own.chain(before.iter().copied()).collect();
        let mut movable = alike(other);
        for &place in &next.places {
            movable = movable && may_move(nodes, (from, place), &with, b)?;
        }
        if movable {
            items.push(next);
        }
    }
    let mut group = Group { items, norm: None, gated: None, down: None };
    group.gated = gated(nodes, &group, (from, before), b)?;
    if let Some((_, glu, place)) = group.gated
        && product.ne()[1] > 1
    {
        group.down = down(nodes, &group, (glu, place), (from, before), b)?;
        if group.down.is_none() {
            group.gated = None;
        }
    }
    Ok(Some(group))
}

/// A product with the sums after it that can be done in one go.
fn item<'g>(nodes: &Nodes<'_, 'g>, at: usize, b: &mut Builder<'_>) -> Result<Item<'g>, Refused> {
    let product = nodes.list[at];
    let mut item = Item { product, places: vec![at], bias: None, residual: None, result: product };
    let mut last = at;
    while item.residual.is_none() {
        let Some((place, sum)) = nodes.only_reader(last).filter(|(_, node)| matches!(node.op(), Op::Add(_)))
        else {
            break;
        };
        let [Some(x), Some(y)] = [sum.source(0), sum.source(1)] else { break };
        let other = if x.id() == item.result.id() { y } else { x };
        let plain = |tensor: TensorRef<'_>| tensor.dtype() == DType::F32 && tensor.layout().is_contiguous();
        if !plain(sum) || !plain(other) || sum.ne() != product.ne() {
            break;
        }
        let is_bias = other.ne().extents() == [product.ne()[0], 1, 1, 1] && x.id() == item.result.id();
        let is_vector = product.ne()[1] == 1;
        // What is added must be there already when the product is computed.
        let is_known = other.is_leaf() || nodes.list[..at].iter().any(|node| node.id() == other.root().id());
        if !is_known || !(is_bias || other.ne() == product.ne()) {
            break;
        }
        let mut with = item.places.clone();
        with.push(place);
        if !may_move(nodes, (at, place), &with, b)? {
            break;
        }
        if is_bias && item.bias.is_none() && (!is_vector || other.is_leaf()) {
            item.bias = Some(other);
        } else if other.ne() == product.ne() {
            item.residual = Some(other);
        } else {
            break;
        }
        item.places.push(place);
        item.result = sum;
        last = place;
    }
    Ok(item)
}

/// The gated unit that is all that two products are for.
fn gated<'g>(
    nodes: &Nodes<'_, 'g>,
    group: &Group<'g>,
    (from, before): (usize, &[usize]),
    b: &mut Builder<'_>,
) -> Result<Option<(TensorRef<'g>, Glu, usize)>, Refused> {
    let [gate, up] = group.items.as_slice() else { return Ok(None) };
    let last = |item: &Item<'_>| item.places[item.places.len() - 1];
    if gate.residual.is_some() || up.residual.is_some() || !is_passing(gate.result) || !is_passing(up.result)
    {
        return Ok(None);
    }
    let Some((place, unit)) = nodes.only_reader(last(gate)) else { return Ok(None) };
    let Op::Glu(glu) = *unit.op() else { return Ok(None) };
    let sources = [unit.source(0), unit.source(1)].map(|source| source.map(|source| source.id()));
    let fits = sources == [Some(gate.result.id()), Some(up.result.id())]
        && unit.dtype() == DType::F32
        && unit.layout().is_contiguous()
        && gate.product.ne() == up.product.ne();
    let with: Vec<usize> =
        gate.places.iter().chain(&up.places).chain(before).copied().chain([place]).collect();
    if !fits || !may_move(nodes, (from, place), &with, b)? {
        return Ok(None);
    }
    Ok(Some((unit, glu, place)))
}

/// The product that is all that a gated unit of many columns is for, if there are kernels that go from one to the other.
fn down<'g>(
    nodes: &Nodes<'_, 'g>,
    group: &Group<'g>,
    (glu, place): (Glu, usize),
    (from, before): (usize, &[usize]),
    b: &mut Builder<'_>,
) -> Result<Option<Item<'g>>, Refused> {
    let unit = nodes.list[place];
    let Some((last, reader)) = nodes.only_reader(place) else { return Ok(None) };
    let [gate, up] = group.items.as_slice() else { return Ok(None) };
    if glu.kind != GluKind::Swiglu || !reads_columns(reader, unit.id()) {
        return Ok(None);
    }
    let down = item(nodes, last, b)?;
    let with: Vec<usize> = places(group).iter().chain(&down.places).chain(before).copied().collect();
    for &own in &down.places {
        if !may_move(nodes, (from, own), &with, b)? {
            return Ok(None);
        }
    }
    let mut products = Vec::new();
    for item in [gate, up, &down] {
        let Some(columns) = item.product.source(1) else { return Ok(None) };
        let product = many(item, b.tensor(columns)?, None, b)?;
        let Some(product) = product.filter(|product| tiles::suits(b.info(), item.product, product)) else {
            return Ok(None);
        };
        products.push(product);
    }
    let [gate, up, last] = products.as_slice() else { return Ok(None) };
    Ok(tiles::suits_gated(b.info(), [gate, up, last]).then_some(down))
}

/// A product of many columns with what is around it.
fn many(
    item: &Item<'_>,
    x: Tensor,
    norm: Option<(u64, f32)>,
    b: &mut Builder<'_>,
) -> Result<Option<tiles::Product>, Refused> {
    let Some(weights) = item.product.source(0) else { return Ok(None) };
    let a = b.tensor(weights)?;
    let around = tiles::Around { bias: address(item.bias, b)?, residual: address(item.residual, b)?, norm };
    let (y, early) = (b.tensor(item.result)?, b.is_constant(weights));
    Ok(Some(tiles::Product { dtype: weights.dtype(), weights: a, x, y, around, early }))
}

/// Adds the launches of a group, if there are kernels for it and its memory lies so that they may run.
fn emit(group: &Group<'_>, b: &mut Builder<'_>) -> Result<bool, Refused> {
    let first = &group.items[0];
    let (Some(weights), Some(columns)) = (first.product.source(0), first.product.source(1)) else {
        return Ok(false);
    };
    let source = group.norm.map_or(columns, |norm| norm.source);
    let mut x = b.tensor(source)?;
    // Columns are as the product sees them.
    x.ne = columns.ne().extents().map(|n| n as i64);
    let row = 4 * x.ne[0];
    x.nb = if group.norm.is_some() { [4, row, row * x.ne[1], row * x.ne[1] * x.ne[2]] } else { x.nb };
    if !apart(group, source, b)? {
        return Ok(false);
    }
    let norm = match group.norm {
        Some(norm) => {
            let weights = match norm.weights {
                Some(weights) => b.address(weights)?.0,
                None => 0,
            };
            if !weights.is_multiple_of(16) {
                return Ok(false);
            }
            Some((weights, norm.eps))
        }
        None => None,
    };
    let a = b.tensor(weights)?;
    if matvec::suits(first.product, &a, &x, matvec::MOST_COLUMNS) {
        return emit_few(group, (weights, x), norm, b);
    }
    let mut products = Vec::new();
    for item in &group.items {
        let product = many(item, x, norm, b)?;
        let Some(product) = product.filter(|product| tiles::suits(b.info(), item.product, product)) else {
            return Ok(false);
        };
        products.push(product);
    }
    match (&group.down, products.as_slice()) {
        (Some(down), [gate, up]) => {
            let Some(columns) = down.product.source(1) else { return Ok(false) };
            let Some(down) = many(down, b.tensor(columns)?, None, b)? else { return Ok(false) };
            if !tiles::suits_gated(b.info(), [gate, up, &down]) {
                return Ok(false);
            }
            tiles::launch_gated([gate, up, &down], b)?;
        }
        (None, products) if group.gated.is_none() => tiles::launch_all(products, b)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn address(tensor: Option<TensorRef<'_>>, b: &mut Builder<'_>) -> Result<u64, Refused> {
    tensor.map_or(Ok(0), |tensor| Ok(b.address(tensor)?.0))
}

/// Products with few columns: one launch.
fn emit_few(
    group: &Group<'_>,
    (weights, x): (TensorRef<'_>, Tensor),
    norm: Option<(u64, f32)>,
    b: &mut Builder<'_>,
) -> Result<bool, Refused> {
    let mut parts = Vec::new();
    for item in &group.items {
        let Some(weights) = item.product.source(0) else { return Ok(false) };
        let a = b.tensor(weights)?;
        if !matvec::suits(item.product, &a, &x, matvec::MOST_COLUMNS) {
            return Ok(false);
        }
        let y = b.tensor(item.result)?;
        let (bias, residual) = (address(item.bias, b)?, address(item.residual, b)?);
        let early = b.is_constant(weights);
        parts.push((matvec::Part::new(&a, &y, bias, residual), early));
    }
    let mut params = matvec::params(b.tensor(weights)?, x, b.tensor(group.items[0].result)?);
    params.early = parts.iter().all(|(_, early)| *early).into();
    for (place, (part, _)) in params.part.iter_mut().zip(parts) {
        *place = part;
    }
    if let Some((weights, eps)) = norm {
        (params.norms, params.norm, params.eps) = (1, weights, eps);
    }
    if let Some((unit, glu, _)) = group.gated {
        params.part[0].y = b.address(unit)?.0;
        (params.glu, params.alpha, params.limit) = glu_kind(glu.kind);
        params.gated = 1;
    }
    matvec::launch(params, weights.dtype(), b)?;
    Ok(true)
}

/// Whether what a group writes is apart from what all its threads read, and from what else it writes; a residual may be the
/// very memory of its sum. Where launches follow each other, only the last of them writes what others may read.
fn apart(group: &Group<'_>, source: TensorRef<'_>, b: &mut Builder<'_>) -> Result<bool, Refused> {
    let items = group.down.as_ref().map_or(group.items.as_slice(), std::slice::from_ref);
    let mut written = Vec::new();
    match group.gated.filter(|_| group.down.is_none()) {
        Some((unit, ..)) => written.push(Span::of(unit, b)?),
        None => {
            for item in items {
                written.push(Span::of(item.result, b)?);
            }
        }
    }
    let mut read = Vec::new();
    if group.down.is_none() {
        read.push(Span::of(source, b)?);
        if let Some(weights) = group.norm.and_then(|norm| norm.weights) {
            read.push(Span::of(weights, b)?);
        }
    }
    for item in items {
        for tensor in [item.product.source(0), item.bias].into_iter().flatten() {
            read.push(Span::of(tensor, b)?);
        }
    }
    for (i, a) in written.iter().enumerate() {
        if written[..i].iter().chain(&read).any(|other| a.meets(*other)) {
            return Ok(false);
        }
    }
    for (i, item) in items.iter().enumerate() {
        let Some(residual) = item.residual else { continue };
        let span = Span::of(residual, b)?;
        let own = written.get(i).is_some_and(|own| *own == span);
        let meets = written.iter().enumerate().any(|(k, write)| write.meets(span) && !(own && k == i));
        if meets {
            return Ok(false);
        }
    }
    Ok(true)
}
