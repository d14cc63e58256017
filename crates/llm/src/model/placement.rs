//! Which device has which part of a model: decided, and shown, before anything is loaded.
//!
//! Blocks stay in order: a device has consecutive ones, so that a token crosses from device to device as rarely as
//! possible. The first part, where tokens become embeddings, stays with the last device if that is the host's.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use oxcart_backend::{Arithmetic, ByteSize, Device};
use oxcart_sched::memory::{Pool, Request, Strategy, plan};
use oxcart_tensor::graph::Flags;
use oxcart_tensor::{DType, TensorId, TensorRef};

use super::error::Error;
use super::file::ModelFile;
use super::hyper_parameters::Block;
use super::net::{AttentionPath, Needed, Section, StepShape, Style};
use crate::runner::RunnerOptions;
use crate::runner::pages::PAGE;
use crate::runner::sequence::KINDS;
use crate::runner::state::{Sizes, cell_counts};

/// How parts of a model are shared out.
#[derive(Clone, Debug, Default)]
pub enum Proportions {
    /// By the memory that devices have free.
    #[default]
    ByFreeMemory,
    /// The same, but the last device gets only what the others have no room for.
    SpareLast {
        /// How many blocks the others may have at most, if there is such a limit; the rest is the last one's, too.
        most: Option<usize>,
    },
    /// By free memory, but the last device gets nothing, unless it is the only one.
    SkipLast,
    /// By these numbers, one for each device; none for zero.
    Ratios(Vec<f64>),
}

/// Tensors that go elsewhere than their part of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// Which: names that match as a whole, `*` standing for anything; without `*`, names that contain it.
    pub pattern: String,
    /// Where to: position in the list of devices.
    pub device: usize,
}

impl Override {
    /// Whether it is about a tensor.
    pub fn matches(&self, name: &str) -> bool {
        matches(&self.pattern, name)
    }
}

/// What a placement is made for.
#[derive(Clone, Debug, Default)]
pub struct PlacementOptions {
    /// How blocks are shared out.
    pub proportions: Proportions,
    /// Exceptions; the first that matches decides.
    pub overrides: Vec<Override>,
    /// The runner that will be on these devices, which needs memory for state and results, too.
    pub runner: RunnerOptions,
}

impl PlacementOptions {
    /// The same without some of so many devices, by their positions: the others keep their proportions. Where these gave all to devices that
    /// are gone, what is left is shared by free memory.
    pub fn without(&self, count: usize, is_gone: impl Fn(usize) -> bool) -> PlacementOptions {
        let left: Vec<usize> = (0..count).filter(|&at| !is_gone(at)).collect();
        let proportions = match &self.proportions {
            Proportions::Ratios(ratios) => {
                let ratios: Vec<f64> = left.iter().filter_map(|&at| ratios.get(at).copied()).collect();
                match ratios.iter().any(|&ratio| ratio > 0.0) {
                    true => Proportions::Ratios(ratios),
                    false => Proportions::SpareLast { most: None },
                }
            }
            other => other.clone(),
        };
        let moved = |exception: &Override| {
            let device = left.iter().position(|&at| at == exception.device)?;
            Some(Override { device, ..exception.clone() })
        };
        let overrides = self.overrides.iter().filter_map(moved).collect();
        PlacementOptions { proportions, overrides, runner: self.runner }
    }
}

/// A tensor and the device it goes to.
#[derive(Clone, Debug)]
pub struct PlacedTensor {
    /// Its name.
    pub name: String,
    /// The part of the model it belongs to.
    pub section: Section,
    /// Its size.
    pub bytes: usize,
    /// Position in the list of devices.
    pub device: usize,
}

/// What goes to one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Name of the device.
    pub name: String,
    /// What it is.
    pub description: String,
    /// Bytes it has free.
    pub free: usize,
    /// Blocks it has.
    pub blocks: Range<usize>,
    /// Bytes of weights.
    pub weights: usize,
    /// Bytes of what blocks remember.
    pub state: usize,
    /// Bytes of results, as far as that can be told beforehand.
    pub results: usize,
    /// Whether weights are used where they lie, in the mapped file.
    pub mapped: bool,
    /// The order in which the device adds up, if that is fixed to the last bit.
    pub arithmetic: Option<Arithmetic>,
}

impl Share {
    /// Bytes that must be free for it.
    pub fn needed(&self) -> usize {
        let weights = if self.mapped { 0 } else { self.weights };
        weights + self.state + self.results
    }
}

/// What computes with a tensor.
#[derive(Clone, Debug)]
pub(crate) struct ComputedBy {
    device: String,
    arithmetic: Option<Arithmetic>,
}

impl ComputedBy {
    /// Whether another one is known to compute the same bits: it adds up in the same order, or it is the same device.
    pub(crate) fn computes_like(&self, other: &ComputedBy) -> bool {
        match (self.arithmetic, other.arithmetic) {
            (Some(own), Some(its)) => own == its,
            (None, None) => self.device == other.device,
            _ => false,
        }
    }
}

/// Which device has which part of a model.
#[derive(Clone, Debug)]
pub struct Placement {
    devices: Vec<Arc<dyn Device>>,
    shares: Vec<Share>,
    /// By section, its device.
    sections: Vec<usize>,
    tensors: Vec<PlacedTensor>,
}

impl Placement {
    /// Shares a model out over devices, the most preferred first; the last should be able to do everything.
    pub fn new(
        file: &ModelFile,
        devices: Vec<Arc<dyn Device>>,
        options: &PlacementOptions,
    ) -> Result<Placement, Error> {
        Placement::beside(file, devices, options, |_| 0)
    }

    /// The same, where some devices hold so many bytes for the model already.
    pub(crate) fn beside(
        file: &ModelFile,
        devices: Vec<Arc<dyn Device>>,
        options: &PlacementOptions,
        held: impl Fn(&Arc<dyn Device>) -> usize,
    ) -> Result<Placement, Error> {
        if devices.is_empty() {
            return Err(Error::setting("the list of devices", "empty", "a model needs at least one"));
        }
        if let Some(wrong) = options.overrides.iter().find(|exception| exception.device >= devices.len()) {
            let rule = format!("there are {} devices", devices.len());
            return Err(Error::setting("the device of an override", wrong.device, rule));
        }
        let free = |device: &Arc<dyn Device>| Ok(device.memory()?.free.saturating_add(held(device)));
        let free = devices.iter().map(free).collect::<Result<Vec<usize>, Error>>()?;
        match options.proportions {
            Proportions::SpareLast { most } if devices.len() > 1 => {
                Placement::spare_last(file, &devices, free, options, most)
            }
            _ => {
                let ratios = ratios(&options.proportions, &free)?;
                Placement::by_ratios(file, devices, free, &ratios, options)
            }
        }
    }

    /// The last device gets as few parts as the memory of the others allows, and the limit of how many they may have.
    fn spare_last(
        file: &ModelFile,
        devices: &[Arc<dyn Device>],
        free: Vec<usize>,
        options: &PlacementOptions,
        most: Option<usize>,
    ) -> Result<Placement, Error> {
        let parts = file.hyper().blocks.len() + 1;
        let last = devices.len() - 1;
        // With so many parts for the last one.
        let with = |spared: usize| {
            let mut ratios = ratios(&Proportions::ByFreeMemory, &free)?;
            let others: f64 = ratios[..last].iter().sum();
            ratios[last] = others * spared as f64 / (parts - spared) as f64;
            if spared == parts {
                ratios = (0..=last).map(|device| f64::from(u8::from(device == last))).collect();
            }
            Placement::by_ratios(file, devices.to_vec(), free.clone(), &ratios, options)
        };
        let fits = |placement: &Placement| {
            let others = &placement.shares[..last];
            let blocks: usize = others.iter().map(|share| share.blocks.len()).sum();
            most.is_none_or(|most| blocks <= most) && others.iter().all(|share| share.needed() <= share.free)
        };
        let mut found = with(0)?;
        if fits(&found) {
            return Ok(found);
        }
        // Too few, and enough or all.
        let (mut too_few, mut enough) = (0, parts);
        found = with(parts)?;
        while enough - too_few > 1 {
            let middle = too_few.midpoint(enough);
            let tried = with(middle)?;
            if fits(&tried) {
                (enough, found) = (middle, tried);
            } else {
                too_few = middle;
            }
        }
        Ok(found)
    }

    fn by_ratios(
        file: &ModelFile,
        devices: Vec<Arc<dyn Device>>,
        free: Vec<usize>,
        ratios: &[f64],
        options: &PlacementOptions,
    ) -> Result<Placement, Error> {
        let runner = match file.hyper().sees_whole() {
            true => options.runner,
            false => options.runner.checked(file.hyper())?,
        };
        let states = block_states(file, &runner)?;
        let sections = share_out(file, options, &states, ratios, &devices);
        let mut shares: Vec<Share> =
            devices.iter().zip(free).map(|(device, free)| share(device, free)).collect();
        let blocks = file.hyper().blocks.len();
        let mut tensors: Vec<PlacedTensor> = Vec::new();
        for needed in file.needed() {
            let own = sections[needed.section.index(blocks)];
            let device = exception(options, needed).unwrap_or(own);
            let bytes = needed.layout.byte_len();
            // What several parts on a device share is there once.
            if !tensors.iter().any(|other| other.name == needed.name && other.device == device) {
                shares[device].weights += bytes;
            }
            tensors.push(PlacedTensor { name: needed.name.clone(), section: needed.section, bytes, device });
        }
        for (share, bytes) in shares.iter_mut().zip(results(file, &runner, &sections, &devices)?) {
            share.results = bytes;
        }
        for (block, bytes) in states.into_iter().enumerate() {
            let share = &mut shares[sections[Section::Block(block).index(blocks)]];
            share.state += bytes;
            share.blocks =
                if share.blocks.is_empty() { block..block + 1 } else { share.blocks.start..block + 1 };
        }
        Ok(Placement { devices, shares, sections, tensors })
    }

    /// The devices.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    /// What goes to each device.
    pub fn shares(&self) -> &[Share] {
        &self.shares
    }

    /// What computes with each tensor.
    pub(crate) fn computed_by(&self) -> Vec<ComputedBy> {
        let computed_by = |tensor: &PlacedTensor| {
            let Share { name, arithmetic, .. } = &self.shares[tensor.device];
            ComputedBy { device: name.clone(), arithmetic: *arithmetic }
        };
        self.tensors.iter().map(computed_by).collect()
    }

    /// Where each tensor goes. One that several parts need is listed for each.
    pub fn tensors(&self) -> &[PlacedTensor] {
        &self.tensors
    }

    /// The device of a part of the model.
    pub fn device_of(&self, section: Section) -> usize {
        let index = section.index(self.sections.len() - 2);
        self.sections[index]
    }

    /// The first device that has less memory free than the placement needs there.
    pub fn shortfall(&self) -> Option<&Share> {
        self.shares.iter().find(|share| share.needed() > share.free)
    }

    /// Fails if there is such a device.
    pub fn check_room(&self) -> Result<(), Error> {
        match self.shortfall() {
            Some(share) => {
                Err(Error::NoRoom { device: share.name.clone(), free: share.free, needed: share.needed() })
            }
            None => Ok(()),
        }
    }

    pub(crate) fn sections(&self) -> &[usize] {
        &self.sections
    }
}

fn share(device: &Arc<dyn Device>, free: usize) -> Share {
    Share {
        name: device.name().to_owned(),
        description: device.description().to_owned(),
        free,
        blocks: 0..0,
        weights: 0,
        state: 0,
        results: 0,
        mapped: is_mapped(&**device),
        arithmetic: device.arithmetic(),
    }
}

/// Whether a device computes on the host's memory, so that it can use a mapped file as it is.
pub(crate) fn is_mapped(device: &dyn Device) -> bool {
    device.caps().buffer_from_host && device.buffer_type().is_host()
}

fn ratios(proportions: &Proportions, free: &[usize]) -> Result<Vec<f64>, Error> {
    let ratios = match proportions {
        Proportions::ByFreeMemory | Proportions::SpareLast { .. } => {
            free.iter().map(|&free| free.max(1) as f64).collect()
        }
        Proportions::SkipLast => {
            let mut ratios: Vec<f64> = free.iter().map(|&free| free.max(1) as f64).collect();
            ratios.pop_if(|_| free.len() > 1);
            ratios.resize(free.len(), 0.0);
            ratios
        }
        Proportions::Ratios(ratios) => ratios.clone(),
    };
    let refuse = |rule: String| Err(Error::setting("the split", format!("{ratios:?}"), rule));
    if ratios.len() != free.len() {
        return refuse(format!("must have a number for each of {} devices", free.len()));
    }
    if !ratios.iter().all(|ratio| ratio.is_finite() && *ratio >= 0.0) {
        return refuse("numbers must not be negative".into());
    }
    if ratios.iter().all(|&ratio| ratio == 0.0) {
        return refuse("some number must be positive".into());
    }
    Ok(ratios)
}

/// Bytes of each block's state.
fn block_states(file: &ModelFile, runner: &RunnerOptions) -> Result<Vec<usize>, Error> {
    let hyper = file.hyper();
    let &RunnerOptions { context, sequences, tokens, batch, .. } = runner;
    let cells = cell_counts(hyper, tokens, context, sequences, batch);
    let cache = runner.cache_types();
    let sizes = Sizes { cells, rows: sequences + 1, pages: context.div_ceil(PAGE), cache };
    let bytes = |block: &Block| Ok(sizes.block_bytes(&block.state, block.windowed)?);
    hyper.blocks.iter().map(bytes).collect()
}

/// Bytes of results on each device in the largest step: what a graph without data needs whose nodes are with their parts of
/// the model, and its inputs, of which every device may have a copy.
fn results(
    file: &ModelFile,
    runner: &RunnerOptions,
    sections: &[usize],
    devices: &[Arc<dyn Device>],
) -> Result<Vec<usize>, Error> {
    let hyper = file.hyper();
    let style = Style {
        path: AttentionPath::usual(hyper),
        cache: runner.cache_types(),
        long_context: !hyper.sees_whole() && runner.context > hyper.rope.n_ctx_orig,
    };
    let pooling = hyper.widest_pooling();
    let RunnerOptions { context, sequences, tokens, batch, .. } = *runner;
    let cells = match style.path {
        AttentionPath::Plain => cell_counts(hyper, tokens, context, sequences, batch),
        AttentionPath::Paged | AttentionPath::Flash { .. } => [0; KINDS],
    };
    let built = file.survey(StepShape { pooling, cells, ..runner.largest_step(hyper) }, style)?;
    let (graph, blocks) = (&built.graph, hyper.blocks.len());
    let device = |id: TensorId| sections[built.part_of(id).index(blocks)] as u16;
    let pool_of: Vec<u16> = graph.ids().map(device).collect();
    let types: Vec<_> = devices.iter().map(|device| device.buffer_type()).collect();
    let pools: Vec<Pool> = types.iter().map(|buffer_type| Pool::of(&**buffer_type)).collect();
    let size_of = |tensor: TensorRef<'_>, _pool: usize| tensor.byte_len();
    let plan = plan(&Request::new(graph, &pools, &pool_of, &size_of), Strategy::Whole)?;
    let mut inputs = 0;
    for id in graph.ids() {
        let tensor = graph.tensor(id)?;
        inputs += if tensor.has(Flags::INPUT) { tensor.byte_len() } else { 0 };
    }
    // What comes from the device before.
    let row = DType::F32.block_bytes() * hyper.embedding;
    let between = if devices.len() > 1 { runner.batch * row + inputs } else { 0 };
    Ok(plan.pools().iter().map(|pool| pool.peak() + between).collect())
}

/// The device of each section: blocks and output in order, each where its middle falls.
fn share_out(
    file: &ModelFile,
    options: &PlacementOptions,
    states: &[usize],
    ratios: &[f64],
    devices: &[Arc<dyn Device>],
) -> Vec<usize> {
    let blocks = states.len();
    let mut sizes = vec![0_usize; blocks + 2];
    for needed in file.needed() {
        if exception(options, needed).is_none() {
            sizes[needed.section.index(blocks)] += needed.layout.byte_len();
        }
    }
    sizes[1..=blocks].iter_mut().zip(states).for_each(|(size, state)| *size += state);
    let total: f64 = sizes[1..].iter().map(|&size| size as f64).sum();
    let all: f64 = ratios.iter().sum();
    let last = ratios.iter().rposition(|&ratio| ratio > 0.0).unwrap_or(0);
    let mut sections = vec![0; blocks + 2];
    let mut before = 0.0;
    for (section, &size) in sections.iter_mut().zip(&sizes).skip(1) {
        let middle = (before + size as f64 / 2.0) / total.max(1.0);
        let mut reached = 0.0;
        *section = (0..=last)
            .find(|&device| {
                reached += ratios[device] / all;
                ratios[device] > 0.0 && middle < reached
            })
            .unwrap_or(last);
        before += size as f64;
    }
    let host = devices.len() - 1;
    sections[0] = if is_mapped(&*devices[host]) { host } else { sections[1] };
    sections
}

fn exception(options: &PlacementOptions, needed: &Needed) -> Option<usize> {
    let matching = options.overrides.iter().find(|exception| exception.matches(&needed.name));
    matching.map(|exception| exception.device)
}

/// Whether a name matches a pattern, in which `*` stands for anything; without one, whether it contains it.
fn matches(pattern: &str, name: &str) -> bool {
    if !pattern.contains('*') {
        return name.contains(pattern);
    }
    let mut pieces = pattern.split('*');
    let Some(mut rest) = name.strip_prefix(pieces.next().unwrap_or("")) else { return false };
    let mut pieces: Vec<&str> = pieces.collect();
    let end = pieces.pop().unwrap_or("");
    for piece in pieces {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.ends_with(end)
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes: usize| ByteSize(bytes as u64);
        let (input, output) = (self.device_of(Section::Input), self.device_of(Section::Output));
        for (index, share) in self.shares.iter().enumerate() {
            let mut parts = Vec::new();
            parts.extend((input == index).then(|| "embeddings".to_owned()));
            parts.extend(match share.blocks.len() {
                0 => None,
                1 => Some(format!("block {}", share.blocks.start)),
                _ => Some(format!("blocks {}-{}", share.blocks.start, share.blocks.end - 1)),
            });
            parts.extend((output == index).then(|| "output".to_owned()));
            let parts = if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") };
            let (weights, state) = (size(share.weights), size(share.state));
            let mapped = if share.mapped { ", mapped" } else { "" };
            writeln!(f, "{}: {parts}; {weights} of weights{mapped}, {state} of state", share.name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_people_expect() {
        for (pattern, name, expected) in [
            ("exps", "blk.3.ffn_up_exps.weight", true),
            ("blk.3.*", "blk.3.attn_q.weight", true),
            ("blk.3.*", "blk.30.attn_q.weight", false),
            ("*.weight", "output.weight", true),
            ("*.bias", "output.weight", false),
            ("blk.*.ffn_*_exps.weight", "blk.12.ffn_down_exps.weight", true),
            ("blk.*.ffn_*_exps.weight", "blk.12.ffn_down.weight", false),
            ("*", "anything", true),
            ("", "anything", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
