//! Points in a stream that others can wait for.

use std::any::Any;
use std::fmt;

use crate::error::Error;

/// A point in a stream: recorded by one, waited for by others or by the caller.
pub trait Event: Send + Sync + fmt::Debug {
    /// Waits until the stream that recorded it last has come this far. An event that was never recorded is over.
    fn synchronize(&self) -> Result<(), Error>;

    /// The concrete event, for the device it belongs to.
    fn as_any(&self) -> &dyn Any;
}
