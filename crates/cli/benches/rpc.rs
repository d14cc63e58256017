//! A worker and a client over loopback, ours beside ggml's own pair, in one run.
//!
//! `cargo bench -p oxcart-cli --bench rpc [-- rounds=5]` times Oxcart alone; with `OXCART_GGML_SOURCE` (the `ggml` folder of a
//! llama.cpp source tree) and `OXCART_REFERENCE_LIB` (the folder of the libraries built from it) it compiles `ggml_rpc.c` against
//! them and times that too. Workers are processes of their own, as in use.
//! - upload: weights from memory into a worker's buffer, until the worker has them all; best of all rounds. Tensors of 64 MiB
//!   and of 8 MiB, because the reference hashes those above 10 MiB before it sends them. `TCP` is the same number of bytes from
//!   one thread to another through a loopback socket, into memory of their own.
//! - trip: reading four bytes of a tensor; best median.
//! - again: a graph of 1,000 additions of 16 numbers that the worker has stored, until its result is here; best median.
//!
//! Kinds take turns within a round, because machines get slower and faster.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]
#![allow(missing_docs, clippy::unwrap_used, reason = "not part of the program")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use oxcart::backend::{Buffers, Device, Registry, Stream, StreamOptions, Usage, Work, place_all};
use oxcart::rpc::client::{Options, RemoteRegistry};
use oxcart::tensor::{DType, Graph};

const THREADS: &str = "2";
const NODES: usize = 1000;
const REPEATS: usize = 300;
/// Tensors and MiB of each.
const UPLOADS: [(usize, usize); 2] = [(8, 64), (64, 8)];

/// A process that ends with its owner.
struct Server {
    child: Child,
    endpoint: String,
}

impl Server {
    fn ours() -> Server {
        let mut child = Command::new(env!("CARGO_BIN_EXE_oxcart"))
            .args(["worker", "--port", "0", "--threads", THREADS])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let endpoint = loop {
            let mut line = String::new();
            assert!(log.read_line(&mut line).unwrap() > 0, "the worker ended");
            if let Some((_, rest)) = line.split_once("listening on ") {
                break rest.split(',').next().unwrap().trim().to_owned();
            }
        };
        // It goes on logging, and must never wait for its log to be read.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Server { child, endpoint }
    }

    fn theirs(program: &Path) -> Server {
        // Free now, and most likely still free in a moment.
        let endpoint = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let child = Command::new(program)
            .args(["serve", &endpoint, THREADS])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let start = Instant::now();
        while TcpStream::connect(&endpoint).is_err() {
            assert!(start.elapsed() < Duration::from_secs(10), "the reference worker does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        Server { child, endpoint }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn open(endpoint: &str) -> (Arc<dyn Device>, Box<dyn Stream>) {
    let worker = RemoteRegistry::connect(endpoint, &Options::default()).unwrap();
    let device = worker.devices().into_iter().next().unwrap();
    let stream = Arc::clone(&device).open(&StreamOptions::default()).unwrap();
    (device, stream)
}

/// Bytes per second.
fn upload(endpoint: &str, (tensors, mib): (usize, usize)) -> f64 {
    let (_device, stream) = open(endpoint);
    let size = mib << 20;
    let buffer = stream.allocate(tensors * size).unwrap();
    buffer.set_usage(Usage::Weights);
    let data: Vec<u8> =
        (0..size as u32 / 4).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let once = || {
        let start = Instant::now();
        for tensor in 0..tensors {
            buffer.write(tensor * size, &data).unwrap();
        }
        buffer.read(0, &mut [0; 4]).unwrap();
        start.elapsed().as_secs_f64()
    };
    (tensors * size) as f64 / once().min(once())
}

/// Bytes per second through a socket alone.
fn tcp((tensors, mib): (usize, usize)) -> f64 {
    let size = mib << 20;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let data = vec![7u8; size];
    let mut target = vec![1u8; tensors * size];
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for _ in 0..2 {
                stream.read_exact(&mut target).unwrap();
                stream.write_all(&[1]).unwrap();
            }
        });
        let mut stream = TcpStream::connect(address).unwrap();
        let mut once = || {
            let start = Instant::now();
            for _ in 0..tensors {
                stream.write_all(&data).unwrap();
            }
            stream.read_exact(&mut [0]).unwrap();
            start.elapsed().as_secs_f64()
        };
        (tensors * size) as f64 / once().min(once())
    })
}

fn median_seconds(repeats: usize, mut work: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..repeats)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[repeats / 2]
}

fn trip(endpoint: &str) -> f64 {
    let (_device, stream) = open(endpoint);
    let buffer = stream.allocate(64).unwrap();
    median_seconds(REPEATS, || buffer.read(0, &mut [0; 4]).unwrap())
}

fn again(endpoint: &str) -> f64 {
    let (device, stream) = open(endpoint);
    let mut graph = Graph::new();
    let x = graph.leaf(DType::F32, [16, 1, 1, 1]).unwrap();
    let one = graph.leaf(DType::F32, [16, 1, 1, 1]).unwrap();
    let mut y = x;
    for _ in 0..NODES {
        y = graph.add(y, one).unwrap();
    }
    graph.expand(y).unwrap();
    let mut buffers = Buffers::new();
    let tensors: Vec<_> = [x, one].into_iter().chain(graph.nodes().iter().copied()).collect();
    place_all(&mut graph, &tensors, &device.buffer_type(), &mut buffers).unwrap();
    let write = |id, value: &dyn Fn(usize) -> f32| {
        let bytes: Vec<u8> = (0..16).flat_map(|i| value(i).to_le_bytes()).collect();
        buffers.set(graph.tensor(id).unwrap(), 0, &bytes).unwrap();
    };
    write(x, &|i| i as f32);
    write(one, &|_| 1.0);
    let nodes = || graph.range(0..graph.nodes().len()).unwrap();
    let mut plan = stream.plan(Work { nodes: nodes(), buffers: &buffers }).unwrap().unwrap();
    let mut result = [0; 64];
    median_seconds(REPEATS, || {
        plan.compute().unwrap();
        buffers.read(graph.tensor(y).unwrap(), 0, &mut result).unwrap();
        assert_eq!(f32::from_le_bytes(result[12..16].try_into().unwrap()), 3.0 + NODES as f32);
    })
}

/// The compiled peer, if there is a ggml to compile it against.
fn peer() -> Option<PathBuf> {
    let source = PathBuf::from(std::env::var_os("OXCART_GGML_SOURCE")?);
    let library = PathBuf::from(std::env::var_os("OXCART_REFERENCE_LIB")?);
    let program = std::env::temp_dir().join(format!("oxcart-ggml-rpc-{}", std::process::id()));
    let flag = |name: &str, path: &Path| format!("{name}{}", path.display());
    let built = Command::new("cc")
        .args(["-O2", "-o"])
        .arg(&program)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/ggml_rpc.c"))
        .args([flag("-I", &source.join("include")), flag("-L", &library)])
        .args(["-l:libggml-base.so.0", "-l:libggml.so.0", "-l:libggml-cpu.so.0", "-l:libggml-rpc.so.0"])
        .arg(flag("-Wl,-rpath,", &library))
        .status();
    built.is_ok_and(|status| status.success()).then_some(program)
}

fn theirs(program: &Path, arguments: &[&str]) -> f64 {
    let output = Command::new(program).args(arguments).stderr(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "the reference failed at {arguments:?}");
    String::from_utf8(output.stdout).unwrap().split_whitespace().last().unwrap().parse().unwrap()
}

/// The best of all rounds, of ours and of theirs.
struct Row {
    name: String,
    unit: &'static str,
    factor: f64,
    larger_is_better: bool,
    ours: f64,
    theirs: Option<f64>,
}

impl Row {
    fn new(name: String, (unit, factor, larger_is_better): (&'static str, f64, bool)) -> Row {
        let worst = if larger_is_better { 0.0 } else { f64::INFINITY };
        Row { name, unit, factor, larger_is_better, ours: worst, theirs: None }
    }

    fn better(&self, a: f64, b: f64) -> f64 {
        if self.larger_is_better { a.max(b) } else { a.min(b) }
    }

    fn add(&mut self, ours: f64, theirs: Option<f64>) {
        self.ours = self.better(self.ours, ours);
        if let Some(theirs) = theirs {
            self.theirs = Some(self.theirs.map_or(theirs, |known| self.better(known, theirs)));
        }
    }

    fn print(&self, tcp: Option<f64>) {
        print!("{:<22} {:>8.2} {:<5}", self.name, self.ours * self.factor, self.unit);
        if let Some(theirs) = self.theirs {
            let ratio = if self.larger_is_better { self.ours / theirs } else { theirs / self.ours };
            print!("  reference {:>8.2} ({ratio:.2}x as fast)", theirs * self.factor);
        }
        if let Some(tcp) = tcp {
            print!("  TCP {:>6.2} ({:.2} of it)", tcp * self.factor, self.ours / tcp);
        }
        println!();
    }
}

fn main() {
    let rounds =
        std::env::args().find_map(|argument| argument.strip_prefix("rounds=")?.parse().ok()).unwrap_or(5);
    let peer = peer();
    if peer.is_none() {
        println!("OXCART_GGML_SOURCE and OXCART_REFERENCE_LIB are not set: timing Oxcart alone");
    }
    let ours = Server::ours();
    let other = peer.as_deref().map(|program| (program, Server::theirs(program)));
    let by_them = |arguments: &dyn Fn(&str) -> Vec<String>| {
        other.as_ref().map(|(program, server)| {
            let arguments = arguments(&server.endpoint);
            theirs(program, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
        })
    };
    let mut uploads = UPLOADS.map(|(tensors, mib)| {
        (Row::new(format!("upload {tensors} x {mib} MiB"), ("GB/s", 1e-9, true)), 0f64)
    });
    let mut trips = Row::new("trip".into(), ("µs", 1e6, false));
    let mut graphs = Row::new(format!("again, {NODES} nodes"), ("µs", 1e6, false));
    for _ in 0..rounds {
        for ((row, raw), size) in uploads.iter_mut().zip(UPLOADS) {
            *raw = raw.max(tcp(size));
            let (tensors, mib) = (size.0.to_string(), size.1.to_string());
            let them = by_them(&|to| ["upload", to, &tensors, &mib].map(str::to_owned).to_vec());
            row.add(upload(&ours.endpoint, size), them);
        }
        let repeats = REPEATS.to_string();
        trips.add(trip(&ours.endpoint), by_them(&|to| ["trip", to, &repeats].map(str::to_owned).to_vec()));
        let nodes = NODES.to_string();
        let them = by_them(&|to| ["again", to, &nodes, &repeats].map(str::to_owned).to_vec());
        graphs.add(again(&ours.endpoint), them);
    }
    for (row, raw) in &uploads {
        row.print(Some(*raw));
    }
    trips.print(None);
    graphs.print(None);
    if let Some(program) = &peer {
        // It is in the folder for temporary files; a failure to tidy up is none of ours.
        let _ = std::fs::remove_file(program);
    }
}
