//! Recorded models over workers: two that this test starts, or those that `OXCART_WORKERS` names (`host:port,host:port`),
//! which may be llama.cpp's.
//!
//! Needs the recorded data (`OXCART_GOLDEN`); says so and stops where it is not given.
#![allow(clippy::print_stderr, clippy::unwrap_used, reason = "tests")]

mod model_support;

use std::sync::Arc;

use model_support::{Golden, PLAINEST, Way, decode, decode_on, judge};
use oxcart_backend::{Device, Registry, Stream, StreamOptions};
use oxcart_cpu::CpuDevice;
use oxcart_llm::model::{Model, ModelFile, Placement, PlacementOptions, Proportions};
use oxcart_rpc::client::{Options, RemoteRegistry};
use oxcart_rpc::wire::Command;
use oxcart_rpc::worker::{Config, DialectChoice, Worker};
use oxcart_tensor::DType;

/// Workers of this process.
fn workers(count: usize) -> (Vec<Worker>, Vec<String>) {
    (0..count)
        .map(|_| {
            let mut config = Config::new([CpuDevice::new().unwrap() as Arc<dyn Device>]);
            config.stream = StreamOptions::threads(1);
            let mut worker = Worker::new(config).unwrap();
            let address = worker.listen("127.0.0.1:0", DialectChoice::Auto).unwrap();
            (worker, address.to_string())
        })
        .unzip()
}

/// A model on the workers, the first part of it here.
fn load(golden: &Golden, registries: &[Arc<RemoteRegistry>]) -> (Arc<Model>, Vec<Box<dyn Stream>>) {
    let mut devices: Vec<Arc<dyn Device>> =
        registries.iter().map(|registry| registry.devices().remove(0)).collect();
    let mut ratios = vec![1.0; devices.len()];
    devices.push(CpuDevice::new().unwrap());
    ratios.push(0.0);
    let file = ModelFile::open(golden.path()).unwrap();
    let options =
        PlacementOptions { proportions: Proportions::Ratios(ratios), ..PlacementOptions::default() };
    let placement = Placement::new(&file, devices.clone(), &options).unwrap();
    let model = Model::load(file, placement, &|_| {}).unwrap();
    let open = |device: Arc<dyn Device>| device.open(&StreamOptions::threads(1)).unwrap();
    (model, devices.into_iter().map(open).collect())
}

fn connect(endpoints: &[String]) -> Vec<Arc<RemoteRegistry>> {
    endpoints.iter().map(|endpoint| RemoteRegistry::connect(endpoint, &Options::default()).unwrap()).collect()
}

#[test]
fn recorded_models_over_workers() {
    let Some(models) = Golden::all() else { return };
    let given = std::env::var("OXCART_WORKERS").ok();
    let (_workers, endpoints) = match &given {
        Some(list) => (Vec::new(), list.split(',').map(str::to_owned).collect()),
        None => workers(2),
    };
    let mut failures = Vec::new();
    for golden in models.iter().filter(|golden| !golden.is_encoder()) {
        for cache_type in [DType::F32, DType::F16] {
            let registries = connect(&endpoints);
            let (model, streams) = load(golden, &registries);
            let way = Way { cache_type, ..PLAINEST };
            let (rows, session) = decode_on(golden, way, model, streams);
            match judge(golden, &rows, cache_type) {
                Ok(said) => eprintln!("{} {cache_type}: {said}", golden.name()),
                Err(said) => failures.push(format!("{} {cache_type}: {said}", golden.name())),
            }
            if given.is_some() {
                continue;
            }
            assert_eq!(rows, decode(golden, way), "{}: workers compute what is computed here", golden.name());
            // One split here, one on each worker; graphs are sent once for the prompt and once for all that follow.
            assert_eq!(session.runner.prepared().unwrap().splits().len(), 3, "{}", golden.name());
            for registry in &registries {
                let messages = |command| registry.traffic().of(command).messages;
                assert_eq!(messages(Command::GraphCompute), 2, "{}", golden.name());
                assert_eq!(messages(Command::GraphRecompute), 7, "{}", golden.name());
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
