//! A graph under construction: what architectures write their blocks with.
//!
//! The same code builds a graph to run and, without any data, finds out which tensors a model must have: a [`Net`] over
//! a [`Supply::Survey`] looks them up in the file, notes them down and checks their shapes.
//!
//! Invariant: every weight enters through [`Net::weight`] or [`Net::optional`], with the shape that the hyper-parameters
//! ask for, and every node knows which part of the model it belongs to, so that it can be kept where that part is.

mod attention;
mod experts;
mod layers;
mod output;
mod shift;

pub(crate) use attention::{Attention, AttentionPath};
pub(crate) use experts::{Gating, Moe};
pub(crate) use layers::Bias;
pub(crate) use shift::BuiltShift;

use std::collections::HashMap;

use oxcart_gguf::GgufSet;
use oxcart_tensor::graph::Storage;
use oxcart_tensor::{DType, Graph, Layout, Op, Shape, TensorId};

use super::cache::Caches;
use super::error::Error;
use super::hyper::{Block, HyperParameters, Pooling};
use super::weights::Weights;

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

/// Where weights and caches come from.
pub(crate) enum Supply<'a> {
    /// Nowhere: the graph is built to see what it needs.
    Survey { file: &'a GgufSet, needed: Vec<Needed> },
    /// From devices' memory.
    Loaded { weights: &'a Weights, caches: Option<&'a Caches> },
}

/// What a graph is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepShape {
    /// Tokens computed at a time.
    pub(crate) tokens: usize,
    /// Tokens whose results are wanted.
    pub(crate) outputs: usize,
    /// Cells that dense and windowed blocks look at.
    pub(crate) cells: [usize; 2],
    /// What becomes of an encoder's rows.
    pub(crate) pooling: Pooling,
}

/// What all graphs of a context have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub(crate) path: AttentionPath,
    /// Type of cached keys and values.
    pub(crate) cache_type: DType,
    /// Whether the context is longer than that of the training, where that makes a difference.
    pub(crate) long_context: bool,
}

/// Inputs of one kind of cache.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CacheInputs {
    pub(crate) key_cells: Option<TensorId>,
    pub(crate) value_cells: Option<TensorId>,
    pub(crate) mask: Option<TensorId>,
}

/// Inputs of the graph; only those that it reads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Inputs {
    pub(crate) tokens: Option<TensorId>,
    pub(crate) positions: Option<TensorId>,
    pub(crate) wanted: Option<TensorId>,
    pub(crate) mean: Option<TensorId>,
    /// Of dense and windowed blocks.
    pub(crate) caches: [CacheInputs; 2],
}

/// A graph that is done.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) graph: Graph,
    pub(crate) inputs: Inputs,
    pub(crate) output: TensorId,
    /// Nodes and the devices they belong to.
    pub(crate) homes: Vec<(TensorId, usize)>,
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
    /// Weights that are in the graph, by name and part of the model they were asked for in.
    known: HashMap<(String, usize), TensorId>,
    /// By tensor, the device that has it, if it is a weight.
    weight_homes: HashMap<TensorId, usize>,
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
            known: HashMap::new(),
            weight_homes: HashMap::new(),
        }
    }

    /// Builds the graph of the architecture.
    pub(crate) fn build(mut self) -> Result<Built, Error> {
        let rows = self.hyper.architecture.forward(&mut self)?;
        let output = if self.hyper.is_encoder() { self.pool(rows)? } else { rows };
        self.graph.set_name(output, "result_output")?;
        self.graph.mark_output(output)?;
        self.graph.expand(output)?;
        let homes = self.homes()?;
        Ok(Built { graph: self.graph, inputs: self.inputs, output, homes })
    }

    /// Builds the graph without data, and returns what it needs.
    pub(crate) fn survey(hyper: &HyperParameters, file: &GgufSet) -> Result<Vec<Needed>, Error> {
        // Two tokens, of which one is wanted, meet everything there is; the sizes of the caches do not matter.
        let step = StepShape { tokens: 2, outputs: 1, cells: [256; 2], pooling: Pooling::Mean };
        let path = AttentionPath::Flash { mask_rows: 1 };
        let style = Style { path, cache_type: DType::F32, long_context: false };
        let mut net = Net::new(hyper, step, style, Supply::Survey { file, needed: Vec::new() });
        hyper.architecture.forward(&mut net)?;
        match net.supply {
            Supply::Survey { needed, .. } => Ok(needed),
            Supply::Loaded { .. } => Ok(Vec::new()),
        }
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
        let sum = self.add(change, x)?;
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
            Section::Block(block) => format!("blk.{block}.{name}"),
            Section::Input | Section::Output => name.to_owned(),
        }
    }

    /// A tensor that must be there, in the part of the model that is being built.
    pub(crate) fn weight(&mut self, name: &str, shape: impl Into<Shape>) -> Result<TensorId, Error> {
        let name = self.full_name(name);
        self.find(&name, shape.into())?.ok_or(Error::MissingTensor { name })
    }

    /// A tensor that may be there, in the part of the model that is being built.
    pub(crate) fn optional(
        &mut self,
        name: &str,
        shape: impl Into<Shape>,
    ) -> Result<Option<TensorId>, Error> {
        let name = self.full_name(name);
        self.find(&name, shape.into())
    }

    /// A tensor of the whole model that may be there.
    pub(crate) fn global(&mut self, name: &str, shape: impl Into<Shape>) -> Result<Option<TensorId>, Error> {
        self.find(name, shape.into())
    }

    fn find(&mut self, name: &str, shape: Shape) -> Result<Option<TensorId>, Error> {
        let (section, index) = (self.section, self.section.index(self.block_count()));
        let (layout, place) = match &mut self.supply {
            Supply::Survey { file, needed } => {
                let Some(tensor) = file.tensor(name) else { return Ok(None) };
                check(name, tensor.info.layout(), shape)?;
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
        // What several parts share is in the graph once for each device.
        let key = (name.to_owned(), place.map_or(index, |(_, _, device)| device));
        if let Some(&id) = self.known.get(&key) {
            return Ok(Some(id));
        }
        let id = self.graph.leaf_with_layout(layout)?;
        self.graph.set_name(id, name)?;
        if let Some((storage, capacity, device)) = place {
            self.graph.bind(id, storage, capacity)?;
            self.weight_homes.insert(id, device);
        }
        self.known.insert(key, id);
        Ok(Some(id))
    }

    /// An input that is given before each run.
    fn input(&mut self, name: &str, dtype: DType, shape: impl Into<Shape>) -> Result<TensorId, Error> {
        let id = self.graph.leaf(dtype, shape)?;
        self.graph.set_name(id, name)?;
        self.graph.mark_input(id)?;
        Ok(id)
    }

    /// A cache in the graph.
    fn bound_leaf(
        &mut self,
        name: String,
        layout: Layout,
        place: Option<(Storage, usize)>,
    ) -> Result<TensorId, Error> {
        let id = self.graph.leaf_with_layout(layout)?;
        self.graph.set_name(id, &name)?;
        if let Some((storage, capacity)) = place {
            self.graph.bind(id, storage, capacity)?;
        }
        Ok(id)
    }

    /// Where each node should be computed: beside the weights it reads, else beside its part of the model.
    fn homes(&self) -> Result<Vec<(TensorId, usize)>, Error> {
        let Supply::Loaded { weights, .. } = &self.supply else { return Ok(Vec::new()) };
        if weights.device_count() == 1 {
            return Ok(Vec::new());
        }
        let mut homes = Vec::new();
        for &id in self.graph.nodes() {
            let node = self.graph.tensor(id)?;
            if !node.computes() {
                continue;
            }
            let part = self.sections.iter().rev().find(|(first, _)| *first <= id.index());
            let own = weights.device_of(part.map_or(Section::Input, |&(_, section)| section));
            let is_factor = |slot| slot == 2 && matches!(node.op(), Op::Rope(_));
            let beside = node.source_ids().iter().enumerate().find_map(|(slot, source)| {
                self.weight_homes.get(source.as_ref()?).copied().filter(|_| !is_factor(slot))
            });
            homes.push((id, beside.unwrap_or(own)));
        }
        Ok(homes)
    }
}

/// Refuses a tensor that cannot be what the architecture needs.
fn check(name: &str, layout: Layout, wanted: Shape) -> Result<(), Error> {
    if layout.ne() != wanted {
        return Err(Error::TensorShape { name: name.to_owned(), found: layout.ne(), wanted });
    }
    let found = layout.dtype();
    if wanted.is_vector() && found != DType::F32 {
        return Err(Error::TensorType { name: name.to_owned(), found, wanted: "f32" });
    }
    if found.dot_partner().is_none() {
        return Err(Error::TensorType { name: name.to_owned(), found, wanted: "a type for weights" });
    }
    Ok(())
}
