//! Plans small enough to check by eye. One unit is 64 bytes: a row of 16 `f32`.

use oxcart_tensor::graph::{BufferId, Flags, Storage};
use oxcart_tensor::{DType, Graph, TensorId, TensorRef};

use super::*;

const UNIT: usize = 64;
const ONE_POOL: [Pool; 1] = [Pool { alignment: UNIT, max_size: usize::MAX }];

fn byte_len(tensor: TensorRef<'_>, _pool: usize) -> usize {
    tensor.layout().byte_len()
}

/// A leaf of so many units.
fn leaf(graph: &mut Graph, units: usize) -> TensorId {
    graph.leaf(DType::F32, [16, units]).unwrap()
}

fn input(graph: &mut Graph, units: usize) -> TensorId {
    let id = leaf(graph, units);
    graph.mark_input(id).unwrap();
    id
}

/// A leaf that has storage elsewhere.
fn weight(graph: &mut Graph, columns: usize, rows: usize) -> TensorId {
    let id = graph.leaf(DType::F32, [columns, rows]).unwrap();
    graph.bind(id, Storage { buffer: BufferId(9), offset: 0 }, usize::MAX).unwrap();
    id
}

/// Plans with both strategies, checks both plans, and returns the better one.
fn check_both(request: &Request<'_>) -> MemoryPlan {
    let online = plan(request, Strategy::Online).unwrap();
    let whole = plan(request, Strategy::Whole).unwrap();
    for (online, whole) in online.pools().iter().zip(whole.pools()) {
        assert!(whole.peak() <= online.peak() && whole.lower_bound() <= whole.peak());
    }
    online.check(request).unwrap();
    whole.check(request).unwrap();
    whole
}

/// The plan with everything in one pool.
fn check_one(graph: &Graph) -> MemoryPlan {
    let pool_of = vec![0; graph.len()];
    check_both(&Request::new(graph, &ONE_POOL, &pool_of, &byte_len))
}

/// Offset in units.
fn at(plan: &MemoryPlan, id: TensorId) -> usize {
    plan.spot(id).unwrap().offset / UNIT
}

fn peak(plan: &MemoryPlan) -> usize {
    plan.pools()[0].peak() / UNIT
}

#[test]
fn results_replace_dying_sources() {
    let mut graph = Graph::new();
    let x = input(&mut graph, 4);
    let a = graph.sqr(x).unwrap();
    let b = graph.scale(a, 2.0).unwrap();
    let c = graph.add(a, b).unwrap();
    graph.expand(c).unwrap();
    let plan = check_one(&graph);
    // `x` is an input, `a` is needed after `b`; `c` can replace `a`.
    assert_ne!(at(&plan, a), at(&plan, b));
    assert_eq!((at(&plan, c), plan.spot(c).unwrap().in_place), (at(&plan, a), Some(0)));
    assert_eq!((peak(&plan), plan.pools()[0].lower_bound()), (12, 12 * UNIT));
}

#[test]
fn any_source_of_the_same_layout_can_be_replaced() {
    let mut graph = Graph::new();
    let (small, large) = (leaf(&mut graph, 1), leaf(&mut graph, 4));
    let (small, large) = (graph.norm(small, 0.0).unwrap(), graph.norm(large, 0.0).unwrap());
    let product = graph.mul(large, small).unwrap();
    let swapped = graph.repeat(small, [16, 4]).unwrap();
    let sum = graph.add(swapped, product).unwrap();
    graph.expand(product).unwrap();
    graph.expand(sum).unwrap();
    let plan = check_one(&graph);
    assert_eq!(plan.spot(product).unwrap().in_place, Some(0), "the small one is repeated");
    assert_eq!(plan.spot(sum).unwrap().in_place, Some(0), "both die: the first");
}

#[test]
fn reading_twice_forbids_replacing() {
    let mut graph = Graph::new();
    let x = leaf(&mut graph, 1);
    let a = graph.norm(x, 0.0).unwrap();
    let square = graph.mul(a, a).unwrap();
    graph.expand(square).unwrap();
    let plan = check_one(&graph);
    assert_eq!(plan.spot(square).unwrap().in_place, None);
}

#[test]
fn ops_that_read_after_writing_never_replace() {
    let mut graph = Graph::new();
    let x = leaf(&mut graph, 4);
    let a = graph.norm(x, 0.0).unwrap();
    let b = graph.norm(a, 0.0).unwrap();
    graph.expand(b).unwrap();
    let plan = check_one(&graph);
    // A leaf that is no input dies after its last reader.
    assert_eq!((at(&plan, b), peak(&plan)), (at(&plan, x), 8));
}

#[test]
fn outputs_inputs_and_unread_results_survive() {
    let mut graph = Graph::new();
    let x = input(&mut graph, 1);
    let out = graph.norm(x, 0.0).unwrap();
    graph.mark_output(out).unwrap();
    let unread = graph.norm(out, 0.0).unwrap();
    let rows = graph.view(out, [16], &[], 0).unwrap();
    let last = graph.norm(rows, 0.0).unwrap();
    graph.expand(unread).unwrap();
    graph.expand(last).unwrap();
    let pool_of = vec![0; graph.len()];
    let request = Request::new(&graph, &ONE_POOL, &pool_of, &byte_len);
    assert_eq!(peak(&check_both(&request)), 4);
    // ggml's way: the input dies, `unread` or `last` can have its memory.
    let request = Request { keep_inputs: false, ..request };
    assert_eq!(peak(&check_both(&request)), 3);
}

#[test]
fn an_output_through_a_view_protects_the_root() {
    let mut graph = Graph::new();
    let x = leaf(&mut graph, 2);
    let root = graph.norm(x, 0.0).unwrap();
    let half = graph.view(root, [16, 1], &[UNIT], UNIT).unwrap();
    graph.mark_output(half).unwrap();
    let next = graph.sqr(root).unwrap();
    graph.expand(half).unwrap();
    graph.expand(next).unwrap();
    let plan = check_one(&graph);
    assert_eq!(plan.spot(next).unwrap().in_place, None);
    assert_eq!(plan.spot(half), None, "views lie where their root lies");
}

#[test]
fn whole_replaces_through_views_at_offset_zero() {
    let mut graph = Graph::new();
    let x = leaf(&mut graph, 4);
    let a = graph.norm(x, 0.0).unwrap();
    let shaped = graph.reshape(a, [64]).unwrap();
    let b = graph.sqr(shaped).unwrap();
    let tail = graph.view(b, [32], &[], 2 * UNIT).unwrap();
    let c = graph.sqr(tail).unwrap();
    graph.expand(c).unwrap();
    let plan = check_one(&graph);
    assert_eq!(plan.spot(b).unwrap().in_place, Some(0));
    assert_eq!(plan.spot(c).unwrap().in_place, None, "it would begin inside the block");
    let pool_of = vec![0; graph.len()];
    let request = Request::new(&graph, &ONE_POOL, &pool_of, &byte_len);
    let online = super::plan(&request, Strategy::Online).unwrap();
    assert_eq!(online.spot(b).unwrap().in_place, None, "as ggml does");
}

#[test]
fn a_smaller_heir_frees_the_rest() {
    let mut graph = Graph::new();
    let x = leaf(&mut graph, 1);
    let wide = graph.repeat(x, [16, 8]).unwrap();
    let head = graph.view(wide, [16, 2], &[UNIT], 0).unwrap();
    let heir = graph.sqr(head).unwrap();
    let other = graph.repeat(x, [16, 6]).unwrap();
    let joined = graph.concat(heir, other, 1).unwrap();
    graph.expand(joined).unwrap();
    let plan = check_one(&graph);
    // `heir` keeps two units of eight, `other` fits into the other six.
    assert_eq!(plan.spot(heir).unwrap().in_place, Some(0));
    assert_eq!(at(&plan, heir), at(&plan, wide));
    assert!(at(&plan, other) > at(&plan, heir) || at(&plan, heir) > at(&plan, other));
    assert_eq!(plan.pools()[0].lower_bound(), 16 * UNIT);
    assert_eq!(peak(&plan), 16);
}

#[test]
fn stored_skipped_and_relabelled_tensors_take_nothing() {
    let mut graph = Graph::new();
    let w = weight(&mut graph, 16, 8);
    let x = input(&mut graph, 1);
    let used = graph.mul_mat(w, x).unwrap();
    let skipped = graph.mul_mat(w, x).unwrap();
    graph.expand_select(&[used, skipped], 0).unwrap();
    let plan = check_one(&graph);
    assert_eq!([w, skipped].map(|id| plan.spot(id)), [None, None]);
    assert!(!graph.tensor(skipped).unwrap().has(Flags::COMPUTE));
    assert_eq!(plan.spots().map(|(id, _)| id).collect::<Vec<_>>(), [x, used]);
    assert_eq!(peak(&plan), 2);
}

#[test]
fn writing_through_a_view_keeps_the_root_alive() {
    let mut graph = Graph::new();
    let cache = leaf(&mut graph, 4);
    let x = input(&mut graph, 1);
    let window = graph.view(cache, [16, 1], &[UNIT], UNIT).unwrap();
    let write = graph.cpy(x, window).unwrap();
    let unrelated = graph.norm(x, 0.0).unwrap();
    let read = graph.norm(cache, 0.0).unwrap();
    for id in [write, unrelated, read] {
        graph.expand(id).unwrap();
    }
    let plan = check_one(&graph);
    assert_eq!(peak(&plan), 4 + 1 + 1 + 4);
}

#[test]
fn pools_have_their_own_sizes_and_never_share() {
    let mut graph = Graph::new();
    let x = input(&mut graph, 1);
    let a = graph.sqr(x).unwrap();
    let b = graph.sqr(a).unwrap();
    let c = graph.sqr(b).unwrap();
    graph.expand(c).unwrap();
    let pools = [ONE_POOL[0], Pool { alignment: 256, max_size: usize::MAX }, ONE_POOL[0]];
    let pool_of = [0, 0, 1, 1];
    let size_of = |tensor: TensorRef<'_>, pool: usize| tensor.layout().byte_len() * (pool + 1);
    let plan = check_both(&Request::new(&graph, &pools, &pool_of, &size_of));
    assert_eq!(plan.spot(b).unwrap().in_place, None, "its source is elsewhere");
    assert_eq!(plan.spot(c).unwrap().in_place, Some(0));
    assert_eq!(plan.pools().iter().map(PoolPlan::peak).collect::<Vec<_>>(), [2 * UNIT, 256, 0]);
    assert!(plan.pools()[2].chunks().is_empty());
}

#[test]
fn pools_with_small_buffers_have_several() {
    let mut graph = Graph::new();
    let inputs = [3, 3, 2].map(|units| input(&mut graph, units));
    let out = graph.concat(inputs[0], inputs[1], 1).unwrap();
    graph.set_name(out, "joined").unwrap();
    let last = graph.concat(inputs[2], inputs[2], 1).unwrap();
    graph.expand(last).unwrap();
    let pools = [Pool { alignment: UNIT, max_size: 5 * UNIT + 7 }];
    let pool_of = vec![0; graph.len()];
    graph.expand(inputs[0]).unwrap();
    graph.expand(inputs[1]).unwrap();
    let plan = check_both(&Request::new(&graph, &pools, &pool_of, &byte_len));
    assert_eq!(plan.pools()[0].chunks().iter().sum::<usize>(), 12 * UNIT);
    assert!(plan.pools()[0].chunks().len() >= 3);

    graph.expand(out).unwrap();
    let error = super::plan(&Request::new(&graph, &pools, &pool_of, &byte_len), Strategy::Whole).unwrap_err();
    assert_eq!(error.to_string(), "joined needs 384 bytes, but the largest buffer of pool 0 has 327");
}

#[test]
fn memory_that_dies_in_a_group_is_reused_after_it() {
    let mut graph = Graph::new();
    let x = leaf(&mut graph, 1);
    let a = graph.norm(x, 0.0).unwrap();
    let b = graph.norm(a, 0.0).unwrap();
    let c = graph.norm(b, 0.0).unwrap();
    graph.expand(c).unwrap();
    let pool_of = vec![0; graph.len()];
    let request = Request::new(&graph, &ONE_POOL, &pool_of, &byte_len);
    assert_eq!(peak(&check_both(&request)), 2);
    // One barrier after the second node: `a` and `x` are there until then.
    let steps = Steps::new(&graph, [vec![0, 1], vec![2]]).unwrap();
    assert_eq!(peak(&check_both(&Request { steps: Some(&steps), ..request })), 3);
    // No barrier at all.
    let steps = Steps::new(&graph, [vec![0, 1, 2]]).unwrap();
    assert_eq!(peak(&check_both(&Request { steps: Some(&steps), ..request })), 4);
}

#[test]
fn the_last_reader_in_a_group_may_replace() {
    let mut graph = Graph::new();
    let x = leaf(&mut graph, 1);
    let a = graph.norm(x, 0.0).unwrap();
    let b = graph.sqr(a).unwrap();
    let c = graph.norm(a, 0.0).unwrap();
    let d = graph.add(b, c).unwrap();
    graph.expand(d).unwrap();
    let pool_of = vec![0; graph.len()];
    let steps = Steps::new(&graph, [vec![0], vec![1, 2], vec![3]]).unwrap();
    let request = Request { steps: Some(&steps), ..Request::new(&graph, &ONE_POOL, &pool_of, &byte_len) };
    let plan = check_both(&request);
    assert_eq!(plan.spot(b).unwrap().in_place, None, "`c` may read `a` at the same time");
    assert_eq!(plan.spot(d).unwrap().in_place, Some(0));
}

#[test]
fn steps_are_checked() {
    let mut graph = Graph::new();
    let x = leaf(&mut graph, 1);
    let a = graph.norm(x, 0.0).unwrap();
    let b = graph.norm(a, 0.0).unwrap();
    graph.expand(b).unwrap();
    let error = |groups: &[&[usize]]| {
        let groups = groups.iter().map(|group| group.iter().copied());
        Steps::new(&graph, groups).unwrap_err().to_string()
    };
    assert_eq!(error(&[&[0, 2]]), "step 0 names node 2, which is past the last one");
    assert_eq!(error(&[&[0], &[1, 0]]), "step 1 names node 0, which is in a step already");
    assert_eq!(error(&[&[1], &[0]]), "step 0 names node 1, which reads the result of a later step");
    assert_eq!(error(&[&[0]]), "transfers and steps must match the graph: a node is in no step");
}

#[test]
fn transfers_fill_leaves_on_the_way() {
    let mut graph = Graph::new();
    let x = leaf(&mut graph, 1);
    let a = graph.norm(x, 0.0).unwrap();
    let b = graph.norm(a, 0.0).unwrap();
    let copy = leaf(&mut graph, 1);
    let c = graph.norm(copy, 0.0).unwrap();
    graph.expand(b).unwrap();
    graph.expand(c).unwrap();
    let pool_of = vec![0; graph.len()];
    let transfers = [Transfer { from: b, to: copy, before: 2 }];
    let request = Request::new(&graph, &ONE_POOL, &pool_of, &byte_len);
    // Without the transfer `copy` is there from the start.
    assert_eq!(peak(&check_both(&request)), 3);
    let request = Request { transfers: &transfers, ..request };
    let plan = check_both(&request);
    assert_eq!(peak(&plan), 2);
    assert_ne!(at(&plan, copy), at(&plan, b));

    let wrong = [Transfer { from: b, to: a, before: 2 }];
    let error = super::plan(&Request { transfers: &wrong, ..request }, Strategy::Whole).unwrap_err();
    assert!(error.to_string().ends_with("a transfer writes a tensor that is not a leaf"), "{error}");
}

#[test]
fn parameters_are_there_from_the_start_and_survive() {
    let mut graph = Graph::new();
    let x = input(&mut graph, 1);
    let a = graph.norm(x, 0.0).unwrap();
    let parameter = leaf(&mut graph, 1);
    graph.mark_param(parameter).unwrap();
    let b = graph.add(a, parameter).unwrap();
    graph.expand(b).unwrap();
    let plan = check_one(&graph);
    assert_eq!(graph.nodes(), [a, parameter, b]);
    assert_eq!(plan.spot(b).unwrap().in_place, Some(0));
    assert_eq!(peak(&plan), 3);
}

#[test]
fn nothing_and_empty_tensors_can_be_planned() {
    let plan = check_one(&Graph::new());
    assert!(plan.pools()[0].chunks().is_empty());

    let mut graph = Graph::new();
    let x = graph.leaf(DType::F32, [16, 0]).unwrap();
    let y = graph.sqr(x).unwrap();
    graph.expand(y).unwrap();
    let plan = check_one(&graph);
    assert_eq!((plan.spot(y).unwrap().size, plan.pools()[0].chunks()), (0, &[0][..]));
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let mut graph = Graph::new();
    let x = leaf(&mut graph, 1);
    graph.set_name(x, "x").unwrap();
    let y = graph.sqr(x).unwrap();
    graph.expand(y).unwrap();
    let message = |pools: &[Pool], pool_of: &[u16], size_of: SizeOf<'_>| {
        plan(&Request::new(&graph, pools, pool_of, size_of), Strategy::Whole).unwrap_err().to_string()
    };
    assert_eq!(message(&ONE_POOL, &[0], &byte_len), "pools are given for 1 tensors, the graph has 2");
    assert_eq!(message(&ONE_POOL, &[3, 0], &byte_len), "x is to lie in pool 3, but there are 1");
    let odd = [Pool { alignment: 48, max_size: 1 }];
    assert_eq!(message(&odd, &[0, 0], &byte_len), "pool 0 has alignment 48, which is not a power of two");
    let huge = message(&ONE_POOL, &[0, 0], &|_, _| usize::MAX / 4);
    assert_eq!(huge, "x brings pool 0 past the bytes that can be addressed");
    let huge = message(&ONE_POOL, &[0, 0], &|_, _| usize::MAX);
    assert!(huge.starts_with("x needs 18446744073709551615 bytes"), "{huge}");
}

/// A graph whose size is a number of tokens.
fn tokens(count: usize) -> Graph {
    let mut graph = Graph::new();
    let x = input(&mut graph, count);
    let bias = graph.leaf(DType::F32, [16]).unwrap();
    let a = graph.norm(x, 0.0).unwrap();
    let b = graph.norm(bias, 0.0).unwrap();
    let c = graph.add(a, b).unwrap();
    graph.expand(c).unwrap();
    graph
}

#[test]
fn a_plan_suits_smaller_graphs_of_the_same_form() {
    let mut planner = Planner::new();
    let pool_of = [0; 5];
    let large = tokens(8);
    let request = Request::new(&large, &ONE_POOL, &pool_of, &byte_len);
    let plan = planner.plan(&request, Strategy::Whole).unwrap();
    assert!(planner.suits(&plan, &request));
    for (count, suits) in [(1, true), (7, true), (8, true), (9, false)] {
        let graph = tokens(count);
        let request = Request::new(&graph, &ONE_POOL, &pool_of, &byte_len);
        assert_eq!(planner.suits(&plan, &request), suits, "{count} tokens");
        if suits {
            plan.check(&request).unwrap();
        }
        let anew = planner.plan(&request, Strategy::Whole).unwrap();
        assert_eq!(anew.fits_in(&plan), suits);
    }
    // Elsewhere, or read for longer.
    assert!(!planner.suits(&plan, &Request::new(&large, &[ONE_POOL[0]; 2], &[1; 5], &byte_len)));
    let mut longer = tokens(8);
    let again = longer.sqr(longer.nodes()[0]).unwrap();
    longer.expand(again).unwrap();
    assert!(!planner.suits(&plan, &Request::new(&longer, &ONE_POOL, &[0; 6], &byte_len)));
}

#[test]
fn a_plan_does_not_suit_where_it_would_overwrite_a_source() {
    // With one token both sources of the sum have the layout of the result.
    let build = |rows: [usize; 2]| {
        let mut graph = Graph::new();
        let x = input(&mut graph, rows[0]);
        let y = input(&mut graph, rows[1]);
        graph.mark_output(x).unwrap();
        let y = graph.norm(y, 0.0).unwrap();
        let sum = graph.add(x, y).unwrap();
        graph.expand(sum).unwrap();
        graph
    };
    let mut planner = Planner::new();
    let pool_of = [0; 4];
    let equal = build([4, 4]);
    let plan = planner.plan(&Request::new(&equal, &ONE_POOL, &pool_of, &byte_len), Strategy::Whole).unwrap();
    assert_eq!(plan.spot(equal.nodes()[1]).unwrap().in_place, Some(1));
    // No tensor is larger, but `y` is repeated now: writing over it would destroy what is still to be read.
    let repeated = build([4, 1]);
    let request = Request::new(&repeated, &ONE_POOL, &pool_of, &byte_len);
    assert!(!planner.suits(&plan, &request));
    assert!(plan.check(&request).is_err());
}

#[test]
fn a_plan_does_not_suit_where_sources_changed_places() {
    // The result replaces `a`, its first source; `b` is an output.
    let build = |swap: bool| {
        let mut graph = Graph::new();
        let x = input(&mut graph, 1);
        let a = graph.norm(x, 0.0).unwrap();
        let b = graph.norm(x, 0.0).unwrap();
        graph.mark_output(b).unwrap();
        let sum = if swap { graph.mul(b, a) } else { graph.mul(a, b) }.unwrap();
        for id in [a, b, sum] {
            graph.expand(id).unwrap();
        }
        graph
    };
    let mut planner = Planner::new();
    let (straight, swapped) = (build(false), build(true));
    let plan =
        planner.plan(&Request::new(&straight, &ONE_POOL, &[0; 4], &byte_len), Strategy::Whole).unwrap();
    assert_eq!(plan.spot(straight.nodes()[2]).unwrap().in_place, Some(0));
    assert!(!planner.suits(&plan, &Request::new(&swapped, &ONE_POOL, &[0; 4], &byte_len)));
}

#[test]
fn flaws_are_found() {
    let mut graph = Graph::new();
    let x = input(&mut graph, 1);
    let a = graph.norm(x, 0.0).unwrap();
    let b = graph.norm(a, 0.0).unwrap();
    for (id, name) in [(x, "x"), (a, "a"), (b, "b")] {
        graph.set_name(id, name).unwrap();
    }
    graph.expand(b).unwrap();
    let pool_of = vec![0; graph.len()];
    let request = Request::new(&graph, &ONE_POOL, &pool_of, &byte_len);
    let good = check_both(&request);
    let message = |id: TensorId, change: &dyn Fn(&mut Spot)| {
        let mut bad = good.clone();
        change(bad.spot_mut(id).unwrap());
        bad.check(&request).unwrap_err().to_string()
    };
    let overwrites = message(b, &|spot| spot.offset = good.spot(a).unwrap().offset);
    assert!(overwrites.starts_with("b at ") && overwrites.ends_with("overwrites a, which is still needed"));
    let overwrites = message(a, &|spot| spot.offset = good.spot(x).unwrap().offset);
    assert!(overwrites.ends_with("overwrites x, which is still needed"));
    assert!(message(b, &|spot| spot.offset += 1).starts_with("b cannot lie at"));
    assert!(message(b, &|spot| spot.offset += 1 << 20).starts_with("b cannot lie at"));
    assert!(message(b, &|spot| spot.size = 0).starts_with("b cannot lie at"));
    assert!(message(b, &|spot| spot.chunk = 1).starts_with("b cannot lie at"));

    let mut wider = graph.clone();
    let c = wider.norm(b, 0.0).unwrap();
    wider.expand(c).unwrap();
    let pool_of = vec![0; wider.len()];
    let request = Request::new(&wider, &ONE_POOL, &pool_of, &byte_len);
    assert_eq!(good.check(&request).unwrap_err().to_string(), "node_2 has no place");
}
