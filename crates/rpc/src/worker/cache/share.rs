//! Who gets an equal part of what a cache has to give: room, and places for writing.
//!
//! Invariant: all addresses of one peer have one share, however many trust domains they are. What is served to whom does not
//! depend on it.

use super::domain::Domain;
use crate::worker::peer::Peer;

/// One part among equals. Its domains share it as equals too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Share {
    /// A machine, or all addresses of a place.
    Peer(Peer),
    /// A user of this machine.
    Domain(Domain),
}
