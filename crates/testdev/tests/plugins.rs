//! Plug-ins, good and bad: each bad one is an error that says what is wrong, and the process lives on.
//!
//! The libraries are the `plugin_*` examples of this crate. They are built here, for the profile this test was built
//! for, in case it is run alone.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{EXPECTED, Example, numbers};
use oxcart_backend::plugin::{self, Refusal};
use oxcart_backend::{Error, Registries, StreamOptions, Work, compare, copy_graph};
use oxcart_testdev::{Config, TestDevice};
use tempfile::TempDir;

fn library(name: &str) -> PathBuf {
    oxcart_fixtures::example_library(&format!("plugin_{name}"))
}

/// Loads a plug-in that must be refused, and says why it was.
fn refusal(path: &Path) -> Refusal {
    let registries = Registries::new();
    let error = plugin::load(path, &registries).unwrap_err();
    assert!(registries.all().is_empty());
    assert!(error.to_string().starts_with(&format!("plug-in {}: ", path.display())), "{error}");
    match error {
        Error::Plugin { reason, .. } => reason,
        other => panic!("{other}"),
    }
}

/// A folder with plug-ins under other names.
fn folder(files: &[(&str, String)]) -> TempDir {
    let folder = TempDir::new().unwrap();
    for (name, file) in files {
        fs::copy(library(name), folder.path().join(file)).unwrap();
    }
    folder
}

#[test]
fn a_device_from_a_plugin_computes() {
    let registries = Registries::new();
    let family = plugin::load(&library("good"), &registries).unwrap();
    assert_eq!(family.name(), "Plugged");
    assert_eq!(plugin::score(&library("good")).unwrap(), 1);
    let device = registries.device_by_name("plug0").unwrap();
    assert_eq!(registries.family_of(&device).unwrap().name(), "Plugged");

    let stream = device.open(&StreamOptions::default()).unwrap();
    let here = TestDevice::new(Config::default());
    let example = Example::new(&here);
    let copy = copy_graph(&example.graph, &example.buffers, &*stream).unwrap();
    let nodes = copy.graph.range(0..copy.graph.nodes().len()).unwrap();
    stream.compute_and_wait(Work { nodes, buffers: &copy.buffers }).unwrap();
    let out = copy.buffers.bytes(copy.graph.tensor(example.out).unwrap()).unwrap();
    assert_eq!(numbers(&out), EXPECTED);
}

#[test]
fn an_asynchronous_device_from_a_plugin_agrees_with_ours() {
    let registries = Registries::new();
    plugin::load(&library("better"), &registries).unwrap();
    let stream = registries.devices().remove(0).open(&StreamOptions::default()).unwrap();
    let here = TestDevice::new(Config::default());
    let example = Example::new(&here);
    let finished = compare(&*here.stream(), &*stream, &example.graph, &example.buffers, |node| {
        assert_eq!(node.first, node.second);
        std::ops::ControlFlow::Continue(())
    });
    assert!(finished.unwrap());
    // An error made by the plug-in arrives as our own.
    let place = copy_graph(&example.graph, &example.buffers, &*stream).unwrap();
    let mut place = place.buffers.place_of(place.graph.tensor(example.a).unwrap()).unwrap();
    place.offset = place.buffer.len();
    stream.set_async(&place, vec![1]).unwrap();
    assert!(matches!(stream.synchronize(), Err(Error::OutOfBounds { .. })));
}

#[test]
fn a_family_is_loaded_once() {
    let registries = Registries::new();
    let first = plugin::load(&library("good"), &registries).unwrap();
    let again = plugin::load(&library("good"), &registries);
    assert!(matches!(again, Err(Error::NameTaken { name }) if name == "Plugged"));
    assert_eq!(registries.all().len(), 1);
    // Once it is gone it can come back, and the first one still works.
    assert!(registries.unregister("Plugged"));
    plugin::load(&library("good"), &registries).unwrap();
    assert_eq!(first.devices().len(), 1);
}

#[test]
fn the_variant_with_the_best_score_is_loaded() {
    let name = |variant| plugin::file_name("plugged", variant);
    let folder = folder(&[
        ("good", name(None)),
        ("unsuited", name(Some("a"))),
        ("outdated", name(Some("b"))),
        ("better", name(Some("c"))),
        ("good", name(Some("d"))),
        ("nameless", name(Some("e"))),
        ("failing", plugin::file_name("other", None)),
    ]);
    fs::write(folder.path().join(name(Some("f"))), "not a library").unwrap();
    let registries = Registries::new();
    let family = plugin::load_best(folder.path(), "plugged", &registries).unwrap();
    assert_eq!(family.devices()[0].name(), "PLUG0-better");
    assert_eq!(registries.all().len(), 1);
}

#[test]
fn a_folder_without_a_usable_variant_says_why() {
    let registries = Registries::new();
    let reason = |folder: &TempDir| match plugin::load_best(folder.path(), "plugged", &registries) {
        Err(Error::Plugin { path, reason }) => (path, reason),
        other => panic!("{other:?}"),
    };
    let empty = folder(&[]);
    let plain = plugin::file_name("plugged", None);
    assert_eq!(reason(&empty), (empty.path().join(&plain), Refusal::NotFound));
    let unsuited = folder(&[("unsuited", plain.clone())]);
    assert_eq!(reason(&unsuited).1, Refusal::NotForThisMachine);
    let outdated = folder(&[("outdated", plain.clone())]);
    assert!(matches!(reason(&outdated), (path, Refusal::ApiVersion { .. }) if path.ends_with(&plain)));
    let nowhere = plugin::load_best(Path::new("no/such/folder"), "plugged", &registries);
    assert!(matches!(nowhere, Err(Error::Plugin { reason: Refusal::NotFound, .. })));
}

#[test]
fn a_missing_file() {
    assert_eq!(refusal(Path::new("no/such/file.so")), Refusal::NotFound);
    // A bare name is a file here, not a library of the system.
    assert_eq!(refusal(Path::new(&plugin::file_name("plugged", None))), Refusal::NotFound);
}

#[test]
fn a_file_that_is_no_library() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join(plugin::file_name("text", None));
    for contents in ["", "#!/bin/sh\nexit 0\n", "\x7fELF"] {
        fs::write(&path, contents).unwrap();
        assert!(matches!(refusal(&path), Refusal::NotLoadable(why) if !why.is_empty()));
    }
    assert!(matches!(refusal(folder.path()), Refusal::NotLoadable(_)));
}

#[test]
fn a_library_without_the_entry_point() {
    assert_eq!(refusal(&library("nameless")), Refusal::NotAPlugin);
}

#[test]
fn another_version_of_the_interface() {
    let found = plugin::API_VERSION + 1;
    let reason = refusal(&library("outdated"));
    assert_eq!(reason, Refusal::ApiVersion { found, wanted: plugin::API_VERSION });
    assert_eq!(reason.to_string(), "is for plug-in interface 2, this program has 1; rebuild it");
}

#[test]
fn another_build() {
    let reason = refusal(&library("foreign"));
    assert_eq!(reason, Refusal::Abi { found: "another build".into(), wanted: plugin::ABI.into() });
    assert!(reason.to_string().ends_with("rebuild it"));
    // Not even its score is asked for.
    assert!(plugin::score(&library("foreign")).is_err());
}

#[test]
fn a_plugin_that_suits_no_machine() {
    assert_eq!(plugin::score(&library("unsuited")).unwrap(), 0);
    assert_eq!(refusal(&library("unsuited")), Refusal::NotForThisMachine);
}

#[test]
fn a_plugin_that_fails_to_start() {
    let reason = refusal(&library("failing"));
    assert_eq!(reason, Refusal::InitFailed("no driver found".into()));
    assert_eq!(reason.to_string(), "failed to start: no driver found");
}

#[test]
fn a_plugin_that_panics() {
    let why = "it panicked: the driver is 20 years old".to_owned();
    // More than once, because the first panic must leave nothing behind.
    for _ in 0..2 {
        assert_eq!(refusal(&library("panicking")), Refusal::InitFailed(why.clone()));
    }
}

#[test]
fn plugins_are_loaded_from_many_threads() {
    let registries = Arc::new(Registries::new());
    let threads: Vec<_> = (0..8)
        .map(|i| {
            let registries = Arc::clone(&registries);
            let path = library(if i % 2 == 0 { "good" } else { "failing" });
            std::thread::spawn(move || plugin::load(&path, &registries).is_ok())
        })
        .collect();
    let loaded = threads.into_iter().map(|thread| thread.join().unwrap());
    assert_eq!(loaded.filter(|&ok| ok).count(), 1);
}
