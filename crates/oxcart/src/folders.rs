//! Where a user's files are, as the system's conventions have it.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use crate::os;

/// Where models are kept; `None` for users without a home.
pub fn models() -> Option<PathBuf> {
    Folders::from_env().models()
}

/// Where workers keep weights unless told otherwise; `None` for users without a home.
pub fn weights() -> Option<PathBuf> {
    Folders::from_env().weights()
}

/// Where it is kept what the tensors of model files are known by; `None` for users without a home.
pub fn digests() -> Option<PathBuf> {
    Some(Folders::from_env().root?.join("digests"))
}

/// Where a program keeps what a user would miss a little, such as what was typed; `None` for users without a home.
pub fn state() -> Option<PathBuf> {
    Folders::from_env().state
}

/// Where a program keeps what cannot be had again, such as who this machine is; `None` for users without a home.
pub fn data() -> Option<PathBuf> {
    Folders::from_env().data
}

/// Where a user's settings are; `None` for users without a home.
pub fn settings() -> Option<PathBuf> {
    Folders::from_env().settings
}

/// Where a user's files are kept.
#[derive(Clone, Debug)]
struct Folders {
    /// Of what can be had again.
    root: Option<PathBuf>,
    data: Option<PathBuf>,
    state: Option<PathBuf>,
    settings: Option<PathBuf>,
}

impl Folders {
    fn from_env() -> Folders {
        Folders::new(|name| env::var_os(name))
    }

    fn new(env: impl Fn(&str) -> Option<OsString>) -> Folders {
        // The convention is to ignore paths that are not absolute.
        let folder = |name: &str| env(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let cache = || folder("XDG_CACHE_HOME").or_else(|| os::cache_folder(folder));
        let data = || folder("XDG_DATA_HOME").or_else(|| os::data_folder(folder));
        let state = || folder("XDG_STATE_HOME").or_else(|| os::state_folder(folder));
        let settings = || folder("XDG_CONFIG_HOME").or_else(|| os::settings_folder(folder));
        Folders {
            root: folder("OXCART_CACHE").or_else(|| Some(cache()?.join("oxcart"))),
            data: data().map(|folder| folder.join("oxcart")),
            state: state().map(|folder| folder.join("oxcart")),
            settings: settings().map(|folder| folder.join("oxcart")),
        }
    }

    fn models(&self) -> Option<PathBuf> {
        Some(self.root.as_ref()?.join("models"))
    }

    fn weights(&self) -> Option<PathBuf> {
        Some(self.root.as_ref()?.join("weights"))
    }
}

// Paths of other systems look different.
#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;

    #[test]
    fn the_users_own_choice_comes_first() {
        let weights = |set: &[(&str, &str)]| {
            let env =
                |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
            Folders::new(env).weights().map(|path| path.display().to_string())
        };
        let (home, xdg, own) = (("HOME", "/home/a"), ("XDG_CACHE_HOME", "/x"), ("OXCART_CACHE", "/o"));
        for (set, expected) in [
            (&[home, xdg, own][..], "/o/weights"),
            (&[home, xdg], "/x/oxcart/weights"),
            (&[home], "/home/a/.cache/oxcart/weights"),
            (&[home, ("XDG_CACHE_HOME", "relative"), ("OXCART_CACHE", "")], "/home/a/.cache/oxcart/weights"),
        ] {
            assert_eq!(weights(set).as_deref(), Some(expected));
        }
        assert_eq!(weights(&[("HOME", "")]), None);
    }

    #[test]
    fn everything_has_its_place() {
        let folders = |set: &[(&str, &str)]| {
            let env =
                |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
            let folders = Folders::new(env);
            [folders.data, folders.state, folders.settings]
                .map(|folder| folder.map(|path| path.display().to_string()))
        };
        let some = |paths: [&str; 3]| paths.map(|path| Some(path.to_owned()));
        let home = ("HOME", "/home/a");
        let usual = ["/home/a/.local/share/oxcart", "/home/a/.local/state/oxcart", "/home/a/.config/oxcart"];
        assert_eq!(folders(&[home]), some(usual));
        let xdg = [home, ("XDG_DATA_HOME", "/d"), ("XDG_STATE_HOME", "/s"), ("XDG_CONFIG_HOME", "/c")];
        assert_eq!(folders(&xdg), some(["/d/oxcart", "/s/oxcart", "/c/oxcart"]));
        assert_eq!(folders(&[]), [None, None, None]);
    }
}
