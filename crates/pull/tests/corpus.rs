//! Replays the corpus of the fuzz target `pull`, cut and changed at every place, on stable.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use oxcart_pull::readers;

#[test]
fn whatever_servers_send_is_read_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/pull");
    let mut files = 0;
    for entry in std::fs::read_dir(corpus).unwrap() {
        let seed = std::fs::read(entry.unwrap().path()).unwrap();
        files += 1;
        for at in 0..seed.len() {
            readers::any(&seed[..at], folder.path());
            for change in [1, 0x80, 0xff] {
                let mut changed = seed.clone();
                changed[at] ^= change;
                readers::any(&changed, folder.path());
            }
        }
    }
    assert!(files >= 5, "the corpus has only {files} files");
}
