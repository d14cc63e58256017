//! A text cut into windows of equally many tokens, each of which a model sees on its own.
//!
//! Invariant: where the model begins texts with a token, every window begins with it; what is left at the end and fills no window is not
//! used.

use std::path::Path;

use oxcart::llm::text::Encode;

use crate::failure::Failure;
use crate::loaded::Loaded;

/// Tokens of a window, unless --ctx says otherwise.
pub(crate) const WINDOW: usize = 512;

/// The fewest tokens of a window.
pub(crate) const LEAST_WINDOW: usize = 4;

/// What --ctx means to commands that cut a text.
pub(crate) const CTX_HELP: &str = "Tokens in a window. By default, 512";

/// The windows of a text.
#[derive(Debug)]
pub(crate) struct TextWindows {
    /// Tokens of the whole text.
    pub(crate) tokens: usize,
    /// All of them, one after another.
    all: Vec<u32>,
    size: usize,
}

/// The bytes of a file, without one newline at its end.
pub(crate) fn read_text(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut text = std::fs::read(path)
        .map_err(|error| Failure::Usage(format!("{}: {error}; check the path", path.display())))?;
    text.pop_if(|last| *last == b'\n');
    Ok(text)
}

impl TextWindows {
    /// Cuts a text into at most `most` windows of `size` tokens.
    pub(crate) fn cut(
        loaded: &Loaded,
        text: &[u8],
        size: usize,
        most: Option<usize>,
    ) -> Result<TextWindows, Failure> {
        let mut all = loaded.encode(text, Encode { add_special: true, parse_special: false })?;
        let tokens = all.len();
        let count = (tokens / size).min(most.unwrap_or(usize::MAX));
        if count == 0 {
            return Err(Failure::Usage(format!(
                "the text has {tokens} tokens, fewer than one window of {size} (--ctx)"
            )));
        }
        all.truncate(count * size);
        if let Some(first) = loaded.vocab.special().bos.filter(|_| loaded.vocab.adds_bos()) {
            all.iter_mut().step_by(size).for_each(|token| *token = first);
        }
        Ok(TextWindows { tokens, all, size })
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.all.len() / self.size
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        self.all.chunks_exact(self.size)
    }
}
