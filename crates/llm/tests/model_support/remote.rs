//! Workers, and models on them.

use std::path::Path;
use std::sync::Arc;

use oxcart_backend::{Device, Registry, Stream, StreamOptions};
use oxcart_cpu::CpuDevice;
use oxcart_llm::model::{Model, ModelFile, Placement, PlacementOptions, Proportions};
use oxcart_rpc::client::{Options, RemoteRegistry};
use oxcart_rpc::worker::{Config, DialectChoice, Worker};

/// Workers of this process.
pub(crate) fn workers(count: usize) -> (Vec<Worker>, Vec<String>) {
    workers_speaking(count, DialectChoice::Auto)
}

/// The same, by a protocol.
pub(crate) fn workers_speaking(count: usize, choice: DialectChoice) -> (Vec<Worker>, Vec<String>) {
    (0..count)
        .map(|_| {
            let mut config = Config::new([CpuDevice::new().unwrap() as Arc<dyn Device>]);
            config.stream = StreamOptions::threads(1);
            let mut worker = Worker::new(config).unwrap();
            let address = worker.listen("127.0.0.1:0", choice).unwrap();
            (worker, address.to_string())
        })
        .unzip()
}

/// A model on the workers, the first part of it here.
pub(crate) fn load(path: &Path, registries: &[Arc<RemoteRegistry>]) -> (Arc<Model>, Vec<Box<dyn Stream>>) {
    let mut devices: Vec<Arc<dyn Device>> =
        registries.iter().map(|registry| registry.devices().remove(0)).collect();
    let mut ratios = vec![1.0; devices.len()];
    devices.push(CpuDevice::new().unwrap());
    ratios.push(0.0);
    let file = ModelFile::open(path).unwrap();
    let options =
        PlacementOptions { proportions: Proportions::Ratios(ratios), ..PlacementOptions::default() };
    let placement = Placement::new(&file, devices.clone(), &options).unwrap();
    let model = Model::load(file, placement, &|_| {}).unwrap();
    let open = |device: Arc<dyn Device>| device.open(&StreamOptions::threads(1)).unwrap();
    (model, devices.into_iter().map(open).collect())
}

pub(crate) fn connect(endpoints: &[String]) -> Vec<Arc<RemoteRegistry>> {
    endpoints.iter().map(|endpoint| RemoteRegistry::connect(endpoint, &Options::default()).unwrap()).collect()
}
