//! A model that may be split over several files.
//!
//! Invariant: the files of a [`GgufSet`] are siblings whose names and metadata agree on how many they are and which
//! is which; no tensor name occurs twice, and there are as many tensors as the first file promises. A model in one
//! file is a set of one.

use std::path::{Path, PathBuf};

use crate::cursor::len_u64;
use crate::error::{Error, Result, SplitError};
use crate::file::Gguf;
use crate::limits::MAX_SHARDS;
use crate::metadata::Metadata;
use crate::tensor::TensorInfo;
use crate::text::{Name, Text};

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
        let split = Split::of(&first).map_err(|error| error.in_file(path))?;
        let mut files = vec![first];
        if let Some(split) = split {
            for number in 1..split.count {
                let file = Gguf::open(split.path(number))?;
                split.check_sibling(&file, number).map_err(|error| error.in_file(file.path()))?;
                files.push(file);
            }
            split.check_tensors(&files)?;
        }
        Ok(GgufSet { files })
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

/// What the first of several files says about all of them.
struct Split {
    folder: PathBuf,
    /// File name up to the numbers.
    prefix: String,
    count: u16,
    tensors: u64,
    architecture: Option<Vec<u8>>,
}

impl Split {
    /// `None` when the file is the whole model.
    fn of(first: &Gguf) -> Result<Option<Split>> {
        let count = number(first, COUNT_KEY)?.unwrap_or(0);
        let number_found = number(first, NUMBER_KEY)?.unwrap_or(0);
        if number_found != 0 {
            return Err(SplitError::NotFirst { number: number_found, count }.into());
        }
        if count <= 1 {
            return Ok(None);
        }
        let count =
            u16::try_from(count).map_err(|_| SplitError::Count { want: MAX_SHARDS.into(), found: count })?;
        let suffix = suffix(0, count);
        let name = first.path().file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(prefix) = name.strip_suffix(&suffix) else {
            return Err(SplitError::FileName { suffix }.into());
        };
        Ok(Some(Split {
            folder: first.path().parent().unwrap_or(Path::new("")).to_owned(),
            prefix: prefix.to_owned(),
            count,
            tensors: first.metadata().require(TENSORS_KEY)?.u64()?,
            architecture: architecture(first).map(|name| name.as_bytes().to_owned()),
        }))
    }

    /// Where the file with this number must be.
    fn path(&self, number: u16) -> PathBuf {
        self.folder.join(format!("{}{}", self.prefix, suffix(number, self.count)))
    }

    /// What a file other than the first says must agree; only its number has to be there.
    fn check_sibling(&self, file: &Gguf, want: u16) -> Result<()> {
        let found = file.metadata().require(NUMBER_KEY)?.u64()?;
        if found != u64::from(want) {
            return Err(SplitError::Number { want: want.into(), found }.into());
        }
        if let Some(found) = number(file, COUNT_KEY)?.filter(|&found| found != u64::from(self.count)) {
            return Err(SplitError::Count { want: self.count.into(), found }.into());
        }
        if let Some(found) = number(file, TENSORS_KEY)?.filter(|&found| found != self.tensors) {
            return Err(SplitError::TensorCount { want: self.tensors, found }.into());
        }
        match (architecture(file), &self.architecture) {
            (Some(found), Some(want)) if found.as_bytes() != want => {
                let (want, found) = (Name::from(want.as_slice()), Name::from(found.as_bytes()));
                Err(SplitError::Architecture { want, found }.into())
            }
            _ => Ok(()),
        }
    }

    /// As many tensors as promised, and no name twice.
    fn check_tensors(&self, files: &[Gguf]) -> Result<()> {
        let mut names: Vec<(&str, &Gguf)> = files
            .iter()
            .flat_map(|file| file.tensors().iter().map(move |info| (info.name(), file)))
            .collect();
        let found = len_u64(names.len());
        if found != self.tensors {
            let error = Error::from(SplitError::TensorCount { want: self.tensors, found });
            return Err(error.in_file(&self.path(0)));
        }
        // Stable, so of two equal names the one in the later file comes second.
        names.sort_by_key(|(name, _)| *name);
        for pair in names.windows(2) {
            if let [(first, _), (second, file)] = pair
                && first == second
            {
                return Err(Error::DuplicateTensor { name: Name::from(*second) }.in_file(file.path()));
            }
        }
        Ok(())
    }
}

fn suffix(number: u16, count: u16) -> String {
    format!("-{:05}-of-{count:05}.gguf", u32::from(number).saturating_add(1))
}

fn number(file: &Gguf, key: &str) -> Result<Option<u64>> {
    file.metadata().get(key).map(|entry| entry.u64()).transpose()
}

fn architecture(file: &Gguf) -> Option<Text<'_>> {
    file.metadata().get(ARCHITECTURE_KEY)?.text().ok()
}

#[cfg(test)]
mod tests;
