//! Verification of a plan, knowing nothing of how it was made.
//!
//! Lifetimes are found here once more, in the plainest way, and the plan is played through moment by moment.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::convert::Infallible;

use oxcart_tensor::TensorRef;
use oxcart_tensor::graph::Flags;
use thiserror::Error;

use super::Request;
use super::error::MemoryPlanError;
use super::plan::{MemoryPlan, Spot};
use super::planner::check_pools;
use super::timeline::{Action, Timeline, in_order};

/// What is wrong with a plan.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flaw {
    /// The request itself makes no sense.
    #[error(transparent)]
    Request(#[from] MemoryPlanError),
    /// A tensor needs memory and has none.
    #[error("{tensor} has no place")]
    Missing {
        /// Its label.
        tensor: String,
    },
    /// A tensor lies in the wrong pool, at a wrong offset, beyond its buffer, or has too few bytes.
    #[error("{tensor} cannot lie at {spot:?}")]
    BadSpot {
        /// Its label.
        tensor: String,
        /// Where it lies.
        spot: Spot,
    },
    /// A buffer that cannot be allocated.
    #[error("a buffer of pool {pool} has {size} bytes, {max_size} are possible")]
    BufferTooLarge {
        /// Index of the pool.
        pool: usize,
        /// What the plan asks for.
        size: usize,
        /// What there can be.
        max_size: usize,
    },
    /// Two tensors need the same bytes.
    #[error("{tensor} at {spot:?} overwrites {other}, which is still needed")]
    Overlap {
        /// The label of the one that comes to be.
        tensor: String,
        /// Where it lies.
        spot: Spot,
        /// The label of the one that is there.
        other: String,
    },
}

impl MemoryPlan {
    /// Verifies that the plan is right for a request: every tensor that needs a place has one that is aligned, large
    /// enough and within its buffer, and tensors that are alive at the same moment share no byte, unless one takes
    /// over from the other.
    pub fn check(&self, request: &Request<'_>) -> Result<(), Flaw> {
        for (pool, (plan, facts)) in self.pools().iter().zip(request.pools).enumerate() {
            if let Some(&size) = plan.chunks().iter().find(|&&size| size > facts.max_size) {
                return Err(Flaw::BufferTooLarge { pool, size, max_size: facts.max_size });
            }
        }
        check_pools(request)?;
        let timeline = Timeline::new(request)?;
        let lives = Lives::new(request, &timeline);
        let mut occupied = Occupied::default();
        for &(birth, tensor) in &lives.births {
            let spot = self.spot(tensor.id()).ok_or_else(|| Flaw::Missing { tensor: tensor.label() })?;
            self.check_spot(request, tensor, spot)?;
            occupied.advance(birth)?;
            occupied.enter(&lives, tensor, spot, birth)?;
        }
        occupied.advance(lives.end)
    }

    fn check_spot(&self, request: &Request<'_>, tensor: TensorRef<'_>, spot: Spot) -> Result<(), Flaw> {
        let pool = usize::from(spot.pool);
        let chunk = self.pools().get(pool).and_then(|plan| plan.chunks().get(spot.chunk as usize));
        let fits = chunk
            .is_some_and(|&size| spot.offset.checked_add(spot.size).is_some_and(|end| end <= size))
            && request.pool_of[tensor.id().index()] == spot.pool
            && spot.offset.is_multiple_of(request.pools[pool].alignment)
            && spot.size >= (request.size_of)(tensor, pool);
        if fits { Ok(()) } else { Err(Flaw::BadSpot { tensor: tensor.label(), spot }) }
    }
}

/// What each tensor that needs memory lives through.
struct Lives<'g> {
    /// In order of birth.
    births: Vec<(u32, TensorRef<'g>)>,
    /// By tensor, the moments at which its memory is read or written, one entry for each time.
    uses: Vec<Vec<u32>>,
    /// By tensor, the moment at which a node makes it.
    made: Vec<Option<u32>>,
    kept: Vec<bool>,
    end: u32,
}

impl<'g> Lives<'g> {
    fn new(request: &Request<'g>, timeline: &Timeline<'g>) -> Lives<'g> {
        let graph = request.graph;
        let count = graph.len();
        let (uses, made, kept) = (vec![vec![]; count], vec![None; count], vec![false; count]);
        let mut lives = Lives { births: vec![], uses, made, kept, end: 0 };
        let owns_nothing =
            |tensor: TensorRef<'_>| tensor.root().id() != tensor.id() || tensor.storage().is_some();
        let mut filled = Vec::new();
        let nodes: Vec<_> = in_order(graph, graph.nodes()).collect();
        let in_time = timeline.positions().map(|position| (position, nodes[position]));
        let Ok(end) = timeline.walk(in_time, |now, action| {
            match action {
                Action::Run(node) if node.is_leaf() => lives.births.push((0, node)),
                Action::Run(node) => {
                    if node.computes() && node.has(Flags::COMPUTE) {
                        lives.births.push((now, node));
                        lives.made[node.id().index()] = Some(now);
                        for tensor in node.sources().flatten().chain([node]) {
                            lives.uses[tensor.root().id().index()].push(now);
                        }
                    }
                }
                Action::Fill { from, to } => {
                    lives.uses[from.root().id().index()].push(now);
                    lives.births.push((now, to));
                    filled.push(to.id());
                }
            }
            Ok::<_, Infallible>(())
        });
        lives.end = end;
        let leaves = in_order(graph, graph.leaves()).filter(|leaf| !filled.contains(&leaf.id()));
        lives.births.extend(leaves.map(|leaf| (0, leaf)));
        lives.births.retain(|&(_, tensor)| !owns_nothing(tensor));
        lives.births.sort_by_key(|&(birth, _)| birth);
        for tensor in in_order(graph, graph.leaves()).chain(in_order(graph, graph.nodes())) {
            let roles = tensor;
            let is_sent = || request.transfers.iter().any(|transfer| transfer.from == tensor.id());
            let is_result = roles.has(Flags::COMPUTE) && graph.use_count(tensor.id()) == 0 && !is_sent();
            let is_input = request.keep_inputs && roles.has(Flags::INPUT);
            lives.kept[tensor.root().id().index()] |=
                roles.has(Flags::OUTPUT) || roles.has(Flags::PARAM) || is_input || is_result;
        }
        lives
    }

    fn death(&self, tensor: TensorRef<'_>, birth: u32) -> u32 {
        let index = tensor.id().index();
        if self.kept[index] {
            self.end
        } else {
            self.uses[index].last().map_or(birth, |&last| last.max(birth))
        }
    }

    /// Whether a node may be written where `old` is: the op allows it, and the node is the only one to use it at this
    /// moment, which is its last, reading it once and with the layout of the result.
    fn may_replace(&self, node: TensorRef<'_>, old: TensorRef<'_>, now: u32) -> bool {
        let index = old.id().index();
        // Nodes that run at the same moment may make it and read it; making it is not counted.
        let made_now = usize::from(self.made[index] == Some(now));
        let uses = self.uses[index].iter().rev().take_while(|&&moment| moment == now).count() - made_now;
        let shows_old = |source: &TensorRef<'_>| source.root().id() == old.id();
        let seen_as = node.sources().enumerate().find_map(|(slot, source)| {
            source.filter(shows_old).filter(|_| node.op().info().reuses.contains(&slot))
        });
        !self.kept[index]
            && uses == 1
            && self.death(old, 0) == now
            && seen_as.is_some_and(|source| {
                source.layout() == node.layout() && source.view().is_none_or(|view| view.offset == 0)
            })
    }
}

/// Pool, chunk and offset.
type Place = (u16, u32, usize);

/// Bytes that are in use.
#[derive(Default)]
struct Occupied<'g> {
    alive: BTreeMap<Place, (Spot, TensorRef<'g>)>,
    deaths: BinaryHeap<Reverse<(u32, Place)>>,
    /// Tensors that take over memory at this moment; it is theirs from the next on.
    heirs: Vec<(u32, Spot, TensorRef<'g>)>,
    now: u32,
}

impl<'g> Occupied<'g> {
    /// Goes on to a moment, freeing what died before.
    fn advance(&mut self, now: u32) -> Result<(), Flaw> {
        if now == self.now {
            return Ok(());
        }
        self.now = now;
        while let Some(&Reverse((_, place))) = self.deaths.peek().filter(|Reverse((death, _))| *death < now) {
            self.deaths.pop();
            self.alive.remove(&place);
        }
        for (death, spot, tensor) in std::mem::take(&mut self.heirs) {
            if death < now {
                continue;
            }
            if let Some(other) = self.overlapping(spot) {
                return Err(overlap(tensor, spot, other));
            }
            self.insert(death, spot, tensor);
        }
        Ok(())
    }

    fn enter(
        &mut self,
        lives: &Lives<'g>,
        tensor: TensorRef<'g>,
        spot: Spot,
        birth: u32,
    ) -> Result<(), Flaw> {
        if spot.size == 0 {
            return Ok(());
        }
        let death = lives.death(tensor, birth);
        let Some(old) = self.overlapping(spot) else {
            self.insert(death, spot, tensor);
            return Ok(());
        };
        // Within one moment memory can be handed on several times.
        let heir = self.heirs.iter().rev().find(|(_, there, _)| place(*there) == place(spot));
        let owner = heir.map(|&(_, there, owner)| (there, owner)).or(self.alive.get(&place(spot)).copied());
        let may = owner
            .is_some_and(|(there, owner)| spot.size <= there.size && lives.may_replace(tensor, owner, birth));
        if !may {
            return Err(overlap(tensor, spot, old));
        }
        self.heirs.push((death, spot, tensor));
        Ok(())
    }

    fn insert(&mut self, death: u32, spot: Spot, tensor: TensorRef<'g>) {
        self.alive.insert(place(spot), (spot, tensor));
        self.deaths.push(Reverse((death, place(spot))));
    }

    /// A tensor that has some of these bytes.
    fn overlapping(&self, spot: Spot) -> Option<TensorRef<'g>> {
        let end = (spot.pool, spot.chunk, spot.offset + spot.size);
        let (&(pool, chunk, offset), &(there, tensor)) = self.alive.range(..end).next_back()?;
        let same = (pool, chunk) == (spot.pool, spot.chunk);
        (same && offset + there.size > spot.offset).then_some(tensor)
    }
}

fn place(spot: Spot) -> Place {
    (spot.pool, spot.chunk, spot.offset)
}

fn overlap(tensor: TensorRef<'_>, spot: Spot, other: TensorRef<'_>) -> Flaw {
    Flaw::Overlap { tensor: tensor.label(), spot, other: other.label() }
}
