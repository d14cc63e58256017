//! Ops on given tensors, for tests: built through the door, computed through the device's public face.
//!
//! The device is that of the library as everyone links it (`oxcart_cpu`, not `crate`), so that kernels of every type and
//! instruction set are not compiled once more beside their tests. A test that calls a kernel itself compiles that one again.
//!
//! Invariant: whatever a [`Trial`] gives is what one, two and three threads give, byte for byte, and what comes out in
//! the memory of a source where that was asked for. Small tensors are cut too.

mod engine;
mod tensor;

pub(crate) use engine::{Outcome, compute_graph};
pub(crate) use oxcart_cpu::{CpuDevice, Level};
pub(crate) use tensor::{Tensor, decode, encode};

use oxcart_backend::Error;
use oxcart_tensor::{Graph, Op, TensorId};

use crate::job::{Grain, Meter, Stop};

/// Calls a part of a kernel, which nothing asks to stop.
pub(crate) fn unstopped<T>(f: impl FnOnce(Stop<'_>) -> T) -> T {
    let (cancel, given_up) = Default::default();
    let meter = Meter::new(Grain::FINEST);
    f(Stop { cancel: &cancel, given_up: &given_up, meter: &meter })
}

/// Numbers of threads that must not matter.
const THREADS: [usize; 3] = [1, 2, 3];

/// Numbers from -1 to 1 that look random, the same on every run.
pub(crate) fn noise(seed: u64) -> impl Iterator<Item = f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        Some((state >> 40) as f32 / (1 << 23) as f32 - 1.0)
    };
    // The first few still look like the seed.
    std::iter::from_fn(next).skip(8)
}

/// The first `len` numbers of [`noise`].
pub(crate) fn numbers(seed: u64, len: usize) -> Vec<f32> {
    noise(seed).take(len).collect()
}

/// As [`numbers`], from -4 to 4, where functions bend.
pub(crate) fn wide_numbers(seed: u64, len: usize) -> Vec<f32> {
    noise(seed).map(|x| 4.0 * x).take(len).collect()
}

/// The squared error of `found` against `exact`, relative to the square of `exact`.
pub(crate) fn nmse(found: &[f32], exact: &[f64]) -> f64 {
    assert_eq!(found.len(), exact.len());
    let size: f64 = exact.iter().map(|x| x * x).sum();
    let error: f64 = found.iter().zip(exact).map(|(&x, r)| (f64::from(x) - r).powi(2)).sum();
    if error == 0.0 { 0.0 } else { error / size }
}

/// The result of an op on every level, from the plainest to the best.
pub(crate) fn run(op: impl Into<Op>, sources: &[&Tensor]) -> Vec<Tensor> {
    Trial::of(op, sources).each_level()
}

/// The result of an op, which must be the same on every level.
pub(crate) fn compute(op: impl Into<Op>, sources: &[&Tensor]) -> Tensor {
    Trial::of(op, sources).same()
}

/// Where the result goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// Memory of its own.
    Fresh,
    /// The memory of a source with the same layout, as a memory planner may decide.
    Over(usize),
    /// That of source 0, because the node says so.
    InPlace,
}

/// Makes a node of leaves.
type Build<'a> = dyn Fn(&mut Graph, &[TensorId]) -> TensorId + 'a;

/// A node over given tensors, to be computed in many ways.
pub(crate) struct Trial<'a> {
    sources: Vec<&'a Tensor>,
    build: Box<Build<'a>>,
    /// The same in place, where there is such a thing.
    in_place: Option<Box<Build<'a>>>,
    over: Vec<usize>,
}

impl<'a> Trial<'a> {
    /// An op on sources.
    pub(crate) fn of(op: impl Into<Op>, sources: &[&'a Tensor]) -> Trial<'a> {
        Trial::with(op, &sources.iter().copied().map(Some).collect::<Vec<_>>())
    }

    /// An op on sources, some of which may be absent.
    pub(crate) fn with(op: impl Into<Op>, slots: &[Option<&'a Tensor>]) -> Trial<'a> {
        let op = op.into();
        let present: Vec<_> = slots.iter().map(Option::is_some).collect();
        let spread = move |leaves: &[TensorId]| -> Vec<_> {
            let mut leaves = leaves.iter().copied();
            present.iter().map(|&present| if present { leaves.next() } else { None }).collect()
        };
        let spread_too = spread.clone();
        let in_place = move |graph: &mut Graph, leaves: &[TensorId]| {
            graph.apply_in_place(op, &spread_too(leaves)).unwrap()
        };
        Trial {
            sources: slots.iter().copied().flatten().collect(),
            build: Box::new(move |graph, leaves| graph.apply(op, &spread(leaves)).unwrap()),
            in_place: op.info().in_place.then(|| Box::new(in_place) as Box<Build<'a>>),
            over: Vec::new(),
        }
    }

    /// The node that `build` makes of leaves; there may be others before it.
    pub(crate) fn graph(
        sources: &'a [Tensor],
        build: impl Fn(&mut Graph, &[TensorId]) -> TensorId + 'a,
    ) -> Trial<'a> {
        let sources = sources.iter().collect();
        Trial { sources, build: Box::new(build), in_place: None, over: Vec::new() }
    }

    /// The result must be the same in the memory of each of these sources, in place if the op knows that.
    pub(crate) fn over(self, slots: &[usize]) -> Trial<'a> {
        Trial { over: slots.to_vec(), ..self }
    }

    fn try_at(&self, level: Level, threads: usize, place: Target) -> Result<Outcome, Error> {
        let (build, over) = match place {
            Target::Fresh => (&self.build, None),
            Target::Over(slot) => (&self.build, Some(slot)),
            Target::InPlace => (self.in_place.as_ref().unwrap(), None),
        };
        compute_graph(level, threads, &self.sources, over, &|graph, leaves| vec![build(graph, leaves)])
    }

    /// Result and sources on a level, after all ways to compute them were found to agree.
    pub(crate) fn outcome(&self, level: Level) -> Outcome {
        let at = |threads, place| {
            self.try_at(level, threads, place)
                .unwrap_or_else(|error| panic!("{level}, {threads} threads, {place:?}: {error}"))
        };
        let first = at(THREADS[0], Target::Fresh);
        for threads in &THREADS[1..] {
            assert!(at(*threads, Target::Fresh) == first, "{level}: {threads} threads give another result");
        }
        for &slot in &self.over {
            let fits = self.sources[slot].layout == first.result().layout;
            let places = [
                fits.then_some(Target::Over(slot)),
                (slot == 0 && self.in_place.is_some()).then_some(Target::InPlace),
            ];
            assert!(places.iter().any(Option::is_some), "the result cannot be over source {slot}");
            for place in places.into_iter().flatten() {
                for threads in [1, 3] {
                    let found = at(threads, place);
                    let same = found.result().units() == first.result().units();
                    assert!(same, "{level}, {threads} threads, {place:?}: another result");
                }
            }
        }
        first
    }

    /// The result on a level.
    pub(crate) fn on(&self, level: Level) -> Tensor {
        self.outcome(level).results.remove(0)
    }

    /// The results on all levels, from the plainest to the best.
    pub(crate) fn each_level(&self) -> Vec<Tensor> {
        Level::available().into_iter().map(|level| self.on(level)).collect()
    }

    /// The result on the best level, after trying all.
    pub(crate) fn best(&self) -> Tensor {
        self.each_level().pop().unwrap()
    }

    /// The result, which must be the same on all levels.
    pub(crate) fn same(&self) -> Tensor {
        let mut results = self.each_level();
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "levels give different results");
        results.remove(0)
    }

    /// Why it cannot be computed, on any level and with any number of threads.
    pub(crate) fn refused(&self) -> String {
        let mut why = String::new();
        for level in Level::available() {
            for threads in THREADS {
                match self.try_at(level, threads, Target::Fresh) {
                    Ok(_) => panic!("{level}, {threads} threads: computed"),
                    Err(error) => why = error.to_string(),
                }
            }
        }
        why
    }
}
