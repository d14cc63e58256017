//! From header bytes to an index of where everything is: the one parser of the crate.
//!
//! [`Index::scan`] is a function of bytes and a file length; it does no I/O. Files, byte slices and the writer, which
//! checks its own header before the first byte leaves, all come through it.
//!
//! Invariants of an [`Index`], for the bytes it was made from:
//! - every offset points at a record (or tensor info) that decodes without error;
//! - keys and tensor names are non-empty, UTF-8 and unique, and the sorted lists are sorted by them;
//! - the tensors' bytes are aligned, inside the data section, inside the file, and disjoint.

use crate::cursor::{Cursor, Field, Stop, len_u64};
use crate::error::{Error, Result};
use crate::format::Format;
use crate::limits::{self, DEFAULT_ALIGNMENT, MAX_ALIGNMENT};
use crate::metadata::{ALIGNMENT_KEY, Record};
use crate::tensor::TensorInfo;
use crate::text::Name;
use crate::value::Value;

/// Where everything is. Offsets are from the first byte of the file; four bytes each, because a hostile header
/// consists of nothing but the smallest possible records.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    pub(crate) format: Format,
    pub(crate) alignment: u32,
    /// Bytes before the data section, without the padding.
    pub(crate) header_len: u32,
    pub(crate) file_len: u64,
    /// First byte of the data section.
    pub(crate) data_start: u64,
    /// Metadata records in file order.
    pub(crate) records: Vec<u32>,
    pub(crate) records_by_key: Vec<u32>,
    /// Tensor infos in file order.
    pub(crate) tensors: Vec<u32>,
    pub(crate) tensors_by_name: Vec<u32>,
}

impl Index {
    /// Parses the header of a file of `file_len` bytes that begins with `window`.
    pub(crate) fn scan(window: &[u8], file_len: u64) -> Result<Index, Stop> {
        let mut cursor = Cursor::new(window, file_len);
        let format = cursor.preamble()?;
        cursor.enter(Field::TensorCount);
        let tensor_count = cursor.length()?;
        cursor.enter(Field::RecordCount);
        let record_count = cursor.length()?;

        let width = format.version.length_bytes();
        let mut alignment = DEFAULT_ALIGNMENT;
        let records = scan_each(&mut cursor, record_count, limits::min_record_bytes(width), |cursor, i| {
            let record = Record::read(cursor, i)?;
            if record.key == ALIGNMENT_KEY {
                alignment = read_alignment(*cursor, record)?;
            }
            Value::skip(cursor, record.value_type)
        })?;

        cursor.enter(Field::TensorCount);
        let tensors = scan_each(&mut cursor, tensor_count, limits::min_tensor_bytes(width), |cursor, i| {
            TensorInfo::read(cursor, i, alignment).map(drop)
        })?;

        let header_len = cursor.offset()?;
        // Cannot overflow: a header ends below 2^30 and an alignment is at most 2^24.
        let data_start = u64::from(header_len).next_multiple_of(alignment.into());
        let mut index = Index {
            format,
            alignment,
            header_len,
            file_len,
            data_start,
            records,
            records_by_key: Vec::new(),
            tensors,
            tensors_by_name: Vec::new(),
        };
        index.records_by_key = index.sorted(window, &index.records)?;
        index.tensors_by_name = index.sorted(window, &index.tensors)?;
        if let Some(key) = index.twins(window, &index.records_by_key) {
            return Err(Error::DuplicateKey { key }.into());
        }
        if let Some(name) = index.twins(window, &index.tensors_by_name) {
            return Err(Error::DuplicateTensor { name }.into());
        }
        index.check_ranges(window)?;
        Ok(index)
    }

    /// The string that a record or a tensor info begins with.
    fn name_at<'a>(&self, window: &'a [u8], offset: u32) -> &'a [u8] {
        Cursor::reopen(window, offset, self.format).string().unwrap_or_default()
    }

    fn sorted(&self, window: &[u8], offsets: &[u32]) -> Result<Vec<u32>, Stop> {
        let mut sorted = with_room(offsets.len())?;
        sorted.extend_from_slice(offsets);
        sorted.sort_unstable_by(|&a, &b| self.name_at(window, a).cmp(self.name_at(window, b)));
        Ok(sorted)
    }

    /// A name that occurs twice in a sorted list.
    fn twins(&self, window: &[u8], sorted: &[u32]) -> Option<Name> {
        sorted.windows(2).find_map(|pair| {
            let [a, b] = pair else { return None };
            let name = self.name_at(window, *a);
            (name == self.name_at(window, *b)).then(|| Name::from(name))
        })
    }

    /// Binary search in a sorted list.
    pub(crate) fn find(&self, window: &[u8], sorted: &[u32], name: &str) -> Option<u32> {
        let found = sorted.binary_search_by(|&offset| self.name_at(window, offset).cmp(name.as_bytes()));
        sorted.get(found.ok()?).copied()
    }

    /// The tensor whose info is at `offset`.
    pub(crate) fn tensor_at<'a>(&self, window: &'a [u8], offset: u32) -> Option<TensorInfo<'a>> {
        let mut cursor = Cursor::reopen(window, offset, self.format);
        let info = TensorInfo::read(&mut cursor, 0, self.alignment).ok()?;
        Some(info.based_at(self.data_start))
    }

    fn tensors<'a>(&self, window: &'a [u8]) -> impl Iterator<Item = TensorInfo<'a>> {
        self.tensors.iter().filter_map(move |&offset| self.tensor_at(window, offset))
    }

    /// All tensors are inside the file and apart from each other.
    fn check_ranges(&self, window: &[u8]) -> Result<(), Stop> {
        let mut end_so_far = self.data_start;
        let mut ascending = true;
        for info in self.tensors(window) {
            let end = info.offset().checked_add(info.byte_len()).filter(|&end| end <= self.file_len);
            let Some(end) = end else {
                return Err(Error::OutsideFile {
                    tensor: Name::from(info.name()),
                    offset: info.offset().saturating_sub(self.data_start),
                    len: info.byte_len(),
                    file_len: self.file_len,
                }
                .into());
            };
            ascending &= info.offset() >= end_so_far;
            end_so_far = end;
        }
        if ascending { Ok(()) } else { self.check_overlap(window) }
    }

    /// Tensors in any order: sorted by place, each must end before the next begins.
    fn check_overlap(&self, window: &[u8]) -> Result<(), Stop> {
        let mut places: Vec<(u64, u32)> = with_room(self.tensors.len())?;
        for &at in &self.tensors {
            places.extend(self.tensor_at(window, at).map(|info| (info.offset(), at)));
        }
        places.sort_unstable();
        let in_order = places.iter().filter_map(|&(_, at)| self.tensor_at(window, at));
        for (first, second) in in_order.clone().zip(in_order.skip(1)) {
            if first.offset().saturating_add(first.byte_len()) > second.offset() {
                let (first, second) = (Name::from(first.name()), Name::from(second.name()));
                return Err(Error::Overlap { first, second }.into());
            }
        }
        Ok(())
    }
}

/// Reads `count` things of at least `least` bytes each and notes where they begin.
fn scan_each<'a>(
    cursor: &mut Cursor<'a>,
    count: u64,
    least: u64,
    mut read: impl FnMut(&mut Cursor<'a>, u64) -> Result<(), Stop>,
) -> Result<Vec<u32>, Stop> {
    let mut offsets = with_room(cursor.check_count(count, least)?)?;
    for i in 0..count {
        offsets.push(cursor.offset()?);
        read(cursor, i)?;
    }
    Ok(offsets)
}

/// An empty vector that will not grow; refuses instead of aborting when memory is short.
fn with_room<T>(len: usize) -> Result<Vec<T>, Error> {
    let mut vec = Vec::new();
    vec.try_reserve_exact(len)
        .map_err(|_| Error::OutOfMemory { bytes: len_u64(len.saturating_mul(size_of::<T>())) })?;
    Ok(vec)
}

fn read_alignment<'a>(mut cursor: Cursor<'a>, record: Record<'a>) -> Result<u32, Stop> {
    match Value::read(&mut cursor, record.value_type)? {
        Value::U32(n) if n.is_power_of_two() && n <= MAX_ALIGNMENT => Ok(n),
        Value::U32(alignment) => Err(Error::Alignment { alignment }.into()),
        other => Err(Error::AlignmentType { found: other.value_type() }.into()),
    }
}

#[cfg(test)]
mod tests;
