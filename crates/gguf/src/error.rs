//! What can be wrong with a file, with a question asked of it, or with the machine.
//!
//! Invariant: a message is one line and holds nothing of the file unescaped; text out of the file is a [`Name`].

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use oxcart_tensor::LayoutError;

use crate::text::Name;
use crate::value::ValueType;

/// The crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The part of a file that an error is about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Place {
    /// Magic and version.
    #[error("the first bytes")]
    Preamble,
    /// The number of tensors.
    #[error("the tensor count")]
    TensorCount,
    /// The number of metadata records.
    #[error("the metadata count")]
    RecordCount,
    /// The key of a metadata record.
    #[error("metadata key {index}")]
    Key {
        /// Position of the record, from zero.
        index: u64,
    },
    /// The value of a metadata record.
    #[error("the value of {key}")]
    Value {
        /// Key of the record.
        key: Name,
    },
    /// The number of elements of an array.
    #[error("the element count of {key}")]
    Elements {
        /// Key of the record.
        key: Name,
    },
    /// The name of a tensor.
    #[error("the name of tensor {index}")]
    TensorName {
        /// Position of the tensor, from zero.
        index: u64,
    },
    /// The description of a tensor.
    #[error("tensor {name}")]
    Tensor {
        /// Name of the tensor.
        name: Name,
    },
}

/// Everything that can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The error below, and the file it is about.
    #[error("{}: {source}", .path.display())]
    InFile {
        /// The culprit.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<Error>,
    },
    /// The system refused.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried, as a verb: `open`, `read`.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A folder, a pipe or a device.
    #[error("not a regular file")]
    NotAFile,
    /// Memory for the header could not be had.
    #[error("out of memory: {bytes} bytes for the header could not be had")]
    OutOfMemory {
        /// What was asked for.
        bytes: u64,
    },

    /// The file has no room for the magic of GGUF.
    #[error("not a GGUF file: only {len} byte{} long", if *.len == 1 { "" } else { "s" })]
    TooShort {
        /// Length of the file.
        len: u64,
    },
    /// The file does not begin with the magic of GGUF.
    #[error("not a GGUF file: it begins with '{}'", .found.escape_ascii())]
    Magic {
        /// What it begins with.
        found: [u8; 4],
    },
    /// A version this crate does not know.
    #[error("GGUF version {version} is not supported, only 1 to 3 are")]
    Version {
        /// The number in the file.
        version: u32,
    },
    /// The file ends too early.
    #[error("{place} needs {need} bytes at byte {offset}, but the file has only {have} left")]
    Truncated {
        /// What was being read.
        place: Place,
        /// Where in the file.
        offset: u64,
        /// Bytes needed there, at least.
        need: u64,
        /// Bytes the file has there.
        have: u64,
    },
    /// A number of things that the file is too short to hold.
    #[error("{place} is {count}, but the file has room for at most {most}")]
    Count {
        /// What is counted.
        place: Place,
        /// The number in the file.
        count: u64,
        /// The most that could follow.
        most: u64,
    },
    /// Metadata and tensor descriptions exceed [`MAX_HEADER_BYTES`](crate::limits::MAX_HEADER_BYTES).
    #[error("the header exceeds {} bytes at {place}", crate::limits::MAX_HEADER_BYTES)]
    HeaderTooLarge {
        /// What was being read.
        place: Place,
    },

    /// A key or a tensor name without characters.
    #[error("{place} is empty")]
    Empty {
        /// Which one.
        place: Place,
    },
    /// A key or a tensor name that is too long.
    #[error("{place} has {len} bytes, at most {most} are allowed")]
    TooLong {
        /// Which one.
        place: Place,
        /// Its length.
        len: u64,
        /// The limit.
        most: u64,
    },
    /// A key or a tensor name that is not UTF-8.
    #[error("{place} is not UTF-8: {name}")]
    NameNotUtf8 {
        /// Which one.
        place: Place,
        /// The bytes, escaped.
        name: Name,
    },
    /// Two records with the same key.
    #[error("metadata key {key} occurs twice")]
    DuplicateKey {
        /// The key.
        key: Name,
    },
    /// A value type this crate does not know.
    #[error("{place} has unknown type {id}")]
    ValueType {
        /// Which value.
        place: Place,
        /// The number in the file.
        id: u32,
    },
    /// An array of arrays.
    #[error("{place} is an array of arrays, which is not allowed")]
    NestedArray {
        /// Which value.
        place: Place,
    },
    /// `general.alignment` is not a `u32`.
    #[error("'general.alignment' must be a u32, but is a {found}")]
    AlignmentType {
        /// Its type.
        found: ValueType,
    },
    /// `general.alignment` is not a power of two up to [`MAX_ALIGNMENT`](crate::limits::MAX_ALIGNMENT).
    #[error(
        "'general.alignment' is {alignment}, which is not a power of two up to {}",
        crate::limits::MAX_ALIGNMENT
    )]
    Alignment {
        /// Its value.
        alignment: u32,
    },

    /// Two tensors with the same name, in one file or over all files of a split model.
    #[error("tensor {name} occurs twice")]
    DuplicateTensor {
        /// The name.
        name: Name,
    },
    /// A tensor without dimensions or with too many.
    #[error("tensor {tensor} has {dims} dimensions, 1 to {} are allowed", crate::limits::MAX_DIMS)]
    Dims {
        /// The tensor.
        tensor: Name,
        /// The number in the file.
        dims: u32,
    },
    /// A tensor extent that is zero or does not fit this machine.
    #[error("tensor {tensor} has extent {extent} in dimension {dim}")]
    Extent {
        /// The tensor.
        tensor: Name,
        /// The dimension, from zero.
        dim: usize,
        /// The number in the file.
        extent: u64,
    },
    /// A tensor type that was removed from the format or is not known yet.
    #[error("tensor {tensor} has unknown or removed type {id}")]
    TensorType {
        /// The tensor.
        tensor: Name,
        /// The number in the file.
        id: u32,
    },
    /// Extents and type do not fit each other.
    #[error("tensor {tensor}: {source}")]
    Layout {
        /// The tensor.
        tensor: Name,
        /// Why not.
        source: LayoutError,
    },
    /// A tensor that does not begin at a multiple of the alignment.
    #[error("tensor {tensor} begins at offset {offset} of the data, which is not a multiple of {alignment}")]
    Unaligned {
        /// The tensor.
        tensor: Name,
        /// Its offset in the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u32,
    },
    /// A tensor that is not wholly inside the file.
    #[error(
        "tensor {tensor} needs {len} bytes at offset {offset} of the data, but the file ends at byte {file_len}"
    )]
    OutsideFile {
        /// The tensor.
        tensor: Name,
        /// Its offset in the data section.
        offset: u64,
        /// Its length in bytes.
        len: u64,
        /// Length of the file.
        file_len: u64,
    },
    /// Two tensors that share bytes.
    #[error("tensors {first} and {second} overlap")]
    Overlap {
        /// The one that begins first.
        first: Name,
        /// The other.
        second: Name,
    },

    /// A key that was asked for is not there.
    #[error("metadata key {key} is missing")]
    MissingKey {
        /// The key.
        key: Name,
    },
    /// A value is of another type than asked for.
    #[error("metadata key {key} has type {found}, wanted {wanted}")]
    WrongType {
        /// The key.
        key: Name,
        /// What it is.
        found: ValueType,
        /// What was asked for.
        wanted: &'static str,
    },
    /// A value is no array, or has elements of another type than asked for.
    #[error("metadata key {key} has type {}{found}, wanted array of {wanted}", if *.array { "array of " } else { "" })]
    WrongElements {
        /// The key.
        key: Name,
        /// Whether it is an array.
        array: bool,
        /// Its type, or that of its elements.
        found: ValueType,
        /// What the elements should be.
        wanted: &'static str,
    },
    /// An integer does not fit the type asked for.
    #[error("metadata key {key} is {value}, which does not fit {wanted}")]
    OutOfRange {
        /// The key.
        key: Name,
        /// Its value.
        value: i128,
        /// What was asked for.
        wanted: &'static str,
    },
    /// A string that was asked for as text is not UTF-8.
    #[error("the value of {key} is not UTF-8")]
    TextNotUtf8 {
        /// The key.
        key: Name,
    },
    /// A buffer that does not have the size of the bytes asked for.
    #[error("tensor {tensor} has {len} bytes, but {asked} at {start} were asked for")]
    BufferSize {
        /// The tensor.
        tensor: Name,
        /// Its length.
        len: u64,
        /// First byte asked for.
        start: u64,
        /// Bytes asked for.
        asked: u64,
    },
    /// The file became shorter after it was opened.
    #[error("the file was truncated while in use")]
    Shrunk,
    /// The file became another one between two looks at its header.
    #[error("the file was changed while being opened")]
    Changed,
    /// More than [`MAX_MAPPINGS`](crate::limits::MAX_MAPPINGS) mappings at a time.
    #[error("more than {} files are mapped", crate::limits::MAX_MAPPINGS)]
    TooManyMappings,

    /// A file of a split model that does not fit its place.
    #[error("split model: {0}")]
    Set(#[from] SetError),

    /// Tensor data that did not have the length its layout asks for.
    #[error("tensor {tensor} needs {need} bytes of data, but was given {given}")]
    DataLength {
        /// The tensor.
        tensor: Name,
        /// Bytes needed.
        need: u64,
        /// Bytes given; one too many stands for any number above `need`.
        given: u64,
    },
    /// A length that the version of the file to be written cannot hold.
    #[error("{place} has length {len}, which GGUF version 1 cannot hold")]
    TooLargeForV1 {
        /// What is too long.
        place: Place,
        /// Its length.
        len: u64,
    },
}

/// Why files do not make up one split model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// Opened from the middle.
    #[error("this is file {}{}, open the first one", .number.saturating_add(1), OfCount(*.count))]
    NotFirst {
        /// Position of the file, from zero.
        number: u64,
        /// Files of the model, if the file gives a number above its own.
        count: Option<u64>,
    },
    /// The first file is there, this one is not.
    #[error("the file is missing: the first file says there are {count}")]
    Missing {
        /// Files of the model.
        count: u64,
    },
    /// More files than can be numbered.
    #[error("'split.count' is {count}, at most {} files are possible", crate::limits::MAX_SET_FILES)]
    TooMany {
        /// Files of the model, by the first one.
        count: u64,
    },
    /// A name that tells of more files than the metadata.
    #[error("the file name says it is one of {named}, but {}", SaysCount(*.found))]
    NameCount {
        /// Files by name.
        named: u64,
        /// Files by metadata, if it says.
        found: Option<u64>,
    },
    /// The file says another position than its name.
    #[error("the file should be number {want} (from zero), but says {found}")]
    Number {
        /// Position by name.
        want: u64,
        /// Position by metadata.
        found: u64,
    },
    /// Files disagree on how many there are.
    #[error("the file should be one of {want}, but says {found}")]
    Count {
        /// By the first file.
        want: u64,
        /// By this one.
        found: u64,
    },
    /// A name that does not tell the file's place.
    #[error("the file name should end in '{suffix}'")]
    FileName {
        /// The ending that was expected.
        suffix: String,
    },
    /// The tensors of all files are not as many as promised.
    #[error("'split.tensors.count' is {want}, but the number of tensors is {found}")]
    TensorCount {
        /// The promise.
        want: u64,
        /// Tensors found, or promised by another file.
        found: u64,
    },
    /// A file of a model with another architecture.
    #[error("the file belongs to another model: its architecture is {found}, not {want}")]
    Architecture {
        /// Of the first file.
        want: Name,
        /// Of this one.
        found: Name,
    },
}

/// ` of 3`, or nothing.
struct OfCount(Option<u64>);

impl fmt::Display for OfCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |count| write!(f, " of {count}"))
    }
}

/// What the metadata says about the number of files.
struct SaysCount(Option<u64>);

impl fmt::Display for SaysCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(count) => write!(f, "'split.count' is {count}"),
            None => f.write_str("it has no 'split.count'"),
        }
    }
}

impl Error {
    pub(crate) fn io(action: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { action, source }
    }

    /// Whether the system says that there is no such file.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// The same error with the name of the file, unless it has one.
    #[must_use]
    pub fn in_file(self, path: &Path) -> Error {
        match self {
            Error::InFile { .. } => self,
            _ => Error::InFile { path: path.to_owned(), source: Box::new(self) },
        }
    }

    /// The error without the name of the file.
    pub fn what(&self) -> &Error {
        match self {
            Error::InFile { source, .. } => source,
            _ => self,
        }
    }
}
