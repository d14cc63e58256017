//! What an attacker can make of an honest node, for every op, on the device that has all ops.
//!
//! One recorded case per op is changed in one place at a time (extents, strides, types, parameters, sources, data) and sent
//! through the same door as any graph from the wire. It must be refused, fail, or compute; it must not panic, write a byte
//! outside what it says it writes, or give a result that depends on a byte outside what it says it reads.
//!
//! The data lies outside the repository; `OXCART_GOLDEN` names its folder.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test says what it skips, and fails where it must not"
)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use oxcart_backend::{Device, Error, Stream, StreamOptions, Work, allocate};
use oxcart_cases::{Case, Recorded, read_folder};
use oxcart_cpu::CpuDevice;
use oxcart_rpc::wire::{Dialect, GraphBody, TensorRecord, encode_graph};
use oxcart_rpc::worker::{Refusal, Space, rebuild};
use oxcart_tensor::{DType, Layout, Op, dtype_id};

/// Bytes between tensors that belong to none.
const GAP: usize = 512;
const NODE: u64 = 99;

/// The smallest case of every op.
fn cases() -> BTreeMap<String, Case> {
    let Some(golden) = oxcart_fixtures::golden() else { return BTreeMap::new() };
    let size = |case: &Case| {
        let sources: usize = case.sources().iter().flatten().map(|s| case.storage(s).len()).sum();
        sources + case.storage(case.result()).len()
    };
    let mut smallest: BTreeMap<String, Case> = BTreeMap::new();
    for case in read_folder(&golden.join("graphs")) {
        // What is easiest to mistake has memory of its own.
        if case.aliased().is_some() || case.names_itself() {
            continue;
        }
        let known = smallest.get(case.op_name());
        if known.is_none_or(|known| size(&case) < size(known)) {
            smallest.insert(case.op_name().to_owned(), case);
        }
    }
    smallest
}

/// All cases that are not large.
fn every_case() -> Vec<Case> {
    let Some(golden) = oxcart_fixtures::golden() else { return Vec::new() };
    let mut cases = read_folder(&golden.join("graphs"));
    cases.retain(|case| !case.names_itself() && case.storage(case.result()).len() < 1 << 16);
    cases
}

/// A node with its sources in one piece of memory. Addresses are offsets until it runs.
#[derive(Clone)]
struct Attempt {
    /// The sources, then the node.
    records: Vec<TensorRecord>,
    memory: Vec<u8>,
    also_writes: Vec<usize>,
    sums: bool,
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Refused,
    Failed,
    /// What the result holds.
    Done(Vec<u8>),
}

impl Attempt {
    fn new(case: &Case) -> Attempt {
        let mut attempt =
            Attempt { records: Vec::new(), memory: vec![0; GAP], also_writes: Vec::new(), sums: false };
        let mut node = TensorRecord::absent();
        for (slot, source) in case.sources().iter().enumerate() {
            let Some(source) = source else { continue };
            let id = slot as u64 + 1;
            let mut record = attempt.put(id, source, case.storage(source));
            if slot == 0 && case.op_name().starts_with("OPT_STEP") {
                record.flags = 4.into();
            }
            node.sources[slot] = id.into();
            attempt.records.push(record);
        }
        let bytes = vec![0; case.storage(case.result()).len()];
        let result = attempt.put(NODE, case.result(), &bytes);
        let op = Dialect::newest().op_number(case.op_code()).unwrap();
        let params = case.words().map(Into::into);
        attempt.records.push(TensorRecord {
            op: op.into(),
            params,
            flags: 16.into(),
            sources: node.sources,
            ..result
        });
        attempt.sums = case.op_name() == "SUM";
        attempt.also_writes = case.op().info().also_writes.to_vec();
        attempt
    }

    fn put(&mut self, id: u64, tensor: &Recorded, bytes: &[u8]) -> TensorRecord {
        let at = self.memory.len().next_multiple_of(64);
        self.memory.resize(at, 0);
        self.memory.extend_from_slice(bytes);
        self.memory.resize(self.memory.len() + GAP, 0);
        let mut record = TensorRecord::absent();
        record.id = id.into();
        record.dtype = dtype_id(tensor.layout.dtype()).into();
        record.ne = tensor.layout.ne().extents().map(|n| u32::try_from(n).unwrap().into());
        record.nb = tensor.layout.nb().map(|n| u32::try_from(n).unwrap().into());
        record.data = ((at + tensor.view_offset) as u64).into();
        record.buffer = 1.into();
        record
    }

    /// Where a node's result lies in one of its sources by its nature, that is where it is, whatever became of that source.
    fn follow_target(&mut self, case: &Case) {
        let Some(slot) = case.aliased() else { return };
        let id = self.node().sources[slot];
        let TensorRecord { ne, nb, dtype, data, .. } = *self.records.iter().find(|r| r.id == id).unwrap();
        *self.node() = TensorRecord { ne, nb, dtype, data, ..*self.node() };
    }

    fn node(&mut self) -> &mut TensorRecord {
        self.records.last_mut().unwrap()
    }

    /// The bytes that a record says it is.
    fn range(&self, record: &TensorRecord) -> Range<usize> {
        let start = record.data.get() as usize;
        let (ne, nb) = record.shape();
        let dtype = Dialect::newest().dtype(record.dtype.get());
        let layout = dtype.and_then(|dtype| {
            let mut strides = nb.map(|n| n as usize);
            if self.sums && record.id.get() == 1 {
                // As peers do, SUM takes the elements of a row to be neighbours.
                strides[0] = dtype.block_bytes();
            }
            for dim in 1..4 {
                if ne[dim] == 1 {
                    strides[dim] = strides[dim - 1];
                }
            }
            Layout::strided(dtype, ne.map(|n| n as usize), strides).ok()
        });
        let end = start + layout.map_or(0, |layout| layout.byte_len());
        start.min(self.memory.len())..end.min(self.memory.len())
    }

    /// Runs it with this byte wherever no tensor is.
    fn run(&self, device: &Arc<dyn Device>, stream: &dyn Stream, noise: u8) -> Outcome {
        let mut memory = vec![noise; self.memory.len()];
        for record in &self.records {
            let range = self.range(record);
            memory[range.clone()].copy_from_slice(&self.memory[range]);
        }
        let dialect = Dialect::newest();
        let mut space = Space::default();
        let buffer = allocate(&device.buffer_type(), memory.len()).unwrap();
        buffer.write(0, &memory).unwrap();
        let handle = space.add(Arc::clone(&buffer), 0);
        let base = space.base(handle).unwrap();
        let placed: Vec<_> = self
            .records
            .iter()
            .map(|record| TensorRecord {
                buffer: (if record.buffer.get() == 1 { handle } else { 0 }).into(),
                data: (base + record.data.get()).into(),
                ..*record
            })
            .collect();
        let mut bytes = Vec::new();
        encode_graph(&mut bytes, dialect, 0, &[NODE.into()], &placed);
        let body = GraphBody::decode(&bytes, dialect).unwrap();
        let rebuilt = match rebuild(&body, dialect, &space, device) {
            Ok(rebuilt) => rebuilt,
            Err(Refusal::Failed(error)) => panic!("{error}"),
            Err(_) => return Outcome::Refused,
        };
        let nodes = rebuilt.graph.range(0..rebuilt.graph.nodes().len()).unwrap();
        let done = stream.compute_and_wait(Work { nodes, buffers: &rebuilt.buffers });
        if let Err(error @ Error::Panicked { .. }) = &done {
            panic!("{error}");
        }
        let mut after = vec![0; memory.len()];
        buffer.read(0, &mut after).unwrap();
        let node = self.records.last().unwrap();
        let mut may_change = vec![self.range(node)];
        for slot in &self.also_writes {
            let id = node.sources[*slot].get();
            may_change.extend(self.records.iter().filter(|r| r.id.get() == id).map(|r| self.range(r)));
        }
        for (at, (before, after)) in memory.iter().zip(&after).enumerate() {
            let is_ours = may_change.iter().any(|range| range.contains(&at));
            assert!(is_ours || before == after, "byte {at} was written, which belongs to no tensor");
        }
        match done {
            Ok(()) => Outcome::Done(after[self.range(node)].to_vec()),
            Err(Error::Unsupported { .. }) => Outcome::Refused,
            Err(_) => Outcome::Failed,
        }
    }
}

/// Where cases run.
struct Rig {
    device: Arc<dyn Device>,
    stream: Box<dyn Stream>,
}

impl Rig {
    fn new() -> Rig {
        let device: Arc<dyn Device> = CpuDevice::new().unwrap();
        let stream = Arc::clone(&device).open(&StreamOptions::threads(2)).unwrap();
        Rig { device, stream }
    }

    /// What becomes of an attempt; whatever lies around it makes no difference.
    fn run(&self, attempt: &Attempt, what: &str) -> Outcome {
        let run = |noise| {
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                attempt.run(&self.device, &*self.stream, noise)
            }));
            caught.unwrap_or_else(|_| panic!("{what}: see above"))
        };
        let first = run(0x5a);
        if matches!(first, Outcome::Done(_)) {
            assert_eq!(first, run(0xff), "{what}: the result depends on bytes that are not its sources'");
        }
        first
    }
}

fn info(case: &Case) -> &'static oxcart_tensor::ops::OpInfo {
    Op::ALL.iter().find(|info| info.name == case.op().info().name).unwrap()
}

/// Slots of the sources that an attempt has.
fn slots(case: &Case) -> Vec<usize> {
    (0..case.sources().len()).filter(|&slot| case.sources()[slot].is_some()).collect()
}

#[test]
fn honest_nodes_are_computed() {
    let rig = Rig::new();
    for (op, case) in cases() {
        let attempt = Attempt::new(&case);
        assert!(matches!(rig.run(&attempt, &op), Outcome::Done(_)), "{op}");
    }
}

#[test]
fn every_op_wants_each_of_its_sources() {
    let rig = Rig::new();
    for (op, case) in cases() {
        for (place, slot) in slots(&case).into_iter().enumerate() {
            let what = format!("{op} without source {slot}");
            let mut removed = Attempt::new(&case);
            removed.node().sources[slot] = 0.into();
            let outcome = rig.run(&removed, &what);
            let optional = info(&case).sources.get(slot).is_some_and(|source| source.optional);
            assert!(optional || outcome == Outcome::Refused, "{what}: {outcome:?}");
            let mut nowhere = Attempt::new(&case);
            nowhere.records[place].buffer = 0.into();
            let outcome = rig.run(&nowhere, &format!("{op} with source {slot} nowhere"));
            let is_empty = case.sources()[slot].as_ref().unwrap().layout.is_empty();
            assert!(is_empty || outcome == Outcome::Refused, "{op} with source {slot} nowhere: {outcome:?}");
        }
    }
}

#[test]
fn a_stride_over_one_element_means_nothing() {
    let rig = Rig::new();
    for (op, case) in cases() {
        let honest = rig.run(&Attempt::new(&case), &op);
        let mut wild = Attempt::new(&case);
        for record in &mut wild.records {
            for dim in 1..4 {
                if record.ne[dim].get() == 1 {
                    record.nb[dim] = 0xdead_beef_u32.into();
                }
            }
        }
        assert_eq!(rig.run(&wild, &op), honest, "{op}");
    }
}

#[test]
fn no_shape_stride_or_type_reaches_outside() {
    let rig = Rig::new();
    let (mut tried, mut computed) = (0, 0);
    for (op, case) in cases() {
        let honest = Attempt::new(&case);
        for place in 0..honest.records.len() {
            let mut changes: Vec<(String, TensorRecord)> = Vec::new();
            let record = honest.records[place];
            for dim in 0..4 {
                let (n, stride) = (record.ne[dim].get(), record.nb[dim].get());
                for extent in [0, 1, n.saturating_sub(1), n + 1, 2 * n] {
                    let mut changed = record;
                    changed.ne[dim] = extent.into();
                    changes.push((format!("ne[{dim}] = {extent}"), changed));
                    // As it would be without gaps.
                    if let Some(dtype) = Dialect::newest().dtype(changed.dtype.get())
                        && let Ok(layout) = Layout::packed(dtype, changed.ne.map(|n| n.get() as usize))
                    {
                        changed.nb = layout.nb().map(|n| u32::try_from(n).unwrap_or(0).into());
                        changes.push((format!("ne[{dim}] = {extent}, packed"), changed));
                    }
                }
                for stride in [0, 1, stride / 2, stride * 2, stride + 4, u32::MAX, 1 << 31] {
                    let mut changed = record;
                    changed.nb[dim] = stride.into();
                    changes.push((format!("nb[{dim}] = {stride}"), changed));
                }
            }
            for dtype in [0, 1, 2, 8, 12, 16, 24, 26, 27, 28, 30, 39] {
                changes.push((format!("type {dtype}"), TensorRecord { dtype: dtype.into(), ..record }));
            }
            for (change, record) in changes {
                let mut attempt = honest.clone();
                attempt.records[place] = record;
                let outcome = rig.run(&attempt, &format!("{op}, tensor {place}: {change}"));
                tried += 1;
                computed += usize::from(matches!(outcome, Outcome::Done(_)));
            }
        }
    }
    println!("{tried} tried, {computed} computed");
}

/// A tensor that stands in two places of a node, as source twice or as source and result, changes nothing: the result is what it
/// would be if each place had memory of its own with the same bytes.
#[test]
fn tensors_in_two_places_change_nothing() {
    let rig = Rig::new();
    let mut computed = BTreeMap::new();
    for case in every_case() {
        let mut honest = Attempt::new(&case);
        let last = honest.records.len() - 1;
        for record in honest.records.clone() {
            // What fits a table may not fit what takes its place, but zero does.
            if matches!(Dialect::newest().dtype(record.dtype.get()), Some(DType::I32 | DType::I64)) {
                let range = honest.range(&record);
                honest.memory[range].fill(0);
            } else if record.id == honest.records[last].id {
                // Numbers that are worth reading.
                let range = honest.range(&record);
                honest.memory[range].fill(0x3c);
            }
        }
        for (one, other) in (0..=last).flat_map(|one| (0..last).map(move |other| (one, other))) {
            let what = format!("{}, tensor {other} is tensor {one}", case.name);
            if one == other {
                continue;
            }
            // The same bytes, in memory of their own.
            let (mut apart, like) = (honest.clone(), honest.records[one]);
            let bytes = honest.memory[honest.range(&like)].to_vec();
            let (id, at) = (honest.records[other].id, honest.memory.len().next_multiple_of(64));
            apart.memory.resize(at, 0);
            apart.memory.extend(bytes);
            apart.memory.resize(apart.memory.len() + GAP, 0);
            apart.records[other] = TensorRecord { id, data: (at as u64).into(), ..as_leaf(&like) };
            apart.follow_target(&case);
            let expected = rig.run(&apart, &what);
            let Outcome::Done(_) = expected else { continue };

            let mut shared = apart.clone();
            shared.records[other].data = like.data;
            shared.follow_target(&case);
            let mut outcomes = vec![rig.run(&shared, &what)];
            if one < last {
                let slot = shared.node().sources.iter().position(|source| *source == id).unwrap();
                shared.node().sources[slot] = like.id;
                outcomes.push(rig.run(&shared, &what));
            }
            for outcome in outcomes {
                let same = outcome == expected || outcome == Outcome::Refused;
                assert!(same, "{what}: not what it is where they are apart");
                *computed.entry(case.op_name().to_owned()).or_insert(0) += usize::from(outcome == expected);
            }
        }
    }
    println!("{computed:?}");
    assert!(computed.is_empty() || computed["SET_ROWS"] > 0, "{computed:?}");
}

/// A tensor as the source of a node.
fn as_leaf(record: &TensorRecord) -> TensorRecord {
    TensorRecord { op: 0.into(), sources: [0.into(); 10], params: [0.into(); 16], ..*record }
}

#[test]
fn indices_of_rows_experts_and_states_are_checked() {
    let rig = Rig::new();
    for (op, case) in cases() {
        for slot in slots(&case) {
            let source = case.sources()[slot].as_ref().unwrap();
            let wide = source.layout.dtype() == DType::I64;
            if !wide && source.layout.dtype() != DType::I32 {
                continue;
            }
            for number in [-1, 1 << 20, i64::from(i32::MAX), i64::from(i32::MIN), 1 << 40, i64::MIN] {
                let mut attempt = Attempt::new(&case);
                let place = slots(&case).iter().position(|&other| other == slot).unwrap();
                let range = attempt.range(&attempt.records[place]);
                let bytes =
                    if wide { number.to_le_bytes().to_vec() } else { (number as i32).to_le_bytes().to_vec() };
                for (at, byte) in range.clone().zip(bytes.iter().cycle()) {
                    attempt.memory[at] = *byte;
                }
                let outcome = rig.run(&attempt, &format!("{op}, source {slot} full of {number}"));
                let indexed = ["GET_ROWS", "SET_ROWS", "GET_ROWS_BACK", "ADD_ID", "MUL_MAT_ID", "SSM_SCAN"];
                if indexed.contains(&op.as_str()) && number != 1 << 40 && number != i64::MIN {
                    assert_eq!(outcome, Outcome::Failed, "{op}, source {slot} full of {number}");
                }
            }
        }
    }
}

#[test]
fn every_parameter_is_checked() {
    let rig = Rig::new();
    for (op, case) in cases() {
        let honest = Attempt::new(&case);
        for word in 0..16 {
            let value = case.words()[word];
            let near = [value.wrapping_add(1), value.wrapping_sub(1), value.wrapping_neg()];
            for changed in
                [0, 1, -1, 2, 100, i32::MIN, i32::MAX, 0x7f80_0000, 0x7fc0_0000].into_iter().chain(near)
            {
                let mut attempt = honest.clone();
                attempt.node().params[word] = changed.into();
                rig.run(&attempt, &format!("{op}, parameter {word} = {changed}"));
            }
        }
    }
}

#[test]
fn numbers_that_are_not_finite_are_computed_with() {
    let rig = Rig::new();
    for (op, case) in cases() {
        for bits in
            [0x7fc0_0000_u32, 0x7f80_0000, 0xff80_0000, 1, 0x8000_0001, 0x7fc0_7fc0, 0x7c00_7c00, u32::MAX]
        {
            let mut attempt = Attempt::new(&case);
            for place in 0..attempt.records.len() - 1 {
                let dtype = Dialect::newest().dtype(attempt.records[place].dtype.get()).unwrap();
                if !matches!(dtype, DType::I32 | DType::I64) {
                    let range = attempt.range(&attempt.records[place]);
                    for (at, byte) in range.zip(bits.to_le_bytes().iter().cycle()) {
                        attempt.memory[at] = *byte;
                    }
                }
            }
            let outcome = rig.run(&attempt, &format!("{op} of {bits:#x}"));
            assert_ne!(outcome, Outcome::Refused, "{op} of {bits:#x}");
        }
    }
}
