//! Connections, devices, allocations and kernels that break. `docs/threats.md` says which threat each test answers.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Example, Fixture, Peer, announcement, dial, dialects, request};
use oxcart_rpc::client::{Options, RemoteRegistry};
use oxcart_rpc::wire::{Command, Dialect, OpCode};
use oxcart_rpc::worker::{Config, DialectChoice, Worker};
use oxcart_testdev::{Config as DeviceConfig, InjectedFault, TestDevice};

/// Everything that went both ways between a client and the worker, in order: which side sent it, and the bytes.
type Recording = Arc<Mutex<Vec<(bool, Vec<u8>)>>>;

/// Lets one client talk to a worker through here and writes down how long each side talked.
fn record(fixture: &Fixture, dialect: &'static Dialect) -> Vec<(bool, usize)> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let worker = fixture.address(dialect);
    let recording: Recording = Arc::default();
    let kept = Arc::clone(&recording);
    let proxy = std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(worker).unwrap();
        let pump = |mut from: TcpStream, mut to: TcpStream, is_client: bool| {
            let recording = Arc::clone(&kept);
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(read @ 1..) = from.read(&mut bytes) {
                    recording.lock().unwrap().push((is_client, bytes[..read].to_vec()));
                    let _ = to.write_all(&bytes[..read]);
                }
                let _ = to.shutdown(Shutdown::Write);
            })
        };
        let up = pump(client.try_clone().unwrap(), server.try_clone().unwrap(), true);
        pump(server, client, false).join().unwrap();
        up.join().unwrap();
    });
    let mut peer = Peer::connect(address, dialect);
    Example::new(&mut peer).check();
    drop(peer);
    proxy.join().unwrap();
    let recording = recording.lock().unwrap();
    recording.iter().map(|(is_client, bytes)| (*is_client, bytes.len())).collect()
}

/// A stream that ends after so many bytes, in either direction.
struct Cut<'a> {
    stream: &'a TcpStream,
    left: &'a AtomicUsize,
}

impl Cut<'_> {
    fn allowance(&self, wanted: usize) -> io::Result<usize> {
        match self.left.load(Ordering::Relaxed).min(wanted) {
            0 if wanted > 0 => Err(io::ErrorKind::ConnectionAborted.into()),
            some => Ok(some),
        }
    }
}

impl Read for Cut<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let most = self.allowance(bytes.len())?;
        let read = self.stream.read(&mut bytes[..most])?;
        self.left.fetch_sub(read, Ordering::Relaxed);
        Ok(read)
    }
}

impl Write for Cut<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let most = self.allowance(bytes.len())?;
        let written = self.stream.write(&bytes[..most])?;
        self.left.fetch_sub(written, Ordering::Relaxed);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The whole worked example, cut after every byte of either side, by an end and by a reset.
#[test]
fn a_conversation_may_be_cut_after_every_byte() {
    let fixture = Fixture::new();
    for dialect in [Dialect::classic(), Dialect::newest()] {
        let total: usize = record(&fixture, dialect).iter().map(|(_, len)| len).sum();
        assert!(total > 1500, "{total}");
        for end in 0..total {
            let left = AtomicUsize::new(end);
            let socket = TcpStream::connect(fixture.address(dialect)).unwrap();
            socket.set_nodelay(true).unwrap();
            // The example's own checks fail at the cut, which is the end of it.
            let _ = play(&mut Cut { stream: &socket, left: &left }, dialect);
            if end % 2 == 0 {
                socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO)).unwrap();
            }
        }
    }
    fixture.until_empty();
    fixture.assert_serves();
    let counters = fixture.counters();
    assert_eq!(counters.panics, 0, "{counters}");
}

/// The worked example over any stream, until it fails.
fn play(stream: &mut (impl Read + Write), dialect: &'static Dialect) -> io::Result<()> {
    let mut ask = |command: Command, body: &[u8]| -> io::Result<Vec<u8>> {
        stream.write_all(&request(command as u8, body))?;
        let has_reply = command.reply(dialect) != oxcart_rpc::wire::Reply::None;
        if !has_reply {
            return Ok(Vec::new());
        }
        let mut len = [0; 8];
        stream.read_exact(&mut len)?;
        let mut reply = vec![0; usize::try_from(u64::from_le_bytes(len)).unwrap()];
        stream.read_exact(&mut reply)?;
        Ok(reply)
    };
    let device: &[u8] = if dialect.has_devices { &[0; 4] } else { &[] };
    ask(Command::Hello, &vec![0; Command::Hello.request_bytes(dialect)])?;
    let handle = common::long(&ask(Command::AllocBuffer, &[device, &4096_u64.to_le_bytes()].concat())?);
    let base = common::long(&ask(Command::BufferGetBase, &handle.to_le_bytes())?);
    // Only its methods that make bodies are used.
    let socket = TcpListener::bind("127.0.0.1:0")?;
    let peer = Peer { stream: TcpStream::connect(socket.local_addr()?)?, dialect };
    let a = peer.tensor(1, [4, 2, 1, 1], (handle, base));
    let b = peer.tensor(2, [4, 1, 1, 1], (handle, base + 0x20));
    let c = peer.node(OpCode::MulMat, 3, [2, 1, 1, 1], (handle, base + 0x40), &[1, 2]);
    ask(Command::SetTensor, &peer.set_body(&a, 0, &[0; 32]))?;
    ask(Command::GraphCompute, &peer.graph_body(&[3], &[a, b, c]))?;
    ask(Command::GetTensor, &common::get_body(&c, 0, 8))?;
    ask(Command::FreeBuffer, &handle.to_le_bytes())?;
    Ok(())
}

#[test]
fn handles_do_not_outlive_a_worker() {
    let before = Fixture::new();
    let mut peer = before.newest();
    let handle = peer.alloc(64);
    let base = peer.base(handle);
    drop(before);
    let after = Fixture::new();
    for attempt in 0..3 {
        let mut peer = after.newest();
        assert_ne!(peer.alloc(64), handle);
        let record = peer.tensor(1, [4, 1, 1, 1], (handle, base));
        let (command, body) = match attempt {
            0 => (Command::BufferGetBase, handle.to_le_bytes().to_vec()),
            1 => (Command::FreeBuffer, handle.to_le_bytes().to_vec()),
            _ => (Command::GetTensor, common::get_body(&record, 0, 16)),
        };
        peer.assert_refused(command, &body);
    }
}

#[test]
fn missing_scratch_memory_fails_one_graph() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        let mut peer = fixture.connect(dialect);
        let mut example = Example::new(&mut peer);
        fixture.device.inject(Some(InjectedFault::NoMemory));
        assert!(!example.compute());
        if !dialect.has_recompute {
            // Version 2 says so and goes on.
            assert!(example.compute());
        }
    }
    assert_eq!(fixture.counters().refusals.get("failed"), Some(&5));
    fixture.assert_serves();
}

/// For n = 1, 2, ..., the n-th allocation of a whole conversation fails; no connection is closed for that.
#[test]
fn any_allocation_may_fail() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        for count in 0..6 {
            fixture.device.allow_allocations(count);
            let mut peer = fixture.connect(dialect);
            for number in 0..6 {
                let (handle, _) = peer.try_alloc(1000);
                assert_eq!(handle != 0, number < count, "allocation {number} of {count}");
            }
            assert!(peer.is_alive());
            fixture.device.allow_allocations(usize::MAX);
            Example::new(&mut peer).check();
        }
    }
    fixture.until_empty();
}

#[test]
fn a_panic_ends_one_connection_and_is_counted() {
    // The panic of a kernel on the connection's thread, and on a thread of the device.
    let devices =
        [DeviceConfig::default(), DeviceConfig { asynchronous: true, ..DeviceConfig::accelerator("X") }];
    for device in devices {
        let device = TestDevice::new(DeviceConfig { capacity: 1 << 30, ..device });
        let mut worker = Worker::new(Config::new([Arc::clone(&device) as _])).unwrap();
        let address = worker.listen("127.0.0.1:0", DialectChoice::Auto).unwrap();
        let mut bystander = Peer::connect(address, Dialect::newest());
        let mut peer = Peer::connect(address, Dialect::newest());
        let mut example = Example::new(&mut peer);
        device.inject(Some(InjectedFault::Panic));
        assert!(!example.compute());
        let start = Instant::now();
        while worker.counters().panics == 0 && start.elapsed() < common::PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        Example::new(&mut bystander).check();
        assert_eq!(worker.counters().panics, 1);
    }
}

#[test]
fn a_lost_device_ends_only_the_connections_that_use_it() {
    let devices = ["A", "B"].map(|name| {
        TestDevice::new(DeviceConfig { name: name.into(), capacity: 1 << 30, ..DeviceConfig::default() })
    });
    let events = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&events);
    let mut config = Config::new(devices.iter().map(|device| Arc::clone(device) as _));
    config.observer = Arc::new(move |event| kept.lock().unwrap().push(event.to_string()));
    let mut worker = Worker::new(config).unwrap();
    let address = worker.listen("127.0.0.1:0", DialectChoice::Auto).unwrap();
    let on_second = |peer: &mut Peer| {
        let body = [&1_u32.to_le_bytes()[..], &64_u64.to_le_bytes()].concat();
        let reply = peer.ask(Command::AllocBuffer, &body);
        common::long(&reply)
    };
    let mut victim = Peer::connect(address, Dialect::newest());
    let mut idle_victim = Peer::connect(address, Dialect::newest());
    let mut other = Peer::connect(address, Dialect::newest());
    idle_victim.alloc(64);
    assert_ne!(on_second(&mut other), 0);
    let mut example = Example::new(&mut victim);
    devices[0].inject(Some(InjectedFault::Breakdown));
    assert!(!example.compute());
    assert!(common::closes(&mut idle_victim.stream), "a client with a buffer there must know");
    assert!(other.is_alive() && on_second(&mut other) != 0);
    // The lost device reports no memory to other clients.
    assert_eq!(other.memory(), (0, 0));
    assert_eq!(other.try_alloc(64), (0, 0));
    assert_eq!(worker.counters().degraded, 1);
    let lost = events.lock().unwrap().iter().filter(|line| line.contains("device A is lost")).count();
    assert_eq!(lost, 1);
}

#[test]
fn a_flood_of_refusals_is_not_a_flood_of_lines() {
    let device = TestDevice::new(DeviceConfig { capacity: 1 << 30, ..DeviceConfig::default() });
    let written = Arc::new(Mutex::new((0_usize, 0_u64)));
    let kept = Arc::clone(&written);
    let mut config = Config::new([device as _]);
    config.observer = Arc::new(move |event| {
        let mut written = kept.lock().unwrap();
        written.0 += event.to_string().len() + 30;
        if let oxcart_rpc::worker::Event::Suppressed { lines } = event {
            written.1 += lines;
        }
    });
    let worker = Worker::new(config).unwrap();
    let hello = request(14, &[0; 24]);
    let wrong = announcement(99, 0);
    let messages = [&hello[..], &wrong].concat();
    const FLOOD: u64 = 1_000_000;
    for _ in 0..FLOOD {
        worker.serve_client(&messages[..], io::sink(), DialectChoice::Auto);
    }
    assert_eq!(worker.counters().refusals.get("command"), Some(&FLOOD));
    let (bytes, suppressed) = *written.lock().unwrap();
    assert!(bytes < 1 << 20, "{bytes} bytes of log");
    assert!(suppressed > FLOOD, "{suppressed} lines were counted as left out");
}

#[test]
fn one_line_per_refusal_names_client_command_and_reason() {
    let fixture = Fixture::new();
    let peer = fixture.newest();
    let from = peer.stream.local_addr().unwrap().to_string();
    peer.assert_refused(Command::FreeBuffer, &77_u64.to_le_bytes());
    fixture.until_empty();
    let lines = fixture.events();
    let refused: Vec<_> = lines.iter().filter(|line| line.contains("refused")).collect();
    assert_eq!(refused.len(), 1, "{lines:?}");
    for part in [from.as_str(), "FREE_BUFFER", "0x4d", "[handle]"] {
        assert!(refused[0].contains(part), "{}", refused[0]);
    }
}

/// A full worker refuses no one, but says who asked for what, and how many others hold the rest.
#[test]
fn a_full_worker_says_so() {
    let fixture = Fixture::with(DeviceConfig::default(), |config| config.max_memory = Some(1 << 20));
    let (mut one, mut two, mut three) = (fixture.newest(), fixture.newest(), fixture.newest());
    let (free, _) = one.memory();
    one.alloc(free / 4);
    two.alloc(free / 4);
    assert_eq!(three.try_alloc(free), (0, 0));
    three.alloc(1024);
    let from = three.stream.local_addr().unwrap().to_string();
    let lines = fixture.events();
    let full: Vec<_> = lines.iter().filter(|line| line.contains("which is full")).collect();
    assert_eq!(full.len(), 1, "{lines:?}");
    for part in [from.as_str(), "iB of ", " free, 2 other clients hold "] {
        assert!(full[0].contains(part), "{}", full[0]);
    }
}

#[test]
fn names_and_addresses_of_either_kind() {
    let device = TestDevice::new(DeviceConfig { capacity: 1 << 30, ..DeviceConfig::default() });
    let mut worker = Worker::new(Config::new([device as _])).unwrap();
    let address = match worker.listen("[::1]:0", DialectChoice::Auto) {
        Ok(address) => address,
        Err(error) => panic!("this machine has no IPv6 loopback: {error}"),
    };
    let registry = RemoteRegistry::connect(&address.to_string(), &Options::default()).unwrap();
    assert_eq!(registry.dialect(), Dialect::own());
    Example::new(&mut Peer::connect(address, Dialect::classic())).check();
    let four = worker.listen("127.0.0.1:0", DialectChoice::Auto).unwrap();
    let by_name = format!("localhost:{}", four.port());
    RemoteRegistry::connect(&by_name, &Options::default()).unwrap();
}

/// A client that sends a byte at a time is served, and blocks no other: each byte comes when others have been served.
#[test]
fn a_dripping_client_is_served() {
    let fixture = Fixture::new();
    // Where others come in too.
    let mut stream = dial(fixture.address(Dialect::newest()));
    for byte in request(14, &[0; 24]) {
        fixture.assert_serves();
        stream.write_all(&[byte]).unwrap();
    }
    stream.read_exact(&mut [0; 36]).unwrap();
}

/// Many dead connections are held, and a new client is served at once in any case.
#[test]
fn half_open_connections_keep_no_client_out() {
    let fixture = Fixture::new();
    let dead: Vec<_> = (0..50)
        .map(|_| {
            let mut peer = fixture.newest();
            peer.alloc(64);
            peer
        })
        .collect();
    fixture.assert_serves();
    drop(dead);
    fixture.until_empty();
}
