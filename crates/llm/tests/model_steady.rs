//! Decoding allocates nothing, once it is under way, but what the CPU device does for itself.
#![allow(clippy::print_stderr, clippy::unwrap_used, reason = "tests")]

mod model_support;

use std::time::Instant;

use model_support::{Golden, Session, load};
use oxcart_llm::runner::{Piece, RunnerOptions, Wanted};
use oxcart_tally::allocations;
use oxcart_tensor::DType;

#[test]
fn a_step_allocates_nothing_of_its_own() {
    let Some(models) = Golden::all() else { return };
    for name in ["llama-gqa-f32", "gemma3-f32", "gpt-oss-f32"] {
        let golden = models.iter().find(|golden| golden.name() == name).unwrap();
        for (devices, cache_type) in [(1, DType::F16), (1, DType::F32), (2, DType::F16)] {
            let (model, streams) = load(&golden.path(), devices);
            let options = RunnerOptions { context: 256, cache_type, ..RunnerOptions::default() };
            let mut session = Session::new(model, streams, options).unwrap();
            let mut decode = |token: u32| {
                let piece = Piece { sequence: session.id, tokens: &[token], wanted: Wanted::Last };
                session.runner.compute(&[piece]).unwrap();
            };
            (0..10).for_each(&mut decode);
            let (before, started) = (allocations(), Instant::now());
            (0..200).for_each(&mut decode);
            let each = started.elapsed() / 200;
            // The CPU device makes two lists for each split that it runs, and a row where a block stores its keys; the
            // runner a few short lists of what is in a step.
            let splits = session.runner.prepared().unwrap().splits().len();
            let own = 2 * splits + session.runner.model().hyper().blocks.len() + 20;
            let found = allocations() - before;
            assert!(found <= 200 * own, "{name} on {devices}, {cache_type}: {found}, not {}", 200 * own);
            eprintln!("{name} on {devices}, {cache_type}: {each:?} a step");
        }
    }
}
