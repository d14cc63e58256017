//! The body of GRAPH_COMPUTE: which tensors to compute, and every tensor they are made of.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::dialect::Dialect;
use super::limits::{MAX_NODES, MAX_TENSORS};
use super::record::TensorRecord;

/// A graph as it arrived; its records are read in place.
#[derive(Clone, Copy, Debug)]
pub struct GraphBody<'a> {
    /// Which of the worker's devices is to compute it.
    pub device: u32,
    /// Ids of the nodes, in the order of execution.
    pub nodes: &'a [U64],
    /// Every tensor, each once.
    pub tensors: &'a [TensorRecord],
}

/// What is wrong with the body of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// The counts say another length than the body has.
    #[error("a graph of {found} bytes is not what its counts say")]
    Length {
        /// Bytes there are.
        found: usize,
    },
    /// More nodes than a worker takes.
    #[error("{count} nodes are more than {limit}")]
    TooManyNodes {
        /// Nodes announced.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// More tensors than a worker takes.
    #[error("{count} tensors are more than {limit}")]
    TooManyTensors {
        /// Tensors announced.
        count: usize,
        /// The limit.
        limit: usize,
    },
}

impl<'a> GraphBody<'a> {
    /// Reads a body, which must have exactly the length its counts say.
    pub fn decode(body: &'a [u8], dialect: &Dialect) -> Result<GraphBody<'a>, GraphError> {
        let short = || GraphError::Length { found: body.len() };
        let (device, rest) = match dialect.has_devices {
            true => {
                U32::ref_from_prefix(body).map(|(device, rest)| (device.get(), rest)).map_err(|_| short())?
            }
            false => (0, body),
        };
        let (count, rest) = U32::ref_from_prefix(rest).map_err(|_| short())?;
        let nodes_len = count.get() as usize;
        if nodes_len > MAX_NODES {
            return Err(GraphError::TooManyNodes { count: nodes_len, limit: MAX_NODES });
        }
        let (nodes, rest) = <[U64]>::ref_from_prefix_with_elems(rest, nodes_len).map_err(|_| short())?;
        let (count, rest) = U32::ref_from_prefix(rest).map_err(|_| short())?;
        let tensors_len = count.get() as usize;
        if tensors_len > MAX_TENSORS {
            return Err(GraphError::TooManyTensors { count: tensors_len, limit: MAX_TENSORS });
        }
        let tensors = <[TensorRecord]>::ref_from_bytes(rest).map_err(|_| short())?;
        if tensors.len() != tensors_len {
            return Err(short());
        }
        Ok(GraphBody { device, nodes, tensors })
    }
}

/// Writes a body.
pub fn encode_graph(
    out: &mut Vec<u8>,
    dialect: &Dialect,
    device: u32,
    nodes: &[U64],
    tensors: &[TensorRecord],
) {
    let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes();
    if dialect.has_devices {
        out.extend(device.to_le_bytes());
    }
    out.extend(count(nodes.len()));
    out.extend_from_slice(nodes.as_bytes());
    out.extend(count(tensors.len()));
    out.extend_from_slice(tensors.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(dialect: &Dialect) -> Vec<u8> {
        let mut body = Vec::new();
        let mut record = TensorRecord::absent();
        record.id = 7.into();
        encode_graph(&mut body, dialect, 3, &[7.into()], &[record, TensorRecord::absent()]);
        body
    }

    #[test]
    fn what_is_written_is_read() {
        for dialect in [Dialect::newest(), Dialect::classic()] {
            let bytes = example(dialect);
            let body = GraphBody::decode(&bytes, dialect).unwrap();
            assert_eq!(body.device, if dialect.has_devices { 3 } else { 0 });
            assert_eq!(body.nodes, [U64::new(7)]);
            assert_eq!(body.tensors.len(), 2);
            assert_eq!(body.tensors[0].id.get(), 7);
        }
    }

    #[test]
    fn every_other_length_is_refused() {
        let bytes = example(Dialect::newest());
        for len in 0..bytes.len() {
            let cut = GraphBody::decode(&bytes[..len], Dialect::newest());
            assert!(matches!(cut, Err(GraphError::Length { .. })), "{len}");
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        assert!(GraphBody::decode(&longer, Dialect::newest()).is_err());
    }

    #[test]
    fn counts_are_bounded_before_anything_is_done_with_them() {
        let body = |nodes: u32, tensors: u32| {
            let mut body = vec![0; 4];
            body.extend(nodes.to_le_bytes());
            body.extend(tensors.to_le_bytes());
            GraphBody::decode(&body, Dialect::newest()).unwrap_err()
        };
        assert_eq!(
            body(u32::MAX, 0),
            GraphError::TooManyNodes { count: u32::MAX as usize, limit: MAX_NODES }
        );
        assert_eq!(body(131_073, 0), GraphError::TooManyNodes { count: 131_073, limit: MAX_NODES });
        assert_eq!(body(131_072, 0), GraphError::Length { found: 12 });
        assert_eq!(body(0, 200_001), GraphError::TooManyTensors { count: 200_001, limit: MAX_TENSORS });
        assert_eq!(body(0, 200_000), GraphError::Length { found: 12 });
    }
}
