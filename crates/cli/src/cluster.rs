//! What a server tells of its machines and of who has which part of a model.

use std::sync::Arc;

use oxcart::backend::Registry;
use oxcart::llm::model::{Placement, Section, Share};
use oxcart::rpc::client::RemoteRegistry;
use oxcart_http::{
    ClusterPlacement, ClusterPlacements, DeviceShare, Link, Machine, Machines, PlacementWithout,
};

use crate::plan::shortfall;
use crate::recovery::Departure;
use crate::workers::{Traffic, Workers};

/// What the machine is called that the server runs on.
const HERE: &str = "this machine";

/// Says how the machines are: workers in their order, then this one.
pub(crate) fn machines(workers: &Arc<Workers>) -> Machines {
    let workers = Arc::clone(workers);
    Arc::new(move || {
        let workers = workers.links().into_iter().map(|(registry, traffic)| {
            let Traffic { sent, received, waits } = traffic;
            Machine {
                name: registry.called().to_owned(),
                address: Some(registry.endpoint().to_owned()),
                link: Some(Link { sent_bytes: sent, received_bytes: received, round_trips: waits }),
                failure: registry.failure().map(|failure| failure.to_string()),
                devices: Vec::new(),
            }
        });
        let here = Machine { name: HERE.to_owned(), ..Machine::default() };
        workers.chain([here]).collect()
    })
}

/// Where a model of so many blocks is, and where it would be.
pub(crate) fn plans(
    blocks: usize,
    placement: &Placement,
    departures: &[Departure],
    workers: &Workers,
) -> ClusterPlacements {
    let without = departures.iter().map(|departure| PlacementWithout {
        machine: departure.worker.clone(),
        plan: match &departure.placement {
            Ok(placement) => plan(placement, workers),
            Err(failure) => ClusterPlacement { shares: Vec::new(), problem: Some(failure.to_string()) },
        },
    });
    ClusterPlacements { blocks, now: plan(placement, workers), without: without.collect() }
}

/// A placement over devices of workers and of this machine.
fn plan(placement: &Placement, workers: &Workers) -> ClusterPlacement {
    let registries = workers.registries();
    let owner = |share: &Share| {
        let has = |registry: &&Arc<RemoteRegistry>| {
            registry.devices().iter().any(|device| device.name() == share.name)
        };
        let registry = registries.iter().find(has);
        registry.map_or(HERE, |registry| registry.called()).to_owned()
    };
    let (input, output) = (placement.device_of(Section::Input), placement.device_of(Section::Output));
    let share = |(at, share): (usize, &Share)| DeviceShare {
        machine: owner(share),
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
    ClusterPlacement {
        shares: placement.shares().iter().enumerate().map(share).collect(),
        problem: shortfall(placement),
    }
}
