//! What people call machines.
//!
//! Invariant: a name is a word that cannot be taken for an address, for a host of a network, for a key, or for what else `--workers`
//! understands, and that means nothing to a terminal.

use std::fmt;
use std::str::FromStr;

use super::key::Key;
use super::limits::MAX_NAME_CHARS;

/// A machine's name: lower-case letters, digits, hyphens and underscores.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MachineName(String);

/// A text that cannot be a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{}' cannot be the name of a machine, which has 1 to {MAX_NAME_CHARS} letters, digits, hyphens and underscores, is not a key, and is not 'all' or \
     'local'",
    text.escape_debug()
)]
pub struct NameError {
    /// The text.
    pub text: String,
}

impl FromStr for MachineName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<MachineName, NameError> {
        let name = text.to_ascii_lowercase();
        let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
        let is_word = name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.chars().any(|c| c.is_ascii_lowercase())
            && name.len() <= MAX_NAME_CHARS
            && name.chars().all(is_letter);
        let is_taken = ["all", "local", "localhost"].contains(&name.as_str()) || name.parse::<Key>().is_ok();
        match is_word && !is_taken {
            true => Ok(MachineName(name)),
            false => Err(NameError { text: text.to_owned() }),
        }
    }
}

impl MachineName {
    /// The name that comes nearest to what a host is called, which may be anything.
    pub fn of_host(host: &str) -> MachineName {
        let first = host.split('.').next().unwrap_or_default();
        let kept: String = first
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
            .take(MAX_NAME_CHARS)
            .collect();
        let kept = kept.trim_matches('-');
        let nearest = kept.parse().or_else(|_| format!("machine-{kept}").parse());
        nearest.ok().filter(|_| !kept.is_empty()).unwrap_or(MachineName("machine".into()))
    }

    /// The same with a number, for when it is taken.
    pub(crate) fn numbered(&self, number: usize) -> MachineName {
        /// So few that it cannot become a key.
        const KEPT_CHARS: usize = 40;
        let number = format!("-{number}");
        let kept: String = self.0.chars().take(KEPT_CHARS).collect();
        MachineName(kept + &number)
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MachineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words() {
        for name in ["den", "gpu-3", "a", "box_2", "3090"] {
            assert_eq!(name.parse::<MachineName>().is_ok(), name != "3090", "{name}");
        }
        assert_eq!("Den".parse::<MachineName>().unwrap().as_str(), "den");
        let long = "a".repeat(MAX_NAME_CHARS + 1);
        for text in [
            "",
            "all",
            "ALL",
            "local",
            "localhost",
            "local:2",
            "1.2.3.4",
            "fe80::1",
            "a b",
            "gpu.lan",
            &Key::from_bytes([7; 32]).to_string(),
            "-a",
            "\u{1b}[2J",
            "é",
            &long,
        ] {
            assert!(text.parse::<MachineName>().is_err(), "{text}");
        }
    }

    #[test]
    fn every_host_has_a_name() {
        for (host, name) in [
            ("Den.lan", "den"),
            ("", "machine"),
            ("7", "machine-7"),
            ("a b!", "a-b"),
            ("local", "machine-local"),
        ] {
            assert_eq!(MachineName::of_host(host).as_str(), name);
        }
        let long = MachineName::of_host(&"x".repeat(200));
        assert!(long.numbered(12).as_str().parse::<MachineName>().is_ok());
    }
}
