//! Plans: which device would get which part of a model, shown to people and to programs, and why one cannot work.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use oxcart::backend::ByteSize;
use oxcart::llm::model::{Model, Override, Placement, Proportions, Section, Share};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::loaded::EngineArgs;
use crate::quantity;
use crate::table::{Align, Cell, Table};
use crate::terminal::Terminal;
use crate::workers::{Workers, device_name};

/// Which device has what, for programs.
pub(crate) fn placement_report(model: &Model, workers: &Workers) -> Value {
    model.placement().shares().iter().map(|share| share_report(share, workers)).collect()
}

/// What one device has, for programs.
fn share_report(share: &Share, workers: &Workers) -> Value {
    json!({
        "device": share.name,
        "address": workers.address_of(&share.name),
        "blocks": if share.blocks.is_empty() { Value::Null } else { json!([share.blocks.start, share.blocks.end - 1]) },
        "weights_bytes": share.weights,
        "cache_bytes": share.state,
        "mapped": share.mapped,
    })
}

/// A plan, for programs.
pub(crate) fn plan_report(
    path: &Path,
    placement: &Placement,
    proportions: &Proportions,
    args: &EngineArgs,
    workers: &Workers,
) -> Value {
    let share = |(at, share): (usize, &Share)| {
        let mut report = share_report(share, workers);
        report["why_nothing"] = why_idle(placement, proportions, at).into();
        report["needed_bytes"] = share.needed().into();
        report["free_bytes"] = share.free.into();
        report
    };
    json!({
        "model": path.to_string_lossy(),
        "context": args.context_size(),
        "fits": placement.shortfall().is_none(),
        "placement": placement.shares().iter().enumerate().map(share).collect::<Vec<_>>(),
    })
}

/// Why a plan cannot work.
pub(crate) fn too_small(placement: &Placement, args: &EngineArgs) -> Option<Failure> {
    let context = args.context_size();
    let advice = "add a worker, or change --split, --ctx or --kv";
    shortfall(placement).map(|problem| Failure::NoRoom(format!("{problem} with --ctx {context}: {advice}")))
}

/// Every pattern of `--place` is about some tensor, and names a device of the plan.
pub(crate) fn check_overrides(placement: &Placement, overrides: &[Override]) -> Result<(), Failure> {
    let devices = placement.devices().len();
    if let Some(wanted) = overrides.iter().find(|wanted| wanted.device >= devices) {
        let known = match devices {
            1 => "it has only device 0".to_owned(),
            _ => format!("its devices are numbered from 0 to {}", devices.saturating_sub(1)),
        };
        return Err(Failure::Usage(format!(
            "--place {}={}: the plan has no device {}; {known}, as --plan shows",
            wanted.pattern.escape_debug(),
            wanted.device,
            wanted.device
        )));
    }
    let has = |wanted: &Override| placement.tensors().iter().any(|tensor| wanted.matches(&tensor.name));
    match overrides.iter().find(|wanted| !has(wanted)) {
        Some(wanted) => Err(Failure::Usage(format!(
            "--place {}={}: no tensor of the model has such a name; oxcart inspect --tensors lists them",
            wanted.pattern.escape_debug(),
            wanted.device
        ))),
        None => Ok(()),
    }
}

/// Which device has too little memory for its part, if one has.
pub(crate) fn shortfall(placement: &Placement) -> Option<String> {
    let share = placement.shortfall()?;
    let (free, needed) = (ByteSize(share.free as u64), ByteSize(share.needed() as u64));
    Some(format!("{} has {free} free, but its part of the model needs {needed}", device_name(&share.name)))
}

/// Why a device other than the last, which helps out where it has to, gets nothing of a model; none if it gets some of it.
fn why_idle(placement: &Placement, proportions: &Proportions, at: usize) -> Option<String> {
    let (shares, share) = (placement.shares(), placement.shares().get(at)?);
    if share.weights > 0 || !share.blocks.is_empty() || at + 1 == shares.len() {
        return None;
    }
    let blocks: usize = shares.iter().map(|share| share.blocks.len()).sum();
    let others: usize = shares[..shares.len() - 1].iter().map(|share| share.blocks.len()).sum();
    match proportions {
        Proportions::Ratios(ratios) if ratios.get(at).is_none_or(|ratio| *ratio == 0.0) => {
            return Some("--split gives it nothing".into());
        }
        Proportions::SpareLast { most: Some(most) } if others >= *most => {
            return Some("others have all blocks that --gpu-layers allows".into());
        }
        _ => {}
    }
    let least = least_block(placement);
    Some(if share.free < least {
        let (free, least) = (ByteSize(share.free as u64), ByteSize(least as u64));
        format!("it has {free} free, and a block of the model needs {least}")
    } else if blocks < shares.len() {
        format!("the model has only {}", quantity::counted(blocks, "block"))
    } else {
        "its share would be less than a block of the model; --split can give it more".into()
    })
}

/// Bytes that the smallest block of a model needs, with its state.
fn least_block(placement: &Placement) -> usize {
    let mut weights = BTreeMap::new();
    for tensor in placement.tensors() {
        if let Section::Block(block) = tensor.section {
            *weights.entry(block).or_insert(0) += tensor.bytes;
        }
    }
    let state: usize = placement.shares().iter().map(|share| share.state).sum();
    weights.values().min().map_or(0, |least| least + state / weights.len())
}

/// `CPU@host:50052   blocks 0-14   45.1 MiB weights`, and why devices get nothing.
pub(crate) fn show_placement(
    placement: &Placement,
    proportions: &Proportions,
    terminal: Terminal,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let bytes = |bytes: usize| Cell::quantity(quantity::bytes(bytes as u64));
    let rows = placement.shares().iter().enumerate().map(|(at, share)| {
        let blocks = match share.blocks.len() {
            0 => "-".to_owned(),
            1 => share.blocks.start.to_string(),
            _ => format!("{}-{}", share.blocks.start, share.blocks.end - 1),
        };
        [
            Cell::dim(at.to_string()),
            Cell::plain(device_name(&share.name)),
            Cell::plain(blocks),
            bytes(share.weights),
            bytes(share.state),
            bytes(share.free),
        ]
    });
    let columns = [Align::Right, Align::Left, Align::Left, Align::Right, Align::Right, Align::Right];
    let titles = Some(["#", "device", "blocks", "weights", "cache", "free"]);
    Table { columns, titles, rows }.write(out, terminal)?;
    for (at, share) in placement.shares().iter().enumerate() {
        if let Some(why) = why_idle(placement, proportions, at) {
            writeln!(out, "  {} gets no part of the model: {why}", device_name(&share.name))?;
        }
    }
    Ok(())
}
