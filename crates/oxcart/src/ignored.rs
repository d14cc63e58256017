//! What a model file says that is not read here. Invariant: a program that loads a model can tell its user, because its answers may not be what they
//! should be.

use std::path::Path;

use oxcart_gguf::Text;
use oxcart_llm::model::ModelFile;
use oxcart_llm::text::Vocab;

/// Metadata keys of a model that have a meaning for its architecture or its tokenizer, and are not read.
pub fn ignored_keys(file: &ModelFile) -> Vec<String> {
    let mut ignored = file.hyper().unread_keys.clone();
    ignored.extend(Vocab::unread_keys(&file.metadata()));
    ignored
}

/// Warns of them, by `tracing`.
pub fn warn_of_ignored_keys(path: &Path, file: &ModelFile) {
    let ignored = ignored_keys(file);
    if !ignored.is_empty() {
        let keys = ignored.join(", ");
        tracing::warn!(
            "{}: metadata keys that Oxcart ignores: {}",
            path.display(),
            Text::from(keys.as_str())
        );
    }
}
