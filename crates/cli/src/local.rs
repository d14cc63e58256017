//! The devices of this machine: the arguments that choose among them, and finding them.
//!
//! Invariant: no command knows a kind of device; all of them see what [`oxcart::devices`] finds, plug-ins included.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use oxcart::backend::{Device, DeviceKind, Registries, StreamOptions};
use oxcart::llm::model::Proportions;

use crate::failure::Failure;
use crate::units;

/// Where devices come from
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PluginArgs {
    /// Load devices from this plug-in, a shared library built with this version of Oxcart; may be repeated
    #[arg(long = "plugin", value_name = "FILE")]
    plugins: Vec<PathBuf>,
}

impl PluginArgs {
    /// All devices of this machine, the CPU last.
    pub(crate) fn find(&self) -> Result<Registries, Failure> {
        oxcart::devices::find(&self.plugins).map_err(|error| Failure::Device { error })
    }
}

/// Devices of this machine
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DeviceArgs {
    /// Use only this device of this machine; may be repeated. By default, all that `oxcart devices` lists
    #[arg(long = "device", value_name = "NAME")]
    names: Vec<String>,

    #[command(flatten)]
    pub(crate) plugins: PluginArgs,

    /// CPU threads to compute with. By default, one per processor
    #[arg(short, long, value_name = "N", value_parser = units::whole(1..=512_u16))]
    pub(crate) threads: Option<u16>,

    /// Put at most this many blocks on this machine's graphics cards (and on workers, if there are any), the rest on its CPU; also -ngl. 0 leaves the cards
    /// unused; all means as many as fit
    #[arg(long, value_name = "N", default_value = "all", value_parser = parse_gpu_layers)]
    gpu_layers: GpuLayers,

    /// Give the same answers, bit for bit, however requests are batched and prompts split; slower on graphics cards
    #[arg(long)]
    exact: bool,
}

/// Whether cards take part; llama.cpp's `-ngl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GpuLayers {
    None,
    AtMost(usize),
    AsFit,
}

fn parse_gpu_layers(text: &str) -> Result<GpuLayers, String> {
    match (text, text.parse::<i64>()) {
        ("all" | "auto", _) | (_, Ok(-1)) => Ok(GpuLayers::AsFit),
        (_, Ok(0)) => Ok(GpuLayers::None),
        (_, Ok(count @ 1..)) => Ok(usize::try_from(count).map_or(GpuLayers::AsFit, GpuLayers::AtMost)),
        _ => Err("must be 0, a number of blocks, or all".into()),
    }
}

/// Devices that models are shared out among, the CPU being the last.
#[derive(Debug)]
pub(crate) struct WithCpu {
    pub(crate) devices: Vec<Arc<dyn Device>>,
    /// How, unless `--split` says so; `None` where the CPU was not chosen and gets nothing.
    pub(crate) usual: Option<Proportions>,
}

impl DeviceArgs {
    /// The chosen devices, in the order in which they are found; the CPU, if it is among them, is the last.
    pub(crate) fn chosen(&self) -> Result<Vec<Arc<dyn Device>>, Failure> {
        let chosen = self.choose(&self.plugins.find()?)?;
        match chosen.is_empty() {
            true => Err(Failure::Usage("--gpu-layers 0 excludes every device that --device names".into())),
            false => Ok(chosen),
        }
    }

    /// The chosen devices, then the CPU.
    pub(crate) fn chosen_and_cpu(&self) -> Result<WithCpu, Failure> {
        let found = self.plugins.find()?;
        let mut chosen = self.choose(&found)?;
        let limited = self.limited(&chosen);
        if chosen.last().is_some_and(|device| device.kind() == DeviceKind::Cpu) {
            let usual = limited.unwrap_or_else(|| match self.names.is_empty() {
                true => oxcart::devices::usual_proportions(&chosen),
                false => Proportions::ByFreeMemory,
            });
            return Ok(WithCpu { devices: chosen, usual: Some(usual) });
        }
        chosen.extend(found.device_by_kind(DeviceKind::Cpu));
        Ok(WithCpu { devices: chosen, usual: limited })
    }

    /// How models are shared out if cards are among the devices and may have no more than some blocks.
    fn limited(&self, chosen: &[Arc<dyn Device>]) -> Option<Proportions> {
        let GpuLayers::AtMost(most) = self.gpu_layers else { return None };
        let has_card = chosen.iter().any(|device| device.kind() != DeviceKind::Cpu);
        has_card.then_some(Proportions::SpareLast { most: Some(most) })
    }

    /// Whether blocks were to be on cards and there is none among the devices.
    pub(crate) fn misses_cards(&self, devices: &[Arc<dyn Device>]) -> bool {
        matches!(self.gpu_layers, GpuLayers::AtMost(_))
            && devices.iter().all(|device| device.kind() == DeviceKind::Cpu)
    }

    fn choose(&self, found: &Registries) -> Result<Vec<Arc<dyn Device>>, Failure> {
        let all = found.devices();
        if let Some(unknown) = self.names.iter().find(|name| found.device_by_name(name).is_none()) {
            let names: Vec<_> = all.iter().map(|device| device.name()).collect();
            return Err(Failure::Usage(format!(
                "there is no device '{}'; available: {}",
                unknown.escape_debug(),
                names.join(", ")
            )));
        }
        let is_wanted = |device: &Arc<dyn Device>| {
            if self.gpu_layers == GpuLayers::None && device.kind() != DeviceKind::Cpu {
                return false;
            }
            self.names.is_empty() || self.names.iter().any(|name| name.eq_ignore_ascii_case(device.name()))
        };
        Ok(all.into_iter().filter(is_wanted).collect())
    }

    /// How their streams are opened.
    pub(crate) fn stream_options(&self) -> StreamOptions {
        let threads = self.threads.map(usize::from).and_then(NonZeroUsize::new);
        StreamOptions { threads, exact: self.exact, ..StreamOptions::default() }
    }
}
