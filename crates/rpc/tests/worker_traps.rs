//! What honest clients do and must not be refused for, as far as no other test shows it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::io::{Read, Write};

use common::{Example, Fixture, announcement, dialects, get_body, request};
use oxcart_backend::Device;
use oxcart_cpu::CpuDevice;
use oxcart_rpc::wire::{Command, Dialect, OpCode};
use oxcart_testdev::Config as DeviceConfig;
use zerocopy::IntoBytes;

/// SET_TENSOR and GET_TENSOR beyond 4 GiB.
#[test]
fn tensors_of_more_than_4_gib_are_moved() {
    let free = CpuDevice::new().unwrap().memory().unwrap().free;
    if free < 10 << 30 {
        oxcart_fixtures::skip("this takes 5 GB of memory, and less than twice as much is free");
        return;
    }
    let fixture = Fixture::new();
    for dialect in [Dialect::classic(), Dialect::newest()] {
        let (rows, piece) = (1100_u64, 4_u64 << 20);
        let mut peer = fixture.connect(dialect);
        let handle = peer.alloc(rows * piece);
        let base = peer.base(handle);
        let mut record = peer.tensor(1, [1 << 20, 1, 1, 1], (handle, base));
        record.ne[1] = u32::try_from(rows).unwrap().into();
        let start = peer.set_body(&record, 0, &[]);
        let size = start.len() as u64 + rows * piece;
        peer.stream.write_all(&announcement(Command::SetTensor as u8, size)).unwrap();
        peer.stream.write_all(&start).unwrap();
        let mut row = vec![0_u8; 4 << 20];
        for number in 0..rows {
            row.fill((number % 251) as u8);
            peer.stream.write_all(&row).unwrap();
        }
        for number in [0, 1, 1023, 1024, 1025, rows - 1] {
            let got = peer.get(&record, number * piece, piece);
            assert!(got.iter().all(|&byte| u64::from(byte) == number % 251), "row {number} in {dialect}");
        }
        // All of it at once, of which only the ends are looked at.
        peer.send(Command::GetTensor, &get_body(&record, 0, rows * piece));
        let mut len = [0; 8];
        peer.stream.read_exact(&mut len).unwrap();
        assert_eq!(u64::from_le_bytes(len), rows * piece);
        for number in 0..rows {
            peer.stream.read_exact(&mut row).unwrap();
            assert_eq!(u64::from(row[0]), number % 251);
        }
        assert!(peer.is_alive());
        drop(peer);
        fixture.until_empty();
    }
}

/// INIT_TENSOR for rows that a device may want to pad comes before the data.
#[test]
fn rows_that_are_not_padded_are_prepared() {
    for device in [DeviceConfig::default(), DeviceConfig::accelerator("GPU0")] {
        let fixture = Fixture::with(device, |_| {});
        for dialect in dialects() {
            let mut peer = fixture.connect(dialect);
            let handle = peer.alloc(4096);
            let base = peer.base(handle);
            let mut record = peer.tensor(1, [64, 2, 1, 1], (handle, base));
            record.dtype = 2.into();
            record.nb = [18, 36, 72, 72].map(Into::into);
            peer.ask(Command::InitTensor, record.as_bytes());
            peer.set(&record, 0, &[5; 72]);
            assert_eq!(peer.get(&record, 0, 72), [5; 72]);
            // A tensor that the client keeps elsewhere is ignored.
            let elsewhere = oxcart_rpc::wire::TensorRecord { buffer: 0xdead.into(), ..record };
            peer.ask(Command::InitTensor, elsewhere.as_bytes());
            assert!(peer.is_alive());
        }
    }
}

/// RECOMPUTE repeats the last graph that succeeded, with the data of now.
#[test]
fn the_last_successful_graph_is_computed_again() {
    let fixture = Fixture::new();
    for dialect in dialects().into_iter().filter(|dialect| dialect.has_recompute) {
        let mut peer = fixture.connect(dialect);
        let mut example = Example::new(&mut peer);
        assert!(example.compute());
        let other_handle = example.peer.alloc(4096);
        let other_base = example.peer.base(other_handle);
        let one = example.peer.tensor(1, [1, 1, 1, 1], (other_handle, other_base));
        let sum = example.peer.node(OpCode::Add, 2, [1, 1, 1, 1], (other_handle, other_base + 64), &[1, 1]);
        assert!(example.peer.compute(&[2], &[one, sum]));
        example.peer.set_floats(&one, &[21.]);
        let device = example.peer.device();
        example.peer.send(Command::GraphRecompute, &device);
        assert_eq!(example.peer.floats(&sum), [42.], "the second graph, not the first");
        // Freeing a buffer that only the first graph used does not drop the second.
        let first = example.handle;
        example.peer.free(first);
        example.peer.send(Command::GraphRecompute, &device);
        assert!(example.peer.is_alive());
    }
}

/// What stands behind a graph waits for it: a FREE, a SET and a GET sent in one go.
#[test]
fn commands_behind_a_graph_wait_for_it() {
    let delay = std::time::Duration::from_millis(50);
    for device in [
        DeviceConfig::default(),
        DeviceConfig { asynchronous: true, delay, ..DeviceConfig::accelerator("X") },
    ] {
        let fixture = Fixture::with(device, |_| {});
        for dialect in dialects() {
            let mut peer = fixture.connect(dialect);
            let example = Example::new(&mut peer);
            let (a, b, c, handle) = (example.a, example.b, example.c, example.handle);
            let body = example.peer.graph_body(&[0x3333], &[a, b, c]);
            let set = example.peer.set_body(&b, 0, &[0; 16]);
            let bytes = [
                request(Command::GraphCompute as u8, &body),
                request(Command::SetTensor as u8, &set),
                request(Command::GetTensor as u8, &get_body(&c, 0, 8)),
                request(Command::FreeBuffer as u8, &handle.to_le_bytes()),
            ]
            .concat();
            peer.stream.write_all(&bytes).unwrap();
            if !dialect.has_recompute {
                assert_eq!(peer.reply().unwrap(), [0]);
            }
            let expected: Vec<u8> = [10.0_f32, 26.0].iter().flat_map(|x| x.to_le_bytes()).collect();
            assert_eq!(peer.reply().unwrap(), expected, "{dialect}");
        }
    }
}
