//! Tensors as records for a worker.

use oxcart_backend::Error;
use oxcart_tensor::graph::Flags;
use oxcart_tensor::{DType, Layout, TensorId, TensorRef};
use zerocopy::little_endian::{I32, U32, U64};

use super::job::Range;
use crate::wire::{Dialect, NO_TENSOR, ParamError, TensorRecord, encode_params};

/// Why a tensor cannot be described to a worker.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    #[error("type {dtype} in dialect {dialect}")]
    Type { dtype: DType, dialect: &'static str },
    #[error("a tensor of {layout}: its extents or strides need more than 32 bits")]
    TooLarge { layout: Layout },
    #[error("an op with {count} sources")]
    Sources { count: usize },
    #[error("{op} {what} in dialect {dialect}")]
    Form { op: &'static str, what: &'static str, dialect: &'static str },
    #[error(transparent)]
    Params(#[from] ParamError),
}

impl RecordError {
    /// As a device says it.
    pub(super) fn error(&self, device: &str) -> Error {
        Error::Unsupported { device: device.to_owned(), what: self.to_string() }
    }
}

/// Bytes of a buffer as a tensor of bytes, which is what commands about data want.
pub(super) fn bytes_record(range: Range) -> TensorRecord {
    let mut record = TensorRecord::absent();
    // A piece has at most 2^30 bytes.
    let len = u32::try_from(range.len).unwrap_or(u32::MAX);
    record.id = U64::new(1);
    record.dtype = U32::new(oxcart_tensor::dtype_id(DType::I8));
    record.buffer = U64::new(range.buffer.handle);
    record.ne = [len, 1, 1, 1].map(U32::new);
    record.nb = [1, len, len, len].map(U32::new);
    record.data = U64::new(range.buffer.base.wrapping_add(range.offset as u64));
    record
}

/// The name of a tensor inside a message: a small number, never an address.
pub(super) fn wire_id(id: TensorId) -> u64 {
    id.index() as u64 + 1
}

/// Type, extents, strides, name, what it is a view of; as a leaf.
pub(super) fn leaf_record(
    tensor: TensorRef<'_>,
    dialect: &'static Dialect,
) -> Result<TensorRecord, RecordError> {
    let layout = tensor.layout();
    let mut record = TensorRecord::absent();
    record.id = U64::new(wire_id(tensor.id()));
    record.dtype = U32::new(type_number(layout.dtype(), dialect)?);
    (record.ne, record.nb) = shape(layout)?;
    record.flags = I32::new(flags(tensor) & !COMPUTE_FLAG);
    if let Some(view) = tensor.view() {
        record.view_source = U64::new(wire_id(view.root));
        record.view_offset = U64::new(view.offset as u64);
    }
    record.set_name(tensor.name().unwrap_or_default());
    Ok(record)
}

/// The same, with the op and the sources of a node.
pub(super) fn node_record(
    node: TensorRef<'_>,
    dialect: &'static Dialect,
) -> Result<TensorRecord, RecordError> {
    let mut record = leaf_record(node, dialect)?;
    let in_place = node.op().info().in_place && node.view().is_some();
    let first = node.source(0).map(|source| *source.layout());
    let (code, words) = encode_params(node.op(), in_place, first.as_ref(), dialect)?;
    super::support::check_form(node, code, dialect)?;
    record.op = U32::new(dialect.op_number(code).unwrap_or_default());
    record.params = words.map(I32::new);
    for (slot, id) in wire_sources(node, dialect)?.into_iter().enumerate() {
        record.sources[slot] = U64::new(id);
    }
    if dialect.has_compute_flag && node.has(Flags::COMPUTE) {
        record.flags = I32::new(record.flags.get() | COMPUTE_FLAG);
    }
    Ok(record)
}

/// The ids of a node's sources, the way the dialect lists them.
fn wire_sources(node: TensorRef<'_>, dialect: &Dialect) -> Result<[u64; 10], RecordError> {
    use oxcart_tensor::Op;
    let mut ids = [NO_TENSOR; 10];
    let sources = node.source_ids();
    if sources.len() > ids.len() {
        return Err(RecordError::Sources { count: sources.len() });
    }
    for (slot, id) in ids.iter_mut().zip(sources) {
        *slot = id.map_or(NO_TENSOR, wire_id);
    }
    match node.op() {
        // A cast is a copy into itself.
        Op::Cast(_) => ids[1] = wire_id(node.id()),
        // The target is named only as what the result is a view of.
        Op::SetRows(_) if dialect.is_classic => ids[2] = NO_TENSOR,
        _ => {}
    }
    Ok(ids)
}

const COMPUTE_FLAG: i32 = 16;

/// Roles by the bits that peers use. Those of [`Flags`] happen to be the same; nothing relies on it.
fn flags(tensor: TensorRef<'_>) -> i32 {
    let bits = [
        (Flags::INPUT, 1),
        (Flags::OUTPUT, 2),
        (Flags::PARAM, 4),
        (Flags::LOSS, 8),
        (Flags::COMPUTE, COMPUTE_FLAG),
    ];
    bits.iter().filter(|(flag, _)| tensor.has(*flag)).map(|(_, bit)| bit).sum()
}

pub(super) fn type_number(dtype: DType, dialect: &'static Dialect) -> Result<u32, RecordError> {
    dialect.dtype_number(dtype).ok_or(RecordError::Type { dtype, dialect: dialect.name })
}

/// Extents and strides. A stride that is never stepped over may lose its upper half; peers know that.
pub(super) fn shape(layout: &Layout) -> Result<([U32; 4], [U32; 4]), RecordError> {
    let too_large = || RecordError::TooLarge { layout: *layout };
    let (extents, strides) = (layout.ne().extents(), layout.nb());
    let (mut ne, mut nb) = ([U32::ZERO; 4], [U32::ZERO; 4]);
    for dim in 0..4 {
        ne[dim] = u32::try_from(extents[dim]).map_err(|_| too_large())?.into();
        nb[dim] = match u32::try_from(strides[dim]) {
            Ok(stride) => stride.into(),
            Err(_) if extents[dim] <= 1 => {
                u32::try_from(strides[dim] & 0xffff_ffff).unwrap_or_default().into()
            }
            Err(_) => return Err(too_large()),
        };
    }
    Ok((ne, nb))
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxcart_tensor::Graph;

    #[test]
    fn what_needs_more_than_32_bits_is_refused() {
        let layout = |ne: [usize; 4]| Layout::packed(DType::F32, ne).unwrap();
        assert!(shape(&layout([1 << 32, 1, 1, 1])).is_err());
        assert!(shape(&layout([1 << 20, 1 << 12, 2, 1])).is_err());
        let (ne, nb) = shape(&layout([1 << 20, 1 << 12, 1, 1])).unwrap();
        assert_eq!(ne.map(U32::get), [1 << 20, 1 << 12, 1, 1]);
        assert_eq!(nb.map(U32::get), [4, 1 << 22, 0, 0]);
    }

    #[test]
    fn a_cast_names_itself_and_classic_set_rows_hides_its_target() {
        let mut graph = Graph::new();
        let values = graph.leaf(DType::F32, [8, 2]).unwrap();
        let rows = graph.leaf(DType::I64, [2]).unwrap();
        let target = graph.leaf(DType::F16, [8, 4]).unwrap();
        let set = graph.set_rows(target, values, rows).unwrap();
        let cast = graph.cast(values, DType::F16).unwrap();
        let record = |id, dialect| node_record(graph.tensor(id).unwrap(), dialect).unwrap();
        let sources = |record: &TensorRecord| record.sources.map(U64::get)[..4].to_vec();
        let modern = record(set, Dialect::newest());
        assert_eq!(sources(&modern), [1, 2, 3, 0]);
        assert_eq!(modern.view_source.get(), 3);
        let classic = record(set, Dialect::classic());
        assert_eq!(sources(&classic), [1, 2, 0, 0]);
        assert_eq!(classic.view_source.get(), 3);
        assert_eq!(sources(&record(cast, Dialect::classic())), [1, 5, 0, 0]);
    }
}
