//! Models that are split over several files: `name-00001-of-00003.gguf` and so on.
//!
//! Invariant: a model of several files counts as here only when all of them are.

use std::path::{Path, PathBuf};

/// The most files of one model: what five digits can count.
const MAX_PARTS: u32 = 99_999;

/// One file of a split model, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part<'n> {
    /// What all files of the model begin with, folders included.
    pub(crate) name: &'n str,
    /// Which one it is; the first is 1.
    pub(crate) number: u32,
    /// How many there are.
    pub(crate) count: u32,
}

impl<'n> Part<'n> {
    /// Reads the name of a file.
    pub(crate) fn of(path: &'n str) -> Option<Part<'n>> {
        let (rest, count) = path.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (name, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| {
            let plain = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            if plain { text.parse().ok() } else { None }
        };
        let part = Part { name, number: digits(number)?, count: digits(count)? };
        (1..=part.count.min(MAX_PARTS)).contains(&part.number).then_some(part)
    }

    /// The names of all files of the model, in order.
    pub(crate) fn all(self) -> impl Iterator<Item = String> {
        (1..=self.count).map(move |number| format!("{}-{number:05}-of-{:05}.gguf", self.name, self.count))
    }
}

/// Whether a file is here, and with it all other files of its model.
pub(crate) fn is_whole(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match Part::of(&name) {
        None => path.is_file(),
        Some(part) => part.all().all(|name| path.with_file_name(name).is_file()),
    }
}

/// The first file of the model that a file belongs to.
pub(crate) fn first_of(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let first = Part::of(&name).and_then(|part| part.all().next());
    first.map_or_else(|| path.to_owned(), |name| path.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        assert_eq!(Part::of("a/b-00002-of-00003.gguf"), Some(Part { name: "a/b", number: 2, count: 3 }));
        for odd in [
            "b.gguf",
            "b-2-of-3.gguf",
            "b-00004-of-00003.gguf",
            "b-00000-of-00003.gguf",
            "b-+0001-of-00003.gguf",
        ] {
            assert_eq!(Part::of(odd), None, "{odd}");
        }
        let part = Part::of("b-00002-of-00002.gguf").unwrap();
        assert_eq!(part.all().collect::<Vec<_>>(), ["b-00001-of-00002.gguf", "b-00002-of-00002.gguf"]);
        assert_eq!(first_of(Path::new("/x/b-00002-of-00002.gguf")), Path::new("/x/b-00001-of-00002.gguf"));
        assert_eq!(first_of(Path::new("/x/b.gguf")), Path::new("/x/b.gguf"));
    }
}
