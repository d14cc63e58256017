//! A graph under construction: what architectures write their blocks with.
//!
//! The same code builds a graph to run and, without any data, finds out which tensors a model must have: a [`Net`] over
//! a [`Supply::Survey`] looks them up in the file, notes them down and checks their shapes.
//!
//! Invariant: every weight enters through [`Net::weight`] or [`Net::optional`], with the shape that the hyper-parameters
//! ask for, and every node knows which part of the model it belongs to, so that it can be kept where that part is.

mod attention;
mod blocks;
mod channel_delta;
mod checkpoints;
mod compressed;
mod delta_net;
mod experts;
mod index_blocks;
mod indexer;
mod latent;
mod layers;
mod linear;
mod mixing;
mod ngrams;
mod output;
mod recurrent;
mod rwkv;
mod shift;
mod source;
mod streams;

pub(crate) use attention::{Attention, AttentionPath, Gate};
pub(crate) use blocks::Norms;
pub(crate) use channel_delta::ChannelGates;
pub(crate) use checkpoints::Checkpoints;
pub(crate) use compressed::RunInputs;
pub(crate) use delta_net::DeltaLayout;
pub(crate) use experts::Moe;
pub(crate) use index_blocks::{BlockInputs, BlockSizes};
pub(crate) use layers::{Bias, Glu};
pub(crate) use mixing::{MIXED, Mixing, matrix as mixing_matrix};
pub(crate) use rwkv::Shifted;
pub(crate) use shift::{BuiltShift, ShiftInputs};

use std::collections::HashMap;

use oxcart_gguf::GgufSet;
use oxcart_tensor::graph::{BufferId, Storage};
use oxcart_tensor::{DType, Graph, Layout, Shape, TensorId};

use super::error::Error;
use super::hyper_parameters::{Block, HyperParameters, Pooling, RUN_KINDS};
use super::weights::Weights;
use crate::runner::options::CacheTypes;
use crate::runner::sequence::KINDS;
use crate::runner::state::{State, StateTensor};

/// A part of a model that is kept together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Section {
    /// What tokens go through first.
    Input,
    /// A block.
    Block(usize),
    /// What makes logits.
    Output,
}

impl Section {
    /// Its position among the sections of a model of so many blocks.
    pub(crate) const fn index(self, blocks: usize) -> usize {
        match self {
            Section::Input => 0,
            Section::Block(block) => block + 1,
            Section::Output => blocks + 1,
        }
    }
}

/// A tensor that a model needs.
#[derive(Clone, Debug)]
pub(crate) struct Needed {
    pub(crate) name: String,
    pub(crate) section: Section,
    pub(crate) layout: Layout,
}

/// What a graph wants of a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    pub(crate) needed: Vec<Needed>,
    /// Tensors that are there, but that the architecture passes over.
    pub(crate) unused: Vec<String>,
}

/// Where weights and state come from.
pub(crate) enum Supply<'a> {
    /// Nowhere, and there is no file: the graph is built to see what one must have.
    Wish { needed: Vec<Needed> },
    /// Nowhere: the graph is built to see what it needs.
    Survey { file: &'a GgufSet, needed: Vec<Needed>, unused: Vec<String> },
    /// From devices' memory.
    Loaded { weights: &'a Weights, state: Option<&'a State> },
}

/// What a graph is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StepShape {
    /// Tokens computed at a time.
    pub(crate) tokens: usize,
    /// Tokens whose results are wanted.
    pub(crate) outputs: usize,
    /// With recurrent blocks, how many sequences the tokens belong to, each the same number of them.
    pub(crate) sequences: usize,
    /// Where attention looks through a mask, the cells of each kind that it looks at.
    pub(crate) cells: [usize; KINDS],
    /// By kind, runs of tokens that are compressed.
    pub(crate) runs: [usize; RUN_KINDS],
    /// What becomes of an encoder's rows.
    pub(crate) pooling: Pooling,
    /// Whether the tokens are a source that is read, where a model reads one text before it writes another.
    pub(crate) reads: bool,
    /// How many of the largest logits are told beside all of them; zero if only all are wanted.
    pub(crate) largest: usize,
}

impl StepShape {
    /// One sequence, without cells.
    pub(crate) fn alone(tokens: usize, outputs: usize, pooling: Pooling) -> StepShape {
        let (cells, runs) = ([0; KINDS], [0; RUN_KINDS]);
        StepShape { tokens, outputs, sequences: 1, cells, runs, pooling, reads: false, largest: 0 }
    }

    /// A source of one sequence that is read.
    pub(crate) fn reading(tokens: usize) -> StepShape {
        StepShape { reads: true, ..StepShape::alone(tokens, tokens, Pooling::None) }
    }
}

/// What all graphs of a runner have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Style {
    pub(crate) path: AttentionPath,
    /// Types of keys and values.
    pub(crate) cache: CacheTypes,
    /// Whether the context is longer than that of the training, where that makes a difference.
    pub(crate) long_context: bool,
}

/// Inputs of the graph; only those that it reads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Inputs {
    pub(crate) tokens: Option<TensorId>,
    pub(crate) positions: Option<TensorId>,
    /// Four positions of each token, of which text has the same three times and then zero.
    pub(crate) section_positions: Option<TensorId>,
    pub(crate) wanted: Option<TensorId>,
    pub(crate) mean: Option<TensorId>,
    /// By kind of page, the cell that each token's keys and values go to.
    pub(crate) cells: [Option<TensorId>; KINDS],
    /// By kind of page, which cells each token sees.
    pub(crate) masks: [Option<TensorId>; KINDS],
    /// The row of the table that each token's sequence has, and its position there.
    pub(crate) owners: Option<TensorId>,
    /// The rows of recurrent state that the sequences have.
    pub(crate) rows: Option<TensorId>,
    /// What each token's queries are multiplied by.
    pub(crate) temperatures: Option<TensorId>,
    /// The position that each run of cells begins with.
    pub(crate) run_positions: Option<TensorId>,
    /// By kind of runs, which of them are compressed and seen.
    pub(crate) runs: [Option<RunInputs>; RUN_KINDS],
    /// Where blocks of positions are, and which of them each token always looks at.
    pub(crate) blocks: Option<BlockInputs>,
    /// Rows of the table of n-grams, as many for each token.
    pub(crate) ngram_rows: Option<TensorId>,
    /// How far away each cell is from each token, in kinds of distances.
    pub(crate) distances: Option<TensorId>,
    /// Which cells hold the source of each token's sequence.
    pub(crate) source_mask: Option<TensorId>,
}

/// A leaf that is not an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Leaf {
    /// A weight of a part of the model.
    Weight(String, Section),
    /// A tensor of a block's state.
    State(usize, StateTensor),
}

/// A graph that is done.
#[derive(Clone, Debug)]
pub(crate) struct Built {
    pub(crate) graph: Graph,
    pub(crate) inputs: Inputs,
    pub(crate) output: TensorId,
    /// What tells the largest logits, as [`unpack`](crate::logits::unpack) reads it, if that was asked for.
    pub(crate) largest: Option<TensorId>,
    /// Leaves that are not inputs.
    pub(crate) leaves: Vec<(TensorId, Leaf)>,
    /// First tensor of each part of the model, in order.
    pub(crate) parts: Vec<(usize, Section)>,
}

impl Built {
    /// The part of the model that a tensor belongs to.
    pub(crate) fn part_of(&self, id: TensorId) -> Section {
        let after = self.parts.partition_point(|(first, _)| *first <= id.index());
        self.parts[..after].last().map_or(Section::Input, |&(_, section)| section)
    }

    /// Gives all leaves their places, in a graph that was built without data.
    pub(crate) fn bind(&mut self, weights: &Weights, state: &State) -> Result<(), Error> {
        for (id, leaf) in &self.leaves {
            let (storage, capacity) = match leaf {
                Leaf::Weight(name, section) => match weights.find(name, *section) {
                    Some(weight) => (weight.storage, weight.capacity),
                    None => return Err(Error::MissingTensor { name: name.clone() }),
                },
                Leaf::State(block, which) => match state.find(*block, *which) {
                    Some(stored) => (stored.storage, stored.capacity),
                    None => return Err(Error::MissingTensor { name: which.name(*block, 0) }),
                },
            };
            self.graph.bind(*id, storage, capacity)?;
        }
        Ok(())
    }
}

/// A graph under construction.
pub(crate) struct Net<'a> {
    graph: Graph,
    hyper: &'a HyperParameters,
    step: StepShape,
    style: Style,
    supply: Supply<'a>,
    section: Section,
    /// First tensor of each section, in order.
    sections: Vec<(usize, Section)>,
    inputs: Inputs,
    leaves: Vec<(TensorId, Leaf)>,
    /// Leaves that are in the graph, by name and where they are: the device, or the part of the model in a survey.
    known: HashMap<(String, usize), TensorId>,
}

impl<'a> Net<'a> {
    pub(crate) fn new(
        hyper: &'a HyperParameters,
        step: StepShape,
        style: Style,
        supply: Supply<'a>,
    ) -> Net<'a> {
        Net {
            graph: Graph::new(),
            hyper,
            step,
            style,
            supply,
            section: Section::Input,
            sections: vec![(0, Section::Input)],
            inputs: Inputs::default(),
            leaves: Vec::new(),
            known: HashMap::new(),
        }
    }

    /// Builds the graph of the architecture.
    pub(crate) fn build(self) -> Result<Built, Error> {
        Ok(self.build_and_survey()?.0)
    }

    /// What a file must have.
    pub(crate) fn wish(hyper: &HyperParameters, step: StepShape, style: Style) -> Result<Vec<Needed>, Error> {
        let supply = Supply::Wish { needed: Vec::new() };
        Ok(Net::new(hyper, step, style, supply).build_and_survey()?.1.needed)
    }

    /// Builds the graph without data, and returns it with what it needs.
    pub(crate) fn survey(
        hyper: &HyperParameters,
        file: &GgufSet,
        step: StepShape,
        style: Style,
    ) -> Result<(Built, Survey), Error> {
        Net::new(hyper, step, style, Supply::Survey { file, needed: Vec::new(), unused: Vec::new() })
            .build_and_survey()
    }

    fn build_and_survey(mut self) -> Result<(Built, Survey), Error> {
        let rows = (self.hyper.architecture.forward)(&mut self)?;
        let output = if self.hyper.is_encoder() { self.pool(rows)? } else { rows };
        self.graph.set_name(output, "result_output")?;
        self.graph.mark_output(output)?;
        self.graph.expand(output)?;
        let largest = match self.step.largest {
            0 => None,
            count => Some(self.largest_logits(output, count)?),
        };
        if let Some(largest) = largest {
            self.graph.set_name(largest, "result_largest")?;
            self.graph.mark_output(largest)?;
            self.graph.expand(largest)?;
        }
        let Net { graph, inputs, leaves, sections: parts, supply, .. } = self;
        let survey = match supply {
            Supply::Survey { needed, unused, .. } => Survey { needed, unused },
            Supply::Wish { needed } => Survey { needed, unused: Vec::new() },
            Supply::Loaded { .. } => Survey::default(),
        };
        Ok((Built { graph, inputs, output, largest, leaves, parts }, survey))
    }

    pub(crate) fn hyper(&self) -> &'a HyperParameters {
        self.hyper
    }

    pub(crate) fn block_count(&self) -> usize {
        self.hyper.blocks.len()
    }

    /// The block that is being built.
    pub(crate) fn block(&self) -> Block {
        match self.section {
            Section::Block(block) => self.hyper.blocks[block],
            Section::Input | Section::Output => self.hyper.blocks[0],
        }
    }

    fn block_index(&self) -> usize {
        match self.section {
            Section::Block(block) => block,
            Section::Input | Section::Output => 0,
        }
    }

    /// What follows belongs to this block.
    pub(crate) fn enter_block(&mut self, block: usize) {
        self.enter(Section::Block(block));
    }

    fn enter(&mut self, section: Section) {
        self.section = section;
        self.sections.push((self.graph.len(), section));
    }

    /// The last node of a block: what it adds, and what it adds it to.
    pub(crate) fn leave_block(&mut self, change: TensorId, x: TensorId) -> Result<TensorId, Error> {
        let sum = self.add_to(change, x)?;
        self.name_block_result(sum)?;
        Ok(sum)
    }

    /// Names the result of a block, for those who look at it.
    pub(crate) fn name_block_result(&mut self, x: TensorId) -> Result<(), Error> {
        Ok(self.graph.set_name(x, &format!("l_out-{}", self.block_index()))?)
    }

    /// The whole name of a tensor of the part that is being built.
    fn full_name(&self, name: &str) -> String {
        match self.section {
            Section::Block(block) => {
                let Block { half, tensors, .. } = self.hyper.blocks[block];
                format!("{}blk.{tensors}.{name}", half.prefix())
            }
            Section::Input | Section::Output => name.to_owned(),
        }
    }

    /// A tensor that must be there, in the part of the model that is being built.
    pub(crate) fn weight(&mut self, name: &str, shape: impl Into<Shape>) -> Result<TensorId, Error> {
        self.must_have(name, shape.into(), Content::Numbers)
    }

    /// As [`weight`](Net::weight), of 32-bit numbers of something else.
    pub(crate) fn indices(&mut self, name: &str, shape: impl Into<Shape>) -> Result<TensorId, Error> {
        self.must_have(name, shape.into(), Content::Indices)
    }

    fn must_have(&mut self, name: &str, shape: Shape, content: Content) -> Result<TensorId, Error> {
        self.must_have_whole(self.full_name(name), shape, content)
    }

    /// As [`weight`](Net::weight), by its whole name: a tensor of another part of the model.
    fn weight_of_other(&mut self, name: String, shape: impl Into<Shape>) -> Result<TensorId, Error> {
        self.must_have_whole(name, shape.into(), Content::Numbers)
    }

    fn must_have_whole(&mut self, name: String, shape: Shape, content: Content) -> Result<TensorId, Error> {
        if let Supply::Wish { needed } = &mut self.supply {
            let (section, layout) = (self.section, Layout::packed(content.plain_type(), shape)?);
            needed.push(Needed { name: name.clone(), section, layout });
            return self.stored(name.clone(), layout, None, Leaf::Weight(name, section));
        }
        self.find(&name, shape, content)?.ok_or(Error::MissingTensor { name })
    }

    /// A tensor that may be there, in the part of the model that is being built.
    pub(crate) fn optional(
        &mut self,
        name: &str,
        shape: impl Into<Shape>,
    ) -> Result<Option<TensorId>, Error> {
        let name = self.full_name(name);
        self.find(&name, shape.into(), Content::Numbers)
    }

    /// The extents of a tensor of the file, if it is there, in the part of the model that is being built or by its whole name.
    pub(crate) fn extents(&self, name: &str) -> Option<Shape> {
        [self.full_name(name), name.to_owned()].iter().find_map(|name| match &self.supply {
            Supply::Wish { .. } => None,
            Supply::Survey { file, .. } => Some(file.tensor(name)?.info.layout().ne()),
            Supply::Loaded { weights, .. } => Some(weights.find_anywhere(name)?.layout.ne()),
        })
    }

    /// Whether the file has a tensor, in the part of the model that is being built or by its whole name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.extents(name).is_some()
    }

    /// Passes over a dense feed-forward network that a file may have beside experts.
    pub(crate) fn pass_over_dense(&mut self) {
        for base in ["ffn_gate", "ffn_up", "ffn_down"] {
            for ending in ["weight", "bias", "scale"] {
                self.pass_over(&format!("{base}.{ending}"));
            }
        }
    }

    /// A tensor that may be there and that the architecture passes over, in the part of the model that is being built.
    pub(crate) fn pass_over(&mut self, name: &str) {
        let name = self.full_name(name);
        self.pass_over_whole(name);
    }

    /// The whole name of the scale beside a matrix. Where stacks of blocks are repeated, there may be one for each time.
    fn scale_name(&self, base: &str) -> String {
        match (self.section, self.hyper.stacks) {
            (Section::Block(block), Some(_)) => format!("blk.{block}.{base}.scale"),
            _ => self.full_name(&format!("{base}.scale")),
        }
    }

    /// As [`pass_over`](Net::pass_over), by its whole name.
    fn pass_over_whole(&mut self, name: String) {
        if let Supply::Survey { file, unused, .. } = &mut self.supply
            && file.tensor(&name).is_some()
            && !unused.contains(&name)
        {
            unused.push(name);
        }
    }

    /// A tensor of the whole model that may be there.
    pub(crate) fn global(&mut self, name: &str, shape: impl Into<Shape>) -> Result<Option<TensorId>, Error> {
        self.find(name, shape.into(), Content::Numbers)
    }

    fn find(&mut self, name: &str, shape: Shape, content: Content) -> Result<Option<TensorId>, Error> {
        let section = self.section;
        let (layout, place) = match &mut self.supply {
            Supply::Wish { .. } => return Ok(None),
            Supply::Survey { file, needed, .. } => {
                let Some(tensor) = file.tensor(name) else { return Ok(None) };
                content.check(name, tensor.info.layout(), shape)?;
                let layout = tensor.info.layout();
                if !needed.iter().any(|other| other.name == name && other.section == section) {
                    needed.push(Needed { name: name.to_owned(), section, layout });
                }
                (layout, None)
            }
            Supply::Loaded { weights, .. } => {
                let Some(weight) = weights.find(name, section) else { return Ok(None) };
                (weight.layout, Some((weight.storage, weight.capacity, weight.device)))
            }
        };
        self.stored(name.to_owned(), layout, place, Leaf::Weight(name.to_owned(), section)).map(Some)
    }

    /// A tensor of the state of the block that is being built.
    pub(crate) fn state(&mut self, which: StateTensor) -> Result<TensorId, Error> {
        let block = self.block_index();
        let name = which.name(block, usize::from(self.block().windowed));
        let (layout, place) = match &self.supply {
            Supply::Survey { .. } | Supply::Wish { .. } => {
                let (block, cells) = (self.block(), self.step.cells);
                (which.sample(&block.state, cells, usize::from(block.windowed), self.style.cache)?, None)
            }
            Supply::Loaded { state, .. } => {
                let found = state.and_then(|state| state.find(block, which));
                let stored = found.ok_or_else(|| Error::MissingTensor { name: name.clone() })?;
                (stored.layout, Some((stored.storage, stored.capacity, stored.device)))
            }
        };
        self.stored(name, layout, place, Leaf::State(block, which))
    }

    /// A leaf with its place: storage, size of the buffer, device. What several parts share is in the graph once for each
    /// device.
    fn stored(
        &mut self,
        name: String,
        layout: Layout,
        place: Option<(Storage, usize, usize)>,
        leaf: Leaf,
    ) -> Result<TensorId, Error> {
        let here = self.section.index(self.block_count());
        let key = (name, place.map_or(here, |(_, _, device)| device));
        if let Some(&id) = self.known.get(&key) {
            return Ok(id);
        }
        let id = self.graph.leaf_with_layout(layout)?;
        self.graph.set_name(id, &key.0)?;
        // In a survey it has some place, so that it is not taken for something that needs memory.
        let nowhere = (Storage { buffer: BufferId(0), offset: 0 }, usize::MAX, 0);
        let (storage, capacity, _) = place.unwrap_or(nowhere);
        self.graph.bind(id, storage, capacity)?;
        self.leaves.push((id, leaf));
        self.known.insert(key, id);
        Ok(id)
    }

    /// An input that is given before each run.
    fn input(&mut self, name: &str, dtype: DType, shape: impl Into<Shape>) -> Result<TensorId, Error> {
        let id = self.graph.leaf(dtype, shape)?;
        self.graph.set_name(id, name)?;
        self.graph.mark_input(id)?;
        Ok(id)
    }
}

/// What a tensor of a file is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// Numbers to compute with.
    Numbers,
    /// Indices of something else.
    Indices,
}

impl Content {
    /// The type without any packing.
    const fn plain_type(self) -> DType {
        match self {
            Content::Numbers => DType::F32,
            Content::Indices => DType::I32,
        }
    }

    /// Refuses a tensor that cannot be what the architecture needs.
    fn check(self, name: &str, layout: Layout, wanted: Shape) -> Result<(), Error> {
        if layout.ne() != wanted {
            return Err(Error::TensorShape { name: name.to_owned(), found: layout.ne(), wanted });
        }
        let found = layout.dtype();
        let refuse = |wanted| Err(Error::TensorType { name: name.to_owned(), found, wanted });
        match self {
            Content::Indices if found != DType::I32 => refuse("i32"),
            Content::Indices => Ok(()),
            Content::Numbers if wanted.is_vector() && found != DType::F32 => refuse("f32"),
            Content::Numbers if found.dot_partner().is_none() => refuse("a type for weights"),
            Content::Numbers => Ok(()),
        }
    }
}
