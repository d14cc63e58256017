//! From header bytes to an index of where everything is: the one parser of the crate.
//!
//! [`Index::scan`] is a function of bytes and a file length; it does no I/O. Files, byte slices and the writer, which
//! checks its own header before the first byte leaves, all come through it.
//!
//! Invariants of an [`Index`], for the bytes it was made from:
//! - every offset points at a record (or tensor info) that decodes without error;
//! - keys and tensor names are non-empty, UTF-8 and unique, and the lists are sorted by them;
//! - the tensors' bytes are aligned, inside the data section, inside the file, and disjoint.

use crate::cursor::{Cursor, Field, Stop, len_u64};
use crate::error::{Error, Result};
use crate::format::Format;
use crate::limits::{self, DEFAULT_ALIGNMENT, MAX_ALIGNMENT};
use crate::memory::with_room;
use crate::metadata::{ALIGNMENT_KEY, Record};
use crate::tensor::TensorInfo;
use crate::text::Name;
use crate::value::Value;

/// Where everything is. Offsets are from the first byte of the file; four bytes each and one for each record, because
/// a hostile header consists of nothing but the smallest possible records. In file order, records are found by walking.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    pub(crate) format: Format,
    pub(crate) alignment: u32,
    /// Bytes before the data section, without the padding.
    pub(crate) header_len: u32,
    pub(crate) file_len: u64,
    /// First byte of the data section.
    pub(crate) data_start: u64,
    pub(crate) first_record: u32,
    pub(crate) first_tensor: u32,
    /// Metadata records by key.
    pub(crate) records: Vec<u32>,
    /// Tensor infos by name.
    pub(crate) tensors: Vec<u32>,
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
        let first_record = cursor.offset()?;
        let records = scan_each(&mut cursor, record_count, limits::min_record_bytes(width), |cursor, i| {
            let record = Record::read(cursor, i)?;
            if record.key == ALIGNMENT_KEY {
                alignment = read_alignment(*cursor, record)?;
            }
            Value::skip(cursor, record.value_type)
        })?;

        cursor.enter(Field::TensorCount);
        let first_tensor = cursor.offset()?;
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
            first_record,
            first_tensor,
            records: Vec::new(),
            tensors: Vec::new(),
        };
        index.records = index.sorted(window, records).map_err(|key| Error::DuplicateKey { key })?;
        let tensors = index.apart(window, tensors)?;
        index.tensors = index.sorted(window, tensors).map_err(|name| Error::DuplicateTensor { name })?;
        Ok(index)
    }

    /// The string that a record or a tensor info begins with.
    fn name_at<'a>(&self, window: &'a [u8], offset: u32) -> &'a [u8] {
        Cursor::reopen(window, offset, self.format).string().unwrap_or_default()
    }

    /// The same offsets by name, or a name that occurs twice.
    fn sorted(&self, window: &[u8], mut offsets: Vec<u32>) -> Result<Vec<u32>, Name> {
        offsets.sort_unstable_by(|&a, &b| self.name_at(window, a).cmp(self.name_at(window, b)));
        let twins = offsets.windows(2).find_map(|pair| {
            let [a, b] = pair else { return None };
            let name = self.name_at(window, *a);
            (name == self.name_at(window, *b)).then(|| Name::from(name))
        });
        twins.map_or(Ok(offsets), Err)
    }

    /// Binary search in a sorted list.
    pub(crate) fn find(&self, window: &[u8], sorted: &[u32], name: &str) -> Option<u32> {
        let found = sorted.binary_search_by(|&offset| self.name_at(window, offset).cmp(name.as_bytes()));
        sorted.get(found.ok()?).copied()
    }

    /// The tensor whose info is at `offset`.
    pub(crate) fn tensor_at<'a>(&self, window: &'a [u8], offset: u32) -> Option<TensorInfo<'a>> {
        Some(self.info_at(window, offset).ok()?.based_at(self.data_start))
    }

    /// As the file has it: the offset is that in the data section.
    fn info_at<'a>(&self, window: &'a [u8], offset: u32) -> Result<TensorInfo<'a>, Stop> {
        TensorInfo::read(&mut Cursor::reopen(window, offset, self.format), 0, self.alignment)
    }

    /// The offset in the data section, and nothing else: sorting asks for it often.
    fn place_at(&self, window: &[u8], offset: u32) -> Result<u64, Stop> {
        let mut cursor = Cursor::reopen(window, offset, self.format);
        cursor.string()?;
        let dims: u32 = cursor.number()?;
        let extents = self.format.version.length_bytes().saturating_mul(dims.into());
        cursor.bytes(extents.saturating_add(4))?;
        cursor.number()
    }

    /// Checks that tensors, given in file order, are inside the file and apart from each other. Gives the same offsets
    /// back, in any order.
    fn apart(&self, window: &[u8], tensors: Vec<u32>) -> Result<Vec<u32>, Stop> {
        let mut end_so_far = self.data_start;
        let mut ascending = true;
        for &at in &tensors {
            let info = self.info_at(window, at)?;
            let start = self.data_start.checked_add(info.offset());
            let end = start.and_then(|start| start.checked_add(info.byte_len()));
            let (Some(start), Some(end)) = (start, end.filter(|&end| end <= self.file_len)) else {
                return Err(Error::OutsideFile {
                    tensor: Name::from(info.name()),
                    offset: info.offset(),
                    len: info.byte_len(),
                    file_len: self.file_len,
                }
                .into());
            };
            ascending &= start >= end_so_far;
            end_so_far = end;
        }
        if ascending { Ok(tensors) } else { self.apart_by_place(window, tensors) }
    }

    /// Tensors in any order: sorted by place, each must end before the next begins.
    fn apart_by_place(&self, window: &[u8], mut tensors: Vec<u32>) -> Result<Vec<u32>, Stop> {
        tensors.sort_unstable_by_key(|&at| (self.place_at(window, at).ok(), at));
        let in_order = tensors.iter().filter_map(|&at| self.tensor_at(window, at));
        for (first, second) in in_order.clone().zip(in_order.skip(1)) {
            if first.offset().saturating_add(first.byte_len()) > second.offset() {
                let (first, second) = (Name::from(first.name()), Name::from(second.name()));
                return Err(Error::Overlap { first, second }.into());
            }
        }
        Ok(tensors)
    }
}

/// Reads `count` things of at least `least` bytes each and notes where they begin.
fn scan_each<'a>(
    cursor: &mut Cursor<'a>,
    count: u64,
    least: u64,
    mut read: impl FnMut(&mut Cursor<'a>, u64) -> Result<(), Stop>,
) -> Result<Vec<u32>, Stop> {
    // No more than the window has room for: if there are more, reading them ends the scan.
    let room = len_u64(cursor.rest().len()).checked_div(least).unwrap_or(0);
    let count_here = cursor.check_count(count, least)?.min(usize::try_from(room).unwrap_or(usize::MAX));
    let mut offsets = with_room(count_here)?;
    for i in 0..count {
        let offset = cursor.offset()?;
        read(cursor, i)?;
        offsets.push(offset);
    }
    Ok(offsets)
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
