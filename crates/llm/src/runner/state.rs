//! What blocks remember, in devices' memory: rows of pages, rows of sequences, and the tables that say which page is where.
//!
//! Invariant: a block's state lies on the device that computes the block. A device that has blocks with pages has a table of
//! their kind, and all tables of a kind are equal; one that has blocks whose channels are mixed has the matrix that mixes them.

use std::sync::Arc;

use oxcart_backend::{Buffers, Place, copy_place, place_all};
use oxcart_tensor::graph::Storage;
use oxcart_tensor::quant::validate_row;
use oxcart_tensor::{DType, Graph, Layout, LayoutError, TensorId};

use super::options::CacheTypes;
use super::pages::PAGE;
use super::sequence::KINDS;
use crate::model::net::{MIXED, Mixing, mixing_matrix};
use crate::model::{Block, BlockState, Error, HyperParameters, Model, Section, Window};

/// A tensor of a block's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StateTensor {
    /// A row of keys for each cell.
    Keys,
    /// A row of values for each cell; where values are parts of keys, these.
    Values,
    /// A row for each cell that an index finds it by.
    Index,
    /// A row for each cell that is to be compressed.
    Pending,
    /// Rows of compressed runs, as many as fit to each page.
    Compressed,
    /// Rows that an index finds them by.
    CompressedIndex,
    /// What a convolution has seen last, a row for each sequence.
    Convolution,
    /// A recurrent state, a row for each sequence.
    Recurrent,
    /// What the convolution of n-grams has seen last, a row for each sequence.
    Ngrams,
    /// By sequence and number of the page there, the page that holds it.
    Table,
    /// The matrix that mixes channels before they are stored as quantized blocks.
    Mixer,
}

impl StateTensor {
    /// What it is called in graphs: of a block of a number that has pages of a kind.
    pub(crate) fn name(self, block: usize, kind: usize) -> String {
        match self {
            StateTensor::Keys => format!("cache_k_l{block}"),
            StateTensor::Values => format!("cache_v_l{block}"),
            StateTensor::Index => format!("cache_idx_l{block}"),
            StateTensor::Pending => format!("cache_pending_l{block}"),
            StateTensor::Compressed => format!("cache_runs_l{block}"),
            StateTensor::CompressedIndex => format!("cache_runs_idx_l{block}"),
            StateTensor::Convolution => format!("cache_r_l{block}"),
            StateTensor::Recurrent => format!("cache_s_l{block}"),
            StateTensor::Ngrams => format!("cache_p_l{block}"),
            StateTensor::Table => ["page_table", "page_table_swa"][kind].to_owned(),
            StateTensor::Mixer => "cache_mixer".to_owned(),
        }
    }

    /// A layout of the right type and width, for graphs that are built without data.
    pub(crate) fn sample(
        self,
        block: &BlockState,
        cells: [usize; KINDS],
        kind: usize,
        cache: CacheTypes,
    ) -> Result<Layout, LayoutError> {
        let cells = cells.map(|cells| cells.max(PAGE));
        Sizes { cells, rows: 1, pages: 1, cache }.layout(self, block, kind)
    }

    /// Rows of a page, or of a sequence.
    fn rows_of_unit(self, block: &BlockState) -> usize {
        match self {
            StateTensor::Keys | StateTensor::Values | StateTensor::Index | StateTensor::Pending => PAGE,
            StateTensor::Compressed | StateTensor::CompressedIndex => {
                PAGE / block.compressed.map_or(PAGE, |rows| rows.row_tokens())
            }
            StateTensor::Convolution
            | StateTensor::Recurrent
            | StateTensor::Ngrams
            | StateTensor::Table
            | StateTensor::Mixer => 1,
        }
    }

    /// The kind of pages that it has rows for, in a block whose tokens have pages of a kind; none if it has rows for sequences.
    fn page_kind(self, kind: usize) -> Option<usize> {
        match self {
            StateTensor::Keys | StateTensor::Values | StateTensor::Index | StateTensor::Pending => Some(kind),
            StateTensor::Compressed | StateTensor::CompressedIndex => Some(0),
            StateTensor::Convolution
            | StateTensor::Recurrent
            | StateTensor::Ngrams
            | StateTensor::Table
            | StateTensor::Mixer => None,
        }
    }
}

/// What the blocks of a device share, each with the kind of pages that it is about.
fn shared_by<'b>(
    blocks: impl Iterator<Item = &'b Block> + Clone,
    cache: CacheTypes,
) -> Vec<(StateTensor, usize)> {
    let is_paged = |block: &Block, kind| block.state.rows.is_some() && usize::from(block.windowed) == kind;
    let has_table = |kind: &usize| blocks.clone().any(|block| is_paged(block, *kind));
    let mut shared: Vec<_> = (0..KINDS).filter(has_table).map(|kind| (StateTensor::Table, kind)).collect();
    if blocks.clone().any(|block| Mixing::of(block, cache).is_any()) {
        shared.push((StateTensor::Mixer, 0));
    }
    shared
}

/// How much state there is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Cells of each kind.
    pub(crate) cells: [usize; KINDS],
    /// Rows of recurrent state and of tables.
    pub(crate) rows: usize,
    /// Pages that a sequence may have.
    pub(crate) pages: usize,
    /// Types of keys and values.
    pub(crate) cache: CacheTypes,
}

impl Sizes {
    fn layout(&self, which: StateTensor, block: &BlockState, kind: usize) -> Result<Layout, LayoutError> {
        let (rows, recurrent, compressed) = (block.rows, block.recurrent, block.compressed);
        let channels = |count: Option<usize>| count.unwrap_or(0);
        let runs = self.cells[0] / compressed.map_or(1, |rows| rows.row_tokens());
        match which {
            StateTensor::Keys => {
                let width = channels(rows.map(|rows| rows.keys));
                Layout::packed(self.cache.keys, [width, self.cells[kind]])
            }
            StateTensor::Values => {
                let width = channels(rows.map(|rows| rows.values));
                Layout::packed(self.cache.values, [width, self.cells[kind]])
            }
            StateTensor::Index => {
                let width = channels(rows.map(|rows| rows.index));
                Layout::packed(self.cache.keys, [width, self.cells[kind]])
            }
            StateTensor::Pending => {
                let width = channels(compressed.map(|rows| rows.pending));
                Layout::packed(DType::F32, [width, self.cells[kind]])
            }
            StateTensor::Compressed => {
                let width = channels(compressed.map(|rows| rows.keys));
                Layout::packed(self.cache.keys, [width, runs])
            }
            StateTensor::CompressedIndex => {
                let width = channels(compressed.map(|rows| rows.index));
                Layout::packed(self.cache.keys, [width, runs])
            }
            StateTensor::Convolution => {
                let width = channels(recurrent.map(|recurrent| recurrent.convolution));
                Layout::packed(DType::F32, [width, self.rows])
            }
            StateTensor::Recurrent => {
                let width = channels(recurrent.map(|recurrent| recurrent.state));
                Layout::packed(DType::F32, [width, self.rows])
            }
            StateTensor::Ngrams => {
                let width = channels(recurrent.map(|recurrent| recurrent.ngrams));
                Layout::packed(DType::F32, [width, self.rows])
            }
            StateTensor::Table => Layout::packed(DType::I32, [self.pages, self.rows]),
            StateTensor::Mixer => Layout::packed(DType::F32, [MIXED, MIXED]),
        }
    }

    /// Bytes of a block's state, without its share of a table.
    pub(crate) fn block_bytes(&self, block: &BlockState, windowed: bool) -> Result<usize, LayoutError> {
        let mut bytes = 0;
        for which in tensors_of(block) {
            bytes += self.layout(which, block, usize::from(windowed))?.byte_len();
        }
        Ok(bytes)
    }
}

/// The tensors that a block's state has.
fn tensors_of(block: &BlockState) -> impl Iterator<Item = StateTensor> + use<> {
    let (rows, recurrent, compressed) = (block.rows, block.recurrent, block.compressed);
    let has = [
        (rows.is_some(), StateTensor::Keys),
        (rows.is_some_and(|rows| rows.values > 0), StateTensor::Values),
        (rows.is_some_and(|rows| rows.index > 0), StateTensor::Index),
        (compressed.is_some(), StateTensor::Pending),
        (compressed.is_some(), StateTensor::Compressed),
        (compressed.is_some_and(|rows| rows.index > 0), StateTensor::CompressedIndex),
        (recurrent.is_some_and(|recurrent| recurrent.convolution > 0), StateTensor::Convolution),
        (recurrent.is_some_and(|recurrent| recurrent.state > 0), StateTensor::Recurrent),
        (recurrent.is_some_and(|recurrent| recurrent.ngrams > 0), StateTensor::Ngrams),
    ];
    has.into_iter().filter(|(has, _)| *has).map(|(_, which)| which)
}

/// A tensor and its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored {
    pub(crate) layout: Layout,
    pub(crate) storage: Storage,
    /// Size of the buffer.
    pub(crate) capacity: usize,
    pub(crate) device: usize,
    /// Bytes of a page, or of a sequence where that has a row.
    unit: usize,
}

/// The state of all blocks.
#[derive(Debug)]
pub(crate) struct State {
    /// By block, its tensors.
    blocks: Vec<Vec<(StateTensor, Stored)>>,
    /// By block, the kind of its pages.
    kinds: Vec<usize>,
    /// By device, what its blocks share, each with the kind of pages that it is about.
    shared: Vec<Vec<(StateTensor, usize, Stored)>>,
    /// Bytes on each device.
    bytes: Vec<usize>,
    /// The table of buffers that storages speak of.
    buffers: Buffers,
}

impl State {
    /// Allocates state, and adds its buffers to those of the weights.
    pub(crate) fn new(model: &Model, sizes: &Sizes) -> Result<State, Error> {
        let (hyper, weights) = (model.hyper(), model.weights());
        let mut buffers = weights.buffers().clone();
        let mut graph = Graph::new();
        let mut ids: Vec<Vec<(StateTensor, TensorId)>> = Vec::with_capacity(hyper.blocks.len());
        for (index, block) in hyper.blocks.iter().enumerate() {
            let mut own = Vec::new();
            for which in tensors_of(&block.state) {
                let layout = sizes.layout(which, &block.state, usize::from(block.windowed))?;
                let id = graph.leaf_with_layout(layout)?;
                graph.set_name(id, &which.name(index, usize::from(block.windowed)))?;
                own.push((which, id));
            }
            ids.push(own);
        }
        let home = |block: usize| weights.device_of(Section::Block(block));
        let (mut bytes, mut shared) = (Vec::new(), Vec::new());
        for (device, target) in model.devices().iter().enumerate() {
            let here = (0..ids.len()).filter(|&block| home(block) == device);
            let blocks = here.clone().map(|block| &hyper.blocks[block]);
            let mut own: Vec<TensorId> = here.flat_map(|block| &ids[block]).map(|&(_, id)| id).collect();
            let mut of_device = Vec::new();
            for (which, kind) in shared_by(blocks, sizes.cache) {
                let layout = sizes.layout(which, &BlockState::default(), kind)?;
                let id = graph.leaf_with_layout(layout)?;
                own.push(id);
                of_device.push((which, kind, id));
            }
            let mut held = 0;
            for buffer in place_all(&mut graph, &own, &target.buffer_type(), &mut buffers)? {
                held += buffers.get(buffer)?.len();
            }
            bytes.push(held);
            shared.push(of_device);
        }
        let stored = |id: TensorId, device: usize, rows: usize| -> Result<Stored, Error> {
            let tensor = graph.tensor(id)?;
            let unplaced = || oxcart_backend::Error::NotPlaced { id, name: tensor.label() };
            let storage = tensor.storage().ok_or_else(unplaced)?;
            let capacity = buffers.get(storage.buffer)?.len();
            let layout = *tensor.layout();
            Ok(Stored { layout, storage, capacity, device, unit: rows * layout.nb()[1] })
        };
        let mut blocks = Vec::with_capacity(ids.len());
        for (index, own) in ids.iter().enumerate() {
            let state = &hyper.blocks[index].state;
            let tensor = |&(which, id): &(StateTensor, TensorId)| {
                Ok((which, stored(id, home(index), which.rows_of_unit(state))?))
            };
            blocks.push(own.iter().map(tensor).collect::<Result<Vec<_>, Error>>()?);
        }
        let placed = |(device, of_device): (usize, &Vec<(StateTensor, usize, TensorId)>)| {
            of_device.iter().map(|&(which, kind, id)| Ok((which, kind, stored(id, device, 1)?))).collect()
        };
        let shared = shared.iter().enumerate().map(placed).collect::<Result<_, Error>>()?;
        let kinds = hyper.blocks.iter().map(|block| usize::from(block.windowed)).collect();
        let state = State { blocks, kinds, shared, bytes, buffers };
        state.clear_tables()?;
        state.write_mixers()?;
        Ok(state)
    }

    /// What buffer ids mean, weights' and state's.
    pub(crate) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Bytes on each device.
    pub(crate) fn bytes(&self) -> &[usize] {
        &self.bytes
    }

    /// A tensor of a block's state.
    pub(crate) fn find(&self, block: usize, which: StateTensor) -> Option<&Stored> {
        let own = self.blocks.get(block)?;
        let (_, first) = own.first()?;
        let kind = match which {
            StateTensor::Table => self.kinds[block],
            _ => 0,
        };
        let shared = || self.shared[first.device].iter().find(|shared| (shared.0, shared.1) == (which, kind));
        let own = own.iter().find(|(other, _)| *other == which).map(|(_, stored)| stored);
        own.or_else(|| shared().map(|(.., stored)| stored))
    }

    /// A tensor that blocks share, on all devices that have it.
    fn shared_tensors(&self, which: StateTensor, kind: usize) -> impl Iterator<Item = &Stored> {
        let all = self.shared.iter().flatten();
        all.filter(move |shared| (shared.0, shared.1) == (which, kind)).map(|(.., stored)| stored)
    }

    fn clear_tables(&self) -> Result<(), Error> {
        for table in (0..KINDS).flat_map(|kind| self.shared_tensors(StateTensor::Table, kind)) {
            // No page: minus one in every entry.
            let buffer = self.buffers.get(table.storage.buffer)?;
            buffer.fill(table.storage.offset, table.layout.byte_len(), 0xFF)?;
        }
        Ok(())
    }

    fn write_mixers(&self) -> Result<(), Error> {
        let bytes: Vec<u8> = mixing_matrix().flat_map(f32::to_le_bytes).collect();
        for mixer in self.shared_tensors(StateTensor::Mixer, 0) {
            self.buffers.get(mixer.storage.buffer)?.write(mixer.storage.offset, &bytes)?;
        }
        Ok(())
    }

    /// Writes some entries of a sequence's row to all tables of a kind.
    pub(crate) fn write_table(
        &self,
        kind: usize,
        row: usize,
        first: usize,
        pages: &[Option<u32>],
    ) -> Result<(), Error> {
        let entry = |page: &Option<u32>| page.map_or(-1, |page| page as i32).to_le_bytes();
        let bytes: Vec<u8> = pages.iter().flat_map(entry).collect();
        for table in self.shared_tensors(StateTensor::Table, kind) {
            let offset = row * table.layout.nb()[1] + first * size_of::<i32>();
            self.buffers.get(table.storage.buffer)?.write(table.storage.offset + offset, &bytes)?;
        }
        Ok(())
    }

    /// Copies a page in all blocks of a kind.
    pub(crate) fn copy_page(&self, kind: usize, from: u32, to: u32) -> Result<(), Error> {
        for (_, stored) in self.rows_of(kind) {
            let page = stored.unit;
            copy_place(
                &self.place(stored, from as usize * page, page)?,
                &self.place(stored, to as usize * page, page)?,
            )?;
        }
        Ok(())
    }

    /// Copies the recurrent state of one row to another.
    pub(crate) fn copy_row(&self, from: usize, to: usize) -> Result<(), Error> {
        for (_, stored) in self.recurrent() {
            let row = stored.layout.nb()[1];
            copy_place(&self.place(stored, from * row, row)?, &self.place(stored, to * row, row)?)?;
        }
        Ok(())
    }

    /// Makes the recurrent state of a row that of a sequence without tokens.
    pub(crate) fn clear_row(&self, row: usize) -> Result<(), Error> {
        for (_, stored) in self.recurrent() {
            let len = stored.layout.nb()[1];
            let buffer = self.buffers.get(stored.storage.buffer)?;
            buffer.fill(stored.storage.offset + row * len, len, 0)?;
        }
        Ok(())
    }

    /// Reads a page of all blocks of a kind, one after another.
    pub(crate) fn read_page(&self, kind: usize, page: u32, out: &mut Vec<u8>) -> Result<(), Error> {
        for (_, stored) in self.rows_of(kind) {
            let len = stored.unit;
            self.read(stored, page as usize * len, len, out)?;
        }
        Ok(())
    }

    /// Writes what [`read_page`](State::read_page) has read, and returns the rest.
    pub(crate) fn write_page<'b>(&self, kind: usize, page: u32, bytes: &'b [u8]) -> Result<&'b [u8], Error> {
        let mut rest = bytes;
        for (_, stored) in self.rows_of(kind) {
            let len = stored.unit;
            rest = self.write(stored, page as usize * len, len, rest)?;
        }
        Ok(rest)
    }

    /// Reads the recurrent state of a row.
    pub(crate) fn read_row(&self, row: usize, out: &mut Vec<u8>) -> Result<(), Error> {
        for (_, stored) in self.recurrent() {
            let len = stored.layout.nb()[1];
            self.read(stored, row * len, len, out)?;
        }
        Ok(())
    }

    /// Writes what [`read_row`](State::read_row) has read, and returns the rest.
    pub(crate) fn write_row<'b>(&self, row: usize, bytes: &'b [u8]) -> Result<&'b [u8], Error> {
        let mut rest = bytes;
        for (_, stored) in self.recurrent() {
            let len = stored.layout.nb()[1];
            rest = self.write(stored, row * len, len, rest)?;
        }
        Ok(rest)
    }

    /// Bytes of a page of a kind in all blocks.
    pub(crate) fn page_bytes(&self, kind: usize) -> usize {
        self.rows_of(kind).map(|(_, stored)| stored.unit).sum()
    }

    /// Bytes of a row of recurrent state in all blocks.
    pub(crate) fn row_bytes(&self) -> usize {
        self.recurrent().map(|(_, stored)| stored.layout.nb()[1]).sum()
    }

    fn read(&self, stored: &Stored, offset: usize, len: usize, out: &mut Vec<u8>) -> Result<(), Error> {
        let start = out.len();
        out.resize(start + len, 0);
        let buffer = self.buffers.get(stored.storage.buffer)?;
        Ok(buffer.read(stored.storage.offset + offset, &mut out[start..])?)
    }

    fn write<'b>(
        &self,
        stored: &Stored,
        offset: usize,
        len: usize,
        bytes: &'b [u8],
    ) -> Result<&'b [u8], Error> {
        let (own, rest) = bytes.split_at_checked(len).ok_or(Error::SavedState("it ends too early"))?;
        // Where attention looks through a mask, what is no number would reach all sequences.
        validate_row(stored.layout.dtype(), own)
            .map_err(|_| Error::SavedState("what it remembers is not all numbers"))?;
        self.buffers.get(stored.storage.buffer)?.write(stored.storage.offset + offset, own)?;
        Ok(rest)
    }

    /// What blocks have rows of in pages of a kind.
    fn rows_of(&self, kind: usize) -> impl Iterator<Item = &(StateTensor, Stored)> {
        let blocks = self.blocks.iter().zip(&self.kinds);
        blocks.flat_map(move |(tensors, &own)| {
            tensors.iter().filter(move |(which, _)| which.page_kind(own) == Some(kind))
        })
    }

    fn recurrent(&self) -> impl Iterator<Item = &(StateTensor, Stored)> {
        let of_sequences = |which: StateTensor| which.page_kind(0).is_none();
        self.blocks.iter().flatten().filter(move |(which, _)| of_sequences(*which))
    }

    fn place(&self, stored: &Stored, offset: usize, len: usize) -> Result<Place, Error> {
        let buffer = Arc::clone(self.buffers.get(stored.storage.buffer)?);
        Ok(Place { buffer, offset: stored.storage.offset + offset, len })
    }
}

/// Cells that a runner for so many tokens needs of each kind, page 0 included.
pub(crate) fn cell_counts(
    hyper: &HyperParameters,
    tokens: usize,
    context: usize,
    sequences: usize,
    batch: usize,
) -> [usize; KINDS] {
    // A sequence may end in the middle of a page, and begin a window there.
    let all = tokens.div_ceil(PAGE) + sequences;
    let in_window = |window: Window| window.length().min(context).saturating_add(batch).div_ceil(PAGE) + 2;
    let windowed =
        hyper.kept_window().map_or(all, |window| all.min(sequences.saturating_mul(in_window(window))));
    let [has_all, has_windowed] = hyper.page_kinds();
    let cells = |pages: usize, has: bool| if has { (pages + 1).saturating_mul(PAGE) } else { 0 };
    [cells(all, has_all), cells(windowed, has_windowed)]
}
