//! `docs/ggml-map.md` keeps its word: every item it links to exists, and every name is on it once.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn page() -> String {
    fs::read_to_string(docs().join("ggml-map.md")).unwrap()
}

/// The cells of all rows of all tables.
fn rows(page: &str) -> Vec<[&str; 3]> {
    page.lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            <[&str; 3]>::try_from(cells).unwrap_or_else(|cells| panic!("{} cells in {line}", cells.len()))
        })
        .collect()
}

/// What stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Links whose text is code: the item and the path.
fn links(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split("[`").skip(1).filter_map(|rest| {
        let (item, rest) = rest.split_once("`](")?;
        Some((item, rest.split_once(')')?.0))
    })
}

/// The source a link leads to: a file, or all files of a folder.
fn source(path: &Path) -> String {
    if path.is_file() {
        return fs::read_to_string(path).unwrap();
    }
    let mut paths: Vec<_> =
        path.read_dir().unwrap_or_else(|_| panic!("{} is missing", path.display())).collect();
    paths.sort_by_key(|entry| entry.as_ref().unwrap().path());
    paths.into_iter().map(|entry| source(&entry.unwrap().path())).collect()
}

/// Whether a line defines `name` as one of the kinds of items.
fn defines(line: &str, name: &str, kinds: &[&str]) -> bool {
    let words: Vec<_> = line.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    words.windows(2).any(|pair| kinds.contains(&pair[0]) && pair[1] == name)
}

/// Lines of all blocks at the left margin that belong to a type: its definition, its impls, or the trait itself.
fn members<'a>(source: &'a str, owner: &'a str) -> impl Iterator<Item = &'a str> {
    let mut inside = false;
    source.lines().filter(move |line| {
        let starts =
            ["pub ", "pub(", "impl", "struct", "enum", "trait"].iter().any(|start| line.starts_with(start));
        if starts && !inside {
            let head = line.split(" where ").next().unwrap_or(line);
            let is_item = defines(head, owner, &["struct", "enum", "trait"]);
            let is_impl =
                head.starts_with("impl") && head.split(|c: char| !c.is_alphanumeric()).any(|w| w == owner);
            inside = (is_item || is_impl) && line.ends_with('{');
        } else if *line == "}" {
            inside = false;
        }
        inside
    })
}

/// Whether `item`, a name or `Type::name`, is defined in the source.
fn exists(source: &str, item: &str) -> bool {
    const ITEMS: [&str; 7] = ["fn", "struct", "enum", "trait", "const", "type", "mod"];
    match item.trim_end_matches("()").rsplit_once("::") {
        None => source.lines().any(|line| !line.contains("//") && defines(line, item, &ITEMS)),
        Some((owner, name)) => members(source, owner).any(|line| {
            let line = line.trim();
            let field = line.strip_prefix("pub ").unwrap_or(line);
            let is_field =
                field.strip_prefix(name).is_some_and(|rest| rest.starts_with([':', ',', '(', ' ']));
            defines(line, name, &["fn", "const"]) || is_field
        }),
    }
}

#[test]
fn every_linked_item_exists() {
    let mut sources: BTreeMap<&str, String> = BTreeMap::new();
    let page = page();
    let mut missing = Vec::new();
    let mut count = 0;
    for (item, path) in links(&page) {
        let source = sources.entry(path).or_insert_with(|| source(&docs().join(path)));
        if !path.ends_with("testdev/src") && !exists(source, item) {
            missing.push(format!("{item} in {path}"));
        }
        count += 1;
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(count > 200, "only {count} links were recognized");
}

#[test]
fn every_name_is_there_once() {
    let listed = include_str!("data/seed_names.txt");
    let wanted: BTreeSet<_> =
        listed.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let page = page();
    let mut found = BTreeSet::new();
    for name in rows(&page).iter().flat_map(|row| quoted(row[0])) {
        assert!(found.insert(name), "{name} is there twice");
    }
    let missing: Vec<_> = wanted.difference(&found).collect();
    assert!(missing.is_empty(), "not on the page: {missing:#?}");
    let unknown: Vec<_> = found.difference(&wanted).collect();
    assert!(unknown.is_empty(), "on the page, but not on the list: {unknown:#?}");
}

#[test]
fn every_row_says_where_or_why_not() {
    for [names, where_to, note] in rows(&page()) {
        match where_to {
            "—" => assert!(!note.is_empty(), "{names}: no reason"),
            "*later*" => {}
            _ => assert!(links(where_to).next().is_some(), "{names}: no link in '{where_to}'"),
        }
    }
}

#[test]
fn the_checker_can_tell() {
    let source = "pub enum Kind {\n    Cpu,\n    Other(u8),\n}\n\nimpl<'a> Thing<'a> {\n    pub fn read(&self) {}\n}\n";
    for item in ["Kind", "Kind::Cpu", "Kind::Other", "Thing::read", "read"] {
        assert!(exists(source, item), "{item}");
    }
    for item in ["Cpu", "Kind::read", "Thing::write", "Thing::Cpu", "Kin", "Thing"] {
        assert!(!exists(source, item), "{item}");
    }
}
