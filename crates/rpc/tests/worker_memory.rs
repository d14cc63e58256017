//! Handles and buffers, and the clients they belong to. `docs/threats.md` says which threat each test answers.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{Example, Fixture, dialects, get_body, patient};
use oxcart_rpc::wire::{Command, Dialect, OpCode};
use oxcart_rpc::worker::Limits;
use oxcart_testdev::Config as DeviceConfig;
use zerocopy::IntoBytes;

/// Everything that can be tried with a handle and an address.
fn attempts(handle: u64, address: u64, dialect: &'static Dialect) -> Vec<(Command, Vec<u8>)> {
    let mut record = oxcart_rpc::wire::TensorRecord::absent();
    record.buffer = handle.into();
    record.data = address.into();
    record.ne = [4.into(), 1.into(), 1.into(), 1.into()];
    record.nb = [4.into(), 16.into(), 16.into(), 16.into()];
    let flag: &[u8] = if dialect.has_cache_flag { &[0] } else { &[] };
    let mut all = vec![
        (Command::BufferGetBase, handle.to_le_bytes().to_vec()),
        (Command::FreeBuffer, handle.to_le_bytes().to_vec()),
        (Command::BufferClear, [&handle.to_le_bytes()[..], &[1]].concat()),
        (Command::SetTensor, [record.as_bytes(), flag, &[0; 8], &[7; 16]].concat()),
        (Command::GetTensor, get_body(&record, 0, 16)),
        (Command::SetTensorHash, [record.as_bytes(), &[0; 16]].concat()),
        (Command::CopyTensor, [record.as_bytes(), record.as_bytes()].concat()),
    ];
    if dialect.has_memset {
        let body = [record.as_bytes(), &[0; 8], &16_u64.to_le_bytes(), &[1]].concat();
        all.push((Command::MemsetTensor, body));
    }
    all
}

#[test]
fn handles_of_other_clients_are_refused() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        let mut victim = fixture.connect(dialect);
        let mut example = Example::new(&mut victim);
        assert!(example.compute());
        for (command, body) in attempts(example.handle, example.base, dialect) {
            fixture.connect(dialect).assert_refused(command, &body);
        }
        let (handle, base) = (example.handle, example.base);
        let mut attacker = fixture.connect(dialect);
        let own = attacker.alloc(64);
        let own_base = attacker.base(own);
        let theirs = attacker.tensor(1, [2, 1, 1, 1], (handle, base + 0x40));
        let mine = attacker.node(OpCode::Add, 2, [2, 1, 1, 1], (own, own_base), &[1, 1]);
        assert!(!attacker.compute(&[2], &[theirs, mine]), "reading another's memory");
        let mut attacker = fixture.connect(dialect);
        let own = attacker.alloc(64);
        let own_base = attacker.base(own);
        let mine = attacker.tensor(1, [2, 1, 1, 1], (own, own_base));
        let theirs = attacker.node(OpCode::Add, 2, [2, 1, 1, 1], (handle, base + 0x40), &[1, 1]);
        assert!(!attacker.compute(&[2], &[mine, theirs]), "writing another's memory");
        assert_eq!(example.result(), [10., 26.]);
    }
}

#[test]
fn memory_is_admitted_not_promised() {
    let fixture = Fixture::with(DeviceConfig::default(), |config| config.max_memory = Some(1 << 20));
    let (mut first, mut second) = (fixture.newest(), fixture.classic());
    let most = first.alloc(1_000_000);
    assert_eq!(second.memory(), (48_576, 1 << 20));
    assert_eq!(second.try_alloc(100_000), (0, 0));
    let rest = second.alloc(48_576);
    assert_eq!(first.try_alloc(1), (0, 0));
    first.free(most);
    second.free(rest);
    assert_ne!(second.try_alloc(1 << 20).0, 0);
    drop(second);
    fixture.until("the second's memory is back", |fixture| fixture.device.allocated_bytes() == 0);
    assert_ne!(first.try_alloc(1 << 20).0, 0);
}

#[test]
fn numbers_that_are_no_handles_are_refused() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        for wrong in 0..8 {
            for number in 0..attempts(0, 0, dialect).len() {
                // The client has buffers of its own, so that a check which is only nearly right would find one of them.
                let mut peer = fixture.connect(dialect);
                let (handle, last) = (peer.alloc(64), peer.alloc(64));
                let base = peer.base(handle);
                let wrongs = [0, 1, handle - 1, last + 1, last + 8, base, u64::MAX, handle ^ 1 << 63];
                let (command, body) = attempts(wrongs[wrong], base, dialect).swap_remove(number);
                peer.assert_refused(command, &body);
            }
        }
    }
}

#[test]
fn freed_handles_are_refused() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        for number in 0..attempts(0, 0, dialect).len() {
            let mut peer = fixture.connect(dialect);
            let handle = peer.alloc(64);
            let base = peer.base(handle);
            peer.free(handle);
            let (command, body) = attempts(handle, base, dialect).swap_remove(number);
            peer.assert_refused(command, &body);
        }
    }
    fixture.until_empty();
}

#[test]
fn a_stored_graph_dies_with_its_buffers() {
    let fixture = Fixture::new();
    for dialect in dialects().into_iter().filter(|dialect| dialect.has_recompute) {
        for reallocate in [false, true] {
            let mut peer = fixture.connect(dialect);
            let mut example = Example::new(&mut peer);
            assert!(example.compute());
            let handle = example.handle;
            let device = peer.device();
            peer.free(handle);
            if reallocate {
                peer.alloc(0x1000);
            }
            peer.assert_refused(Command::GraphRecompute, &device);
        }
        // Another buffer may go.
        let mut peer = fixture.connect(dialect);
        let other = peer.alloc(64);
        let mut example = Example::new(&mut peer);
        assert!(example.compute());
        example.peer.free(other);
        example.check();
        // Nothing stored at all.
        let peer = fixture.connect(dialect);
        let device = peer.device();
        peer.assert_refused(Command::GraphRecompute, &device);
    }
    // A graph on a freed buffer.
    for dialect in dialects() {
        let mut peer = fixture.connect(dialect);
        let mut example = Example::new(&mut peer);
        let handle = example.handle;
        example.peer.free(handle);
        assert!(!example.compute());
    }
    fixture.until_empty();
}

#[test]
fn handles_do_not_outlive_their_connection() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        let mut peer = fixture.connect(dialect);
        let handle = peer.alloc(64);
        let base = peer.base(handle);
        drop(peer);
        let mut again = fixture.connect(dialect);
        assert_ne!(again.alloc(64), handle);
        for (command, body) in attempts(handle, base, dialect) {
            let mut again = fixture.connect(dialect);
            again.alloc(64);
            again.assert_refused(command, &body);
        }
    }
}

#[test]
fn fresh_memory_is_zero() {
    let fixture = Fixture::new();
    for size in [64_u32, 4096, 100_000, 3 << 20] {
        let mut victim = fixture.newest();
        let handle = victim.alloc(size.into());
        victim.ask(Command::BufferClear, &[&handle.to_le_bytes()[..], &[0xa5]].concat());
        drop(victim);
        let mut attacker = fixture.newest();
        let handle = attacker.alloc(size.into());
        let base = attacker.base(handle);
        let record = attacker.tensor(1, [size / 4, 1, 1, 1], (handle, base));
        assert!(attacker.get(&record, 0, (size / 4 * 4).into()).iter().all(|&byte| byte == 0));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn addresses_are_made_up() {
    let fixture = Fixture::new();
    let mut peer = fixture.newest();
    let handles: Vec<_> = (0..20).map(|i| peer.alloc(1 << i)).collect();
    let numbers: Vec<_> = handles.iter().flat_map(|&handle| [handle, peer.base(handle)]).collect();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    for line in maps.lines() {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let parse = |text| u64::from_str_radix(text, 16).unwrap();
        let mapped = parse(start)..parse(end);
        assert!(!numbers.iter().any(|number| mapped.contains(number)), "{line}");
    }
}

#[test]
fn a_buffer_larger_than_all_memory_is_not_had() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        let mut peer = fixture.connect(dialect);
        for size in [u64::MAX, 1 << 63, 1 << 50, (1 << 40) + 1, u64::MAX - 63] {
            assert_eq!(peer.try_alloc(size), (0, 0), "{size}");
        }
        let some = peer.alloc(1000);
        peer.free(some);
    }
}

#[test]
fn a_buffer_of_no_bytes_is_a_buffer() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        let setup = || {
            let mut peer = fixture.connect(dialect);
            let (handle, len) = peer.try_alloc(0);
            assert!(handle != 0 && len == 0);
            let base = peer.base(handle);
            assert_ne!(base, 0);
            (peer, handle, base)
        };
        let (mut peer, handle, base) = setup();
        peer.ask(Command::BufferClear, &[&handle.to_le_bytes()[..], &[1]].concat());
        let empty = peer.tensor(1, [0, 1, 1, 1], (handle, base));
        assert_eq!(peer.get(&empty, 0, 0), []);
        peer.set(&empty, 0, &[]);
        peer.free(handle);
        for number in 3..attempts(0, 0, dialect).len() {
            let (peer, handle, base) = setup();
            let (command, body) = attempts(handle, base, dialect).swap_remove(number);
            peer.assert_refused(command, &body);
        }
    }
}

#[test]
fn the_number_of_buffers_is_limited() {
    let fixture = Fixture::limited(Limits { buffers: 1000, ..patient() });
    let mut peer = fixture.newest();
    let handles: Vec<_> = (0..1000).map(|_| peer.alloc(16)).collect();
    assert_eq!(peer.try_alloc(16), (0, 0));
    peer.free(handles[500]);
    peer.alloc(16);
    assert_eq!(peer.try_alloc(16), (0, 0));
    drop(peer);
    fixture.until_empty();
    assert_eq!(Limits::default().buffers, 65_536);
}

#[test]
fn unknown_devices_are_refused() {
    let fixture = Fixture::new();
    for dialect in dialects().into_iter().filter(|dialect| dialect.has_devices) {
        for device in [1_u32, 64, i32::MAX.cast_unsigned(), u32::MAX] {
            let number = device.to_le_bytes();
            let graph = [&number[..], &[0; 8]].concat();
            for (command, rest) in [
                (Command::AllocBuffer, 8),
                (Command::GetAlignment, 0),
                (Command::GetMaxSize, 0),
                (Command::GetDeviceMemory, 0),
                (Command::GraphRecompute, 0),
                (Command::GetAllocSize, 11 * 296),
            ] {
                let body = [&number[..], &vec![0; rest]].concat();
                fixture.connect(dialect).assert_refused(command, &body);
            }
            fixture.connect(dialect).assert_refused(Command::GraphCompute, &graph);
        }
    }
    assert_eq!(fixture.counters().refusals.keys().copied().collect::<Vec<_>>(), ["device"]);
}
