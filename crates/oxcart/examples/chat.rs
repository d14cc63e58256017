//! A question and its answer, as it comes: `cargo run --release -p oxcart --example chat -- "Why is the sky blue?" [MODEL]`
#![allow(clippy::print_stdout, reason = "an example is there to be looked at")]

use std::env::args;
use std::error::Error;
use std::io::{Write, stdout};

fn main() -> Result<(), Box<dyn Error>> {
    let question = args().nth(1).unwrap_or("Why is the sky blue?".into());
    let mut session = oxcart::Session::open(args().nth(2).unwrap_or("smollm2".into()))?;
    for piece in session.ask(&question)? {
        print!("{}", piece?);
        stdout().flush()?;
    }
    println!();
    Ok(())
}
