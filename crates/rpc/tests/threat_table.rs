//! `docs/threats.md` is complete: no number is missing, no cell is empty, and the tests, files and fuzz targets it names exist.
//! `SECURITY.md` promises nothing without naming such a thing, or rows that are there.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// How many threats each letter has. Those that nothing holds yet have numbers too, in the list at the end.
const NUMBERS: [(char, u32); 17] = [
    ('P', 13),
    ('R', 8),
    ('L', 13),
    ('F', 12),
    ('C', 17),
    ('H', 16),
    ('D', 13),
    ('G', 14),
    ('O', 13),
    ('K', 16),
    ('X', 21),
    ('S', 15),
    ('T', 11),
    ('W', 20),
    ('J', 32),
    ('N', 15),
    ('B', 12),
];
/// The letters and numbers of those.
const NOT_HELD: [&str; 3] = ["X17", "S8", "S9"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn document(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// The cells of all rows of all tables, without headings.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let lines: Vec<&str> = text.lines().collect();
    let is_heading = |at: usize| lines.get(at + 1).is_some_and(|next| next.starts_with("|---"));
    let is_row = |at: &usize| lines[*at].starts_with("| ") && !is_heading(*at);
    let cells = |at: usize| lines[at].trim_matches('|').split(" | ").map(str::trim).collect();
    (0..lines.len()).filter(is_row).map(cells).collect()
}

/// Every number there is, held or not.
fn numbers() -> BTreeSet<String> {
    NUMBERS.iter().flat_map(|(letter, count)| (1..=*count).map(move |n| format!("{letter}{n}"))).collect()
}

/// What a text mentions that looks like a number of a threat.
fn mentioned(text: &str) -> BTreeSet<String> {
    let is_number = |word: &&str| {
        let mut chars = word.chars();
        let has_letter = chars.next().is_some_and(|first| NUMBERS.iter().any(|(letter, _)| *letter == first));
        has_letter && !chars.as_str().is_empty() && chars.all(|c| c.is_ascii_digit())
    };
    text.split(|c: char| !c.is_alphanumeric()).filter(is_number).map(str::to_owned).collect()
}

/// What stands in backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The names of all tests of our crates.
fn tests() -> BTreeSet<String> {
    let (mut tests, mut folders) = (BTreeSet::new(), vec![root().join("crates")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let source = fs::read_to_string(path).unwrap();
                let after = source.split("#[test]").skip(1).filter_map(|rest| rest.split_once("fn "));
                tests.extend(after.filter_map(|(_, rest)| Some(rest.split_once('(')?.0.to_owned())));
            }
        }
    }
    tests
}

/// Whether there is a test, a file or a fuzz target of this name; what follows a file is how it is called.
fn exists(tests: &BTreeSet<String>, name: &str) -> bool {
    let file = name.split(' ').next().unwrap_or_default();
    tests.contains(name)
        || root().join("fuzz/fuzz_targets").join(name).with_extension("rs").is_file()
        || (file.contains('/') && root().join(file).exists())
}

#[test]
fn no_number_is_missing() {
    let text = document("docs/threats.md");
    let (tables, list) = text.split_once("\n## Not held\n").unwrap();
    let mut found: Vec<&str> = rows(tables).iter().map(|cells| cells[0]).collect();
    let listed: Vec<&str> =
        list.lines().filter_map(|line| Some(line.strip_prefix("- ")?.split_once(':')?.0)).collect();
    assert_eq!(listed, NOT_HELD);
    found.extend(listed);
    let count = found.len();
    let found: BTreeSet<String> = found.into_iter().map(str::to_owned).collect();
    assert_eq!(found.len(), count, "a number stands in two rows");
    assert_eq!(found, numbers());
}

#[test]
fn every_row_names_tests_that_exist_and_what_they_were_seen_failing_without() {
    let (tests, text) = (tests(), document("docs/threats.md"));
    for cells in rows(&text) {
        let [number, threat, holds, shown_by, without] = cells[..] else { panic!("five cells: {cells:?}") };
        for cell in [threat, holds, shown_by, without] {
            assert!(!cell.is_empty(), "{number} has an empty cell");
        }
        let names = quoted(shown_by);
        assert!(!names.is_empty(), "{number} has no test");
        for name in names {
            assert!(exists(&tests, name), "{number}: there is no {name}");
        }
    }
    let unknown: Vec<_> = mentioned(&text).difference(&numbers()).cloned().collect();
    assert!(unknown.is_empty(), "{unknown:?} are no rows");
}

#[test]
fn every_promise_names_what_shows_it() {
    let (tests, text) = (tests(), document("SECURITY.md"));
    let mut held = numbers();
    held.retain(|number| !NOT_HELD.contains(&number.as_str()));
    let promises = rows(&text);
    assert!(promises.len() >= 10, "only {} promises", promises.len());
    for cells in promises {
        let [promise, shown_by] = cells[..] else { panic!("two cells: {cells:?}") };
        let (names, numbers) = (quoted(shown_by), mentioned(shown_by));
        assert!(!names.is_empty() || !numbers.is_empty(), "nothing shows this: {promise}");
        for name in names {
            assert!(exists(&tests, name), "there is no {name}: {promise}");
        }
    }
    let unknown: Vec<_> = mentioned(&text).difference(&held).cloned().collect();
    assert!(unknown.is_empty(), "{unknown:?} are no rows that hold");
}
