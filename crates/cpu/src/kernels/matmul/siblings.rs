//! Several MUL_MATs of the same activations, as of queries, keys and values: columns are prepared once, and threads wait for each other
//! once for all of them.

use oxcart_tensor::ops::{Hint, MulMat};
use oxcart_tensor::{Op, TensorRef};

use super::planes::Planes;
use super::product::{Factor, Hand, Product};
use crate::job::{Fault, Job, Kernel, MOST_READINGS};
use crate::plan::Unit;
use crate::simd::{Level, Simd, for_each_level};

/// The most products of a unit.
const MOST: usize = MOST_READINGS;

/// The first of these nodes together with the products of the same activations that follow; `None` if there are none.
pub(crate) fn fuse<'g>(nodes: &[TensorRef<'g>], level: Level) -> Option<Unit<'g>> {
    let (first, rest) = nodes.split_first()?;
    let siblings = rest.iter().take(MOST - 1).take_while(|node| are_siblings(*first, **node)).count();
    let (a, b) = (first.source(0)?, first.source(1)?);
    let product = product_of(a, b, level)?;
    let planes = Planes::new(a.layout(), b.layout(), &product);
    if siblings == 0 || product.is_direct(planes.columns()) {
        return None;
    }
    let nodes = &nodes[..=siblings];
    let products = nodes.iter().map(|node| product_of(node.source(0)?, b, level));
    let products = products.collect::<Option<Vec<Product>>>()?;
    let run = for_each_level!(run: fn(job: Job<'_>) -> Result<(), Fault>).at(level);
    let width = products.iter().map(|product| product.width(planes.columns())).sum();
    let own = products.iter().map(Product::own_bytes).max()?;
    let mut reads = [None; MOST_READINGS];
    for (i, (product, node)) in products.iter().zip(nodes).enumerate() {
        reads[i] = product.reading(node.source(0)?.layout(), planes.columns(), slot_of(i));
    }
    let kernel = planes.prepared(Kernel::new(run).width(width).own(own).reads(reads), &product);
    let unit = Unit::new(kernel, *first.op(), nodes.len(), *first).source(Some(a)).source(Some(b));
    Some(nodes[1..].iter().fold(unit, |unit, node| unit.source(node.source(0)).also_writes(*node)))
}

/// Where the weights of a product are among the sources of the unit: those of the first come before the activations, those of the
/// others each before their result.
const fn slot_of(product: usize) -> usize {
    2 * product
}

fn product_of(a: TensorRef<'_>, b: TensorRef<'_>, level: Level) -> Option<Product> {
    Product::new(a.dtype(), a.layout().ne().extents(), b.dtype(), level)
}

/// Whether columns of both products are prepared in the same way.
fn are_siblings(first: TensorRef<'_>, other: TensorRef<'_>) -> bool {
    let matrix = |node: TensorRef<'_>| match node.op() {
        Op::MulMat(MulMat { hint, .. }) if *hint != Hint::Hadamard => {
            let a = node.source(0)?;
            let [k, _, planes @ ..] = a.layout().ne().extents();
            (planes == [1, 1]).then(|| (a.dtype(), k, node.source(1).map(|b| b.id())))
        }
        _ => None,
    };
    let (first, other) = (matrix(first), matrix(other));
    first.is_some() && first == other
}

#[inline(always)]
fn run<S: Simd>(_simd: S, mut job: Job<'_>) -> Result<(), Fault> {
    let (first, b) = (Product::of(&job, S::LEVEL), job.src(1));
    let planes = |a| Planes::new(a, b.layout(), &first);
    if job.phase == 0 {
        let matching = planes(job.src(0).layout());
        first.prepare(job, &matching, 0);
        return Ok(());
    }
    // Weights and results of the others are in turns behind the two sources of the first.
    let mut others = [const { None }; MOST - 1];
    for (i, other) in others.iter_mut().enumerate() {
        let slot = slot_of(1 + i);
        let Some(a) = job.may(slot) else { break };
        let Some(product) = Product::new(a.dtype(), a.ne(), b.dtype(), S::LEVEL) else { break };
        *other = Some((product, a, job.take_written(slot + 1), planes(a.layout())));
    }
    let (a, panels) = (job.src(0), first.panels(&job, 0));
    let matching = planes(a.layout());
    let (dst, hand) = Hand::of(job, panels);
    let factor = Factor { product: &first, a, dst: &dst, matching: &matching };
    let other = |i: usize| {
        let other: &Option<_> = &others[i];
        other.as_ref().map(|(product, a, dst, matching)| Factor { product, a: *a, dst, matching })
    };
    match (other(0), other(1)) {
        (Some(second), Some(third)) => hand.multiply(&[factor, second, third]),
        (Some(second), None) => hand.multiply(&[factor, second]),
        _ => hand.multiply(&[factor]),
    }
    Ok(())
}
