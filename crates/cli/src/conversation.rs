//! Conversations as prompts: by the model's own template, or by a plain one where it has none.

use oxcart::llm::text::{ChatOptions, ChatTemplate, Message, Prompt, Token};

use crate::failure::Failure;
use crate::loaded::Loaded;

/// Whether the model's file has a template, so that it is meant for conversations.
pub(crate) fn has_template(loaded: &Loaded) -> Result<bool, Failure> {
    let source = ChatTemplate::source_in(&loaded.model.metadata(), None);
    Ok(source.map_err(|error| Failure::vocabulary(&loaded.path, &error))?.is_some())
}

/// The template of a model.
pub(crate) fn template(loaded: &Loaded) -> Result<ChatTemplate, Failure> {
    ChatTemplate::for_model(&loaded.model.metadata())
        .map_err(|error| Failure::Usage(format!("{}: {error}", loaded.path.display())))
}

/// A conversation as the model is to read it, up to where it goes on.
pub(crate) fn render(
    loaded: &Loaded,
    template: &ChatTemplate,
    messages: &[Message],
) -> Result<Prompt, Failure> {
    template
        .prompt(messages, &ChatOptions::default(), &loaded.vocab)
        .map_err(|error| Failure::Usage(error.to_string()))
}

/// The tokens of a conversation, up to where the model is to go on.
pub(crate) fn prompt(
    loaded: &Loaded,
    template: &ChatTemplate,
    messages: &[Message],
) -> Result<Vec<Token>, Failure> {
    Ok(loaded.vocab.encode_prompt(&render(loaded, template, messages)?))
}
