//! Many questions at a time: `cargo run --release -p oxcart --example batch -- [MODEL]`
#![allow(clippy::print_stdout, reason = "an example is there to be looked at")]

use std::collections::BTreeMap;
use std::error::Error;

use oxcart::llm::engine::Event;
use oxcart::llm::text::Message;

const QUESTIONS: [&str; 4] = ["Name a colour.", "Name a planet.", "Name a fruit.", "Name an animal."];

fn main() -> Result<(), Box<dyn Error>> {
    let model = std::env::args().nth(1).unwrap_or("smollm2".into());
    let mut session = oxcart::Loader::new(model).sequences(QUESTIONS.len()).load()?;
    let mut answers = BTreeMap::new();
    for question in QUESTIONS {
        let mut request = session.reply(&[Message::new("user", question)])?;
        request.limit = 24;
        answers.insert(session.engine().submit(request)?, (question, String::new()));
    }
    // Each step computes the next token of all of them.
    while session.engine().is_busy() {
        session.engine().step()?;
        while let Some(event) = session.engine().next_event() {
            // The loss of a worker is about none of them: all go on.
            let Some(id) = event.request() else { continue };
            let (question, answer) = answers.get_mut(&id).ok_or("an answer to no question")?;
            match event {
                Event::Token(token) => answer.push_str(&token.text),
                Event::Finished { end, .. } => println!("{question} {answer} ({})", end.name()),
                Event::Failed { error, .. } => println!("{question} failed: {error}"),
                _ => {}
            }
        }
    }
    Ok(())
}
