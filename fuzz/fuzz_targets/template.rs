//! Arbitrary text as a chat template: it is refused or rendered, in bounded time and memory, and never by a fault of the
//! engine's. Run with -timeout=5 -rss_limit_mb=2048.
#![no_main]

use oxcart_llm::text::{ChatOptions, ChatTemplate, Message, TemplateError};

libfuzzer_sys::fuzz_target!(|source: &str| {
    let messages = [Message::new("system", "Be brief."), Message::new("user", " Hi <there> \n"), Message::new("assistant", "")];
    let Ok(template) = ChatTemplate::new(source) else { return };
    assert_ne!(template.render(&messages, &ChatOptions::default()), Err(TemplateError::Broken));
});
