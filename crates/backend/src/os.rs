//! What systems do differently.

pub(crate) mod give_back;
