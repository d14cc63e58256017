//! What systems do differently, one module per concern. The rest of the crate asks nothing about the system it runs on.

pub(crate) mod affinity;
pub(crate) mod allocator;
pub(crate) mod memory;
pub(crate) mod processor;
