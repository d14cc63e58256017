//! Points in the one line that all streams to a worker share.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use oxcart_backend::{Error, Event};

use super::connection::Connection;

/// A point in a connection: over when the worker has done all that was asked of it before.
#[derive(Debug, Default)]
pub struct RemoteEvent {
    recorded: Mutex<Option<Point>>,
}

/// Everything on a connection before a ticket.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub(super) connection: Arc<Connection>,
    pub(super) ticket: u64,
    pub(super) device: String,
}

impl RemoteEvent {
    pub(super) fn set(&self, point: Point) {
        *self.recorded.lock().unwrap_or_else(PoisonError::into_inner) = Some(point);
    }

    pub(super) fn point(&self) -> Option<Point> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Event for RemoteEvent {
    fn synchronize(&self) -> Result<(), Error> {
        let Some(Point { connection, ticket, device }) = self.point() else { return Ok(()) };
        connection.finish(Some(ticket)).map_err(|failure| connection.error(&device, &failure))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
