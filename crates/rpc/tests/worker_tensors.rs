//! Tensor descriptors that are wrong. `docs/threats.md` says which threat each test answers.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{Fixture, Peer, dialects, get_body, long};
use oxcart_rpc::wire::{Command, Dialect, OpCode, TensorRecord};
use oxcart_tensor::DType;
use zerocopy::IntoBytes;

const SIZE: u64 = 0x1000;

/// A client with a buffer, and a good tensor of 16 bytes in the middle of it.
fn setup(fixture: &Fixture, dialect: &'static Dialect) -> (Peer, TensorRecord) {
    let mut peer = fixture.connect(dialect);
    let handle = peer.alloc(SIZE);
    let base = peer.base(handle);
    let record = peer.tensor(1, [4, 1, 1, 1], (handle, base + 0x100));
    (peer, record)
}

/// Every way to use a tensor's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Set,
    Get,
    Hash,
    CopyFrom,
    CopyTo,
    Memset,
    Init,
    AllocSize,
    GraphSource,
    GraphResult,
}

const ALL: [Way; 10] = [
    Way::Set,
    Way::Get,
    Way::Hash,
    Way::CopyFrom,
    Way::CopyTo,
    Way::Memset,
    Way::Init,
    Way::AllocSize,
    Way::GraphSource,
    Way::GraphResult,
];

/// Uses a tensor in a way and says whether the worker accepted it.
fn accepts(peer: &mut Peer, way: Way, record: &TensorRecord, good: &TensorRecord) -> bool {
    let (command, body) = match way {
        Way::Set => (Command::SetTensor, peer.set_body(record, 0, &[])),
        Way::Get => (Command::GetTensor, get_body(record, 0, 0)),
        Way::Hash => (Command::SetTensorHash, get_body(record, 0, 0)),
        Way::CopyFrom => (Command::CopyTensor, [record.as_bytes(), good.as_bytes()].concat()),
        Way::CopyTo => (Command::CopyTensor, [good.as_bytes(), record.as_bytes()].concat()),
        Way::Memset if !peer.dialect.has_memset => return false,
        Way::Memset => (Command::MemsetTensor, [&get_body(record, 0, 0)[..], &[1]].concat()),
        Way::Init => (Command::InitTensor, record.as_bytes().to_vec()),
        Way::AllocSize => {
            let rest = if peer.dialect.has_devices { 2960 } else { 0 };
            (Command::GetAllocSize, [&peer.with_device(record.as_bytes())[..], &vec![0; rest]].concat())
        }
        Way::GraphSource | Way::GraphResult => {
            let as_result = way == Way::GraphResult;
            let (mut source, mut node) = if as_result { (*good, *record) } else { (*record, *good) };
            source.id = 1.into();
            node.id = 2.into();
            node.op = peer.dialect.op_number(OpCode::Add).unwrap().into();
            node.flags = 16.into();
            node.sources[0] = 1.into();
            node.sources[1] = 1.into();
            return peer.compute(&[2], &[source, node]);
        }
    };
    peer.try_ask(command, &body).is_some()
}

/// Every way to use these tensors is refused, in every dialect.
#[track_caller]
fn assert_all_refused(ways: &[Way], change: impl Fn(&mut TensorRecord), what: &str) {
    let fixture = Fixture::new();
    for dialect in dialects() {
        for &way in ways {
            let (mut peer, good) = setup(&fixture, dialect);
            let mut bad = good;
            change(&mut bad);
            assert!(!accepts(&mut peer, way, &bad, &good), "{what}: {way:?} in {dialect}");
        }
    }
    fixture.assert_serves();
}

#[test]
fn a_good_tensor_is_accepted_every_way() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        let (mut peer, good) = setup(&fixture, dialect);
        for way in ALL.into_iter().filter(|&way| way != Way::Memset || dialect.has_memset) {
            let other = TensorRecord { data: (good.data.get() + 0x40).into(), ..good };
            assert!(accepts(&mut peer, way, &good, &other), "{way:?} in {dialect}");
        }
    }
}

#[test]
fn types_beyond_the_last_are_refused() {
    let fixture = Fixture::new();
    for dialect in [Dialect::classic(), Dialect::newest()] {
        let beyond = (dialect.type_count..256).step_by(16).chain([1 << 31, u32::MAX, dialect.type_count]);
        for number in beyond {
            for way in ALL {
                let (mut peer, good) = setup(&fixture, dialect);
                let bad = TensorRecord { dtype: number.into(), ..good };
                assert!(!accepts(&mut peer, way, &bad, &good), "type {number}: {way:?} in {dialect}");
            }
        }
    }
}

#[test]
fn removed_types_are_refused() {
    for number in [4, 5, 31, 32, 33, 36, 37, 38_u32] {
        assert_all_refused(&ALL, |record| record.dtype = number.into(), "a removed type");
    }
}

#[test]
fn rows_of_broken_blocks_are_refused() {
    let fixture = Fixture::new();
    let mut tried = 0;
    for number in 0..Dialect::newest().type_count {
        let Some(dtype) = Dialect::newest().dtype(number).filter(|dtype: &DType| dtype.block_len() > 1)
        else {
            continue;
        };
        let block = u32::try_from(dtype.block_len()).unwrap();
        for extent in [1, block - 1, block + 1] {
            for way in [Way::Set, Way::Get, Way::Init, Way::AllocSize, Way::GraphSource] {
                let (mut peer, good) = setup(&fixture, Dialect::newest());
                let mut bad = TensorRecord { dtype: number.into(), ..good };
                bad.ne[0] = extent.into();
                bad.nb[0] = u32::try_from(dtype.block_bytes()).unwrap().into();
                assert!(!accepts(&mut peer, way, &bad, &good), "{extent} of {dtype:?}: {way:?}");
                tried += 1;
            }
        }
    }
    assert!(tried > 300, "{tried}");
}

#[test]
fn data_outside_its_buffer_is_refused() {
    let start = 0x100;
    for offset in
        [-16, -1, SIZE.cast_signed() - 15, SIZE.cast_signed(), SIZE.cast_signed() + 4096, 1 << 40, i64::MIN]
    {
        let ways: Vec<_> = ALL.into_iter().filter(|&way| way != Way::AllocSize).collect();
        let change = |record: &mut TensorRecord| {
            let base = record.data.get() - start;
            record.data = base.wrapping_add_signed(offset).into();
        };
        assert_all_refused(&ways, change, &format!("offset {offset}"));
    }
    // The address of one buffer under the handle of another.
    let fixture = Fixture::new();
    for way in ALL.into_iter().filter(|&way| way != Way::AllocSize) {
        let (mut peer, good) = setup(&fixture, Dialect::newest());
        let other = peer.alloc(SIZE);
        let bad = TensorRecord { buffer: other.into(), ..good };
        assert!(!accepts(&mut peer, way, &bad, &good), "{way:?}");
    }
}

#[test]
fn raw_addresses_are_refused_where_they_are_used() {
    let here = std::ptr::from_ref(&ALL).addr() as u64;
    let ways: Vec<_> = ALL.into_iter().filter(|way| ![Way::AllocSize, Way::Init].contains(way)).collect();
    for handle in [0, 0xdead_beef_u64] {
        let change = |record: &mut TensorRecord| {
            record.buffer = handle.into();
            record.data = here.into();
        };
        assert_all_refused(&ways, change, "no buffer");
    }
    // They may be listed as long as no node uses them: honest clients send what they keep elsewhere.
    let fixture = Fixture::new();
    for dialect in dialects() {
        let (mut peer, good) = setup(&fixture, dialect);
        let elsewhere = TensorRecord { id: 77.into(), buffer: 0xdead.into(), data: here.into(), ..good };
        let leaf = TensorRecord { sources: [77.into(); 10], ..good };
        let place = (good.buffer.get(), good.data.get() + 64);
        let node = peer.node(OpCode::Add, 2, [4, 1, 1, 1], place, &[1, 1]);
        assert!(peer.compute(&[2], &[elsewhere, leaf, node]), "{dialect}");
    }
}

#[test]
fn extents_and_strides_that_wrap_are_refused() {
    let change = |record: &mut TensorRecord| {
        record.ne = [((1_u32 << 31) + 1).into(); 4];
        record.nb = [(1_u32 << 31).into(); 4];
    };
    assert_all_refused(&ALL, change, "(2^31+1)^4");
    let ways: Vec<_> = ALL.into_iter().filter(|way| *way != Way::AllocSize).collect();
    let change = |record: &mut TensorRecord| record.ne = [u32::MAX.into(); 4];
    assert_all_refused(&ways, change, "2^128 elements");
    // A stride over one element means nothing and may be anything.
    let fixture = Fixture::new();
    let (mut peer, good) = setup(&fixture, Dialect::newest());
    let mut odd = good;
    odd.nb[1] = 0xdead_beef.into();
    odd.nb[3] = 3.into();
    let other = TensorRecord { data: (good.data.get() + 0x40).into(), ..good };
    assert!(accepts(&mut peer, Way::GraphSource, &odd, &other));
}

#[test]
fn offsets_and_sizes_outside_the_tensor_are_refused() {
    let fixture = Fixture::new();
    let minus = |n: u64| 0_u64.wrapping_sub(n);
    let ranges = [
        (1 << 63, 0),
        (u64::MAX, 1),
        (minus(32), 16),
        (minus(16), 16),
        (0, 1 << 63),
        (0, u64::MAX),
        (16, 1),
        (17, 0),
        (0, 17),
        (1, 16),
        (0, 0x800),
    ];
    for dialect in dialects() {
        for (offset, len) in ranges {
            let (peer, good) = setup(&fixture, dialect);
            peer.assert_refused(Command::GetTensor, &get_body(&good, offset, len));
            if dialect.has_memset {
                let (peer, good) = setup(&fixture, dialect);
                let body = [&get_body(&good, offset, len)[..], &[1]].concat();
                peer.assert_refused(Command::MemsetTensor, &body);
            }
            if len <= 0x800 {
                let (peer, good) = setup(&fixture, dialect);
                let body = peer.set_body(&good, offset, &vec![1; usize::try_from(len).unwrap()]);
                peer.assert_refused(Command::SetTensor, &body);
            }
        }
        let (mut peer, good) = setup(&fixture, dialect);
        peer.set(&good, 16, &[]);
        assert_eq!(peer.get(&good, 16, 0), []);
    }
}

#[test]
fn copies_stay_inside_their_target_and_may_overlap() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        // A source larger than its target.
        let (peer, good) = setup(&fixture, dialect);
        let place = (good.buffer.get(), good.data.get());
        let larger = peer.tensor(2, [5, 1, 1, 1], place);
        let body = [larger.as_bytes(), good.as_bytes()].concat();
        peer.assert_refused(Command::CopyTensor, &body);

        // Overlap, in both directions, and onto itself.
        let (mut peer, good) = setup(&fixture, dialect);
        let (handle, data) = (good.buffer.get(), good.data.get());
        let all = peer.tensor(3, [8, 1, 1, 1], (handle, data));
        let (low, high) =
            (peer.tensor(1, [4, 1, 1, 1], (handle, data)), peer.tensor(2, [4, 1, 1, 1], (handle, data + 8)));
        for (from, to, expected) in [
            (low, high, [0., 1., 0., 1., 2., 3., 6., 7.]),
            (high, low, [2., 3., 4., 5., 4., 5., 6., 7.]),
            (low, low, [0., 1., 2., 3., 4., 5., 6., 7.]),
        ] {
            peer.set_floats(&all, &[0., 1., 2., 3., 4., 5., 6., 7.]);
            assert_eq!(peer.ask(Command::CopyTensor, &[from.as_bytes(), to.as_bytes()].concat()), [1]);
            assert_eq!(peer.floats(&all), expected);
        }
    }
}

#[test]
fn tensors_without_elements_are_accepted() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        for dim in 0..4 {
            let (mut peer, good) = setup(&fixture, dialect);
            let mut empty = good;
            empty.ne[dim] = 0.into();
            empty.nb = [4.into(), 0xffff_fff0.into(), 0xffff_fff0.into(), 0xffff_fff0.into()];
            peer.set(&good, 0, &[5; 16]);
            for way in [Way::Set, Way::Get, Way::Hash, Way::Init, Way::AllocSize, Way::CopyFrom] {
                assert!(accepts(&mut peer, way, &empty, &good), "{way:?}, dim {dim} in {dialect}");
            }
            assert_eq!(peer.get(&good, 0, 16), [5; 16]);
        }
    }
}

#[test]
fn names_are_only_names() {
    let fixture = Fixture::new();
    for name in [[b'%'; 64], [0xff; 64], [b'/'; 64], [0x1b; 64]] {
        let (mut peer, good) = setup(&fixture, Dialect::newest());
        let named = TensorRecord { name, ..good };
        let other = TensorRecord { data: (good.data.get() + 0x40).into(), ..good };
        assert!(accepts(&mut peer, Way::GraphSource, &named, &other));
        let lost = TensorRecord { name, data: 1.into(), ..good };
        assert!(!accepts(&mut peer, Way::Get, &lost, &good));
    }
    assert!(fixture.events().iter().all(|line| !line.contains(['\u{1b}', '%', '\u{fffd}'])));
}

#[test]
fn sizes_beyond_64_bits_are_never_too_small() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        for (ne, nb) in
            [([u32::MAX; 4], [u32::MAX; 4]), ([u32::MAX; 4], [4; 4]), ([1 << 31; 4], [1 << 31; 4])]
        {
            let (mut peer, good) = setup(&fixture, dialect);
            let bad =
                TensorRecord { ne: ne.map(Into::into), nb: nb.map(Into::into), buffer: 0.into(), ..good };
            let rest = if dialect.has_devices { 2960 } else { 0 };
            let body = [&peer.with_device(bad.as_bytes())[..], &vec![0; rest]].concat();
            // Refused, or large; never too small.
            if let Some(reply) = peer.try_ask(Command::GetAllocSize, &body) {
                assert!(long(&reply) > 1 << 62, "{}", long(&reply));
            }
        }
    }
}
