//! What systems do differently. The rest of the crate asks nothing about the system it runs on.
//!
//! Invariant: a client that is gone without a word is found out by the system, even where nothing is sent to it.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// When a silent client is taken for lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeepAlive {
    /// Silence after which its machine is asked whether it is still there.
    pub(crate) after: Duration,
    /// Time between two such questions.
    pub(crate) every: Duration,
    /// Unanswered questions after which it is gone.
    pub(crate) tries: u32,
    /// Time that sent bytes may stay unacknowledged. Linux alone takes it from us; elsewhere the system's own limit holds, which is minutes.
    pub(crate) unacknowledged: Duration,
}

/// Has the system find out whether the other side is still there.
pub(crate) fn keep_alive(stream: &TcpStream, limits: &KeepAlive) -> io::Result<()> {
    let options = SockRef::from(stream);
    let asking = TcpKeepalive::new().with_time(limits.after).with_interval(limits.every);
    options.set_tcp_keepalive(&asking)?;
    // Windows before version 1703 takes no number; its own is ten.
    let counted = options.set_tcp_keepalive(&asking.with_retries(limits.tries));
    if !cfg!(windows) {
        counted?;
    }
    limit_unacknowledged(&options, limits.unacknowledged)
}

#[cfg(target_os = "linux")]
fn limit_unacknowledged(options: &SockRef<'_>, limit: Duration) -> io::Result<()> {
    options.set_tcp_user_timeout(Some(limit))
}

#[cfg(not(target_os = "linux"))]
fn limit_unacknowledged(_: &SockRef<'_>, _: Duration) -> io::Result<()> {
    Ok(())
}
