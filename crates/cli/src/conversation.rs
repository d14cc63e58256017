//! Conversations as prompts: by the model's own template, or by a plain one where it has none.

use std::path::Path;

use oxcart::gguf::Metadata;
use oxcart::llm::text::{ChatOptions, ChatTemplate, Message, Prompt, Token, Vocab};

use crate::failure::Failure;
use crate::loaded::Unloaded;

/// Whether the model's file has a template, so that it is meant for conversations.
pub(crate) fn has_template(file: &Unloaded<'_>) -> Result<bool, Failure> {
    let source = ChatTemplate::source_in(&file.metadata, None);
    Ok(source.map_err(|error| Failure::vocabulary(file.path, &error))?.is_some())
}

/// The template of a model.
pub(crate) fn template(metadata: &Metadata<'_>, path: &Path) -> Result<ChatTemplate, Failure> {
    ChatTemplate::for_model(metadata).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))
}

/// A conversation as the model is to read it, up to where it goes on.
pub(crate) fn render(
    vocab: &Vocab,
    template: &ChatTemplate,
    messages: &[Message],
) -> Result<Prompt, Failure> {
    template
        .prompt(messages, &ChatOptions::default(), vocab)
        .map_err(|error| Failure::Usage(error.to_string()))
}

/// The tokens of a conversation, up to where the model is to go on.
pub(crate) fn prompt(file: &Unloaded<'_>, messages: &[Message]) -> Result<Vec<Token>, Failure> {
    let template = template(&file.metadata, file.path)?;
    Ok(file.vocab.encode_prompt(&render(file.vocab, &template, messages)?))
}
