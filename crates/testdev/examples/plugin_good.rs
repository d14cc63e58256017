//! A plug-in as it should be: one family with one device.

use std::sync::Arc;

use oxcart_backend::Registry;
use oxcart_testdev::{Config, TestRegistry};

fn score() -> u32 {
    1
}

fn init() -> Result<Arc<dyn Registry>, String> {
    Ok(TestRegistry::new("Plugged", vec![Config::accelerator("PLUG0")]))
}

oxcart_backend::export_plugin! { score: score, init: init }
