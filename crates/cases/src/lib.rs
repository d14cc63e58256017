//! Single ops: with recorded inputs and outputs, drawn at random ([`draw`]), or made to take long ([`LONG_NODES`]).
//!
//! A folder holds index files (`FAMILY.json`) and blobs (`FAMILY.bin`); the format is that of the reference outputs which
//! `OXCART_GOLDEN` names, and of what `tools/differential` makes. The latter has three more fields: a source with
//! `shares_src` lies in the memory of an earlier one, a source with `after` is written to, and a result with `reuses_src`
//! takes the memory of a source as a memory planner would have it. A [`Case`] can be rebuilt through the door
//! ([`Case::build`]), run on any device ([`Case::run`]) and judged ([`Case::judge`]).
//!
//! # Panics
//!
//! Reading panics on a file that is not what it should be: cases are made by tools of this tree.
#![forbid(unsafe_code)]

mod build;
mod decode;
mod draw;
mod json;
mod judge;
mod long;

pub use build::{Built, RunError};
pub use draw::{Drawn, Draws, MOST_BYTES, Manner, draw};
pub use judge::Verdict;
pub use long::{LONG_NODES, LongNode, close_rows};

use std::path::Path;
use std::sync::Arc;

use oxcart_tensor::Layout;
use serde_json::Value;

use json::{list, number, numbers, text};

/// A tensor of a case: its layout, and where it lies in the bytes it was recorded in.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Type, extents and strides.
    pub layout: Layout,
    /// First byte within its storage.
    pub view_offset: usize,
    storage: std::ops::Range<usize>,
    /// The earlier source in whose memory it lies, if it has none of its own.
    shares: Option<usize>,
    /// What the memory holds after the run, of a source that the op writes to besides its result.
    after: Option<std::ops::Range<usize>>,
}

/// One op with inputs and outputs.
#[derive(Clone, Debug)]
pub struct Case {
    /// What to call it in a complaint.
    pub name: String,
    index: Value,
    blob: Arc<Vec<u8>>,
    sources: Vec<Option<Recorded>>,
    result: Recorded,
    aliased: Option<usize>,
    reused: Option<usize>,
}

/// All cases of a folder, in the order of file names.
pub fn read_folder(folder: &Path) -> Vec<Case> {
    let files = folder.read_dir().unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = files
        .map(|file| file.unwrap_or_else(|error| panic!("{}: {error}", folder.display())).path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    paths.sort();
    paths.iter().flat_map(|path| read_file(path)).collect()
}

/// All cases of an index file.
pub fn read_file(path: &Path) -> Vec<Case> {
    let fail = |error: &dyn std::fmt::Display| -> ! { panic!("{}: {error}", path.display()) };
    let index = std::fs::read_to_string(path).unwrap_or_else(|error| fail(&error));
    let mut index: Value = serde_json::from_str(&index).unwrap_or_else(|error| fail(&error));
    let blob = std::fs::read(path.with_file_name(text(&index["blob"]))).unwrap_or_else(|error| fail(&error));
    let blob = Arc::new(blob);
    let cases = index["cases"].as_array_mut().map(std::mem::take).unwrap_or_else(|| fail(&"no cases"));
    cases.into_iter().map(|case| Case::new(case, Arc::clone(&blob))).collect()
}

impl Case {
    fn new(index: Value, blob: Arc<Vec<u8>>) -> Case {
        let sources = list(&index["src"])
            .iter()
            // A cast names itself as its second source.
            .filter(|source| source.get("same_as").is_none())
            .map(|source| (!source.is_null()).then(|| recorded(source)))
            .collect();
        let name = format!("{} ({})", text(&index["id"]), text(&index["label"]));
        let result = &index["dst"];
        let (aliased, reused) = (result.get("aliases_src").map(number), result.get("reuses_src").map(number));
        Case { name, sources, result: recorded(result), aliased, reused, index, blob }
    }

    /// Which op it is, by the reference's name.
    pub fn op_name(&self) -> &str {
        text(&self.index["op"])
    }

    /// The sixteen words the reference keeps its parameters in.
    pub fn words(&self) -> [i32; 16] {
        let word = |i: usize| self.index["op_params"][i].as_i64().and_then(|n| i32::try_from(n).ok());
        std::array::from_fn(|i| word(i).unwrap_or_else(|| panic!("{}: bad word {i}", self.name)))
    }

    /// Whether it names itself as its second source, which is how a cast is written.
    pub fn names_itself(&self) -> bool {
        self.index["src"][1].get("same_as").is_some()
    }

    /// Its sources by slot.
    pub fn sources(&self) -> &[Option<Recorded>] {
        &self.sources
    }

    /// Its result.
    pub const fn result(&self) -> &Recorded {
        &self.result
    }

    /// The source in whose memory the result lies, if the graph says that it lies in one.
    pub const fn aliased(&self) -> Option<usize> {
        self.aliased
    }

    /// The bytes a tensor was recorded in.
    pub fn storage(&self, tensor: &Recorded) -> &[u8] {
        &self.blob[tensor.storage.clone()]
    }
}

fn recorded(tensor: &Value) -> Recorded {
    let dtype = text(&tensor["type"]).parse().unwrap_or_else(|error| panic!("{error}"));
    let layout = Layout::strided(dtype, numbers(&tensor["ne"]), numbers(&tensor["nb"]))
        .unwrap_or_else(|error| panic!("{tensor}: {error}"));
    Recorded {
        layout,
        view_offset: number(&tensor["view_offset"]),
        storage: bytes(tensor),
        shares: tensor.get("shares_src").map(number),
        after: tensor.get("after").map(bytes),
    }
}

/// Where bytes lie in the blob.
fn bytes(place: &Value) -> std::ops::Range<usize> {
    let start = number(&place["offset"]);
    start..start + number(&place["size"])
}
