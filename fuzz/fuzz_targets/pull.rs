//! Arbitrary bytes as what servers send: pages of package indexes, lists of the hub, wheels. See the readers for what must
//! hold.
#![no_main]

use std::sync::LazyLock;

use oxcart_pull::readers;

static FOLDER: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| readers::any(bytes, FOLDER.path()));
