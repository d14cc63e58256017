//! Where the user's pip would look for packages: the same variables of the environment, the same configuration files.
//!
//! Only what this program can do itself is read. Whatever needs more (passwords, client certificates, hosts that are trusted
//! without a certificate) makes [`Settings::usable`] false, and is left to pip.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::os;

/// What pip uses when nothing else is said.
const DEFAULT_INDEX: &str = "https://pypi.org/simple";
/// The most of a configuration file that is read.
const MAX_FILE: u64 = 1 << 20;

/// Where to look, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Folders and pages that have files.
    pub(crate) find_links: Vec<String>,
    /// Package indexes.
    pub(crate) indexes: Vec<String>,
    /// Certificates to trust instead of the usual ones.
    pub(crate) certificates: Option<PathBuf>,
    /// A proxy for all requests.
    pub(crate) proxy: Option<String>,
    pub(crate) needs_pip: bool,
}

impl Settings {
    /// The user's.
    pub(crate) fn from_env() -> Settings {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Settings::read(variable, |path| {
            let is_short =
                std::fs::metadata(path).is_ok_and(|about| about.is_file() && about.len() <= MAX_FILE);
            if is_short { std::fs::read_to_string(path).ok() } else { None }
        })
    }

    /// Those in an environment and in files.
    fn read(
        variable: impl Fn(&str) -> Option<String>,
        contents: impl Fn(&Path) -> Option<String>,
    ) -> Settings {
        let mut values = BTreeMap::new();
        for path in config_files(&variable) {
            // pip runs the command `download`, whose section comes after the one for all commands.
            let sections = contents(&path).map(|text| read_ini(&text)).unwrap_or_default();
            for section in ["global", "download"] {
                values.extend(sections.get(section).cloned().unwrap_or_default());
            }
        }
        let of = |name: &str| {
            let in_env = variable(&format!("PIP_{}", name.to_uppercase().replace('-', "_")));
            in_env.or_else(|| values.get(name).cloned())
        };
        let list = |name: &str| -> Vec<String> {
            of(name).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
        };
        let is_set =
            |name: &str| of(name).is_some_and(|value| !["0", "false", "no", "off"].contains(&value.as_str()));
        let mut indexes = Vec::new();
        if !is_set("no-index") {
            indexes.extend(list("index-url").into_iter().next().or(Some(DEFAULT_INDEX.to_owned())));
            indexes.extend(list("extra-index-url"));
        }
        let find_links = list("find-links");
        let needs_pip =
            ["client-cert", "trusted-host", "keyring-provider"].iter().any(|name| of(name).is_some())
                || indexes.iter().chain(&find_links).any(|url| has_password(url));
        Settings {
            certificates: of("cert")
                .or_else(|| variable("REQUESTS_CA_BUNDLE"))
                .or_else(|| variable("CURL_CA_BUNDLE"))
                .or_else(|| variable("SSL_CERT_FILE"))
                .map(PathBuf::from),
            proxy: of("proxy"),
            find_links,
            indexes,
            needs_pip,
        }
    }

    /// Whether this program can do what they say.
    pub(crate) fn usable(&self) -> bool {
        !self.needs_pip
    }
}

/// Files that exist or not, later ones over earlier ones.
fn config_files(variable: &impl Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    let own = variable("PIP_CONFIG_FILE").map(PathBuf::from);
    // That is how pip is told to read none.
    if own.as_deref().is_some_and(|path| path == Path::new("/dev/null") || path == Path::new("nul")) {
        return Vec::new();
    }
    let mut files = os::pip_files(|name| variable(name).map(PathBuf::from));
    files.extend(own);
    files
}

/// Whether there is a name or a password in front of a URL's host.
fn has_password(url: &str) -> bool {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or_default().contains('@')
}

/// Sections of names and values. A line that begins with a space goes on with the value before it.
fn read_ini(text: &str) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut sections: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    let (mut section, mut name) = (String::new(), None::<String>);
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        let values = sections.entry(section.clone()).or_default();
        if let Some(name) = name.as_ref().filter(|_| line.starts_with([' ', '\t'])) {
            let value = values.entry(name.clone()).or_default();
            value.push('\n');
            value.push_str(trimmed);
        } else if let Some(title) = trimmed.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            (section, name) = (title.trim().to_owned(), None);
        } else if let Some((key, value)) = trimmed.split_once(['=', ':']) {
            let key = key.trim().to_lowercase().replace('_', "-");
            values.insert(key.clone(), value.trim().to_owned());
            name = Some(key);
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)], files: &[(&str, &str)]) -> Settings {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        Settings::read(variable, |path| {
            files.iter().find(|(known, _)| Path::new(known) == path).map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn the_environment_comes_before_files() {
        assert_eq!(read(&[], &[]).indexes, [DEFAULT_INDEX]);
        let file = "# mine\n[global]\nindex-url = https://one/simple\nextra_index_url: https://two\n  https://three\n\
                    cert = /etc/own.pem\n[download]\nproxy = http://p:1\n[install]\nindex-url = https://never\n";
        let own = [("PIP_CONFIG_FILE", "/own.conf")];
        let found = read(&own, &[("/own.conf", file)]);
        assert_eq!(found.indexes, ["https://one/simple", "https://two", "https://three"]);
        assert_eq!(found.certificates.as_deref(), Some(Path::new("/etc/own.pem")));
        assert_eq!(found.proxy.as_deref(), Some("http://p:1"));
        let both =
            [own[0], ("PIP_INDEX_URL", "https://env"), ("PIP_CERT", "/env.pem"), ("PIP_FIND_LINKS", "/a /b")];
        let found = read(&both, &[("/own.conf", file)]);
        assert_eq!(found.indexes[0], "https://env");
        assert_eq!(found.certificates.as_deref(), Some(Path::new("/env.pem")));
        assert_eq!(found.find_links, ["/a", "/b"]);
        assert!(found.usable());
        assert!(read(&[("PIP_NO_INDEX", "1")], &[]).indexes.is_empty());
        assert_eq!(read(&[("PIP_NO_INDEX", "false")], &[]).indexes, [DEFAULT_INDEX]);
    }

    #[test]
    fn what_needs_pip_is_left_to_it() {
        for variables in [
            [("PIP_INDEX_URL", "https://user:secret@host/simple")],
            [("PIP_TRUSTED_HOST", "host")],
            [("PIP_CLIENT_CERT", "/x")],
        ] {
            assert!(!read(&variables, &[]).usable(), "{variables:?}");
        }
        assert!(read(&[("PIP_INDEX_URL", "https://host/a@b/")], &[]).usable());
    }

    #[cfg(unix)]
    #[test]
    fn no_file_is_read_when_pip_would_read_none() {
        let file = [("/etc/pip.conf", "[global]\nindex-url = https://etc\n")];
        assert_eq!(read(&[], &file).indexes, ["https://etc"]);
        assert_eq!(read(&[("PIP_CONFIG_FILE", "/dev/null")], &file).indexes, [DEFAULT_INDEX]);
    }
}
