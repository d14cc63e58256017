//! One thread that watches all connections: ends those that are late, and stops whatever those do that have gone.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::client::{Client, Phase};
use super::counters::add;
use super::limits::WATCH_EVERY;
use super::server::WorkerState;
use crate::os::socket;

/// How long the watcher sleeps while no client is connected.
const IDLE_SLEEP: Duration = Duration::from_millis(250);

/// Watches until the worker has shut down.
pub(crate) fn watch(shared: &WorkerState) {
    while !shared.ended.load(Ordering::Relaxed) {
        shared.roster.wait_for_some(IDLE_SLEEP);
        let clients = shared.roster.all();
        for client in &clients {
            if let Some(why) = client.overdue() {
                add(&shared.counters.dropped, 1);
                client.drop_for(why);
            }
        }
        for client in gone(&clients) {
            client.leave();
        }
        if let Some(trust) = &shared.trust {
            trust.watch(shared, &clients);
        }
        for client in clients.iter().filter(|client| client.is_gone()) {
            shared.stop(client);
        }
        // Holding on to a connection would keep its socket open.
        drop(clients);
        thread::sleep(WATCH_EVERY);
    }
}

/// Clients that have left, whatever is still to be done for them. Half a connection is of no use to a client: it could not read
/// a result that is worth computing, or would have read it before it stopped writing.
fn gone(clients: &[Arc<Client>]) -> Vec<&Arc<Client>> {
    let greeted = clients.iter().filter(|client| !client.is(Phase::Greeting));
    let (greeted, sockets): (Vec<_>, Vec<_>) =
        greeted.filter_map(|client| Some((client, client.socket.as_ref()?.stream()))).unzip();
    let left = socket::gone(&sockets).into_iter().zip(greeted).filter(|(gone, _)| *gone);
    left.map(|(_, client)| client).collect()
}
