//! A plug-in that cannot start and says why.

use std::sync::Arc;

use oxcart_backend::Registry;

fn score() -> u32 {
    1
}

fn init() -> Result<Arc<dyn Registry>, String> {
    Err("no driver found".into())
}

oxcart_backend::export_plugin! { score: score, init: init }
