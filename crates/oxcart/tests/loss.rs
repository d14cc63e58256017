//! A session goes on when a worker is lost.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use oxcart::Request;
use oxcart::llm::engine::{Event, Recovery};
use oxcart::llm::model::{PlacementOptions, Proportions};
use oxcart::llm::text::SamplerSettings;
use oxcart::rpc::worker::{Config, DialectChoice, Worker};

/// The tokens of an answer over two workers, of which one is lost after so many of them; and what was told of devices.
fn answer(lost_after: Option<usize>) -> (Vec<u32>, Vec<String>) {
    let devices = || oxcart::devices::find(&[] as &[&str]).unwrap().devices();
    let mut workers =
        vec![Worker::new(Config::new(devices())).unwrap(), Worker::new(Config::new(devices())).unwrap()];
    let listen = |worker: &mut Worker| worker.listen("127.0.0.1:0", DialectChoice::Auto).unwrap().to_string();
    let addresses: Vec<String> = workers.iter_mut().map(listen).collect();
    let mut ratios = vec![1.0; 2 * devices().len()];
    ratios.extend(vec![0.0; devices().len()]);
    let placement =
        PlacementOptions { proportions: Proportions::Ratios(ratios), ..PlacementOptions::default() };
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/data/tiny.gguf");
    let mut session = oxcart::Loader::new(model).workers(addresses).placement(placement).load().unwrap();
    let request = Request {
        limit: 60,
        ignore_end: true,
        sampler: SamplerSettings { seed: 3, ..SamplerSettings::default() },
        ..session.completion("the end")
    };
    let (mut tokens, mut told) = (Vec::new(), Vec::new());
    let mut answer = session.answer(request).unwrap();
    while let Some(event) = answer.next_event() {
        match event.unwrap() {
            Event::Token(token) => tokens.push(token.token),
            Event::Lost(loss) => told.push(format!("lost in epoch {}", loss.epoch)),
            Event::Recovered(recovery) => {
                assert!(recovery.tokens > 0);
                let Recovery { noticing, planning, loading, stall, .. } = recovery;
                assert_eq!(noticing + planning + loading + recovery.recomputing(), stall);
                told.push(format!("{} recovered in epoch {}", recovery.requests, recovery.epoch));
            }
            event => assert!(matches!(event, Event::Finished { .. }), "{event:?}"),
        }
        if lost_after == Some(tokens.len()) && workers.len() == 2 {
            drop(workers.remove(0));
        }
    }
    (tokens, told)
}

#[test]
fn a_session_goes_on_when_a_worker_is_lost() {
    let (expected, told) = answer(None);
    assert_eq!((expected.len(), told), (60, Vec::new()));
    let (tokens, told) = answer(Some(20));
    assert_eq!(tokens, expected);
    assert_eq!(told, ["lost in epoch 0", "1 recovered in epoch 1"]);
}
