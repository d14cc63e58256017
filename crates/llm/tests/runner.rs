//! The same bits, whatever else is in the batch; and few graphs, however many sequences there are.
#![allow(clippy::unwrap_used, reason = "tests")]

mod model_support;

use std::path::PathBuf;

use model_support::Golden;
use model_support::together::{Count, check};
use oxcart_llm::runner::{Piece, Runner, RunnerOptions, Wanted};
use oxcart_tensor::DType;

fn tiny() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/data/tiny.gguf")
}

/// Every number of sequences from one to 64 is computed, twice: graphs are made ready for the sizes that serve them all, and not again.
#[test]
fn few_graphs_serve_any_number_of_sequences() {
    const MOST: usize = 64;
    // One for each number up to 32, then eight from one power of two to the next.
    const SIZES: usize = 32 + 8;
    let (model, streams) = model_support::load(&tiny(), 1);
    let options = RunnerOptions { context: 256, sequences: MOST, tokens: 8192, ..RunnerOptions::default() };
    let mut runner = Runner::new(model, streams, options).unwrap();
    let ids: Vec<_> = (0..MOST).map(|_| runner.open().unwrap()).collect();
    let mut sweep = || {
        for count in 1..=MOST {
            let piece = |&sequence| Piece { sequence, tokens: &[1], wanted: Wanted::Last };
            let pieces: Vec<Piece<'_>> = ids[..count].iter().map(piece).collect();
            runner.compute(&pieces).unwrap();
        }
        runner.usage().graphs
    };
    assert_eq!(sweep(), SIZES);
    assert_eq!(sweep(), SIZES, "a graph was made ready again");
}

#[test]
fn sequences_do_not_notice_each_other() {
    for cache_type in [DType::F32, DType::F16, DType::Q8_0] {
        check(&tiny(), Count { of_all: 64, scalar: 64 }, cache_type, 5);
    }
}

#[test]
fn sequences_of_all_architectures_do_not_notice_each_other() {
    let Some(models) = Golden::all() else { return };
    for golden in models.iter().filter(|golden| !golden.is_encoder()) {
        check(&golden.path(), Count { of_all: 12, scalar: 4 }, DType::F16, 9);
    }
}
