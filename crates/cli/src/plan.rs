//! Plans: which device would get which part of a model, shown to people and to programs, and why one cannot work.

use std::io::Write;
use std::path::Path;

use oxcart::backend::ByteSize;
use oxcart::llm::model::{Model, Override, Placement, Share};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::loaded::EngineArgs;
use crate::quantity;
use crate::table::{Align, Cell, Table};
use crate::terminal::Terminal;
use crate::workers::device_name;

/// Which device has what, for programs.
pub(crate) fn placement_report(model: &Model) -> Value {
    model.placement().shares().iter().map(share_report).collect()
}

/// What one device has, for programs.
fn share_report(share: &Share) -> Value {
    json!({
        "device": share.name,
        "blocks": if share.blocks.is_empty() { Value::Null } else { json!([share.blocks.start, share.blocks.end - 1]) },
        "weights_bytes": share.weights,
        "cache_bytes": share.state,
        "mapped": share.mapped,
    })
}

/// A plan, for programs.
pub(crate) fn plan_report(path: &Path, placement: &Placement, args: &EngineArgs) -> Value {
    let share = |share: &Share| {
        let mut report = share_report(share);
        report["needed_bytes"] = share.needed().into();
        report["free_bytes"] = share.free.into();
        report
    };
    json!({
        "model": path.to_string_lossy(),
        "context": args.context_size(),
        "fits": placement.shortfall().is_none(),
        "placement": placement.shares().iter().map(share).collect::<Vec<_>>(),
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

/// `CPU@host:50052   blocks 0-14   45.1 MiB weights`
pub(crate) fn show_placement(
    placement: &Placement,
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
    Ok(Table { columns, titles, rows }.write(out, terminal)?)
}
