//! Replays the corpora of the fuzz targets of this crate, damaged seeds and random bytes, on stable.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod fuzzed;

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fuzzed::nodes::Fate;
use oxcart_backend::Content;
use oxcart_rpc::wire::{Dialect, OpCode, Take, TensorRecord, encode_graph};
use oxcart_tensor::Op;

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

fn replay(target: &str, check: fn(&[u8])) {
    let mut files = 0;
    for entry in fs::read_dir(folder(target)).unwrap() {
        check(&fs::read(entry.unwrap().path()).unwrap());
        files += 1;
    }
    assert!(files >= 10, "the corpus of {target} has only {files} files");
}

#[test]
fn wire_corpus_holds() {
    replay("wire", fuzzed::wire::check);
}

#[test]
fn session_corpus_holds() {
    replay("session", fuzzed::session::check);
}

#[test]
fn client_corpus_holds() {
    replay("client", fuzzed::client::check);
}

/// A worker that is honest to the end, and ones that are not from some answer on.
#[test]
fn dishonest_answers_hold() {
    for (name, seed) in client_seeds() {
        match name.ends_with("honest") {
            true => assert!(fuzzed::client::ends_well(&seed, Duration::from_secs(60)), "{name}"),
            false => fuzzed::client::check(&seed),
        }
        for at in (1..seed.len()).step_by(3) {
            for change in [0x80, 0xe0, 0xf0, 0xf8] {
                let mut changed = seed.clone();
                changed[at] = change;
                fuzzed::client::check(&changed);
            }
        }
    }
}

/// Every cut and some changes of every byte of the seeds.
#[test]
fn damaged_seeds_hold() {
    for (seeds, check, step) in [
        (wire_seeds(), fuzzed::wire::check as fn(&[u8]), 3),
        (session_seeds(), fuzzed::session::check as fn(&[u8]), 1),
    ] {
        for (_, seed) in seeds {
            for at in (0..seed.len()).step_by(step) {
                check(&seed[..at]);
                for change in [1, 0x80, 0xff] {
                    let mut damaged = seed.clone();
                    damaged[at] ^= change;
                    check(&damaged);
                }
            }
        }
    }
}

/// Bytes from a simple generator, so many times: more than a corpus holds, the same each time.
fn random_bytes(count: usize, lens: Range<usize>) -> impl Iterator<Item = Vec<u8>> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..count).map(move |_| {
        let len = lens.start + next() as usize % lens.len();
        (0..len).map(|_| (next() >> 32) as u8).collect()
    })
}

#[test]
fn random_scripts_hold() {
    let mut graphs = 0;
    for mut bytes in random_bytes(3000, 16..416) {
        // Two buffers first, so that something can lie somewhere.
        let start = [0, 0, 16, 3, 0, 0, 0, 16, 3, 0];
        bytes[1..1 + start.len()].copy_from_slice(&start);
        graphs += fuzzed::session::graphs(&bytes);
    }
    assert!(graphs > 150, "scripts get no further than refusals: {graphs} graphs");
}

/// Several connections at a time, each of which ends at some byte while others go on.
#[test]
fn random_lives_hold() {
    let graphs: u64 = random_bytes(1500, 16..600).map(|bytes| fuzzed::life::graphs(&bytes)).sum();
    assert!(graphs > 1500, "lives are too short: {graphs} graphs");
}

/// Join lines, and machines that meet.
#[test]
fn any_bytes_as_pairing_hold() {
    for mut bytes in random_bytes(20_000, 1..200) {
        // Most random lines and messages end at once.
        if bytes[0] % 4 != 0 {
            bytes[0] = 2;
        }
        fuzzed::pairing::check(&bytes);
    }
    for seed in fuzzed::pairing::seeds() {
        for at in 0..seed.len() {
            fuzzed::pairing::check(&seed[..at]);
            for change in [1, 2, 0x80, 0xff] {
                let mut damaged = seed.clone();
                damaged[at] ^= change;
                fuzzed::pairing::check(&damaged);
            }
        }
    }
}

/// What workers that were introduced say to each other, and what they are told.
#[test]
fn any_bytes_as_introductions_hold() {
    for mut bytes in random_bytes(20_000, 1..300) {
        // Most random messages end at once.
        if bytes[0] % 4 != 0 {
            bytes[0] = 2;
        }
        fuzzed::introduction::check(&bytes);
    }
    for seed in fuzzed::introduction::seeds() {
        for at in 0..seed.len() {
            fuzzed::introduction::check(&seed[..at]);
            for change in [1, 2, 0x80, 0xff] {
                let mut damaged = seed.clone();
                damaged[at] ^= change;
                fuzzed::introduction::check(&damaged);
            }
        }
    }
}

/// What is said on a pulse, and what a client makes of it.
#[test]
fn any_bytes_as_pulses_hold() {
    for bytes in random_bytes(20_000, 1..300) {
        fuzzed::pulse::check(&bytes);
    }
    for seed in fuzzed::pulse::seeds() {
        for at in 0..seed.len() {
            fuzzed::pulse::check(&seed[..at]);
            for change in [1, 2, 0x80, 0xff] {
                let mut damaged = seed.clone();
                damaged[at] ^= change;
                fuzzed::pulse::check(&damaged);
            }
        }
    }
}

/// Nodes of every op in every dialect, ordinary and nasty ones: a worker has every op that some dialect can say.
#[test]
fn drawn_nodes_hold() {
    let mut bytes = random_bytes(usize::MAX, 4..40);
    for (op, info) in Op::ALL.iter().enumerate() {
        let mut rebuilt = 0;
        for dialect in 0..Dialect::all().len() {
            for mut input in bytes.by_ref().take(40) {
                (input[0], input[1]) = (u8::try_from(op).unwrap(), u8::try_from(dialect).unwrap());
                rebuilt += usize::from(fuzzed::nodes::fate(&input) == Fate::Rebuilt);
            }
        }
        assert!(!info.computes || rebuilt >= 20, "{}: only {rebuilt} nodes reach a worker", info.name);
    }
}

/// Writes the seeds: `cargo test -p oxcart-rpc --test corpus -- --ignored`.
#[test]
#[ignore = "writes files"]
fn write_seeds() {
    for (target, seeds) in [("wire", wire_seeds()), ("session", session_seeds()), ("client", client_seeds())]
    {
        fs::create_dir_all(folder(target)).unwrap();
        for (name, bytes) in seeds {
            fs::write(folder(target).join(name), bytes).unwrap();
        }
    }
}

/// Answers per dialect: honest ones, and bytes instead of the n-th.
fn client_seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for (number, dialect) in Dialect::all().iter().enumerate() {
        let number = u8::try_from(number).unwrap();
        seeds.push((format!("{dialect}-honest"), [&[number][..], &[0; 24]].concat()));
        seeds.push((format!("{dialect}-bytes"), [&[number, 0, 0, 0, 0x80][..], &[0xff; 16]].concat()));
    }
    seeds
}

/// One graph per dialect and kind of operation.
fn wire_seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for (number, dialect) in Dialect::all().iter().enumerate() {
        for op in [OpCode::MulMat, OpCode::Add, OpCode::Rope, OpCode::SoftMax, OpCode::Cpy] {
            let mut tensors: Vec<_> = (1..=2).map(|id| leaf(id, [4, 2, 1, 1])).collect();
            let mut node = leaf(3, if op == OpCode::MulMat { [2, 2, 1, 1] } else { [4, 2, 1, 1] });
            node.op = dialect.op_number(op).unwrap().into();
            node.flags = 16.into();
            node.sources[0] = 1.into();
            if op != OpCode::SoftMax {
                node.sources[1] = (if op == OpCode::Cpy { 3 } else { 2 }).into();
            }
            if op == OpCode::Rope {
                node.params[1] = 4.into();
                tensors[1] = TensorRecord { dtype: 26.into(), ..leaf(2, [1, 1, 1, 1]) };
            }
            tensors.push(node);
            let mut bytes = vec![u8::try_from(number).unwrap()];
            encode_graph(&mut bytes, dialect, 0, &[3.into()], &tensors);
            seeds.push((format!("{dialect}-{}", op.name().to_lowercase()), bytes));
        }
    }
    let own = Dialect::all().iter().position(|dialect| *dialect == Dialect::own()).unwrap();
    let content = Content { hash: 1, digest: [2; 32] };
    let body = Take { record: leaf(1, [4, 2, 1, 1]), content }.encode();
    seeds.push((format!("{}-take", Dialect::own()), [&[u8::try_from(own).unwrap()][..], &body].concat()));
    seeds
}

fn leaf(id: u64, ne: [u32; 4]) -> TensorRecord {
    let mut record = TensorRecord::absent();
    record.id = id.into();
    record.buffer = fuzzed::wire::BUFFER.into();
    record.data = (id * 256).into();
    record.ne = ne.map(Into::into);
    record.nb = [4, 4 * ne[0], 4 * ne[0] * ne[1], 4 * ne[0] * ne[1] * ne[2]].map(Into::into);
    record
}

/// The sum of two tensors that look alike.
fn graph(tensor: &[u8; 8]) -> Vec<u8> {
    let mut node = *tensor;
    node[2] = 100;
    // Two leaves, the second of which is like the first; one node of the two; ADD, its strides, flag and second source.
    [&[10][..], tensor, &[1, 0, 8], &[0, 0, 1], &node, &[0, 1, 0, 0, 0, 0]].concat()
}

/// Scripts that use every action, per dialect.
fn session_seeds() -> Vec<(String, Vec<u8>)> {
    let alloc = [0, 0, 16, 3, 0];
    // Type, buffer, place, four extents, strides.
    let tensor = [0, 0, 1, 1, 2, 1, 1, 0];
    let scripts: [(&str, Vec<u8>); 8] = [
        ("memory", [&alloc[..], &alloc, &[2, 0, 9], &[1, 1], &[14, 0, 0], &[14, 2, 0]].concat()),
        ("tensors", {
            let set = [&[3][..], &tensor, &[0, 8, 0, 0, 5]].concat();
            let get = [&[4][..], &tensor, &[0, 32, 0, 0]].concat();
            let copy = [&[5][..], &tensor, &[0]].concat();
            let fill = [&[6][..], &tensor, &[0, 8, 3]].concat();
            let rest = [&[7][..], &tensor, &[8, 0], &tensor, &[9], &tensor, &[0; 9]].concat();
            [&alloc[..], &set, &get, &copy, &fill, &get, &rest].concat()
        }),
        ("takes", {
            // The same hash, odd for a digest and even without one.
            let take = |hash: u8| [&[9][..], &tensor, &[3, hash], &[0; 7]].concat();
            let set = [&[3][..], &tensor, &[0, 8, 0, 0, 5]].concat();
            [&alloc[..], &take(1), &set, &take(1), &take(2)].concat()
        }),
        ("graph", {
            let graph = graph(&tensor);
            [&alloc[..], &graph, &[13, 0], &graph, &[13, 0]].concat()
        }),
        ("freed", {
            let graph = graph(&tensor);
            [&alloc[..], &graph, &[1, 0], &[13, 0]].concat()
        }),
        ("damaged", [&alloc[..], &[15, 2], &tensor, &[0, 40, 0, 0, 255]].concat()),
        ("introductions", {
            let transfer = |which: u8| [&[17, 1, 0, 3, which][..], &tensor, &[0]].concat();
            let meet = [17, 1, 0, 2, 9, 0];
            [&alloc[..], &[17, 1, 0, 0, 9], &meet, &transfer(0), &[17, 2, 0, 1, 8], &transfer(1)].concat()
        }),
        ("raw", [&alloc[..], &[16, 20], &[7; 20]].concat()),
    ];
    let mut seeds = Vec::new();
    for (number, dialect) in Dialect::all().iter().enumerate() {
        for (name, script) in &scripts {
            let bytes = [&[u8::try_from(number).unwrap()][..], script].concat();
            seeds.push((format!("{dialect}-{name}"), bytes));
        }
    }
    seeds
}
