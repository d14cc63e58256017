//! A model over workers: `cargo run --release -p oxcart --example remote -- MODEL HOST:PORT…`
#![allow(clippy::print_stdout, reason = "an example is there to be looked at")]

use std::error::Error;
use std::io::{Write, stdout};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().unwrap_or("smollm2".into());
    let mut session = oxcart::Loader::new(model).workers(arguments).load()?;
    print!("{}", session.engine().runner().model().placement());
    for piece in session.ask("Why is the sky blue?")?.take(20) {
        print!("{}", piece?);
        stdout().flush()?;
    }
    println!();
    Ok(())
}
