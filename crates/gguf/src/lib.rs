//! GGUF model files.
