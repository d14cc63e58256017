//! Repositories of the Hugging Face hub: which of their files is meant.

use std::path::{Path, PathBuf};

use oxcart_gguf::{PartName, Text};
use serde_json::Value;

use crate::error::Error;
use crate::name::is_plain_path;
use crate::partial::{Expected, begun};
use crate::transfer::{Hub, Step, check_room};

/// The default type of a model: small, and hardly worse than a larger one.
const PREFERRED: [&str; 6] = ["Q4_K_M", "Q4_K_S", "Q4_0", "Q4_1", "Q5_K_M", "Q8_0"];

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) path: String,
    bytes: u64,
    sha256: Option<String>,
}

impl Entry {
    /// The length of several together; what a server says may be any number.
    pub(crate) fn bytes_of(entries: &[Entry]) -> u64 {
        entries.iter().fold(0_u64, |total, entry| total.saturating_add(entry.bytes))
    }
}

impl Hub {
    /// The files of a model in a repository.
    pub(crate) fn files_of(&self, repository: &str, wanted: Option<&str>) -> Result<Vec<Entry>, Error> {
        let url = format!("{}/api/models/{repository}/tree/main?recursive=true", self.endpoint());
        let (answer, _) = self.web.ask(&url, "application/json")?;
        let entries = read_tree(&answer)
            .ok_or_else(|| Error::Server { url: url.clone(), reason: "it is not a list of files".into() })?;
        Ok(choose(&entries, repository, wanted)?.into_iter().cloned().collect())
    }

    /// What it says of a repository, in JSON.
    pub(crate) fn card_of(&self, repository: &str) -> Result<String, Error> {
        let url = format!("{}/api/models/{repository}", self.endpoint());
        Ok(self.web.ask(&url, "application/json")?.0)
    }

    /// Fetches the files of a model from a repository; the first one is returned.
    pub(crate) fn fetch_from(
        &self,
        repository: &str,
        wanted: Option<&str>,
        folder: &Path,
        progress: &mut dyn FnMut(Step),
    ) -> Result<PathBuf, Error> {
        let chosen = self.files_of(repository, wanted)?;
        let total = Entry::bytes_of(&chosen);
        let missing: Vec<Entry> =
            chosen.iter().filter(|entry| !folder.join(&entry.path).is_file()).cloned().collect();
        let here = missing.iter().map(|entry| begun(&folder.join(&entry.path))).sum();
        // All of it, before any of it.
        check_room(folder, Entry::bytes_of(&missing).saturating_sub(here))?;
        let (mut before, mut first) = (0_u64, None);
        for entry in chosen {
            let target = folder.join(&entry.path);
            if !target.is_file() {
                let url = format!("{}/{repository}/resolve/main/{}", self.endpoint(), entry.path);
                let expected = Expected {
                    bytes: Some(entry.bytes),
                    sha256: entry.sha256.clone(),
                    ..Expected::default()
                };
                self.web.fetch_file(&url, &target, expected, &mut |step| {
                    progress(Step { done: before.saturating_add(step.done), total: Some(total) });
                })?;
            }
            before = before.saturating_add(entry.bytes);
            first.get_or_insert(target);
        }
        first.ok_or_else(|| unnamed(repository, "it has no files".into()))
    }
}

/// The files of the hub's answer; those that cannot be files here are left out.
pub(crate) fn read_tree(json: &str) -> Option<Vec<Entry>> {
    let Ok(Value::Array(items)) = serde_json::from_str(json) else { return None };
    let entry = |item: &Value| {
        let path = item.get("path")?.as_str()?;
        let is_model = item.get("type")? == "file" && path.ends_with(".gguf") && is_plain_path(path);
        let sha256 = item.pointer("/lfs/oid").and_then(Value::as_str).map(|oid| Text::from(oid).to_string());
        is_model.then_some(Entry { path: path.to_owned(), bytes: item.get("size")?.as_u64()?, sha256 })
    };
    Some(items.iter().filter_map(entry).collect())
}

fn unnamed(repository: &str, reason: String) -> Error {
    Error::Name { name: repository.to_owned(), reason }
}

/// The files of one model, in order.
pub(crate) fn choose<'e>(
    entries: &'e [Entry],
    repository: &str,
    wanted: Option<&str>,
) -> Result<Vec<&'e Entry>, Error> {
    if entries.is_empty() {
        return Err(unnamed(repository, "the repository has no .gguf file".into()));
    }
    if let Some(exact) = entries.iter().find(|entry| Some(entry.path.as_str()) == wanted) {
        return with_parts(entries, repository, exact);
    }
    let has = |entry: &&Entry, text: &str| entry.path.to_lowercase().contains(&text.to_lowercase());
    let candidates: Vec<&Entry> = match wanted {
        Some(wanted) => entries.iter().filter(|entry| has(entry, wanted)).collect(),
        None => PREFERRED
            .iter()
            .map(|kind| entries.iter().filter(|entry| has(entry, kind)).collect::<Vec<_>>())
            .find(|found| !found.is_empty())
            .unwrap_or_else(|| entries.iter().collect()),
    };
    // Parts of one model count as one, and stand for it by their first.
    let mut models: Vec<&Entry> = candidates
        .into_iter()
        .filter(|entry| PartName::of(&entry.path).is_none_or(|part| part.number == 1))
        .collect();
    models.sort_by(|a, b| a.path.cmp(&b.path));
    match models[..] {
        [one] => with_parts(entries, repository, one),
        [] => Err(unnamed(
            repository,
            format!(
                "no file has '{}' in its name; the files are {}",
                wanted.unwrap_or_default(),
                list(entries)
            ),
        )),
        _ => {
            let names: Vec<Entry> = models.into_iter().cloned().collect();
            Err(unnamed(repository, format!("say which file: {repository}:FILE, one of {}", list(&names))))
        }
    }
}

fn list(entries: &[Entry]) -> String {
    let mut names: Vec<&str> = entries.iter().map(|entry| entry.path.as_str()).take(20).collect();
    if entries.len() > names.len() {
        names.push("…");
    }
    names.join(", ")
}

/// A file and the other files of the same model, all of them.
fn with_parts<'e>(entries: &'e [Entry], repository: &str, one: &'e Entry) -> Result<Vec<&'e Entry>, Error> {
    let Some(part) = PartName::of(&one.path) else { return Ok(vec![one]) };
    let mut siblings: Vec<&Entry> = entries
        .iter()
        .filter(|entry| {
            PartName::of(&entry.path)
                .is_some_and(|other| (other.model, other.count) == (part.model, part.count))
        })
        .collect();
    siblings.sort_by(|a, b| a.path.cmp(&b.path));
    siblings.dedup_by(|a, b| a.path == b.path);
    if siblings.len() != part.count as usize {
        let reason = format!("of the {} files of {} it has only {}", part.count, part.model, siblings.len());
        return Err(unnamed(repository, reason));
    }
    Ok(siblings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(paths: &[&str]) -> Vec<Entry> {
        paths.iter().map(|path| Entry { path: (*path).into(), bytes: 1, sha256: None }).collect()
    }

    fn chosen(paths: &[&str], wanted: Option<&str>) -> Result<Vec<String>, String> {
        let entries = entries(paths);
        match choose(&entries, "o/n", wanted) {
            Ok(chosen) => Ok(chosen.into_iter().map(|entry| entry.path.clone()).collect()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn one_file_is_meant() {
        let files =
            ["a-Q8_0.gguf", "a-Q4_K_M.gguf", "a-F16-00002-of-00002.gguf", "a-F16-00001-of-00002.gguf"];
        assert_eq!(chosen(&files, None).unwrap(), ["a-Q4_K_M.gguf"]);
        assert_eq!(chosen(&files, Some("q8_0")).unwrap(), ["a-Q8_0.gguf"]);
        assert_eq!(chosen(&files, Some("a-Q8_0.gguf")).unwrap(), ["a-Q8_0.gguf"]);
        assert_eq!(
            chosen(&files, Some("F16")).unwrap(),
            ["a-F16-00001-of-00002.gguf", "a-F16-00002-of-00002.gguf"]
        );
        assert_eq!(chosen(&["only.gguf"], None).unwrap(), ["only.gguf"]);
        assert!(chosen(&files, Some("Q2")).unwrap_err().contains("the files are a-Q8_0.gguf"));
        assert!(chosen(&["x.gguf", "y.gguf"], None).unwrap_err().contains("say which file"));
        assert!(
            chosen(&["x-00001-of-00003.gguf", "x-00003-of-00003.gguf"], None)
                .unwrap_err()
                .contains("has only 2")
        );
        assert!(chosen(&[], None).unwrap_err().contains("no .gguf file"));
    }

    #[test]
    fn only_files_that_can_be_files_here_count() {
        let json = r#"[{"type":"file","path":"m.gguf","size":5,"lfs":{"oid":"ab"}},{"type":"directory","path":"d.gguf"},
            {"type":"file","path":"../evil.gguf","size":1},{"type":"file","path":"README.md","size":1}]"#;
        let found = read_tree(json).unwrap();
        assert_eq!(found, [Entry { path: "m.gguf".into(), bytes: 5, sha256: Some("ab".into()) }]);
        assert_eq!(read_tree("{}"), None);
    }
}
