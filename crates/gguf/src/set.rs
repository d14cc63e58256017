//! A model that may be split over several files.
//!
//! Invariant: the files of a [`GgufSet`] are siblings whose names and metadata agree on how many they are and which
//! is which; no tensor name occurs twice, and there are as many tensors as the first file promises. A model in one
//! file is a set of one, and neither its name nor its metadata speaks of more.

mod part_name;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::{Path, PathBuf};

use crate::cursor::len_u64;
use crate::error::{Error, Result, SetError};
use crate::file::Gguf;
use crate::memory::{out_of_memory, with_room};
use crate::metadata::Metadata;
use crate::tensor::TensorInfo;
use crate::text::{Name, Text};

pub use part_name::PartName;

const NUMBER_KEY: &str = "split.no";
const COUNT_KEY: &str = "split.count";
const TENSORS_KEY: &str = "split.tensors.count";
const ARCHITECTURE_KEY: &str = "general.architecture";

/// All files of a model.
///
/// ```no_run
/// # fn main() -> Result<(), oxcart_gguf::Error> {
/// let model = oxcart_gguf::GgufSet::open("model-00001-of-00003.gguf")?;
/// if let Some(tensor) = model.tensor("output.weight") {
///     let mut bytes = vec![0; tensor.info.layout().byte_len()];
///     tensor.file.read_tensor(&tensor.info, &mut bytes)?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GgufSet {
    files: Vec<Gguf>,
}

/// A tensor and the file it lives in.
#[derive(Clone, Copy, Debug)]
pub struct SetTensor<'a> {
    /// Position of the file in [`GgufSet::files`].
    pub file_index: usize,
    /// The file.
    pub file: &'a Gguf,
    /// The tensor.
    pub info: TensorInfo<'a>,
}

impl GgufSet {
    /// Opens a model by its first or only file. The names of the others follow from it.
    pub fn open(path: impl AsRef<Path>) -> Result<GgufSet> {
        let path = path.as_ref();
        let first = Gguf::open(path)?;
        let description = SetDescription::of(&first).map_err(|error| error.in_file(path))?;
        let mut set = GgufSet { files: vec![first] };
        for number in 1..description.count {
            let file = Gguf::open(description.path(number)).map_err(|error| description.missing(error))?;
            description
                .check_sibling(set.first(), &file, number)
                .map_err(|error| error.in_file(file.path()))?;
            set.files.try_reserve(1).map_err(|_| out_of_memory::<Gguf>(set.files.len()))?;
            set.files.push(file);
        }
        description.check_total(&set.files).map_err(|error| error.in_file(path))?;
        check_names(&set.files)?;
        Ok(set)
    }

    /// The files, first to last.
    pub fn files(&self) -> &[Gguf] {
        &self.files
    }

    /// Keys and values of the model: those of its first file.
    pub fn metadata(&self) -> Metadata<'_> {
        self.first().metadata()
    }

    /// The first file.
    #[expect(clippy::indexing_slicing, reason = "a set is made with its first file and never loses one")]
    pub fn first(&self) -> &Gguf {
        &self.files[0]
    }

    /// The tensor of this name, wherever it is.
    pub fn tensor(&self, name: &str) -> Option<SetTensor<'_>> {
        self.files
            .iter()
            .enumerate()
            .find_map(|(file_index, file)| file.tensor(name).map(|info| SetTensor { file_index, file, info }))
    }

    /// All tensors, file by file.
    pub fn tensors(&self) -> impl Iterator<Item = SetTensor<'_>> + Clone {
        self.files.iter().enumerate().flat_map(|(file_index, file)| {
            file.tensors().iter().map(move |info| SetTensor { file_index, file, info })
        })
    }
}

/// What the first file says about all of them.
struct SetDescription {
    folder: PathBuf,
    /// File name up to the numbers.
    prefix: String,
    /// 1 when the file is the whole model.
    count: u16,
    /// Tensors of all files. Only a model in one file may leave it out.
    tensors: Option<u64>,
}

impl SetDescription {
    fn of(first: &Gguf) -> Result<SetDescription> {
        let count = number(first, COUNT_KEY)?;
        if let Some(number) = number(first, NUMBER_KEY)?.filter(|&number| number != 0) {
            return Err(SetError::NotFirst { number, count: count.filter(|&count| count > number) }.into());
        }
        let name = first.path().file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let tensors = number(first, TENSORS_KEY)?;
        let Some(several) = count.filter(|&count| count > 1) else {
            return match PartName::claimed_by(name) {
                Some(PartName { count: named, .. }) if named > 1 => {
                    Err(SetError::NameCount { named: named.into(), found: count }.into())
                }
                _ => Ok(SetDescription { folder: PathBuf::new(), prefix: String::new(), count: 1, tensors }),
            };
        };
        let count = u16::try_from(several).map_err(|_| SetError::TooMany { count: several })?;
        let suffix = part("", 0, count).to_string();
        let Some(prefix) = name.strip_suffix(&suffix) else {
            return Err(SetError::FileName { suffix }.into());
        };
        first.metadata().require(TENSORS_KEY)?;
        let folder = first.path().parent().unwrap_or(Path::new("")).to_owned();
        Ok(SetDescription { folder, prefix: prefix.to_owned(), count, tensors })
    }

    /// Where the file with this number must be.
    fn path(&self, number: u16) -> PathBuf {
        self.folder.join(part(&self.prefix, number, self.count).to_string())
    }

    /// Says of a file that is not there why it should be.
    fn missing(&self, error: Error) -> Error {
        match error {
            Error::InFile { path, source } if source.is_not_found() => {
                Error::from(SetError::Missing { count: self.count.into() }).in_file(&path)
            }
            error => error,
        }
    }

    /// What a file other than the first says must agree; only its number has to be there.
    fn check_sibling(&self, first: &Gguf, file: &Gguf, want: u16) -> Result<()> {
        let found = file.metadata().require(NUMBER_KEY)?.u64()?;
        if found != u64::from(want) {
            return Err(SetError::Number { want: want.into(), found }.into());
        }
        if let Some(found) = number(file, COUNT_KEY)?.filter(|&found| found != u64::from(self.count)) {
            return Err(SetError::Count { want: self.count.into(), found }.into());
        }
        if let (Some(want), Some(found)) = (self.tensors, number(file, TENSORS_KEY)?)
            && want != found
        {
            return Err(SetError::TensorCount { want, found }.into());
        }
        match (architecture(first), architecture(file)) {
            (Some(want), Some(found)) if found != want => {
                let (want, found) = (Name::from(want.as_bytes()), Name::from(found.as_bytes()));
                Err(SetError::Architecture { want, found }.into())
            }
            _ => Ok(()),
        }
    }

    /// As many tensors as promised.
    fn check_total(&self, files: &[Gguf]) -> Result<()> {
        let found = files.iter().map(|file| len_u64(file.tensors().len())).fold(0, u64::saturating_add);
        match self.tensors {
            Some(want) if want != found => Err(SetError::TensorCount { want, found }.into()),
            _ => Ok(()),
        }
    }
}

/// No tensor name twice. The files' sorted names are merged, so that memory is needed per file and not per tensor.
fn check_names(files: &[Gguf]) -> Result<()> {
    let mut names = with_room(files.len())?;
    names.extend(files.iter().map(|file| (file, file.tensors().names())));
    let mut heads = BinaryHeap::new();
    heads.try_reserve_exact(files.len()).map_err(|_| out_of_memory::<(&str, usize)>(files.len()))?;
    heads.extend(
        names.iter_mut().enumerate().filter_map(|(at, (_, names))| Some(Reverse((names.next()?, at)))),
    );
    let mut last = "";
    // Of two equal names, the one in the later file comes second.
    while let Some(Reverse((name, at))) = heads.pop() {
        let Some((file, names)) = names.get_mut(at) else { continue };
        if name == last {
            return Err(Error::DuplicateTensor { name: Name::from(name) }.in_file(file.path()));
        }
        last = name;
        heads.extend(names.next().map(|next| Reverse((next, at))));
    }
    Ok(())
}

/// The name of a file by its number in metadata, where the first is 0.
fn part(model: &str, number: u16, count: u16) -> PartName<'_> {
    PartName { model, number: u32::from(number).saturating_add(1), count: count.into() }
}

fn number(file: &Gguf, key: &str) -> Result<Option<u64>> {
    file.metadata().get(key).map(|entry| entry.u64()).transpose()
}

fn architecture(file: &Gguf) -> Option<Text<'_>> {
    file.metadata().get(ARCHITECTURE_KEY)?.text().ok()
}

#[cfg(test)]
mod tests;
