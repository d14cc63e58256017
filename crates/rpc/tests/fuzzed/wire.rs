//! Any bytes as a graph in every dialect: decoding, parameters both ways, and rebuilding through the door.
//!
//! The first bytes choose the dialect. Records that name buffer 1 mean a buffer that exists, at an address relative to its
//! start, so that mutations of valid graphs get far.

use std::sync::{Arc, OnceLock};

use oxcart_backend::{Device, allocate};
use oxcart_rpc::wire::{
    Command, Dialect, GraphBody, Params, Take, TensorRecord, encode_graph, encode_params,
};
use oxcart_rpc::worker::{Space, rebuild};
use oxcart_tensor::Layout;
use oxcart_testdev::{Config, TestDevice};

/// The buffer that records may name.
pub const BUFFER: u64 = 1;
const BUFFER_BYTES: usize = 1 << 16;

fn device() -> &'static Arc<dyn Device> {
    static DEVICE: OnceLock<Arc<dyn Device>> = OnceLock::new();
    DEVICE.get_or_init(|| TestDevice::new(Config { null: true, ..Config::default() }))
}

/// Nothing panics, what is decoded is encoded to the same bytes, and a graph is rebuilt or refused.
pub fn check(bytes: &[u8]) {
    let Some((&choice, body)) = bytes.split_first() else { return };
    let dialect = Dialect::all()[usize::from(choice) % Dialect::all().len()];
    for &number in body.iter().take(4) {
        if let Some(command) = Command::from_number(number, dialect) {
            assert_eq!(command as u8, number);
            let _ = (command.request_bytes(dialect), command.reply(dialect), command.name());
        }
    }
    if let Some(take) = Take::decode(body) {
        assert_eq!(take.encode(), body, "a TAKE is what its bytes are");
    }
    let Ok(graph) = GraphBody::decode(body, dialect) else { return };
    let mut again = Vec::new();
    encode_graph(&mut again, dialect, graph.device, graph.nodes, graph.tensors);
    assert_eq!(again, body, "a graph is what its bytes are");
    for record in graph.tensors {
        check_record(record, dialect);
    }
    let mut space = Space::default();
    let handle = space.add(allocate(&device().buffer_type(), BUFFER_BYTES).unwrap(), 0);
    let base = space.base(handle).unwrap();
    let placed: Vec<_> = graph
        .tensors
        .iter()
        .map(|record| match record.buffer.get() {
            BUFFER => TensorRecord {
                buffer: handle.into(),
                data: record.data.get().wrapping_add(base).into(),
                ..*record
            },
            _ => *record,
        })
        .collect();
    let graph = GraphBody { tensors: &placed, ..graph };
    if let Ok(rebuilt) = rebuild(&graph, dialect, &space, device()) {
        for &id in rebuilt.graph.nodes() {
            let node = rebuilt.graph.tensor(id).unwrap();
            let place = rebuilt.buffers.place_of(node).unwrap();
            assert!(place.offset + place.len <= place.buffer.len(), "a result outside its buffer");
        }
    }
}

/// Parameters that mean something are written as they were read.
fn check_record(record: &TensorRecord, dialect: &'static Dialect) {
    let _ = record.label();
    let (ne, nb) = record.shape();
    let Some(dtype) = dialect.dtype(record.dtype.get()) else { return };
    let Ok(result) = Layout::strided(dtype, ne.map(|n| n as usize), nb.map(|n| n as usize)) else { return };
    let Some(code) = dialect.op(record.op.get()) else { return };
    let words = record.params.map(|word| word.get());
    let first = Some(result);
    let params = Params { dialect, op: code, words, result, first, names_itself: false };
    let Ok(op) = params.decode() else { return };
    let Ok((code, words)) = encode_params(&op, false, first.as_ref(), dialect) else { return };
    let again = Params { op: code, words, ..params };
    let op = again.decode().unwrap_or_else(|error| panic!("{op:?} cannot be read back: {error}"));
    let (_, words_again) = encode_params(&op, false, first.as_ref(), dialect).unwrap();
    assert_eq!(words, words_again, "{op:?}");
}
