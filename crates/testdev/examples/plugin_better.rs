//! The same family as `plugin_good`, for machines on which it does better.

use std::sync::Arc;

use oxcart_backend::Registry;
use oxcart_testdev::{Config, TestRegistry};

fn score() -> u32 {
    10
}

fn init() -> Result<Arc<dyn Registry>, String> {
    let config = Config { asynchronous: true, ..Config::accelerator("PLUG0-better") };
    Ok(TestRegistry::new("Plugged", vec![config]))
}

oxcart_backend::export_plugin! { score: score, init: init }
