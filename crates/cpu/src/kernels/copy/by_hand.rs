//! One node computed by hand, for tests: any number of threads, whatever the kernel thinks is worthwhile.

use std::sync::atomic::AtomicUsize;

use oxcart_tensor::graph::Node;
use oxcart_tensor::ops::Operation;
use oxcart_tensor::{DType, Graph, Layout, Shape};

use crate::job::{Fault, Job, MAX_SOURCES, Shared};
use crate::kernels::choose;
use crate::simd::Level;
use crate::view::{Dst, Plain, Share, Src, raw_bytes};

/// A tensor with its memory, gaps included.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::kernels) struct Tensor {
    pub(in crate::kernels) layout: Layout,
    pub(in crate::kernels) bytes: Vec<u8>,
}

impl Tensor {
    /// Packed elements.
    pub(in crate::kernels) fn packed<T: Plain>(dtype: DType, ne: impl Into<Shape>, values: &[T]) -> Tensor {
        let layout = Layout::packed(dtype, ne).unwrap();
        assert_eq!(layout.byte_len(), size_of_val(values));
        Tensor { layout, bytes: raw_bytes(values).to_vec() }
    }

    /// Any layout, with a pattern in its memory, gaps included, that makes finite small numbers of every type.
    pub(in crate::kernels) fn pattern(layout: Layout) -> Tensor {
        let mut bytes = vec![0; layout.byte_len()];
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as u8
        };
        let number = |byte: u8| f32::from(byte) / 16.0 - 8.0;
        match layout.dtype() {
            DType::F32 => bytes.as_chunks_mut().0.iter_mut().for_each(|x| *x = number(next()).to_le_bytes()),
            DType::F16 => {
                let half = |x| half::f16::from_f32(x).to_le_bytes();
                bytes.as_chunks_mut().0.iter_mut().for_each(|x| *x = half(number(next())));
            }
            DType::BF16 => {
                let half = |x| half::bf16::from_f32(x).to_le_bytes();
                bytes.as_chunks_mut().0.iter_mut().for_each(|x| *x = half(number(next())));
            }
            _ => bytes.fill_with(next),
        }
        Tensor { layout, bytes }
    }

    pub(in crate::kernels) fn dtype(&self) -> DType {
        self.layout.dtype()
    }

    /// Where its units (plain elements, or blocks) start, in logical order.
    fn places(&self) -> impl Iterator<Item = usize> + use<> {
        let ([ne0, ne1, ne2, ne3], nb) = (self.layout.ne().extents(), self.layout.nb());
        let blocks = ne0 / self.dtype().block_len();
        (0..blocks * ne1 * ne2 * ne3).map(move |n| {
            let at = [n % blocks, n / blocks % ne1, n / blocks / ne1 % ne2, n / blocks / ne1 / ne2];
            at.iter().zip(nb).map(|(i, nb)| i * nb).sum()
        })
    }

    /// Its units, in logical order.
    pub(in crate::kernels) fn units(&self) -> Vec<&[u8]> {
        self.places().map(|place| &self.bytes[place..place + self.dtype().block_bytes()]).collect()
    }

    /// Its elements, in logical order.
    pub(in crate::kernels) fn values<const N: usize, T>(&self, from_bytes: fn([u8; N]) -> T) -> Vec<T> {
        self.units().iter().map(|unit| from_bytes((*unit).try_into().unwrap())).collect()
    }

    pub(in crate::kernels) fn f32s(&self) -> Vec<f32> {
        self.values(f32::from_le_bytes)
    }

    pub(in crate::kernels) fn i32s(&self) -> Vec<i32> {
        self.values(i32::from_le_bytes)
    }

    /// Whether bytes that belong to no unit are the same in both.
    pub(in crate::kernels) fn has_gaps_of(&self, other: &Tensor) -> bool {
        let mut used = vec![false; self.bytes.len()];
        let unit = self.dtype().block_bytes();
        self.places().for_each(|place| used[place..place + unit].fill(true));
        (0..used.len()).all(|i| used[i] || self.bytes[i] == other.bytes[i])
    }
}

/// Memory aligned for everything.
fn memory(bytes: &[u8]) -> Vec<[u64; 8]> {
    let mut lines = vec![[0; 8]; bytes.len().div_ceil(64)];
    // SAFETY: the lines are at least as long as the bytes, which are elsewhere.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), lines.as_mut_ptr().cast(), bytes.len()) };
    lines
}

/// The result of a node. Threads do their parts one after another, the last thread first.
pub(in crate::kernels) fn compute_with(
    op: impl Operation,
    sources: &[&Tensor],
    in_place: bool,
    level: Level,
    threads: usize,
) -> Result<Tensor, Fault> {
    let mut graph = Graph::new();
    let ids: Vec<_> =
        sources.iter().map(|source| Some(graph.leaf_with_layout(source.layout).unwrap())).collect();
    let op = op.into();
    let id = graph.insert(Node { op, sources: &ids, in_place, dtype: None }).unwrap();
    let node = graph.tensor(id).unwrap();
    let kernel = choose(node, level).expect("there is a kernel");
    let target = ids.iter().position(|source| *source == Some(node.root().id()));
    let layout = *node.layout();
    let mut memories: Vec<_> = sources.iter().map(|source| memory(&source.bytes)).collect();
    memories.push(memory(&vec![0xA5; layout.byte_len()]));
    let bases: Vec<*mut u8> = memories.iter_mut().map(|memory| memory.as_mut_ptr().cast()).collect();
    let base = bases[target.unwrap_or(sources.len())];
    let mut shared = memory(&vec![0xA5; kernel.shared]);
    let mut own = memory(&vec![0xA5; kernel.own]);
    for phase in 0..kernel.phases {
        let counter = AtomicUsize::new(0);
        for thread in (0..threads).rev() {
            let mut views = [None; MAX_SOURCES];
            for (slot, source) in sources.iter().enumerate() {
                // SAFETY: the memory is aligned, as long as the layout, and only this job uses it; where it is the result's
                // it is so element for element, because leaves are whole.
                views[slot] = Some(unsafe { Src::new(bases[slot], &source.layout, target == Some(slot)) });
            }
            // SAFETY: as above; the two scratch areas are memory of their own.
            let job = unsafe {
                Job {
                    op,
                    dst: Dst::new(base, &layout, target.is_some()),
                    sources: views,
                    written: [const { None }; MAX_SOURCES],
                    phase,
                    share: Share::new(thread, threads),
                    own: std::slice::from_raw_parts_mut(own.as_mut_ptr().cast(), kernel.own),
                    shared: Shared::new(shared.as_mut_ptr().cast(), kernel.shared),
                    counter: &counter,
                }
            };
            (kernel.run)(job)?;
        }
    }
    // SAFETY: the memory is at least as long, and nobody else uses it any more.
    let bytes = unsafe { std::slice::from_raw_parts(base, layout.byte_len()) }.to_vec();
    Ok(Tensor { layout, bytes })
}

/// The result of a node: the same on every level, with one thread and with several.
pub(in crate::kernels) fn compute(op: impl Operation, sources: &[&Tensor]) -> Result<Tensor, Fault> {
    let first = compute_with(op, sources, false, Level::Scalar, 1);
    for level in Level::available() {
        for threads in [1, 2, 3, 7] {
            let again = compute_with(op, sources, false, level, threads);
            let same = match (&first, &again) {
                (Ok(first), Ok(again)) => first == again,
                (Err(_), Err(_)) => true,
                _ => false,
            };
            assert!(same, "{:?} on {level} with {threads} threads", op.into());
        }
    }
    first
}
