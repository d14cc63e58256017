//! A plug-in as it should be: one family with one device, which has less memory than any machine.

use std::sync::Arc;

use oxcart_backend::Registry;
use oxcart_testdev::{Config, TestRegistry};

fn score() -> u32 {
    1
}

fn init() -> Result<Arc<dyn Registry>, String> {
    let device = Config { capacity: 64 << 20, ..Config::accelerator("PLUG0") };
    Ok(TestRegistry::new("Plugged", vec![device]))
}

oxcart_backend::export_plugin! { score: score, init: init }
