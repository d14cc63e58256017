//! What is kept in a store: which models, how large, and away with them.
//!
//! Invariant: nothing outside the store's folder is listed or removed. A model of several files is one, and goes as one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::catalog::known_models;
use crate::error::{During, Error};
use crate::name::Name;
use crate::parts::{first_of, is_whole};
use crate::store::{Store, files_below};

/// A model that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kept {
    /// What people call it; the path of its file where it came from an address.
    pub name: String,
    /// Its file, or the first of several.
    pub path: PathBuf,
    /// All its files.
    pub files: Vec<PathBuf>,
    /// Their length.
    pub bytes: u64,
    /// When it was fetched, if the system knows.
    pub fetched: Option<SystemTime>,
    /// Whether all of it is here.
    pub is_whole: bool,
}

/// What stands behind the name of a file that is on its way, and of the note beside it.
const ON_ITS_WAY: [&str; 2] = [".part", ".part.of"];

impl Store {
    /// All models that are here, by name.
    pub fn kept(&self) -> Vec<Kept> {
        let mut models = BTreeMap::<PathBuf, Kept>::new();
        for file in files_below(self.root()) {
            let Some((target, is_on_its_way)) = self.target_of(&file) else { continue };
            let first = first_of(&target);
            let about = fs::metadata(&file).ok();
            let kept = models.entry(first.clone()).or_insert_with(|| Kept {
                name: self.name_of(&first),
                is_whole: is_whole(&first),
                path: first,
                files: Vec::new(),
                bytes: 0,
                fetched: None,
            });
            kept.is_whole &= !is_on_its_way;
            kept.bytes += about.as_ref().map_or(0, fs::Metadata::len);
            kept.fetched = kept.fetched.max(about.and_then(|about| about.modified().ok()));
            kept.files.push(file);
        }
        let mut all: Vec<Kept> = models.into_values().collect();
        all.iter_mut().for_each(|kept| kept.files.sort());
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// The models that a person may mean: the one that is listed by this very name; else all that the name or path could find.
    pub fn find_kept(&self, text: &str) -> Vec<Kept> {
        let mut all = self.kept();
        if let Some(exact) = all.iter().position(|kept| kept.name == text) {
            return vec![all.swap_remove(exact)];
        }
        let found: Vec<PathBuf> = match text.parse::<Name>() {
            Ok(Name::Hub { repository, file }) => self.hub_files(&repository, file.as_deref()),
            Ok(name) => self.find(&name).into_iter().collect(),
            Err(_) => Vec::new(),
        };
        let found: Vec<PathBuf> = found.iter().map(|path| first_of(path)).collect();
        all.retain(|kept| found.contains(&kept.path));
        all
    }

    /// Deletes a model, and the folders that are empty then.
    pub fn remove(&self, kept: &Kept) -> Result<(), Error> {
        for file in kept.files.iter().filter(|file| file.starts_with(self.root())) {
            fs::remove_file(file).during("delete", file)?;
        }
        let mut folder = kept.path.parent();
        while let Some(empty) =
            folder.filter(|folder| folder.starts_with(self.root()) && *folder != self.root())
        {
            // The first that is not empty stays, and those around it.
            if fs::remove_dir(empty).is_err() {
                break;
            }
            folder = empty.parent();
        }
        Ok(())
    }

    /// The model's file that a file is, or will be; and whether it is still on its way.
    fn target_of(&self, file: &Path) -> Option<(PathBuf, bool)> {
        let name = file.file_name()?.to_str()?;
        let target = ON_ITS_WAY.iter().rev().find_map(|end| name.strip_suffix(end));
        let (name, is_on_its_way) = target.map_or((name, false), |target| (target, true));
        // What an address gives may have any name.
        let is_model = name.ends_with(".gguf") || file.starts_with(self.url_folder());
        is_model.then(|| (file.with_file_name(name), is_on_its_way))
    }

    fn name_of(&self, path: &Path) -> String {
        let below = path.strip_prefix(self.root()).unwrap_or(path);
        if let Some(known) = known_models().iter().find(|known| below == Path::new(known.file)) {
            return known.name.to_owned();
        }
        let parts: Vec<String> = below.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        match &parts[..] {
            [hub, owner, name, file @ ..] if hub == "hub" && !file.is_empty() => {
                format!("{owner}/{name}:{}", file.join("/"))
            }
            _ => path.display().to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn store(files: &[(&str, &str)]) -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        for (path, contents) in files {
            let path: PathBuf = folder.path().iter().chain(path.split('/').map(OsStr::new)).collect();
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, contents).unwrap();
        }
        let store = Store::at(folder.path());
        (folder, store)
    }

    #[test]
    fn models_are_listed_and_removed() {
        let (folder, store) = store(&[
            ("SmolLM2-135M-Instruct.Q4_1.gguf", "GGUF"),
            ("hub/owner/name/m-Q4_0.gguf", "GGUF1"),
            ("hub/owner/large/sub/m-00001-of-00002.gguf", "GGUF12"),
            ("hub/owner/large/sub/m-00002-of-00002.gguf", "GGUF34"),
            ("hub/owner/half/m.gguf.part", "GG"),
            ("hub/owner/half/m.gguf.part.of", "x"),
            ("url/0123/m.gguf", "GGUF"),
            ("url/4567/download", "GGUF"),
            ("notes.txt", "mine"),
        ]);
        let kept = store.kept();
        let about: Vec<(&str, u64, usize, bool)> = kept
            .iter()
            .map(|kept| (kept.name.as_str(), kept.bytes, kept.files.len(), kept.is_whole))
            .collect();
        let url = folder.path().join("url").join("0123").join("m.gguf").display().to_string();
        let other = folder.path().join("url").join("4567").join("download").display().to_string();
        assert_eq!(
            about,
            [
                (url.as_str(), 4, 1, true),
                (other.as_str(), 4, 1, true),
                ("owner/half:m.gguf", 3, 2, false),
                ("owner/large:sub/m-00001-of-00002.gguf", 12, 2, true),
                ("owner/name:m-Q4_0.gguf", 5, 1, true),
                ("smollm2", 4, 1, true),
            ]
        );
        for (text, want) in [
            ("SMOLLM2", "smollm2"),
            ("owner/name", "owner/name:m-Q4_0.gguf"),
            ("owner/name:q4_0", "owner/name:m-Q4_0.gguf"),
            ("owner/half:m.gguf", "owner/half:m.gguf"),
            (&url, &url),
            (&other, &other),
        ] {
            let found = store.find_kept(text);
            assert!(found.len() == 1 && found[0].name == want, "{text}: {found:?}");
        }
        assert!(store.find_kept("owner/other").is_empty());
        for kept in kept {
            store.remove(&kept).unwrap();
        }
        assert!(store.kept().is_empty());
        let left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["notes.txt"], "and what is not ours");
    }

    #[test]
    fn a_listed_name_means_nothing_else() {
        let (_folder, store) =
            store(&[("hub/owner/name/a-m.gguf", "GGUF"), ("hub/owner/name/sub/m.gguf", "GGUF12")]);
        let names =
            |text: &str| -> Vec<String> { store.find_kept(text).into_iter().map(|kept| kept.name).collect() };
        assert_eq!(names("owner/name:a-m.gguf"), ["owner/name:a-m.gguf"]);
        assert_eq!(names("owner/name:sub/m.gguf"), ["owner/name:sub/m.gguf"]);
        let both = ["owner/name:a-m.gguf", "owner/name:sub/m.gguf"];
        assert_eq!(
            (names("owner/name:m.gguf"), names("owner/name")),
            (both.map(String::from).to_vec(), both.map(String::from).to_vec())
        );
    }
}
