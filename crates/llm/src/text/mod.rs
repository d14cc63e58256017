//! Characters: vocabularies, tokenizers, chat templates, sampling.
