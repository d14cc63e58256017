//! Models that are split over several files: `name-00001-of-00003.gguf` and so on.
//!
//! Invariant: a model of several files counts as here only when all of them are.

use std::path::{Path, PathBuf};

use oxcart_gguf::PartName;

/// Whether a file is here, and with it all other files of its model.
pub(crate) fn is_whole(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match PartName::of(&name) {
        None => path.is_file(),
        Some(part) => part.all().all(|name| path.with_file_name(name).is_file()),
    }
}

/// The first file of the model that a file belongs to.
pub(crate) fn first_of(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let first = PartName::of(&name).and_then(|part| part.all().next());
    first.map_or_else(|| path.to_owned(), |name| path.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_leads_to_the_first_one() {
        assert_eq!(first_of(Path::new("/x/b-00002-of-00002.gguf")), Path::new("/x/b-00001-of-00002.gguf"));
        assert_eq!(first_of(Path::new("/x/b.gguf")), Path::new("/x/b.gguf"));
    }
}
