//! Messages that are malformed, cut or of another protocol. `docs/threats.md` says which threat each test answers.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use common::{Example, Fixture, PATIENCE, announcement, closes, dial, dialects, get_body, patient, request};
use oxcart_rpc::wire::{Command, Dialect, Reply};
use oxcart_rpc::worker::Limits;
use zerocopy::IntoBytes;

#[test]
fn the_first_command_is_a_hello_of_a_known_size() {
    let fixture = Fixture::new();
    let mut sizes: Vec<u64> = (0..64).collect();
    sizes.extend((6..64).map(|shift| 1_u64 << shift));
    sizes.push(u64::MAX);
    for size in sizes.into_iter().filter(|size| ![0, 24].contains(size)) {
        let mut stream = dial(fixture.auto);
        stream.write_all(&announcement(14, size)).unwrap();
        assert!(closes(&mut stream), "HELLO of {size} bytes");
    }
    // A listener of one dialect knows one size.
    for (dialect, wrong) in [("2.0", 24), ("3.6", 24), ("4.0.0", 0), ("5.1", 0), ("7.0", 0)] {
        let mut stream = dial(fixture.address(dialect.parse().unwrap()));
        stream.write_all(&announcement(14, wrong)).unwrap();
        assert!(closes(&mut stream), "HELLO of {wrong} bytes in {dialect}");
    }
    for first in (0..=255).filter(|&first| first != 14) {
        let mut stream = dial(fixture.auto);
        stream.write_all(&[first]).unwrap();
        assert!(closes(&mut stream), "{first} as the first byte");
    }
    // Once is enough.
    for dialect in dialects() {
        let body = vec![0; Command::Hello.request_bytes(dialect)];
        fixture.connect(dialect).assert_refused(Command::Hello, &body);
    }
    fixture.assert_serves();
}

#[test]
fn unknown_commands_are_refused() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        for number in (0..=255).filter(|&number| Command::from_number(number, dialect).is_none()) {
            let mut peer = fixture.connect(dialect);
            peer.stream.write_all(&announcement(number, 0)).unwrap();
            peer.assert_closed(&format!("command {number} in {dialect}"));
        }
    }
    assert_eq!(fixture.counters().refusals.keys().copied().collect::<Vec<_>>(), ["command"]);
}

#[test]
fn fixed_sizes_are_exact() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        for command in Command::ALL {
            let exists = Command::from_number(command as u8, dialect).is_some();
            if !exists || command.is_open_ended() || command == Command::Hello {
                continue;
            }
            let right = command.request_bytes(dialect) as u64;
            let wrong = [right.wrapping_sub(1), right + 1, 0, 1 << 63];
            for size in wrong.into_iter().filter(|&size| size != right) {
                let mut peer = fixture.connect(dialect);
                // Not one byte of the body is sent: the announcement is enough.
                peer.stream.write_all(&announcement(command as u8, size)).unwrap();
                peer.assert_closed(&format!("{} of {size} bytes in {dialect}", command.name()));
            }
        }
    }
}

#[test]
fn sizes_beyond_all_memory_are_refused() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        for size in [1 << 61, 1 << 62, 1 << 63, u64::MAX - 1000, u64::MAX] {
            let mut peer = fixture.connect(dialect);
            peer.stream.write_all(&announcement(Command::GraphCompute as u8, size)).unwrap();
            peer.assert_closed("a graph");
            let mut peer = fixture.connect(dialect);
            let (handle, record) = {
                let handle = peer.alloc(64);
                let base = peer.base(handle);
                (handle, peer.tensor(1, [4, 1, 1, 1], (handle, base)))
            };
            assert_ne!(handle, 0);
            peer.stream.write_all(&announcement(Command::SetTensor as u8, size)).unwrap();
            let start = peer.set_body(&record, 0, &[]);
            let _ = peer.stream.write_all(&start);
            peer.assert_closed("a tensor");
        }
    }
    fixture.assert_serves();
}

#[test]
fn bodies_shorter_than_their_header_are_refused() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        let fixed = Command::SetTensor.request_bytes(dialect);
        for size in [0, 1, fixed as u64 - 1] {
            let mut peer = fixture.connect(dialect);
            peer.stream.write_all(&announcement(Command::SetTensor as u8, size)).unwrap();
            peer.assert_closed("SET_TENSOR");
        }
        // Every prefix of a graph, sent as a whole message.
        let mut peer = fixture.connect(dialect);
        let example = Example::new(&mut peer);
        let body = example.peer.graph_body(&[0x3333], &[example.a, example.b, example.c]);
        let step = if dialect.has_recompute { 101 } else { 7 };
        for len in (0..body.len()).step_by(step) {
            if dialect.has_recompute {
                fixture.connect(dialect).assert_refused(Command::GraphCompute, &body[..len]);
            } else {
                let status = peer.ask(Command::GraphCompute, &body[..len]);
                assert_eq!(status, [255], "version 2 has a way to say no");
            }
        }
    }
}

#[test]
fn a_connection_may_be_cut_after_every_byte() {
    let fixture = Fixture::new();
    for dialect in [Dialect::classic(), Dialect::newest()] {
        // A conversation as one client would have it; handles differ for each, so it ends in a refusal at the latest.
        let mut peer = fixture.connect(dialect);
        let example = Example::new(&mut peer);
        let mut bytes = request(14, &vec![0; Command::Hello.request_bytes(dialect)]);
        bytes.extend(request(Command::AllocBuffer as u8, &example.peer.with_device(&4096_u64.to_le_bytes())));
        bytes.extend(request(Command::SetTensor as u8, &example.peer.set_body(&example.a, 0, &[1; 32])));
        for end in 0..bytes.len() {
            let mut stream = dial(fixture.auto);
            stream.write_all(&bytes[..end]).unwrap();
            if end % 2 == 0 {
                // A reset rather than an end.
                socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
            }
        }
    }
    fixture.assert_serves();
    fixture.until_empty();
}

#[test]
fn clients_may_leave_without_reading_their_replies() {
    let fixture = Fixture::new();
    for round in 0..21 {
        let mut peer = fixture.newest();
        let handle = peer.alloc(8 << 20);
        let base = peer.base(handle);
        let record = peer.tensor(1, [2 << 20, 1, 1, 1], (handle, base));
        match round % 3 {
            0 => {
                for _ in 0..300 {
                    let device = peer.device();
                    peer.send(Command::GetAlignment, &device);
                }
            }
            1 => {
                peer.send(Command::GetTensor, &get_body(&record, 0, 8 << 20));
                let mut some = [0; 1000];
                peer.stream.read_exact(&mut some).unwrap();
            }
            // Each fits what the system holds, so the second is written to a connection that the first has ended.
            _ => (0..50).for_each(|_| peer.send(Command::GetTensor, &get_body(&record, 0, 32 << 10))),
        }
        drop(peer);
    }
    fixture.assert_serves();
    fixture.until_empty();
}

#[test]
fn a_reply_that_is_never_read_ends_the_connection() {
    let limits = Limits { write_stall: Duration::from_secs(1), ..patient() };
    let fixture = Fixture::limited(limits);
    let mut peer = fixture.newest();
    let handle = peer.alloc(32 << 20);
    let base = peer.base(handle);
    let record = peer.tensor(1, [8 << 20, 1, 1, 1], (handle, base));
    for _ in 0..4 {
        peer.send(Command::GetTensor, &get_body(&record, 0, 32 << 20));
    }
    fixture.assert_serves();
    fixture.until_empty();
}

/// The end of a worker waits for those that read what they have asked for, and not for those that do not.
#[test]
fn a_reply_that_is_never_read_holds_up_no_shutdown() {
    const BYTES: u64 = 32 << 20;
    let asked = |fixture: &Fixture| {
        let mut peer = fixture.newest();
        let handle = peer.alloc(BYTES);
        let base = peer.base(handle);
        let record = peer.tensor(1, [BYTES as u32 / 4, 1, 1, 1], (handle, base));
        peer.send(Command::GetTensor, &get_body(&record, 0, BYTES));
        assert_eq!(peer.stream.peek(&mut [0]).unwrap(), 1);
        peer
    };
    let fixture = Fixture::limited(patient());
    let (_unread, mut read) = (asked(&fixture), asked(&fixture));
    let started = Instant::now();
    let reading = thread::spawn(move || {
        let (mut left, mut piece) = (8 + BYTES, vec![0; 1 << 20]);
        while left > 0 {
            thread::sleep(Duration::from_millis(60));
            let len = left.min(piece.len() as u64);
            if read.stream.read_exact(&mut piece[..len as usize]).is_err() {
                break;
            }
            left -= len;
        }
        left
    });
    fixture.shutdown(PATIENCE);
    assert!(started.elapsed() < PATIENCE / 2, "it waited for one that does not read");
    assert_eq!(reading.join().unwrap(), 0, "one that reads was cut off");
}

#[test]
fn other_protocols_are_refused() {
    let fixture = Fixture::new();
    let noise: Vec<u8> = (0..4096_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let tls = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    for bytes in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], b"SSH-2.0-x\r\n", &tls, &noise, b"\n", b"\0\0"] {
        let mut stream = dial(fixture.auto);
        let _ = stream.write_all(bytes);
        assert!(closes(&mut stream));
    }
    // Noise after a good HELLO, where it may look like anything.
    for start in (0..4000).step_by(97) {
        let mut peer = fixture.newest();
        let _ = peer.stream.write_all(&noise[start..]);
        let _ = peer.stream.shutdown(Shutdown::Write);
        peer.assert_closed("noise");
    }
    fixture.assert_serves();
}

#[test]
fn capabilities_are_declined() {
    let fixture = Fixture::new();
    for seed in 0..50_u8 {
        let mut stream = dial(fixture.auto);
        let caps: Vec<u8> =
            (0..24_u8).map(|i| i.wrapping_mul(37).wrapping_add(seed.wrapping_mul(11))).collect();
        stream.write_all(&request(14, &caps)).unwrap();
        let mut reply = [0; 36];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!((reply[8], &reply[12..]), (7, &[0; 24][..]));
    }
}

#[test]
fn late_hellos_and_late_messages_end_the_connection() {
    let short = Duration::from_secs(1);
    let fixture = Fixture::limited(Limits { hello: short, ..patient() });
    let mut silent = dial(fixture.auto);
    let mut begun = dial(fixture.auto);
    // It may be late already.
    let _ = begun.write_all(&[14, 0, 0]);
    assert!(closes(&mut silent) && closes(&mut begun));
    assert_eq!(fixture.counters().dropped, 2);
    let fixture = Fixture::limited(Limits { message: short, ..patient() });
    let mut idle = fixture.newest();
    let mut peer = fixture.newest();
    peer.stream.write_all(&[0]).unwrap();
    // Silence between messages is not lateness: nothing ends one who is silent for as long.
    assert!(closes(&mut peer.stream));
    fixture.until("one is gone", |fixture| fixture.counters().connected == 1);
    assert_eq!(fixture.counters().dropped, 1);
    idle.stream.set_nonblocking(true).unwrap();
    assert_eq!(idle.stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn an_idle_client_may_be_given_up() {
    let idle = Some(Duration::from_secs(1));
    let fixture = Fixture::limited(Limits { idle, ..patient() });
    let since = Instant::now();
    // It is idle from its greeting on.
    let mut peer = fixture.newest();
    assert!(closes(&mut peer.stream) && since.elapsed() >= Duration::from_secs(1));
    fixture.until_empty();
}

#[test]
fn pipelined_commands_are_answered_in_order() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        let mut peer = fixture.connect(dialect);
        let handle = peer.alloc(1 << 16);
        let base = peer.base(handle);
        let record = peer.tensor(1, [1, 1, 1, 1], (handle, base));
        let mut bytes = Vec::new();
        for i in 0..200_u32 {
            bytes.extend(request(Command::SetTensor as u8, &peer.set_body(&record, 0, &i.to_le_bytes())));
            bytes.extend(request(Command::InitTensor as u8, record.as_bytes()));
            bytes.extend(request(Command::GetTensor as u8, &get_body(&record, 0, 4)));
        }
        let mut stream = peer.stream.try_clone().unwrap();
        let writer = thread::spawn(move || stream.write_all(&bytes).unwrap());
        for i in 0..200_u32 {
            if Command::InitTensor.reply(dialect) != Reply::None {
                assert_eq!(peer.reply().unwrap(), []);
            }
            assert_eq!(peer.reply().unwrap(), i.to_le_bytes());
        }
        writer.join().unwrap();
    }
}
