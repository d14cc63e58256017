//! Memory that clients used goes back to the system once they leave.
//!
//! Large blocks do so by themselves. Of small ones, allocators keep whole pages, some for each thread there was, and a worker
//! that lives for months would hold what its busiest minute took.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use oxcart::rpc::worker::{Event, Observer};

/// How long to wait for others to leave too: a walk over all memory is worth it a few times a second at most.
const PAUSE: Duration = Duration::from_millis(200);

/// An observer that passes events on, and wakes a thread that tidies up after clients.
pub(crate) fn tidy(next: Observer) -> Observer {
    let (wake, woken) = sync_channel(1);
    // Without the thread everything still works; memory stays where it is.
    let _ = thread::Builder::new().name("tidy".into()).spawn(move || keep_tidy(&woken));
    Arc::new(move |event| {
        next(event);
        // In a flood, clients that left are only counted.
        if matches!(event, Event::Left { .. } | Event::Suppressed { .. }) {
            // If the thread is awake already, it will see to this too.
            let _ = wake.try_send(());
        }
    })
}

fn keep_tidy(woken: &Receiver<()>) {
    while woken.recv().is_ok() {
        thread::sleep(PAUSE);
        oxcart::cpu::return_kept_memory();
    }
}
