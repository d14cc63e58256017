//! `docs/threat-tests.md` is complete: every row of the threat model that holds here is listed, every test that it names
//! exists, and it says what they were seen failing without. So do the tests, files and fuzz targets that `docs/threats.md`
//! names.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Rows and their tests.
fn table() -> BTreeMap<String, Vec<String>> {
    let text = fs::read_to_string(root().join("docs/threat-tests.md")).unwrap();
    let cells = |line: &str| -> Option<(String, String)> {
        let (row, rest) = line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | ")?;
        let (tests, without) = rest.split_once(" | ").unwrap_or_else(|| panic!("{row} has no third column"));
        assert!(!without.trim().is_empty(), "{row}: what was taken out?");
        Some((row.to_owned(), tests.to_owned()))
    };
    let rows = text.lines().filter_map(cells);
    let names = |tests: &str| tests.split(", ").map(|name| name.trim_matches('`').to_owned()).collect();
    let row = |id: &str| id.split(' ').next().unwrap_or(id).to_owned();
    rows.filter(|(id, _)| id != "row").map(|(id, tests)| (row(&id), names(&tests))).collect()
}

#[test]
fn every_row_is_listed() {
    let table = table();
    // How many rows a kind has, and which of them are not promised yet.
    let kinds: [(&str, u32, &[u32]); 12] = [
        ("R", 8, &[]),
        ("3.", 11, &[]),
        ("F", 12, &[]),
        ("C", 7, &[]),
        ("H", 11, &[]),
        ("D", 13, &[]),
        ("G", 14, &[]),
        ("O", 8, &[]),
        ("K", 7, &[]),
        ("X", 17, &[5, 17]),
        ("S", 10, &[8, 9]),
        ("12.", 11, &[]),
    ];
    let mut expected = BTreeSet::new();
    for (kind, count, absent) in kinds {
        expected.extend((1..=count).filter(|n| !absent.contains(n)).map(|n| format!("{kind}{n}")));
    }
    assert_eq!(table.keys().cloned().collect::<BTreeSet<_>>(), expected);
    assert!(table.values().all(|tests| !tests.is_empty() && tests.iter().all(|name| !name.is_empty())));
}

/// All Rust of our crates.
fn sources() -> String {
    let mut sources = String::new();
    let mut folders = vec![root().join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }
    sources
}

/// Rows of `docs/threats.md`: what is quoted in the last column is a file, a test or a fuzz target.
#[test]
fn every_threat_has_something_that_shows_it() {
    let (sources, mut rows) = (sources(), 0);
    let text = fs::read_to_string(root().join("docs/threats.md")).unwrap();
    let is_row = |line: &&str| line.starts_with("| ") && !line.starts_with("| threat |");
    for line in text.lines().filter(is_row) {
        let shown_by = line.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
        let quoted: Vec<&str> = shown_by.split('`').skip(1).step_by(2).collect();
        let exists = |name: &&str| {
            let is_target = root().join("fuzz/fuzz_targets").join(name).with_extension("rs").is_file();
            sources.contains(&format!("fn {name}("))
                || is_target
                || (name.contains('/') && root().join(name).exists())
        };
        let missing: Vec<_> = quoted.iter().filter(|name| !exists(name)).collect();
        assert!(missing.is_empty(), "{missing:?} in {line}");
        rows += usize::from(!quoted.is_empty() || line.contains("the same"));
    }
    assert_eq!(rows, text.lines().filter(is_row).count(), "a row without a test");
    assert!(rows >= 10, "only {rows} rows");
}

#[test]
fn every_test_exists() {
    let sources = sources();
    for (row, tests) in table() {
        for test in tests {
            assert!(sources.contains(&format!("fn {test}(")), "{row}: there is no test {test}");
        }
    }
}
