//! Graphs that are malformed or ask for too much. `docs/threats.md` says which threat each test answers.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{Example, Fixture, Peer, dialects};
use oxcart_rpc::wire::{Command, Dialect, MAX_TENSORS, OpCode, TensorRecord};
use zerocopy::IntoBytes;

/// A client with a buffer of a page.
fn setup(fixture: &Fixture, dialect: &'static Dialect) -> (Peer, u64, u64) {
    let mut peer = fixture.connect(dialect);
    let handle = peer.alloc(0x1000);
    let base = peer.base(handle);
    (peer, handle, base)
}

/// A graph is refused: in version 2 by its status, later by closing.
#[track_caller]
fn assert_refused(peer: &mut Peer, body: &[u8], what: &str) {
    match peer.try_ask(Command::GraphCompute, body) {
        None => assert!(peer.dialect.has_recompute, "{what}: version 2 has a way to say no"),
        Some(status) => {
            assert!(!peer.dialect.has_recompute && status != [0], "{what} was accepted in {}", peer.dialect);
            assert!(peer.is_alive());
        }
    }
}

const SCALAR: [u32; 4] = [1, 1, 1, 1];

#[test]
fn counts_that_do_not_add_up_are_refused() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        for count in [u32::MAX, 1 << 29, (1 << 29) + 1, 2, 0] {
            for which in 0..2 {
                let (mut peer, handle, base) = setup(&fixture, dialect);
                let leaf = peer.tensor(1, SCALAR, (handle, base));
                let node = peer.node(OpCode::Add, 2, SCALAR, (handle, base + 64), &[1, 1]);
                let mut body = peer.graph_body(&[2], &[leaf, node]);
                let at = peer.device().len() + if which == 0 { 0 } else { 12 };
                let count = if which == 1 && count == 2 { 3 } else { count };
                body[at..at + 4].copy_from_slice(&count.to_le_bytes());
                assert_refused(&mut peer, &body, &format!("count {which} = {count}"));
            }
        }
        let (mut peer, handle, base) = setup(&fixture, dialect);
        let leaf = peer.tensor(1, SCALAR, (handle, base));
        let mut body = peer.graph_body(&[], &[leaf]);
        body.push(0);
        assert_refused(&mut peer, &body, "a byte too many");
    }
}

#[test]
fn ids_that_are_zero_missing_or_repeated_are_refused() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        let graphs = |peer: &Peer, handle: u64, base: u64| {
            let leaf = peer.tensor(1, SCALAR, (handle, base));
            let node = peer.node(OpCode::Add, 2, SCALAR, (handle, base + 64), &[1, 1]);
            let more = peer.node(OpCode::Add, 3, SCALAR, (handle, base + 128), &[2, 1]);
            let no_source = TensorRecord { sources: [9.into(); 10], ..more };
            let no_view = TensorRecord { view_source: 9.into(), ..more };
            vec![
                ("zero alone", peer.graph_body(&[0], &[leaf, node])),
                ("zero between", peer.graph_body(&[2, 0, 3], &[leaf, node, more])),
                ("zero listed", peer.graph_body(&[2], &[leaf, node, TensorRecord::absent()])),
                ("a missing node", peer.graph_body(&[2, 9], &[leaf, node])),
                ("a missing source", peer.graph_body(&[2, 3], &[leaf, node, no_source])),
                ("a missing view source", peer.graph_body(&[2, 3], &[leaf, node, no_view])),
                ("a tensor twice", peer.graph_body(&[2], &[leaf, node, leaf])),
                ("a node twice", peer.graph_body(&[2, 2], &[leaf, node])),
            ]
        };
        for number in 0..8 {
            let (mut peer, handle, base) = setup(&fixture, dialect);
            let (what, body) = graphs(&peer, handle, base).swap_remove(number);
            assert_refused(&mut peer, &body, what);
        }
    }
}

#[test]
fn chains_as_long_as_a_graph_may_be_are_computed() {
    let fixture = Fixture::new();
    let (mut peer, handle, base) = setup(&fixture, Dialect::newest());
    let count = MAX_TENSORS as u64 - 1;
    let mut tensors = Vec::with_capacity(MAX_TENSORS);
    for id in 1..=count {
        let mut link = peer.tensor(id, SCALAR, (handle, base));
        link.sources[0] = (id - 1).into();
        link.view_source = (id - 1).into();
        tensors.push(link);
    }
    let leaf = tensors[0];
    peer.set_floats(&leaf, &[3.]);
    let node = peer.node(OpCode::Add, count + 1, SCALAR, (handle, base + 64), &[count, count]);
    tensors.push(node);
    assert!(peer.compute(&[count + 1], &tensors));
    assert_eq!(peer.floats(&node), [6.]);
    // One more is too many.
    tensors.push(peer.tensor(count + 2, SCALAR, (handle, base)));
    assert!(!peer.compute(&[count + 1], &tensors));
}

#[test]
fn cycles_do_no_harm() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        for ring in 1..4_u64 {
            let (mut peer, handle, base) = setup(&fixture, dialect);
            let tensors: Vec<_> = (0..ring)
                .map(|i| {
                    let next = 1 + (i + 1) % ring;
                    let mut node =
                        peer.node(OpCode::Add, 1 + i, SCALAR, (handle, base + 64 * i), &[next, next]);
                    node.view_source = next.into();
                    node
                })
                .collect();
            let nodes: Vec<u64> = (1..=ring).collect();
            let _ = peer.compute(&nodes, &tensors);
        }
        // A cast names itself as its second source, and is honest.
        let (mut peer, handle, base) = setup(&fixture, dialect);
        let leaf = peer.tensor(1, [4, 1, 1, 1], (handle, base));
        peer.set_floats(&leaf, &[1., 2., 3., 4.]);
        let cast = peer.node(OpCode::Cpy, 2, [4, 1, 1, 1], (handle, base + 64), &[1, 2]);
        assert!(peer.compute(&[2], &[leaf, cast]), "{dialect}: {:?}", fixture.events());
        assert_eq!(peer.floats(&cast), [1., 2., 3., 4.]);
    }
    fixture.assert_serves();
}

#[test]
fn unknown_operations_are_refused() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        let count = u32::try_from(dialect.ops.len()).unwrap();
        for number in [count, count + 1, 255, 1 << 31, u32::MAX] {
            let (mut peer, handle, base) = setup(&fixture, dialect);
            let leaf = peer.tensor(1, SCALAR, (handle, base));
            let mut node = peer.node(OpCode::Add, 2, SCALAR, (handle, base + 64), &[1, 1]);
            node.op = number.into();
            let body = peer.graph_body(&[2], &[leaf, node]);
            assert_refused(&mut peer, &body, &format!("operation {number}"));
        }
        for (op, count) in [(OpCode::Unary, dialect.unary.len()), (OpCode::Glu, dialect.glu.len())] {
            let count = i32::try_from(count).unwrap();
            for function in [count, count + 1, 255, i32::MAX, i32::MIN, -1] {
                let (mut peer, handle, base) = setup(&fixture, dialect);
                let leaf = peer.tensor(1, [2, 1, 1, 1], (handle, base));
                let ne = if op == OpCode::Glu { SCALAR } else { [2, 1, 1, 1] };
                let mut node = peer.node(op, 2, ne, (handle, base + 64), &[1]);
                node.params[0] = function.into();
                let body = peer.graph_body(&[2], &[leaf, node]);
                assert_refused(&mut peer, &body, &format!("{} {function}", op.name()));
            }
        }
    }
}

#[test]
fn custom_operations_are_refused() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        for op in [OpCode::MapCustom1, OpCode::MapCustom2, OpCode::MapCustom3, OpCode::Custom] {
            let (mut peer, handle, base) = setup(&fixture, dialect);
            let leaf = peer.tensor(1, SCALAR, (handle, base));
            let mut node = peer.node(op, 2, SCALAR, (handle, base + 64), &[1, 1, 1]);
            node.params = [0x4141_4141.into(); 16];
            let body = peer.graph_body(&[2], &[leaf, node]);
            assert_refused(&mut peer, &body, op.name());
        }
    }
}

#[test]
fn missing_sources_are_refused() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        let idle = [OpCode::None, OpCode::View, OpCode::Reshape, OpCode::Permute, OpCode::Transpose];
        for &op in dialect.ops.iter().filter(|op| !idle.contains(op)) {
            let (mut peer, handle, base) = setup(&fixture, dialect);
            let node = peer.node(op, 2, SCALAR, (handle, base + 64), &[]);
            let body = peer.graph_body(&[2], &[node]);
            assert_refused(&mut peer, &body, op.name());
        }
        // Each source of an operation with two, in turn; and one without memory.
        for missing in 0..2 {
            for without_memory in [false, true] {
                let mut peer = fixture.connect(dialect);
                let mut example = Example::new(&mut peer);
                if without_memory {
                    [&mut example.a, &mut example.b][missing].buffer = 0.into();
                } else {
                    example.c.sources[missing] = 0.into();
                }
                assert!(!example.compute(), "source {missing} in {dialect}");
            }
        }
    }
}

#[test]
fn view_offsets_are_never_addresses() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        for offset in [1 << 63, u64::MAX - 15, 1] {
            let (mut peer, handle, base) = setup(&fixture, dialect);
            let root = peer.tensor(1, [4, 1, 1, 1], (handle, base));
            peer.set_floats(&root, &[1., 2., 3., 4.]);
            let mut view = peer.tensor(2, [2, 1, 1, 1], (handle, base + 8));
            view.view_source = 1.into();
            view.view_offset = offset.into();
            let node = peer.node(OpCode::Add, 3, [2, 1, 1, 1], (handle, base + 64), &[2, 2]);
            assert!(peer.compute(&[3], &[root, view, node]));
            assert_eq!(peer.floats(&node), [6., 8.]);
        }
    }
}

#[test]
fn work_without_end_is_refused() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        // Results whose elements share bytes.
        for op in [OpCode::Add, OpCode::MulMat, OpCode::Repeat] {
            let (mut peer, handle, base) = setup(&fixture, dialect);
            let mut leaf = peer.tensor(1, SCALAR, (handle, base));
            let mut node = peer.node(op, 2, SCALAR, (handle, base + 64), &[1, 1]);
            for record in [&mut leaf, &mut node] {
                record.ne = [1.into(), (1 << 26).into(), (1 << 26).into(), 1.into()];
                record.nb = [4.into(), 0.into(), 0.into(), 0.into()];
            }
            let body = peer.graph_body(&[2], &[leaf, node]);
            assert_refused(&mut peer, &body, op.name());
        }
        // A result of one element made from more of them than can be touched.
        let (mut peer, handle, base) = setup(&fixture, dialect);
        let mut leaf = peer.tensor(1, SCALAR, (handle, base));
        leaf.ne = [1.into(), (1 << 26).into(), (1 << 26).into(), 1.into()];
        leaf.nb = [4.into(), 0.into(), 0.into(), 0.into()];
        let node = peer.node(OpCode::Sum, 2, SCALAR, (handle, base + 64), &[1]);
        let body = peer.graph_body(&[2], &[leaf, node]);
        assert_refused(&mut peer, &body, "a sum of 2^52");
    }
    fixture.assert_serves();
}

#[test]
fn a_kernel_that_fails_fails_one_graph() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        let (mut peer, handle, base) = setup(&fixture, dialect);
        let table = peer.tensor(1, [2, 3, 1, 1], (handle, base));
        let mut rows = peer.tensor(2, SCALAR, (handle, base + 128));
        rows.dtype = 26.into();
        let node = peer.node(OpCode::GetRows, 3, [2, 1, 1, 1], (handle, base + 256), &[1, 2]);
        peer.set(&rows, 0, &2_i32.to_le_bytes());
        assert!(peer.compute(&[3], &[table, rows, node]));
        peer.set(&rows, 0, &3_i32.to_le_bytes());
        let body = peer.graph_body(&[3], &[table, rows, node]);
        assert_refused(&mut peer, &body, "row 3 of 3");
    }
    assert_eq!(fixture.counters().refusals.keys().copied().collect::<Vec<_>>(), ["failed"]);
    fixture.assert_serves();
}

#[test]
fn nothing_runs_unless_everything_can() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        let (mut peer, handle, base) = setup(&fixture, dialect);
        let leaf = peer.tensor(1, SCALAR, (handle, base));
        peer.set_floats(&leaf, &[1.]);
        let good = peer.node(OpCode::Add, 2, SCALAR, (handle, base + 64), &[1, 1]);
        let wrong_shape = peer.node(OpCode::Add, 3, [2, 1, 1, 1], (handle, base + 128), &[2, 1]);
        let unsupported = peer.node(OpCode::Cos, 3, SCALAR, (handle, base + 128), &[2]);
        let refused = [wrong_shape, unsupported];
        let last = if dialect.has_recompute { 1 } else { 2 };
        for bad in refused.into_iter().take(last) {
            fixture.device.take_log();
            let body = peer.graph_body(&[2, 3], &[leaf, good, bad]);
            assert_refused(&mut peer, &body, "half a graph");
            assert!(fixture.device.take_log().is_empty(), "something was computed");
            if !dialect.has_recompute {
                assert_eq!(peer.floats(&good), [0.]);
            }
        }
    }
}

#[test]
fn a_refused_graph_of_version_2_leaves_the_connection_usable() {
    let fixture = Fixture::new();
    let mut peer = fixture.classic();
    let mut example = Example::new(&mut peer);
    let good = example.c;
    example.c.op = 9999.into();
    assert!(!example.compute());
    example.c = good;
    example.check();
    assert_eq!(good.as_bytes().len(), 296);
    assert_eq!(fixture.counters().refusals.get("node"), Some(&1));
}

#[test]
fn a_sum_takes_the_elements_of_a_row_for_neighbours() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        let (mut peer, handle, base) = setup(&fixture, dialect);
        peer.set_floats(&peer.tensor(9, [6, 1, 1, 1], (handle, base)), &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let mut turned = peer.tensor(1, [2, 3, 1, 1], (handle, base));
        turned.nb = [12, 4, 24, 24].map(Into::into);
        let sum = peer.node(OpCode::Sum, 2, SCALAR, (handle, base + 64), &[1]);
        let copy = peer.node(OpCode::Cont, 3, [2, 3, 1, 1], (handle, base + 128), &[1]);
        // Nodes that read it before or after see it as it is.
        for order in [[2, 3], [3, 2]] {
            assert!(peer.compute(&order, &[turned, sum, copy]));
            assert_eq!(peer.floats(&sum), [1.0 + 2.0 + 2.0 + 3.0 + 3.0 + 4.0]);
            assert_eq!(peer.floats(&copy), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        }
        // Read so, the last row must lie in the buffer too.
        turned.nb = [0, 4, 24, 24].map(Into::into);
        turned.data = (base + 0x1000 - 12).into();
        let body = peer.graph_body(&[2], &[turned, sum]);
        assert_refused(&mut peer, &body, "rows beyond the end");
    }
}
