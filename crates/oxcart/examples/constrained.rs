//! An answer that is JSON of a certain form: `cargo run --release -p oxcart --example constrained -- [MODEL]`
#![allow(clippy::print_stdout, reason = "an example is there to be looked at")]

use std::error::Error;

use oxcart::llm::text::{Grammar, Message};
use serde_json::json;

fn main() -> Result<(), Box<dyn Error>> {
    let mut session = oxcart::Session::open(std::env::args().nth(1).unwrap_or("smollm2".into()))?;
    let schema = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 40 },
            "born": { "type": "integer", "minimum": 1000, "maximum": 2100 },
        },
        "required": ["name", "born"],
        "additionalProperties": false,
    });
    let mut request =
        session.reply(&[Message::new("user", "Who wrote Faust? Answer with JSON: name, born.")])?;
    request.constraint = Some(session.engine().compile(&Grammar::json_schema(schema))?);
    request.limit = 200;
    for piece in session.answer(request)? {
        print!("{}", piece?);
    }
    println!();
    Ok(())
}
