//! Keys and values of the tokens so far, beside the blocks they belong to.

use oxcart_backend::{Buffers, place_all};
use oxcart_tensor::graph::Storage;
use oxcart_tensor::{DType, Graph, Layout};

use super::error::Error;
use super::net::{AttentionPath, Section};
use super::weights::Model;

/// A tensor of a cache, and its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheTensor {
    pub(crate) layout: Layout,
    /// Where it is, and the size of that buffer.
    pub(crate) place: (Storage, usize),
}

/// The caches of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockCache {
    pub(crate) keys: CacheTensor,
    pub(crate) values: CacheTensor,
}

/// The caches of all blocks.
#[derive(Debug)]
pub(crate) struct Caches {
    blocks: Vec<BlockCache>,
    bytes: Vec<usize>,
}

/// Bytes of a block's keys and values.
pub(crate) fn cache_bytes(channels: usize, cells: usize, dtype: DType) -> usize {
    2 * cells.saturating_mul(dtype.row_bytes(channels).unwrap_or(0))
}

impl Caches {
    /// Allocates caches of so many cells for dense and windowed blocks, and adds their buffers to the table.
    pub(crate) fn new(
        model: &Model,
        dtype: DType,
        path: AttentionPath,
        cells: [usize; 2],
        buffers: &mut Buffers,
    ) -> Result<Caches, Error> {
        let hyper = model.hyper();
        let mut graph = Graph::new();
        let mut tensors = Vec::with_capacity(hyper.blocks.len());
        for (index, block) in hyper.blocks.iter().enumerate() {
            let (width, cells) = (hyper.kv_channels(index), cells[usize::from(block.windowed)]);
            let rows = Layout::packed(dtype, [width, cells])?;
            // Transposed values are written element by element.
            let values = match path {
                AttentionPath::Flash { .. } => rows,
                AttentionPath::Plain => Layout::packed(dtype, [1, width * cells])?,
            };
            let keys = graph.leaf_with_layout(rows)?;
            let values = graph.leaf_with_layout(values)?;
            graph.set_name(keys, &format!("cache_k_l{index}"))?;
            graph.set_name(values, &format!("cache_v_l{index}"))?;
            tensors.push((keys, values));
        }
        let mut bytes = vec![0; model.devices().len()];
        for (device, bytes) in bytes.iter_mut().enumerate() {
            let own: Vec<_> = (0..tensors.len())
                .filter(|&block| model.weights().device_of(Section::Block(block)) == device)
                .flat_map(|block| [tensors[block].0, tensors[block].1])
                .collect();
            let ids = place_all(&mut graph, &own, &model.devices()[device].buffer_type(), buffers)?;
            for id in ids {
                *bytes += buffers.get(id)?.len();
            }
        }
        let tensor = |id| -> Result<CacheTensor, Error> {
            let tensor = graph.tensor(id)?;
            let unplaced = || oxcart_backend::Error::NotPlaced { id, name: tensor.label() };
            let storage = tensor.storage().ok_or_else(unplaced)?;
            Ok(CacheTensor { layout: *tensor.layout(), place: (storage, buffers.get(storage.buffer)?.len()) })
        };
        let block = |&(keys, values): &_| -> Result<BlockCache, Error> {
            Ok(BlockCache { keys: tensor(keys)?, values: tensor(values)? })
        };
        Ok(Caches { blocks: tensors.iter().map(block).collect::<Result<_, _>>()?, bytes })
    }

    pub(crate) fn of(&self, block: usize) -> Option<&BlockCache> {
        self.blocks.get(block)
    }

    /// Bytes on each device.
    pub(crate) fn bytes(&self) -> &[usize] {
        &self.bytes
    }
}
