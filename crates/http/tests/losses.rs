//! Devices that are lost under a server: what `/cluster` says about it, and in which words.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::sync::Arc;

use oxcart_backend::{Device, StreamOptions};
use oxcart_cpu::CpuDevice;
use oxcart_http::{
    Cluster, ClusterPlacement, ClusterPlacements, Config, CurrentPlacements, DeviceBlocks, DeviceShare,
    Limits, Listeners, LostMachine, Models, Server,
};
use oxcart_llm::engine::{Engine, EngineOptions};
use oxcart_llm::model::{Model, Placement, PlacementOptions, Proportions};
use oxcart_llm::runner::Lineup;
use oxcart_llm::text::Vocab;
use oxcart_testdev::FrailDevice;
use serde_json::json;
use support::{get, options, post, served, tiny_file};

/// A device of a worker, as a client names it, and the worker.
const DEVICE: &str = "RPC0[den:50052]";
const MACHINE: &str = "den:50052";

fn plans(placement: &Placement) -> ClusterPlacements {
    let share = |share: &oxcart_llm::model::Share| DeviceShare {
        machine: if share.name == DEVICE { MACHINE } else { "this machine" }.into(),
        device: share.name.clone(),
        blocks: [share.blocks.start, share.blocks.end],
        ..DeviceShare::default()
    };
    let now = ClusterPlacement { shares: placement.shares().iter().map(share).collect(), problem: None };
    ClusterPlacements { blocks: 4, now, without: Vec::new() }
}

/// A server whose model is on a device that may be lost and on the host, and what is there in its place if it recovers.
fn a_server(recovers: bool) -> (Server, Arc<FrailDevice>) {
    let frail = FrailDevice::new(DEVICE, CpuDevice::new().unwrap(), 1 << 30);
    let devices: Vec<Arc<dyn Device>> = vec![Arc::clone(&frail) as _, CpuDevice::new().unwrap()];
    let runner = options(2);
    let placing = PlacementOptions {
        proportions: Proportions::Ratios(vec![1.0, 1.0]),
        runner,
        ..PlacementOptions::default()
    };
    let lineup = Lineup::new(devices, placing, StreamOptions::threads(1));
    let file = tiny_file();
    let vocab = Arc::new(Vocab::from_gguf(&file.metadata()).unwrap());
    let placement = lineup.place(&file).unwrap();
    let current = CurrentPlacements::from(plans(&placement));
    let model = Model::load(file, placement, &|_| {}).unwrap();
    let mut engine = Engine::new(lineup.runner(model).unwrap(), vocab, EngineOptions::default());
    if recovers {
        engine.recover_with(lineup);
    }
    let explain = Box::new(|error: oxcart_llm::model::Error| error.to_string().replace(DEVICE, MACHINE));
    let served = served("tiny", engine, Limits::default()).placed(current).explained_by(explain);
    let config = Config::new(Models::new(vec![served]).unwrap());
    (Server::start(Listeners::local().unwrap(), config).unwrap(), frail)
}

#[test]
fn the_last_losses_are_told() {
    let (server, frail) = a_server(true);
    let ask = || {
        post(&server, "/v1/completions", &json!({ "prompt": "the end", "max_tokens": 5, "ignore_eos": true }))
    };
    let picture = || serde_json::from_value::<Cluster>(get(&server, "/cluster").json()).unwrap();
    assert_eq!(ask().status, 200);
    assert!(picture().models[0].interruptions.is_empty());
    frail.lose_after(5);
    let answer = ask();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let picture = picture();
    let model = &picture.models[0];
    let [loss] = model.interruptions.as_slice() else { panic!("{model:?}") };
    assert_eq!(loss.lost, [LostMachine { machine: MACHINE.into(), reason: "its time had come".into() }]);
    assert_eq!((loss.returned.len(), loss.requests), (0, 1));
    assert!(loss.uptime_seconds > 0.0 && loss.uptime_seconds <= picture.uptime_seconds, "{loss:?}");
    let parts = loss.noticing_ms + loss.planning_ms + loss.loading_ms + loss.recomputing_ms;
    // Each is cut to whole milliseconds.
    assert!(parts <= loss.stall_ms && loss.stall_ms <= parts + 4, "{loss:?}");
    assert!(!loss.numerics_changed);
    let owners = |blocks: &[DeviceBlocks]| -> Vec<(String, [usize; 2])> {
        blocks.iter().map(|device| (device.machine.clone(), device.blocks)).collect()
    };
    let end = loss.after[0].blocks[1];
    let before = owners(&loss.before);
    let [(first, [0, half]), (second, rest)] = before.as_slice() else { panic!("{loss:?}") };
    assert_eq!((first.as_str(), second.as_str(), rest), (MACHINE, "this machine", &[*half, end]));
    assert_eq!(owners(&loss.after), [("this machine".to_owned(), [0, end])]);
}

/// Where no other device can take its part, the request fails, in the words of the program that serves.
#[test]
fn a_step_that_failed_is_told_in_words_for_people() {
    let (server, frail) = a_server(false);
    frail.lose_after(0);
    let answer = post(&server, "/v1/completions", &json!({ "prompt": "the end", "max_tokens": 5 }));
    assert_eq!(answer.status, 500, "{}", answer.text());
    let trouble = get(&server, "/cluster").json()["models"][0]["trouble"].clone();
    for told in [answer.text(), trouble.as_str().unwrap()] {
        assert!(told.contains("den:50052") && !told.contains("RPC"), "{told}");
    }
}
