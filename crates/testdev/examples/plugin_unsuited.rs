//! A plug-in that says it cannot run on this machine.

use std::sync::Arc;

use oxcart_backend::Registry;

fn score() -> u32 {
    0
}

fn init() -> Result<Arc<dyn Registry>, String> {
    unreachable!("a plug-in that cannot run is not started")
}

oxcart_backend::export_plugin! { score: score, init: init }
