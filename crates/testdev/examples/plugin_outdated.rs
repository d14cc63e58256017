//! A plug-in for another version of the interface. Nothing but its version may be looked at.

use std::sync::Arc;

use oxcart_backend::{Registry, plugin};

fn score() -> u32 {
    unreachable!("the version is looked at first")
}

fn init() -> Result<Arc<dyn Registry>, String> {
    unreachable!("the version is looked at first")
}

oxcart_backend::export_plugin! { version: plugin::API_VERSION + 1, score: score, init: init }
