//! Every bound on pairing and on what is remembered of it, by name.

use std::time::Duration;

/// How long a join line is good for.
pub const INVITATION: Duration = Duration::from_secs(600);

/// Join lines that may be open at a time; beyond, the oldest closes.
pub const MAX_INVITATIONS: usize = 4;

/// Wrong proofs since the last line was shown after which people are told, once.
pub const MAX_GUESSES: u32 = 64;

/// Addresses in a join line.
pub const MAX_LINE_ADDRESSES: usize = 8;

/// Characters of a join line, spaces included.
pub const MAX_LINE_CHARS: usize = 4096;

/// Characters of a machine's name.
pub const MAX_NAME_CHARS: usize = 63;

/// Places at which a machine is remembered; beyond, the oldest is forgotten.
pub const MAX_PLACES: usize = 64;

/// Names that are looked up side by side.
pub const LOOK_UPS: usize = 16;

/// How long the names of known machines are waited for, all together.
pub const LOOK_UP: Duration = Duration::from_secs(10);

/// How often it is looked whether the list of machines has changed.
pub const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long a look at that list is waited for; beyond, it counts as one that cannot be read.
pub const LOOK_PATIENCE: Duration = Duration::from_secs(2);

/// Machines that are remembered.
pub const MAX_MACHINES: usize = 1024;

/// Bytes of the file that they are remembered in.
pub const MAX_MACHINES_BYTES: u64 = 1 << 20;

/// Bytes of the file that holds an identity.
pub const MAX_IDENTITY_BYTES: u64 = 4096;

/// The shortest time that a worker may leave a beat without an echo.
pub const SHORTEST_PATIENCE: Duration = Duration::from_millis(200);

/// Beats that a client sends within the time that a worker may leave one without an echo.
pub const BEATS_PER_LIMIT: u32 = 8;

/// The shortest time between two beats, however short that is.
pub const SHORTEST_INTERVAL: Duration = Duration::from_millis(25);

/// The longest time between two beats, however long that is.
pub const LONGEST_INTERVAL: Duration = Duration::from_secs(5);

/// Beats without an echo beyond which none is sent: as long as these are not answered, more tell nothing.
pub const MAX_UNANSWERED: usize = 4 * BEATS_PER_LIMIT as usize;

/// A client that has done nothing for so long was asleep, or at least its network may have been.
pub const SLEEP: Duration = Duration::from_secs(5);

/// The time that a worker may leave beats without an echo after that, until the first: networks take seconds to come back.
pub const WAKING_PATIENCE: Duration = Duration::from_secs(15);

/// The time that a worker may leave a beat without an echo while nothing waits for it, if its limit is not longer anyway.
pub const QUIET_PATIENCE: Duration = Duration::from_secs(60);

/// Bytes that are encrypted and not yet sent, of one connection.
pub const MAX_UNSENT_BYTES: usize = 32 << 10;

/// Bytes that may come of a connection in TLS, after its handshake, in which nothing is said: empty records and changes of keys, and a part of
/// the longest record that says something. The library bounds either, but not both in turn.
pub const MAX_SILENT_BYTES: usize = 64 << 10;

/// Bytes of a connection in TLS beyond those of a plain one: what is unsent, a record that arrives, and what was in it.
pub const SECURED_BYTES: usize = MAX_UNSENT_BYTES + (2 << 14);

const _: () =
    assert!(SHORTEST_PATIENCE.as_millis() == SHORTEST_INTERVAL.as_millis() * BEATS_PER_LIMIT as u128);
