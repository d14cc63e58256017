//! A connection whose other side may take its time, but not for ever.
//!
//! Invariant: the other side has [`STALL_TIME`] altogether in which it takes nothing, and gains some for what it takes, never beyond that; when
//! it has none left, a write fails, and with it the connection. So a client that reads hardly anything holds its buffers for about that time,
//! and one that reads slowly for no longer than its bytes take at [`SLOWEST_RATE`].

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::limits::{SLOWEST_RATE, STALL_TIME};

/// How long may still be waited.
#[derive(Debug)]
struct Patience(Duration);

impl Patience {
    /// After so long a wait.
    fn spend(&mut self, waited: Duration) {
        self.0 = self.0.saturating_sub(waited);
    }

    /// After so many bytes were taken.
    fn gain(&mut self, bytes: usize) {
        let time = Duration::from_secs_f64(bytes as f64 / SLOWEST_RATE);
        self.0 = self.0.saturating_add(time).min(STALL_TIME);
    }
}

/// A write that waits.
struct Wait {
    since: Instant,
    limit: Pin<Box<Sleep>>,
}

pub(crate) struct Patient<S> {
    stream: S,
    patience: Patience,
    wait: Option<Wait>,
}

impl<S> Patient<S> {
    pub(crate) fn new(stream: S) -> Patient<S> {
        Patient { stream, patience: Patience(STALL_TIME), wait: None }
    }

    /// Passes on what a write came to, unless it waits for too long.
    fn wait<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            if let Some(wait) = self.wait.take() {
                self.patience.spend(wait.since.elapsed());
            }
            return written;
        }
        let left = self.patience.0;
        let wait = self.wait.get_or_insert_with(|| {
            let since = Instant::now();
            Wait { since, limit: Box::pin(tokio::time::sleep_until(since + left)) }
        });
        match wait.limit.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }

    /// As [`wait`](Patient::wait), for a write of bytes.
    fn wait_to_write(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let written = self.wait(written, context);
        if let Poll::Ready(Ok(bytes)) = written {
            self.patience.gain(bytes);
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wait_to_write(written, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.wait(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.wait(shut, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.wait_to_write(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_byte_now_and_then_gains_nothing() {
        let mut patience = Patience(STALL_TIME);
        patience.spend(STALL_TIME - SECOND);
        patience.gain(1);
        assert!(patience.0 < 2 * SECOND, "{patience:?}");
        patience.spend(2 * SECOND);
        assert_eq!(patience.0, Duration::ZERO);
    }

    #[test]
    fn who_reads_slowly_may_go_on() {
        let mut patience = Patience(STALL_TIME);
        for _ in 0..100_000 {
            patience.spend(30 * SECOND);
            patience.gain(30 * SLOWEST_RATE as usize);
        }
        assert!(patience.0 > STALL_TIME - SECOND, "{patience:?}");
        // Reading fast is no reserve for stopping longer.
        patience.gain(1 << 30);
        assert_eq!(patience.0, STALL_TIME);
    }

    /// Takes one byte, and then none.
    struct Full(bool);

    impl AsyncWrite for Full {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            match std::mem::replace(&mut self.0, true) {
                false => Poll::Ready(Ok(1)),
                true => Poll::Pending,
            }
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// A write waits no longer than those before it have left.
    #[test]
    fn writes_that_wait_share_their_time() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut patient = Patient::new(Full(false));
            patient.patience.spend(STALL_TIME);
            let mut write = async || {
                std::future::poll_fn(|context| Pin::new(&mut patient).poll_write(context, b"ab")).await
            };
            assert_eq!(write().await.unwrap(), 1);
            assert_eq!(write().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        });
    }
}
