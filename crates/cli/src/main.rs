//! The `oxcart` command.

fn main() {}
