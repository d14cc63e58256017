//! Invariants of memory plans, over random graphs and over language models.

mod graphs;

use graphs::random::{self, Random};
use graphs::transformer::{Model, models};
use oxcart_sched::memory::Strategy as How;
use oxcart_sched::memory::{MemoryPlan, Planner, Pool, Request, Spot, Steps, Transfer, plan};
use oxcart_tensor::graph::Flags;
use oxcart_tensor::{Graph, TensorId};
use proptest::prelude::*;

/// Plans with both strategies; both must be right, and neither worse than it may be.
fn plan_both(request: &Request<'_>) -> [MemoryPlan; 2] {
    let plans = [How::Online, How::Whole].map(|strategy| plan(request, strategy).expect("a plan"));
    for plan in &plans {
        plan.check(request).expect("a plan without flaws");
        for pool in plan.pools() {
            assert!(pool.peak() >= pool.lower_bound());
        }
    }
    for (online, whole) in plans[0].pools().iter().zip(plans[1].pools()) {
        assert!(whole.peak() <= online.peak(), "{} > {}", whole.peak(), online.peak());
        assert!(whole.lower_bound() <= online.lower_bound());
    }
    plans
}

fn share_bytes(a: Spot, b: Spot) -> bool {
    (a.pool, a.chunk) == (b.pool, b.chunk) && a.offset < b.offset + b.size && b.offset < a.offset + a.size
}

/// Consecutive nodes in groups of random sizes.
fn groups(graph: &Graph, random: &mut Random) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for position in 0..graph.nodes().len() {
        match groups.last_mut() {
            Some(group) if !random.chance(40) => group.push(position),
            _ => groups.push(vec![position]),
        }
    }
    groups
}

fn random_graph() -> impl Strategy<Value = (u64, Graph)> {
    (any::<u64>(), 1..150_usize).prop_map(|(seed, nodes)| (seed, random::graph(seed, nodes)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn plans_are_right((_, graph) in random_graph(), keep_inputs: bool) {
        let pool_of = vec![0; graph.len()];
        plan_both(&graphs::request(&graph, &pool_of, keep_inputs));
    }

    #[test]
    fn what_survives_is_never_overwritten((_, graph) in random_graph()) {
        let pool_of = vec![0; graph.len()];
        for plan in plan_both(&graphs::request(&graph, &pool_of, true)) {
            let spots: Vec<(TensorId, Spot)> = plan.spots().collect();
            for (place, &(id, spot)) in spots.iter().enumerate() {
                let tensor = graph.tensor(id).unwrap();
                if tensor.has(Flags::INPUT) {
                    prop_assert!(spots.iter().all(|&(other, there)| other == id || !share_bytes(spot, there)));
                }
                // Spots are in order of birth.
                if tensor.has(Flags::OUTPUT) {
                    prop_assert!(spots[place + 1..].iter().all(|&(_, there)| !share_bytes(spot, there)));
                }
            }
        }
    }

    #[test]
    fn groups_share_nothing((seed, graph) in random_graph()) {
        let groups = groups(&graph, &mut Random(seed));
        let steps = Steps::new(&graph, groups.clone()).unwrap();
        let pool_of = vec![0; graph.len()];
        let request = Request { steps: Some(&steps), ..graphs::request(&graph, &pool_of, true) };
        for plan in plan_both(&request) {
            for group in &groups {
                let made: Vec<Spot> = group.iter().filter_map(|&node| plan.spot(graph.nodes()[node])).collect();
                for (place, &a) in made.iter().enumerate() {
                    let shared = made[place + 1..].iter().filter(|&&b| share_bytes(a, b));
                    prop_assert!(shared.into_iter().all(|b| b.in_place.is_some()));
                }
            }
        }
    }

    #[test]
    fn buffers_respect_their_limit((_, graph) in random_graph(), spread in 1..20_usize) {
        let pool_of = vec![0; graph.len()];
        let largest = plan_both(&graphs::request(&graph, &pool_of, true))[1]
            .spots()
            .map(|(_, spot)| spot.size)
            .max()
            .unwrap_or(0);
        let pools = [Pool { alignment: 32, max_size: largest * (10 + spread) / 10 }];
        let request = Request { pools: &pools, ..graphs::request(&graph, &pool_of, true) };
        // The check looks at every buffer and every tensor's place in it.
        plan_both(&request);
        let small = [Pool { alignment: 32, max_size: largest.saturating_sub(1) }];
        let too_small = plan(&Request { pools: &small, ..request }, How::Whole);
        prop_assert!(largest == 0 || too_small.is_err());
    }

    #[test]
    fn several_pools_and_transfers((seed, graph) in random_graph()) {
        let mut random = Random(seed);
        let pools = [32, 256, 64].map(|alignment| Pool { alignment, max_size: usize::MAX });
        let pool_of: Vec<u16> = (0..graph.len()).map(|_| random.below(3) as u16).collect();
        let nodes = graph.nodes();
        let mut transfers = Vec::new();
        for &to in graph.leaves() {
            // A leaf may be filled by what was made before its first reader.
            let reads = |id: &TensorId| graph.sources(*id).unwrap().contains(&Some(to));
            let before = nodes.iter().position(reads).unwrap_or(0);
            if before > 0 && !graph.tensor(to).unwrap().has(Flags::INPUT) {
                transfers.push(Transfer { from: nodes[random.below(before)], to, before });
            }
        }
        let size_of = |tensor: oxcart_tensor::TensorRef<'_>, pool: usize| tensor.layout().byte_len() + 100 * pool;
        plan_both(&Request { transfers: &transfers, ..Request::new(&graph, &pools, &pool_of, &size_of) });
    }

    #[test]
    fn a_planner_forgets_what_it_planned_before((seed, graph) in random_graph(), (_, other) in random_graph()) {
        let mut planner = Planner::new();
        for graph in [&graph, &other, &graph] {
            let pool_of = vec![0; graph.len()];
            let request = graphs::request(graph, &pool_of, seed % 2 == 0);
            for strategy in [How::Whole, How::Online] {
                let made = planner.plan(&request, strategy).unwrap();
                let fresh = plan(&request, strategy).unwrap();
                prop_assert!(made.spots().eq(fresh.spots()) && made.pools() == fresh.pools());
                prop_assert!(planner.suits(&made, &request));
            }
        }
    }

    #[test]
    fn plans_suit_smaller_sizes((seed, graph) in random_graph(), shrink in 1..5_usize) {
        let pool_of = vec![0; graph.len()];
        let request = graphs::request(&graph, &pool_of, true);
        let made = plan(&request, How::Whole).unwrap();
        let smaller = |tensor: oxcart_tensor::TensorRef<'_>, _pool| tensor.layout().byte_len() / shrink;
        let request = Request { size_of: &smaller, ..request };
        prop_assert!(Planner::new().suits(&made, &request));
        made.check(&request).unwrap();
        let larger = |tensor: oxcart_tensor::TensorRef<'_>, _pool| tensor.layout().byte_len() + 32;
        let grown = Request { size_of: &larger, ..request };
        prop_assert!(!Planner::new().suits(&made, &grown));
        // Another graph is another matter.
        let other = random::graph(seed ^ 1, 60);
        let pool_of = vec![0; other.len()];
        let request = graphs::request(&other, &pool_of, true);
        prop_assert!(!Planner::new().suits(&made, &request) || made.check(&request).is_ok());
    }
}

#[test]
fn language_models_need_no_more_than_the_bound() {
    for (name, model) in models() {
        let graph = model.graph();
        let pool_of = vec![0; graph.len()];
        for keep_inputs in [false, true] {
            let [_, whole] = plan_both(&graphs::request(&graph, &pool_of, keep_inputs));
            let pool = &whole.pools()[0];
            assert_eq!(pool.peak(), pool.lower_bound(), "{name}, inputs kept: {keep_inputs}");
        }
    }
}

#[test]
fn a_plan_for_a_full_batch_suits_smaller_ones() {
    let mut planner = Planner::new();
    for model in [Model::LLAMA_8B, Model::LLAMA_8B.flash(), Model::MIXTRAL] {
        // As many outputs as tokens: fewer outputs are another graph.
        let sized =
            |tokens, keys| Model { layers: 4, outputs: tokens, keys, ..model.prefill(tokens) }.graph();
        let full = sized(512, 4096);
        let pool_of = vec![0; full.len()];
        let reserved = planner.plan(&graphs::request(&full, &pool_of, true), How::Whole).unwrap();
        for (tokens, keys) in [(1, 256), (2, 4096), (511, 512), (512, 4096)] {
            let graph = sized(tokens, keys);
            let request = graphs::request(&graph, &pool_of, true);
            assert!(planner.suits(&reserved, &request), "{tokens} tokens, {keys} keys");
            reserved.check(&request).unwrap();
            assert!(planner.plan(&request, How::Whole).unwrap().fits_in(&reserved));
        }
        let graph = sized(513, 4096);
        assert!(!planner.suits(&reserved, &graphs::request(&graph, &pool_of, true)));
    }
}
