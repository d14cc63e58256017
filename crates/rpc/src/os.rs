//! What systems do differently, one module per concern and one file per system. The rest of the crate asks nothing about
//! the system it runs on.

pub(crate) mod clock;
pub(crate) mod private_file;
pub(crate) mod socket;
pub(crate) mod thread_time;
