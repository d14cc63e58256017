//! Every bound on what is read and shown of a file or a server, named once.
//!
//! Invariant: what a command remembers of a file, beyond the header that the reader holds, is bounded by these numbers
//! and not by the file. Whatever may be long is written as it is read.

use std::time::Duration;

/// Numbers of a model that differ by layer, at most; longer lists are shown as their length. Models have some hundred
/// layers.
pub(crate) const MAX_LAYERS: usize = 1024;

/// Metadata records shown in the text; models have less than a hundred. JSON has all of them.
pub(crate) const MAX_RECORDS_IN_TEXT: usize = 1000;

/// Elements of an array that are printed in JSON without being asked for, at most.
pub(crate) const SHORT_ARRAY: usize = 64;

/// Elements printed of arrays that are longer.
pub(crate) const FIRST_ELEMENTS: usize = 8;

/// Bytes of a file with a schema or a grammar. What the library takes is less, but does not count the layout of JSON.
pub(crate) const MAX_FORM_BYTES: u64 = 4 << 20;

/// Bytes of a file with API keys.
pub(crate) const MAX_KEY_FILE_BYTES: u64 = 1 << 20;

/// Messages that are remembered between chats.
pub(crate) const MAX_HISTORY_ENTRIES: usize = 1000;

/// Bytes of a message that is remembered; longer ones are not.
pub(crate) const MAX_HISTORY_ENTRY: usize = 64 << 10;

/// Bytes of remembered messages that are read.
pub(crate) const MAX_HISTORY_BYTES: u64 = 64 << 20;

/// Bytes of a file with a conversation.
pub(crate) const MAX_CONVERSATION_BYTES: u64 = 64 << 20;

/// Names that are offered to complete a line; the editor cannot show more than 65,535.
pub(crate) const MAX_COMPLETIONS: usize = 4096;

/// Bytes of a file that goes along with a message.
pub(crate) const MAX_ATTACHED_BYTES: u64 = 4 << 20;

/// Bytes of a picture of a cluster. It has a plan for each machine that might leave, with a share of each other: for a
/// hundred machines, some 3 MiB.
pub(crate) const MAX_PICTURE_BYTES: u64 = 16 << 20;

/// How long a server may take to send one.
pub(crate) const PICTURE_TIME: Duration = Duration::from_secs(10);
