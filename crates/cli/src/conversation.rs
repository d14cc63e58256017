//! Conversations as prompts: by the model's own template, or by a plain one where it has none.

use oxcart::llm::text::{ChatOptions, ChatTemplate, Message, Token};

use crate::engine::Engine;
use crate::failure::Failure;

/// What many models understand that have no template of their own.
const PLAIN: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                     {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Whether the model's file has a template, so that it is meant for conversations.
pub(crate) fn has_template(engine: &Engine) -> Result<bool, Failure> {
    let source = ChatTemplate::source_in(&engine.model.metadata(), None);
    Ok(source.map_err(|error| Failure::vocabulary(&engine.path, &error))?.is_some())
}

/// The template of a model.
pub(crate) fn template(engine: &Engine) -> Result<ChatTemplate, Failure> {
    let source = ChatTemplate::source_in(&engine.model.metadata(), None);
    let source = source.map_err(|error| Failure::vocabulary(&engine.path, &error))?.unwrap_or(PLAIN);
    ChatTemplate::new(source).map_err(|error| Failure::Usage(format!("{}: {error}", engine.path.display())))
}

/// The tokens of a conversation, up to where the model is to go on.
pub(crate) fn prompt(
    engine: &Engine,
    template: &ChatTemplate,
    messages: &[Message],
) -> Result<Vec<Token>, Failure> {
    let prompt = template
        .prompt(messages, &ChatOptions::default(), &engine.vocab)
        .map_err(|error| Failure::Usage(error.to_string()))?;
    Ok(engine.vocab.encode_prompt(&prompt))
}
