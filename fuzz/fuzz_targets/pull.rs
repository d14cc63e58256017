//! Arbitrary bytes as what servers send: pages of package indexes, lists of the hub, wheels. See the readers for what must
//! hold.
#![no_main]

use std::sync::LazyLock;

use oxcart_pull::readers;

static FOLDER: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else { return };
    match (kind % 3, std::str::from_utf8(rest)) {
        (0, Ok(text)) => readers::index_page(text),
        (1, Ok(text)) => {
            // The first line is what was asked for.
            let (wanted, json) = text.split_once('\n').unwrap_or(("", text));
            readers::hub_tree(json, Some(wanted).filter(|wanted| !wanted.is_empty()));
        }
        _ => readers::wheel(rest, FOLDER.path()),
    }
});
