//! The single-op graphs of the reference, as they travel: their words are written as the reference writes them, and a
//! graph of records is rebuilt and computed like one made here.
//!
//! The data lies outside the repository; `OXCART_GOLDEN` names its folder.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test says what it skips, and fails where it must not"
)]

use std::sync::Arc;

use oxcart_backend::{Device, Stream, StreamOptions, Work, allocate};
use oxcart_cases::{Case, Recorded, read_folder};
use oxcart_cpu::CpuDevice;
use oxcart_rpc::wire::{Dialect, GraphBody, TensorRecord, encode_graph, encode_params};
use oxcart_rpc::worker::{Space, rebuild};
use oxcart_tensor::dtype_id;
use zerocopy::little_endian::{I32, U32, U64};

fn cases() -> Vec<Case> {
    oxcart_fixtures::golden().map_or_else(Vec::new, |golden| read_folder(&golden.join("graphs")))
}

#[test]
fn words_are_those_of_the_reference() {
    for case in cases() {
        let first = case.sources().first().and_then(|source| Some(source.as_ref()?.layout));
        let in_place = case.aliased() == Some(0);
        let (code, words) = encode_params(&case.op(), in_place, first.as_ref(), Dialect::newest()).unwrap();
        assert_eq!((code, words), (case.op_code(), case.words()), "{}", case.name);
    }
}

#[test]
fn graphs_of_records_are_rebuilt_and_computed() {
    let device: Arc<dyn Device> = CpuDevice::new().unwrap();
    let stream = Arc::clone(&device).open(&StreamOptions::threads(2)).unwrap();
    let complaints: Vec<_> = cases()
        .iter()
        .filter_map(|case| run(case, &device, &*stream).err().map(|why| format!("{}: {why}", case.name)))
        .collect();
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

/// A record of a tensor that starts some bytes into a buffer.
fn record(id: u64, space: &Space, handle: u64, tensor: &Recorded) -> TensorRecord {
    let mut record = TensorRecord::absent();
    record.id = id.into();
    record.dtype = dtype_id(tensor.layout.dtype()).into();
    record.buffer = handle.into();
    record.ne = tensor.layout.ne().extents().map(|n| U32::new(u32::try_from(n).unwrap()));
    record.nb = tensor.layout.nb().map(|n| U32::new(u32::try_from(n).unwrap()));
    record.data = (space.base(handle).unwrap() + tensor.view_offset as u64).into();
    record
}

fn run(case: &Case, device: &Arc<dyn Device>, stream: &dyn Stream) -> Result<(), String> {
    let dialect = Dialect::newest();
    let mut space = Space::default();
    let mut tensors = Vec::new();
    let mut handles = Vec::new();
    let put = |space: &mut Space, bytes: &[u8]| {
        let buffer = allocate(&device.buffer_type(), bytes.len()).map_err(|error| error.to_string())?;
        buffer.write(0, bytes).map_err(|error| error.to_string())?;
        Ok::<_, String>(space.add(buffer, 0))
    };
    let mut sources = [U64::new(0); 10];
    for (slot, source) in case.sources().iter().enumerate() {
        let Some(source) = source else {
            handles.push(None);
            continue;
        };
        let handle = put(&mut space, case.storage(source))?;
        let id = slot as u64 + 1;
        let mut record = record(id, &space, handle, source);
        if slot == 0 && case.op_name().starts_with("OPT_STEP") {
            record.flags = I32::new(4);
        }
        sources[slot] = id.into();
        tensors.push(record);
        handles.push(Some(handle));
    }
    let result = match case.aliased().and_then(|slot| Some((slot, handles[slot]?))) {
        Some((_, handle)) => handle,
        None => put(&mut space, &vec![0xA5; case.storage(case.result()).len()])?,
    };
    let own = 99_u64;
    let mut node = record(own, &space, result, case.result());
    if case.names_itself() {
        sources[1] = own.into();
    }
    node.sources = sources;
    node.op = dialect.op_number(case.op_code()).unwrap().into();
    node.params = case.words().map(I32::new);
    node.flags = I32::new(16);
    node.view_source = case.aliased().map_or(0, |slot| slot as u64 + 1).into();
    tensors.push(node);
    let mut bytes = Vec::new();
    encode_graph(&mut bytes, dialect, 0, &[own.into()], &tensors);
    let body = GraphBody::decode(&bytes, dialect).map_err(|error| error.to_string())?;
    let rebuilt = rebuild(&body, dialect, &space, device).map_err(|refusal| refusal.to_string())?;
    let nodes = rebuilt.graph.range(0..rebuilt.graph.nodes().len()).ok_or("no nodes")?;
    stream.compute_and_wait(Work { nodes, buffers: &rebuilt.buffers }).map_err(|error| error.to_string())?;
    let mut found = vec![0; case.storage(case.result()).len()];
    space
        .buffer(result)
        .map_err(|error| error.to_string())?
        .read(0, &mut found)
        .map_err(|error| error.to_string())?;
    case.judge(&found)
}
