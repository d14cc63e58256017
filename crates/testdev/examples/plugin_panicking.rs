//! A plug-in with a bug: it panics when it starts.

use std::sync::Arc;

use oxcart_backend::Registry;

fn score() -> u32 {
    1
}

fn init() -> Result<Arc<dyn Registry>, String> {
    // The panic is wanted. In a log of tests it would be taken for the one that is not.
    std::panic::set_hook(Box::new(|_| ()));
    panic!("the driver is {} years old", 20)
}

oxcart_backend::export_plugin! { score: score, init: init }
