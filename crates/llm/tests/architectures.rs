//! The list of architectures in the docs is the one in the code, and the family that they build is the one that is compiled.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::path::Path;

fn read(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)).unwrap()
}

#[test]
fn docs_list_all_architectures() {
    let text = read("docs/architectures.md");
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let names = rows.flat_map(|row| row.split('|').nth(2).unwrap().split('`').skip(1).step_by(2));
    let listed: BTreeSet<&str> = names.collect();
    assert_eq!(listed, oxcart_llm::model::architectures().collect());
}

#[test]
fn the_number_of_architectures_is_the_same_everywhere() {
    let count = oxcart_llm::model::architectures().count();
    let said = [
        ("README.md", format!("[{count} architectures](docs/architectures.md)")),
        ("docs/comparison.md", format!("| architectures | [{count}](architectures.md) |")),
        ("CHANGELOG.md", format!("- {count} architectures, listed in `docs/architectures.md`")),
    ];
    for (name, text) in said {
        assert!(read(name).contains(&text), "{name}: {text}");
    }
}

/// Its logits are compared with the reference's in `families`, by this name.
#[test]
fn docs_build_a_family_that_is_compiled_and_compared() {
    let text = read("docs/architectures.md");
    let blocks = text.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let built = blocks.collect::<Vec<_>>().join("\n");
    assert_eq!(built, read("crates/llm/src/model/arch/lfm2.rs"));
    let recorded = read("crates/llm/tests/data/families.json");
    let recorded: serde_json::Value = serde_json::from_str(&recorded).unwrap();
    assert!(recorded["lfm2"].is_array() && recorded["lfm2-windowed"].is_array());
}
