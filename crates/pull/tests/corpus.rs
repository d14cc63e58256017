//! Replays the corpus of the fuzz target `pull`, cut and changed at every place, on stable.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use oxcart_pull::readers;

/// As the fuzz target does it.
fn check(bytes: &[u8], folder: &Path) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    match (kind % 3, std::str::from_utf8(rest)) {
        (0, Ok(text)) => readers::index_page(text),
        (1, Ok(text)) => {
            let (wanted, json) = text.split_once('\n').unwrap_or(("", text));
            readers::hub_tree(json, Some(wanted).filter(|wanted| !wanted.is_empty()));
        }
        _ => readers::wheel(rest, folder),
    }
}

#[test]
fn whatever_servers_send_is_read_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/pull");
    let mut files = 0;
    for entry in std::fs::read_dir(corpus).unwrap() {
        let seed = std::fs::read(entry.unwrap().path()).unwrap();
        files += 1;
        for at in 0..seed.len() {
            check(&seed[..at], folder.path());
            for change in [1, 0x80, 0xff] {
                let mut changed = seed.clone();
                changed[at] ^= change;
                check(&changed, folder.path());
            }
        }
    }
    assert!(files >= 5, "the corpus has only {files} files");
}
