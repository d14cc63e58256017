//! What is looked at on this machine. Nothing is made or changed: a folder or an identity that is not here yet is reported as such.

use std::env::consts::{ARCH, OS};
use std::path::Path;
use std::thread::available_parallelism;

use oxcart::backend::{ByteSize, Device, DeviceKind};
use oxcart::cpu::{CpuDevice, Level};
use oxcart::rpc::link::{Identity, IdentityError, MachinesError};
use serde_json::json;

use super::finding::{Finding, Findings};
use crate::local::PluginArgs;
use crate::models;
use crate::os;
use crate::quantity::counted;
use crate::trust;

/// Less free memory than this is hardly enough for a small model.
const LITTLE_MEMORY: usize = 1 << 30;

/// Less free disk space than this is not enough for most models.
const LITTLE_DISK: u64 = 4 << 30;

/// Looks at everything on this machine.
pub(super) fn examine(plugins: &PluginArgs, findings: &Findings) {
    findings
        .add(Finding::good("version", format!("Oxcart {} for {OS} on {ARCH}", env!("CARGO_PKG_VERSION"))));
    findings.add(processor());
    devices(plugins, findings);
    findings.add(models());
    findings.add(identity());
    findings.add(machines());
}

fn processor() -> Finding {
    const ABOUT: &str = "processor";
    let cpu = match CpuDevice::new() {
        Ok(cpu) => cpu,
        Err(error) => {
            return Finding::problem(ABOUT, error.to_string(), "unset OXCART_CPU");
        }
    };
    let threads = available_parallelism().map_or(1, usize::from);
    let text = format!("{}, {}", cpu.description(), counted(threads, "thread"));
    let values = json!({ "instructions": cpu.level().to_string(), "threads": threads });
    let finding = match (cpu.level(), std::env::var_os("OXCART_CPU")) {
        (Level::Scalar, Some(_)) => {
            Finding::warning(ABOUT, format!("{text}: as OXCART_CPU says, and slow"), "unset OXCART_CPU")
        }
        (Level::Scalar, None) => Finding::warning(
            ABOUT,
            format!("{text}: it computes, but slowly, because this processor has no AVX2"),
            "let a machine with a newer processor or a graphics card compute: oxcart worker there, oxcart join here",
        ),
        _ => Finding::good(ABOUT, text),
    };
    finding.with(values)
}

/// Memory and cards.
fn devices(plugins: &PluginArgs, findings: &Findings) {
    let found = match plugins.find() {
        Ok(found) => found.devices(),
        Err(failure) => {
            return findings.add(Finding::problem(
                "devices",
                failure.to_string(),
                "check what --plugin names, or leave it out",
            ));
        }
    };
    for device in &found {
        let about = if device.kind() == DeviceKind::Cpu { "memory" } else { "graphics card" };
        findings.add(memory(about, &**device));
    }
    let unusable = oxcart::devices::unavailable();
    for reason in oxcart::devices::missing() {
        findings.add(match unusable.contains(&reason) {
            true => Finding::warning(
                "graphics card",
                reason,
                "install the current driver from nvidia.com/drivers; without it, the processor computes",
            ),
            false => Finding::note("graphics card", format!("{reason}, so the processor computes")),
        });
    }
}

fn memory(about: &'static str, device: &dyn Device) -> Finding {
    let memory = match device.memory() {
        Ok(memory) => memory,
        Err(error) => return Finding::note(about, error.to_string()),
    };
    let (free, total) = (ByteSize(memory.free as u64), ByteSize(memory.total as u64));
    let whose = match device.kind() {
        DeviceKind::Cpu => String::new(),
        _ => format!("{}, {}: ", device.name(), device.description()),
    };
    let text = format!("{whose}{free} of {total} are free");
    let finding = match memory.free < LITTLE_MEMORY {
        true => Finding::warning(
            about,
            format!("{text}, which is not enough for most models"),
            "end other programs, or use another machine's memory as well: oxcart worker there, oxcart join here",
        ),
        false => Finding::good(about, text),
    };
    finding.with(json!({ "device": device.name(), "free": memory.free, "total": memory.total }))
}

fn models() -> Finding {
    const ABOUT: &str = "models";
    let store = match models::store() {
        Ok(store) => store,
        Err(failure) => {
            return Finding::problem(ABOUT, failure.to_string(), "export OXCART_CACHE=/path/to/a/folder");
        }
    };
    let folder = store.root();
    let exists = folder.ancestors().find(|folder| folder.exists());
    let values = |free: Option<u64>| json!({ "folder": folder.display().to_string(), "free": free });
    if let Some(exists) = exists.filter(|exists| !exists.is_dir() || !os::may_write(exists)) {
        let shown = exists.display();
        return Finding::problem(
            ABOUT,
            format!("models cannot be kept in {}: this user may not write to {shown}", folder.display()),
            format!("sudo chown -R $USER '{shown}', or set OXCART_CACHE to another folder"),
        )
        .with(values(None));
    }
    let free = store.free_bytes();
    let disk = free.map_or_else(String::new, |free| format!(", {} of the disk are free", ByteSize(free)));
    let text = format!("{} in {}{disk}", counted(store.kept().len(), "model"), folder.display());
    let finding = match free {
        Some(free) if free < LITTLE_DISK => Finding::warning(
            ABOUT,
            text,
            "oxcart list shows the models, and oxcart rm NAME removes one; OXCART_CACHE names another folder",
        ),
        _ => Finding::good(ABOUT, text),
    };
    finding.with(values(free))
}

fn identity() -> Finding {
    const ABOUT: &str = "identity";
    let folder = match trust::folder() {
        Ok(folder) => folder,
        Err(failure) => {
            return Finding::problem(ABOUT, failure.to_string(), "export XDG_DATA_HOME=/path/to/a/folder");
        }
    };
    match Identity::existing(&folder) {
        Ok(Some(identity)) => Finding::good(
            ABOUT,
            format!("this machine's key is {}, private to this user", identity.key().short()),
        )
        .with(json!({ "key": identity.key().to_string() })),
        Ok(None) => Finding::note(ABOUT, "this machine has no key yet; it is made when it is first paired"),
        Err(error) => {
            let remedy = match &error {
                IdentityError::Exposed { path, .. } => made_private(path),
                _ => "bring back the file from a backup, or move it and machines.toml away and pair again"
                    .into(),
            };
            Finding::problem(ABOUT, error.to_string(), remedy)
        }
    }
}

fn machines() -> Finding {
    const ABOUT: &str = "pairing";
    let Ok(file) = trust::file() else {
        return Finding::note(ABOUT, "without a home folder, no machine can be paired with this one");
    };
    let machines = match file.read() {
        Ok(machines) => machines,
        Err(error) => {
            let remedy = match &error {
                MachinesError::Exposed { path, .. } => made_private(path),
                _ => "correct the file, or move it away and pair again".into(),
            };
            return Finding::problem(ABOUT, error.to_string(), remedy);
        }
    };
    let lending = machines.iter().filter(|machine| machine.lends()).count();
    let may_use = machines.iter().filter(|machine| machine.may_use_this).count();
    let verbs =
        |count: usize, one: &'static str, several: &'static str| if count == 1 { one } else { several };
    let text = format!(
        "{} {} devices to this one, and {may_use} may use it",
        counted(lending, "machine"),
        verbs(lending, "lends", "lend"),
    );
    Finding::good(ABOUT, text).with(json!({ "lending": lending, "may_use_this_machine": may_use }))
}

/// What makes a private file private again.
fn made_private(path: &Path) -> String {
    let folder = path.parent().unwrap_or(path).display();
    format!(
        "if no other user has read it: chmod 700 '{folder}' && chmod 600 '{}'; otherwise move it away and pair again",
        path.display()
    )
}
