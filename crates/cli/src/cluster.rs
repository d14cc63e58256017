//! What a server tells of its machines and of who has which part of a model.

use std::sync::Arc;

use oxcart::backend::Registry;
use oxcart::llm::model::{Placement, Section, Share};
use oxcart_http::{DeviceShare, Link, Machine, Machines, Plan, PlanWithout, Plans};

use crate::loaded::{Departure, Loaded, shortfall};
use crate::workers::{Traffic, Workers};

/// What the machine is called that the server runs on.
const HERE: &str = "this machine";

/// Says how the machines are: workers in their order, then this one.
pub(crate) fn machines(workers: &Workers) -> Machines {
    let registries = workers.registries().to_vec();
    Arc::new(move || {
        let workers = registries.iter().map(|registry| {
            let Traffic { sent, received, waits } = Traffic::of(registry);
            Machine {
                name: registry.endpoint().to_owned(),
                link: Some(Link { sent_bytes: sent, received_bytes: received, round_trips: waits }),
                failure: registry.failure().map(|failure| failure.to_string()),
                devices: Vec::new(),
            }
        });
        let here = Machine { name: HERE.to_owned(), ..Machine::default() };
        workers.chain([here]).collect()
    })
}

/// Where a model is, and where it would be.
pub(crate) fn plans(loaded: &Loaded) -> Plans {
    let workers: Vec<(&str, usize)> = loaded
        .workers
        .registries()
        .iter()
        .map(|registry| (registry.endpoint(), registry.devices().len()))
        .collect();
    let without = loaded.departures.iter().enumerate().map(|(gone, departure)| PlanWithout {
        machine: workers[gone].0.to_owned(),
        plan: plan_without(departure, &workers, gone),
    });
    Plans {
        blocks: loaded.model.hyper().blocks.len(),
        now: plan(loaded.model.placement(), &workers),
        without: without.collect(),
    }
}

fn plan_without(departure: &Departure, workers: &[(&str, usize)], gone: usize) -> Plan {
    let mut left = workers.to_vec();
    left.remove(gone);
    match departure {
        Ok(placement) => plan(placement, &left),
        Err(failure) => Plan { shares: Vec::new(), problem: Some(failure.to_string()) },
    }
}

/// A placement over the devices of workers, so many each, and then those of this machine.
fn plan(placement: &Placement, workers: &[(&str, usize)]) -> Plan {
    let owners = workers.iter().flat_map(|&(worker, devices)| std::iter::repeat_n(worker, devices));
    let owners = owners.chain(std::iter::repeat(HERE));
    let (input, output) = (placement.device_of(Section::Input), placement.device_of(Section::Output));
    let share = |(at, (share, machine)): (usize, (&Share, &str))| DeviceShare {
        machine: machine.to_owned(),
        device: share.name.clone(),
        description: share.description.clone(),
        blocks: [share.blocks.start, share.blocks.end],
        has_input: at == input,
        has_output: at == output,
        weights_bytes: share.weights as u64,
        cache_bytes: share.state as u64,
        results_bytes: share.results as u64,
        free_bytes: share.free as u64,
        is_mapped: share.mapped,
    };
    Plan {
        shares: placement.shares().iter().zip(owners).enumerate().map(share).collect(),
        problem: shortfall(placement),
    }
}
