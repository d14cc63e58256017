//! What people call a model.
//!
//! Invariant: the parts of a [`Name::Hub`] are made of letters, digits, `.`, `_` and `-`, and no part of a path in it is `.` or
//! `..`, so that they can be parts of paths and URLs.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::catalog::{Known, alias_of, aliases, known, known_models};
use crate::error::Error;

/// What people call a model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Name {
    /// A file of this machine.
    Path(PathBuf),
    /// A short name.
    Known(&'static Known),
    /// A file of a repository of the Hugging Face hub.
    Hub {
        /// `owner/name`.
        repository: String,
        /// A file, or what its name has to contain, such as `Q4_K_M`.
        file: Option<String>,
    },
    /// A file of a web server.
    Url(String),
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Name, Error> {
        let wrong = |reason: &str| Error::Name { name: text.to_owned(), reason: reason.to_owned() };
        if text.is_empty() {
            return Err(wrong("it is empty"));
        }
        if text.starts_with("http://") || text.starts_with("https://") {
            return Ok(Name::Url(text.to_owned()));
        }
        let explicit = text.strip_prefix("hf:");
        let path = PathBuf::from(text);
        let is_path = path.is_absolute() || text.starts_with('.') || path.exists();
        if explicit.is_none() && (is_path || (text.ends_with(".gguf") && !text.contains(':'))) {
            return Ok(Name::Path(path));
        }
        if let Some(known) = known(text) {
            return Ok(Name::Known(known));
        }
        if let Some(alias) = alias_of(text) {
            let (repository, file) = (alias.repository.to_owned(), Some(alias.file.to_owned()));
            return Ok(Name::Hub { repository, file });
        }
        let (repository, file) = match explicit.unwrap_or(text).split_once(':') {
            Some((repository, file)) => (repository, Some(file)),
            None => (explicit.unwrap_or(text), None),
        };
        let parts: Vec<&str> = repository.split('/').collect();
        let is_file = |file: &str| !file.is_empty() && file.split('/').all(is_part);
        if parts.len() == 2 && parts.iter().all(|part| is_part(part)) && file.is_none_or(is_file) {
            let (repository, file) = (repository.to_owned(), file.map(str::to_owned));
            return Ok(Name::Hub { repository, file });
        }
        let names =
            known_models().iter().map(|known| known.name).chain(aliases().iter().map(|alias| alias.name));
        let family = text.split(['-', ':', '.']).next().unwrap_or_default().to_lowercase();
        let near: Vec<&str> =
            names.filter(|name| !family.is_empty() && name.starts_with(family.as_str())).collect();
        let known = if near.is_empty() { "oxcart pull lists them".to_owned() } else { near.join(", ") };
        Err(wrong(&format!(
            "give the path of a .gguf file, a known name ({known}), a repository as owner/name[:file], or a URL"
        )))
    }
}

/// Whether it can be one part of a path.
fn is_part(part: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !part.is_empty() && part != "." && part != ".." && part.chars().all(is_plain)
}

/// Whether a path in a repository can be one in the store.
pub(crate) fn is_plain_path(path: &str) -> bool {
    path.split('/').all(is_part)
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Path(path) => path.display().fmt(f),
            Name::Known(known) => f.write_str(known.name),
            Name::Hub { repository, file: None } => f.write_str(repository),
            Name::Hub { repository, file: Some(file) } => write!(f, "{repository}:{file}"),
            Name::Url(url) => f.write_str(url),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        let name = |text: &str| text.parse::<Name>();
        assert_eq!(name("SmolLM2").unwrap(), Name::Known(known("smollm2").unwrap()));
        assert_eq!(name("model.gguf").unwrap(), Name::Path("model.gguf".into()));
        assert_eq!(name("./models/x").unwrap(), Name::Path("./models/x".into()));
        assert_eq!(name("a/b.gguf").unwrap(), Name::Path("a/b.gguf".into()));
        let hub = |file: Option<&str>| Name::Hub {
            repository: "owner/Model-GGUF".into(),
            file: file.map(str::to_owned),
        };
        assert_eq!(name("owner/Model-GGUF").unwrap(), hub(None));
        assert_eq!(name("hf:owner/Model-GGUF:Q4_K_M").unwrap(), hub(Some("Q4_K_M")));
        assert_eq!(name("owner/Model-GGUF:sub/x.gguf").unwrap(), hub(Some("sub/x.gguf")));
        assert_eq!(name("https://host/x.gguf").unwrap(), Name::Url("https://host/x.gguf".into()));
        let eight = Name::Hub { repository: "Qwen/Qwen3-8B-GGUF".into(), file: Some("Q4_K_M".into()) };
        assert_eq!((name("qwen3-8b").unwrap(), name("qwen3:8b").unwrap()), (eight.clone(), eight));
        assert!(name("qwen3-9b").unwrap_err().to_string().contains("qwen3-8b"));
        for bad in ["", "unknown", "a/b/c", "owner/..", "owner/name:../x", "owner/na me", "owner/name:"] {
            assert!(matches!(name(bad), Err(Error::Name { .. })), "{bad}");
        }
    }

    #[test]
    fn names_are_printed_as_they_are_read() {
        for text in ["smollm2", "owner/name", "owner/name:Q8_0", "http://host/x", "./x.gguf"] {
            assert_eq!(text.parse::<Name>().unwrap().to_string(), text);
        }
    }
}
