//! Where a user's files are, as the system's conventions have it.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

/// Where things may be kept that can be made again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Folders {
    /// What XDG_CACHE_HOME says.
    xdg_cache: Option<PathBuf>,
    home: Option<PathBuf>,
}

impl Folders {
    pub(crate) fn from_env() -> Folders {
        Folders::new(env::var_os("XDG_CACHE_HOME"), env::var_os("HOME"))
    }

    fn new(xdg_cache: Option<OsString>, home: Option<OsString>) -> Folders {
        // The convention is to ignore paths that are not absolute.
        let absolute = |path: Option<OsString>| path.map(PathBuf::from).filter(|path| path.is_absolute());
        Folders { xdg_cache: absolute(xdg_cache), home: absolute(home) }
    }

    /// Where workers keep weights unless told otherwise; `None` for users without a home.
    pub(crate) fn weights(&self) -> Option<PathBuf> {
        let usual = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
        let cache = self.xdg_cache.clone().or_else(|| Some(self.home.as_ref()?.join(usual)));
        Some(cache?.join("oxcart").join("weights"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_own_choice_comes_first() {
        let weights = |xdg: &str, home: &str| Folders::new(Some(xdg.into()), Some(home.into())).weights();
        assert_eq!(weights("/x", "/home/a"), Some("/x/oxcart/weights".into()));
        let usual = weights("", "/home/a").unwrap();
        assert!(usual.starts_with("/home/a") && usual.ends_with("oxcart/weights"), "{usual:?}");
        assert_eq!(weights("relative", "/home/a"), Some(usual));
        assert_eq!(weights("", ""), None);
    }
}
