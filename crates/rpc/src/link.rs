//! Trust between machines: who they are, how two of them meet, and what is said between them afterwards, in TLS 1.3.
//!
//! A machine is its [`Key`]. Its [`Identity`] proves it; [`Machines`] is whom it knows, a file that people can read, and
//! a [`Book`] what that file says now. Two machines meet
//! by a [`JoinLine`], which one shows and the other is given: [`pairing`] is that conversation as two state machines without a socket.
//! Workers that a client introduces to each other know each other for as long as its session lasts ([`introduction`]). A client knows by beats
//! and echoes that a worker is alive ([`pulse`]).
//! Connections between machines that know each other are TLS with both keys proved (`tls`), and inside of it the same protocol is
//! spoken as without.
//!
//! Invariants: nothing is sent to a machine before it has proved the key that was expected; no secret is ever sent, only proofs of it
//! that hold for one connection; a key that is not known is refused before it can say a word.

mod base32;
mod book;
mod files;
mod identity;
pub mod introduction;
mod invitations;
mod join_line;
mod key;
pub mod limits;
mod machines;
mod name;
mod network;
pub mod pairing;
pub mod pulse;
pub(crate) mod secured;
pub(crate) mod tls;

pub use book::Book;
pub use identity::{Identity, IdentityError};
pub use invitations::{Invitation, Invitations};
pub use join_line::{JoinLine, JoinLineError, Secret};
pub use key::{Key, KeyError};
pub use machines::{Found, Machine, Machines, MachinesError, MachinesFile, Place, PlaceError};
pub use name::{MachineName, NameError};
pub use network::{Network, NetworkError};
