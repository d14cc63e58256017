//! Workers that break, lie or fall silent: every call ends with an error, in time, and every later one at once.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common_client;
#[path = "fuzzed/conversation.rs"]
mod conversation;

use std::io::Read;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common_client::{BASE, Config, FakeWorker, HANDLE, Misbehaviour, PATIENCE, options, short};
use oxcart_backend::{Buffers, Error, Registry, StreamOptions, allocate, place_all};
use oxcart_rpc::client::{ConnectError, Options, RemoteRegistry, Timeouts};
use oxcart_rpc::wire::{Command, Reply};
use oxcart_tensor::{DType, Graph};

/// Half of the time that is waited for an answer where a worker has been honest before: longer than a machine stands still.
const SHORT: Duration = Duration::from_millis(1500);

fn dialects_of(command: Command) -> impl Iterator<Item = &'static str> {
    ["2.0", "3.6", "5.1", "7.0"]
        .into_iter()
        .filter(move |name| Command::from_number(command as u8, name.parse().unwrap()).is_some())
}

/// What a client that meets this worker reports, without having waited for long.
fn outcome(config: Config) -> Result<(), String> {
    outcome_with(config, &options())
}

fn outcome_with(config: Config, options: &Options) -> Result<(), String> {
    let worker = FakeWorker::start(config);
    let started = Instant::now();
    let outcome = match RemoteRegistry::connect(&worker.endpoint(), options) {
        Err(error) => Err(error.to_string()),
        Ok(registry) => {
            let outcome = conversation::hold(&registry).map_err(|error| error.to_string());
            if outcome.is_err() {
                let failure = registry.failure().expect("the connection is over");
                let cause = failure.to_string();
                let device = registry.devices().remove(0);
                let later = device.memory().unwrap_err().to_string();
                assert!(later.contains(&cause), "{later} is not {cause}");
                assert!(device.buffer_type().allocate_bytes(10).is_err());
                assert!(Arc::clone(&device).open(&StreamOptions::default()).is_err());
                return Err(failure.detail());
            }
            outcome
        }
    };
    // No limit is met, neither by what failed nor by later calls; where limits are short, none is stretched.
    assert!(started.elapsed() < PATIENCE, "took {:?}", started.elapsed());
    outcome
}

#[test]
fn an_honest_worker_is_fine_in_every_dialect() {
    for dialect in ["2.0", "2.0-0.3.9", "2.0-0.3.14", "3.6", "4.0.0", "4.0.3", "5.1", "7.0"] {
        let given = dialect.parse().unwrap();
        let worker = FakeWorker::start(Config::new(dialect));
        let options = Options { dialect: Some(given), ..options() };
        let registry = RemoteRegistry::connect(&worker.endpoint(), &options).unwrap();
        assert_eq!(registry.dialect(), given);
        conversation::hold(&registry).unwrap();
    }
}

/// Any answer of another length, cut, or replaced by the end of the connection.
#[test]
fn broken_answers_to_any_command() {
    let mut tried = 0;
    for command in Command::ALL {
        if matches!(command, Command::SetTensorHash) {
            continue;
        }
        for dialect in dialects_of(command) {
            let answers = command.reply(dialect.parse().unwrap()) != Reply::None;
            let faults = match answers {
                true => &[
                    Misbehaviour::Size(u64::MAX),
                    Misbehaviour::Size(1 << 63),
                    Misbehaviour::Size(7),
                    Misbehaviour::Cut(0),
                    Misbehaviour::Cut(5),
                    Misbehaviour::Cut(8),
                    Misbehaviour::Close,
                    Misbehaviour::Reset,
                    Misbehaviour::Surplus,
                ][..],
                false => &[Misbehaviour::Close, Misbehaviour::Reset, Misbehaviour::Surplus][..],
            };
            for fault in faults {
                // The worker may free memory as slowly as it likes; the very last frees are not waited for.
                if matches!(command, Command::FreeBuffer) {
                    continue;
                }
                let config = Config::fault(dialect, command, fault.clone());
                let error = outcome(config).expect_err(&format!("{command:?} {fault:?} in {dialect}"));
                assert!(error.contains("127.0.0.1:"), "{error}");
                tried += 1;
            }
        }
    }
    assert!(tried > 300, "{tried}");
}

/// Silence and single bytes have an end.
#[test]
fn silence_at_any_command() {
    // Frees are not waited for, and a hash is asked only for large weights; see below.
    let waits = |command: Command, dialect: &str| {
        let left_out = [Command::FreeBuffer, Command::SetTensorHash];
        !left_out.contains(&command) && command.reply(dialect.parse().unwrap()) != Reply::None
    };
    let cases = Command::ALL.into_iter().flat_map(|command| {
        let dialects = dialects_of(command).filter(|dialect| ["2.0", "7.0"].contains(dialect));
        dialects.filter(move |dialect| waits(command, dialect)).map(move |dialect| (command, dialect))
    });
    let threads = cases.flat_map(|(command, dialect)| {
        [Misbehaviour::Silence, Misbehaviour::Drip].map(|fault| {
            std::thread::spawn(move || {
                let error =
                    outcome_with(Config::fault(dialect, command, fault.clone()), &short()).unwrap_err();
                let is_late =
                    error.contains("did not answer within") || error.contains("did not answer the greeting");
                assert!(is_late, "{command:?} {fault:?} in {dialect}: {error}");
            })
        })
    });
    for thread in threads.collect::<Vec<_>>() {
        thread.join().unwrap();
    }
}

/// The same for the one command that only large weights lead to.
#[test]
fn broken_answers_to_a_hash() {
    let faults = [
        Misbehaviour::Size(u64::MAX),
        Misbehaviour::Size(0),
        Misbehaviour::Cut(3),
        Misbehaviour::Close,
        Misbehaviour::Reset,
    ];
    let more = [Misbehaviour::Silence, Misbehaviour::Surplus, Misbehaviour::Body(vec![2])];
    for fault in faults.into_iter().chain(more) {
        let worker = FakeWorker::start(Config::fault("7.0", Command::SetTensorHash, fault.clone()));
        // Only the answer to a hash is waited for so; what comes before is done by then.
        let timeouts = match fault {
            Misbehaviour::Silence => Timeouts { control: SHORT, data: SHORT, ..options().timeouts },
            _ => options().timeouts,
        };
        let options = Options { worker_cache: true, timeouts, ..options() };
        let registry = RemoteRegistry::connect(&worker.endpoint(), &options).unwrap();
        let large = (10 << 20) + 1;
        let buffer = allocate(&registry.devices()[0].buffer_type(), large).unwrap();
        buffer.set_usage(oxcart_backend::Usage::Weights);
        let written = buffer.write(0, &vec![3; large]);
        let read = buffer.read(0, &mut [0]);
        assert!(written.is_err() || read.is_err(), "{fault:?}");
        assert!(registry.failure().is_some(), "{fault:?}");
    }
}

/// What a worker was given to do in its memory, and what has left already, does not make silence last.
#[test]
fn silence_after_much_memory_is_not_waited_for() {
    let timeouts = Timeouts { control: SHORT, data: SHORT, slowest_rate: 1 << 10, ..options().timeouts };
    let slow = Options { timeouts, ..options() };
    for command in [Command::AllocBuffer, Command::GetTensor] {
        let worker = FakeWorker::start(Config::fault("7.0", command, Misbehaviour::Silence));
        let registry = RemoteRegistry::connect(&worker.endpoint(), &slow).unwrap();
        let started = Instant::now();
        let result = allocate(&registry.devices()[0].buffer_type(), 64 << 20)
            .and_then(|buffer| buffer.read(0, &mut [0]));
        assert!(result.is_err());
        assert!(started.elapsed() < PATIENCE, "{command:?}: {:?}", started.elapsed());
    }
    // An upload that has left.
    let worker = FakeWorker::start(Config::fault("7.0", Command::GetTensor, Misbehaviour::Silence));
    let registry = RemoteRegistry::connect(&worker.endpoint(), &slow).unwrap();
    let buffer = allocate(&registry.devices()[0].buffer_type(), 64 << 20).unwrap();
    buffer.write(0, &vec![1; 64 << 20]).unwrap();
    let started = Instant::now();
    assert!(buffer.read(0, &mut [0]).is_err());
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
}

/// A worker that takes no data.
#[test]
fn a_deaf_worker_is_given_up() {
    let worker = FakeWorker::start(Config::fault("7.0", Command::BufferClear, Misbehaviour::Deaf));
    let timeouts = Timeouts { control: SHORT, data: SHORT, ..options().timeouts };
    let registry = RemoteRegistry::connect(&worker.endpoint(), &Options { timeouts, ..options() }).unwrap();
    let buffer = allocate(&registry.devices()[0].buffer_type(), 64 << 20).unwrap();
    let started = Instant::now();
    let error = buffer.write(0, &vec![1; 64 << 20]).unwrap_err().to_string();
    assert!(error.contains("took no data for"), "{error}");
    assert!(started.elapsed() < PATIENCE);
}

/// Versions that no dialect has, and answers that are no versions.
#[test]
fn unknown_versions_are_refused() {
    for version in [[6, 0, 0], [1, 0, 0], [7, 1, 0], [0, 0, 0], [255, 255, 255], [2, 0, 0]] {
        let worker = FakeWorker::start(Config { version: Some(version), ..Config::new("7.0") });
        let error = worker.connect().unwrap_err();
        assert!(matches!(error, ConnectError::Version { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(&version.map(|number| number.to_string()).join(".")), "{text}");
        assert!(text.contains("7.0.0") && text.contains("2.0.0"), "{text}");
    }
    let old = FakeWorker::start(Config { version: Some([3, 5, 0]), ..Config::new("3.6") });
    assert!(matches!(old.connect().unwrap_err(), ConnectError::Version { .. }));
    let wanted = Options { dialect: Some("5.1".parse().unwrap()), ..options() };
    let worker = FakeWorker::start(Config::new("7.0"));
    let error = RemoteRegistry::connect(&worker.endpoint(), &wanted).unwrap_err().to_string();
    assert!(error.contains("7.0.0") && error.contains("5.1"), "{error}");
}

#[test]
fn numbers_of_devices_that_cannot_be() {
    for (devices, is_fine) in [(0, false), (1, true), (17, true), (64, true), (65, false), (u32::MAX, false)]
    {
        let worker = FakeWorker::start(Config { devices, ..Config::new("7.0") });
        match worker.connect() {
            Ok(registry) => assert!(is_fine && registry.devices().len() == devices as usize),
            Err(error) => {
                assert!(!is_fine, "{error}");
                assert!(matches!(error, ConnectError::DeviceCount { count, .. } if count == devices));
            }
        }
    }
}

#[test]
fn properties_that_cannot_be() {
    for alignment in [0, 3, 33, 1 << 40, u64::MAX] {
        let error = outcome(Config { alignment, ..Config::new("7.0") }).unwrap_err();
        assert!(error.contains(&format!("an alignment of {alignment}")), "{error}");
    }
    let error = outcome(Config { max_size: 0, ..Config::new("2.0") }).unwrap_err();
    assert!(error.contains("no bytes"), "{error}");
    let worker = FakeWorker::start(Config { memory: [u64::MAX, 5], ..Config::new("7.0") });
    let memory = worker.connect().unwrap().devices()[0].memory().unwrap();
    assert_eq!((memory.free, memory.total), (5, 5), "memory is only a hint");
}

#[test]
fn buffers_that_cannot_be() {
    let honest = Config::new("7.0");
    outcome(Config { size_error: 100, ..honest.clone() }).unwrap();
    let lies = [
        (Config { size_error: -1, ..honest.clone() }, "bytes instead of"),
        (Config { handle: Some(HANDLE), ..honest.clone() }, "which is in use"),
        (Config { base: Some(0), ..honest.clone() }, "a base of 0x0"),
        (Config { base: Some(BASE + 8), ..honest.clone() }, "a base of"),
        (Config { base: Some(u64::MAX - 31), ..honest.clone() }, "a base of"),
    ];
    for (config, expected) in lies {
        let error = outcome(config).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

/// No memory is no failure: the connection goes on.
#[test]
fn no_memory_is_an_ordinary_answer() {
    let worker =
        FakeWorker::start(Config::fault("7.0", Command::AllocBuffer, Misbehaviour::Body(vec![0; 16])));
    let registry = worker.connect().unwrap();
    let kind = registry.devices()[0].buffer_type();
    assert!(matches!(allocate(&kind, 100), Err(Error::OutOfMemory { size: 100, .. })));
    allocate(&kind, 100).unwrap();
    let small = FakeWorker::start(Config { max_size: 99, ..Config::new("7.0") });
    let kind = small.connect().unwrap().devices()[0].buffer_type();
    assert!(matches!(allocate(&kind, 100), Err(Error::OutOfMemory { .. })));
    assert_eq!(small.of(Command::AllocBuffer).len(), 0);
}

#[test]
fn sizes_that_cannot_be() {
    let size = |alloc_size| {
        let worker = FakeWorker::start(Config { alloc_size, ..Config::new("7.0") });
        let device = worker.connect().unwrap().devices().remove(0);
        let mut graph = Graph::new();
        let weights = graph.leaf(DType::Q4_0, [64, 2]).unwrap();
        let found = device.buffer_type().alloc_size(graph.tensor(weights).unwrap());
        let placed = place_all(&mut graph, &[weights], &device.buffer_type(), &mut Buffers::new());
        (found, placed.is_ok())
    };
    assert_eq!(size(0), (72, true), "never less than the tensor has");
    assert_eq!(size(71), (72, true));
    assert_eq!(size(288), (288, true));
    assert!(!size(1 << 63).1);
    assert!(!size(u64::MAX).1);
}

/// Results that are neither yes nor no.
#[test]
fn results_that_cannot_be() {
    let error = outcome(Config { copy_answer: 2, ..Config::new("7.0") }).unwrap_err();
    assert!(error.contains("COPY_TENSOR") && error.contains("result 2"), "{error}");
}

/// Bytes that come when nothing was asked.
#[test]
fn unsolicited_bytes_end_the_connection() {
    for dialect in ["2.0", "7.0"] {
        let error = outcome(Config::fault(dialect, Command::SetTensor, Misbehaviour::Surplus)).unwrap_err();
        assert!(error.contains("not asked for") || error.contains("bytes instead of"), "{error}");
    }
    // Not even if they look like the answer to what is asked next.
    let worker = FakeWorker::start(Config::fault("7.0", Command::SetTensor, Misbehaviour::Body(vec![7; 16])));
    let device = worker.connect().unwrap().devices().remove(0);
    let buffer = allocate(&device.buffer_type(), 100).unwrap();
    buffer.write(0, &[1; 100]).unwrap();
    worker.wait_for_misbehaviour();
    // It has left; on its way to us nothing but the system holds it up.
    std::thread::sleep(Duration::from_millis(200));
    let error = device.memory().unwrap_err().to_string();
    assert!(error.contains("not asked for"), "{error}");
}

/// A failure that only shows later is blamed on the commands it may have been.
#[test]
fn a_late_failure_names_what_was_not_confirmed() {
    let error = outcome(Config::fault("7.0", Command::GraphCompute, Misbehaviour::Close)).unwrap_err();
    assert!(error.contains("closed the connection"), "{error}");
    assert!(error.contains("GRAPH_COMPUTE (1 node)"), "{error}");
    assert!(error.contains("SET_TENSOR blk.0.attn_q.weight (72 bytes)"), "{error}");
}

#[test]
fn an_address_without_a_worker_is_an_error() {
    // An address that is taken, so that no other gets it, and where no one listens.
    let taken = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    taken.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let free = taken.local_addr().unwrap().as_socket().unwrap();
    let error = RemoteRegistry::connect(&free.to_string(), &options()).unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    let error = RemoteRegistry::connect("no-such-host.invalid:1", &options()).unwrap_err();
    assert!(matches!(error, ConnectError::Name { .. } | ConnectError::Unreachable { .. }), "{error}");
    assert!(matches!(RemoteRegistry::connect("nowhere", &options()), Err(ConnectError::Endpoint(_))));
}

/// Something that is no worker: closes on both forms of HELLO, or talks another protocol.
#[test]
fn no_worker_at_all() {
    let talk = |greeting: &'static [u8]| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().take(2) {
                let mut stream = stream.unwrap();
                // All of HELLO, so that the end is none that loses what is said.
                let mut head = [0; 9];
                stream.read_exact(&mut head).unwrap();
                let size = u64::from_le_bytes(*head.last_chunk().unwrap());
                std::io::copy(&mut (&mut stream).take(size), &mut std::io::sink()).unwrap();
                let _ = std::io::Write::write_all(&mut stream, greeting);
            }
        });
        RemoteRegistry::connect(&address.to_string(), &options()).unwrap_err()
    };
    assert!(matches!(talk(b""), ConnectError::Rejected { .. }));
    let error = talk(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    assert!(matches!(&error, ConnectError::Failed(_)), "{error}");
    assert!(error.to_string().contains("instead of 28"), "{error}");
}
