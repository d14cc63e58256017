//! Hostile headers, class by class.

use oxcart_tensor::{DType, LayoutError};

use super::*;
use crate::error::Place;
use crate::header::Header;
use crate::limits::{MAX_HEADER_BYTES, MAX_KEY_BYTES};
use oxcart_tensor::dtype_id;

/// Bytes of a version 3 file, written field by field so that every field can be wrong.
#[derive(Clone, Default)]
struct Raw(Vec<u8>);

impl Raw {
    fn new(tensors: u64, records: u64) -> Raw {
        Raw(b"GGUF".to_vec()).u32(3).u64(tensors).u64(records)
    }

    fn u8(mut self, n: u8) -> Raw {
        self.0.push(n);
        self
    }

    fn u32(mut self, n: u32) -> Raw {
        self.0.extend(n.to_le_bytes());
        self
    }

    fn u64(mut self, n: u64) -> Raw {
        self.0.extend(n.to_le_bytes());
        self
    }

    fn string(self, bytes: &[u8]) -> Raw {
        let mut raw = self.u64(bytes.len() as u64);
        raw.0.extend(bytes);
        raw
    }

    /// Key and type of a record.
    fn key(self, key: &[u8], value_type: u32) -> Raw {
        self.string(key).u32(value_type)
    }

    fn tensor(self, name: &[u8], ne: &[u64], dtype: DType, offset: u64) -> Raw {
        let raw = self.string(name).u32(ne.len() as u32);
        ne.iter().fold(raw, |raw, &ne| raw.u64(ne)).u32(dtype_id(dtype)).u64(offset)
    }

    /// Padding up to the data section, and `len` bytes of data.
    fn data(mut self, len: usize) -> Raw {
        let start = self.0.len().next_multiple_of(32);
        self.0.resize(start + len, 0);
        self
    }

    fn parse(&self) -> Result<Header<'_>> {
        Header::parse(&self.0)
    }

    fn refused(&self) -> Error {
        let error = self.parse().expect_err("must be refused");
        let message = error.to_string();
        assert!(message.chars().all(|c| c.is_ascii_graphic() || c == ' ' || c == '…'), "{message}");
        error
    }
}

const U8: u32 = 0;
const U32: u32 = 4;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

#[test]
fn counts_are_bounded_by_the_file() {
    for count in [1, 1 << 31, 1 << 60, u64::MAX / 14, u64::MAX] {
        let error = Raw::new(0, count).refused();
        assert!(matches!(error, Error::Count { place: Place::RecordCount, most: 0, .. }), "{error}");
        let error = Raw::new(count, 0).refused();
        assert!(matches!(error, Error::Count { place: Place::TensorCount, most: 0, .. }), "{error}");
    }
    assert!(Raw::new(0, 0).parse().is_ok());
}

#[test]
fn counts_reserve_nothing_beyond_the_bytes_at_hand() {
    // A window of a huge file: the count is possible for the file, but the window shows nothing of it yet. A key that
    // is refused is refused before the rest is asked for.
    let raw = Raw::new(0, 1 << 20).u64(0);
    assert!(matches!(Index::scan(&raw.0, 1 << 40), Err(Stop::Bad(Error::Empty { .. }))));
    let raw = Raw::new(0, 1 << 20);
    assert!(matches!(Index::scan(&raw.0, 1 << 40), Err(Stop::NeedMore)));
    let raw = Raw::new(0, 1 << 30);
    assert!(matches!(Index::scan(&raw.0, 1 << 40), Err(Stop::Bad(Error::HeaderTooLarge { .. }))));
}

#[test]
fn string_lengths_are_bounded_by_the_file() {
    for len in [2, 1 << 63, u64::MAX, MAX_HEADER_BYTES] {
        let error = Raw::new(0, 1).key(b"k", STRING).u64(len).u8(b'x').refused();
        let place = Place::Value { key: Name::from("k") };
        assert!(
            matches!(&error, Error::Truncated { place: p, need, have: 1, offset: 45 } if *p == place && *need == len),
            "{error}"
        );
    }
    let error = Raw::new(0, 1).u64(7).u32(0).u8(0).refused();
    assert!(
        matches!(error, Error::Truncated { place: Place::Key { index: 0 }, need: 7, have: 5, .. }),
        "{error}"
    );
}

#[test]
fn keys_are_bounded() {
    let long = vec![b'k'; MAX_KEY_BYTES as usize + 1];
    assert!(matches!(Raw::new(0, 1).key(&long, U8).u8(0).refused(), Error::TooLong { .. }));
    assert!(Raw::new(0, 1).key(&long[1..], U8).u8(0).parse().is_ok());
}

#[test]
fn a_short_read_ends_the_parse() {
    let full = Raw::new(1, 2)
        .key(b"a", STRING)
        .string(b"hello")
        .key(b"b", ARRAY)
        .u32(STRING)
        .u64(2)
        .string(b"x")
        .string(b"yz")
        .tensor(b"w", &[32], DType::Q8_0, 0)
        .data(34);
    assert!(full.parse().is_ok());
    for len in 0..full.0.len() {
        Raw(full.0[..len].to_vec()).refused();
        // The same bytes of a longer file are not an error yet.
        let stop = Index::scan(&full.0[..len], full.0.len() as u64);
        assert!(stop.is_ok() || matches!(stop, Err(Stop::NeedMore)), "{len}: {stop:?}");
    }
}

#[test]
fn arrays_are_bounded_and_flat() {
    let array = |element: u32, count: u64| Raw::new(0, 1).key(b"k", ARRAY).u32(element).u64(count);
    for count in [2, 1 << 31, 1 << 60, u64::MAX / 8, u64::MAX] {
        for element in [0, 1, 4, 7, 8, 10, 12] {
            let error = array(element, count).u8(1).refused();
            assert!(matches!(error, Error::Count { place: Place::Elements { .. }, .. }), "{error}");
        }
    }
    for element in [13, 255, u32::MAX] {
        assert!(matches!(array(element, 0).refused(), Error::ValueType { .. }));
    }
    assert!(matches!(array(ARRAY, 0).u32(U8).u64(0).refused(), Error::NestedArray { .. }));
    assert!(matches!(Raw::new(0, 1).key(b"k", 13).u8(0).refused(), Error::ValueType { id: 13, .. }));
    let error = array(STRING, 49_152).u64(0).u64(0).refused();
    assert_eq!(error.to_string(), "the element count of 'k' is 49152, but the file has room for at most 2");
    assert!(array(STRING, 1).string(b"").parse().is_ok());
    assert!(matches!(array(STRING, 1).u64(1).refused(), Error::Truncated { .. }));
}

#[test]
fn alignment_is_a_sane_power_of_two() {
    let with = |alignment: u32| Raw::new(0, 1).key(b"general.alignment", U32).u32(alignment);
    for bad in [0, 3, 33, 1 << 31, u32::MAX, MAX_ALIGNMENT * 2] {
        assert!(matches!(with(bad).refused(), Error::Alignment { alignment } if alignment == bad));
    }
    for good in [1, 32, 4096, MAX_ALIGNMENT] {
        assert_eq!(with(good).parse().unwrap().alignment(), good);
    }
    let text = Raw::new(0, 1).key(b"general.alignment", STRING).string(b"32").refused();
    assert_eq!(text.to_string(), "'general.alignment' must be a u32, but is a string");
    let array = Raw::new(0, 1).key(b"general.alignment", ARRAY).u32(U32).u64(1).u32(32).refused();
    assert!(matches!(array, Error::AlignmentType { .. }));
    assert!(Raw::new(0, 1).key(b"general.alignment", 10).u64(32).parse().is_err());
}

#[test]
fn keys_are_unique_and_readable() {
    let two = |a: &[u8], b: &[u8]| Raw::new(0, 2).key(a, U8).u8(1).key(b, U8).u8(2);
    let error = two(b"same", b"same").refused();
    assert_eq!(error.to_string(), "metadata key 'same' occurs twice");
    assert!(two(b"same", b"Same").parse().is_ok());
    let error = two(b"a", b"").refused();
    assert_eq!(error.to_string(), "metadata key 1 is empty");
    let error = two(b"a", b"\xff\x1b[2J").refused();
    assert_eq!(error.to_string(), r"metadata key 1 is not UTF-8: '\xff\u{1b}[2J'");
}

#[test]
fn tensor_names_are_unique_and_readable() {
    let two = |a: &[u8], b: &[u8]| {
        Raw::new(2, 0).tensor(a, &[8], DType::F32, 0).tensor(b, &[8], DType::F32, 32).data(64)
    };
    assert!(two(b"a", b"b").parse().is_ok());
    assert!(matches!(two(b"a", b"a").refused(), Error::DuplicateTensor { .. }));
    assert!(matches!(two(b"a", b"").refused(), Error::Empty { place: Place::TensorName { index: 1 } }));
    assert!(matches!(two(b"a", b"\x80").refused(), Error::NameNotUtf8 { .. }));
    assert!(two(b"a", &[b'n'; 63]).parse().is_ok());
    assert!(matches!(two(b"a", &[b'n'; 64]).refused(), Error::TooLong { len: 64, most: 63, .. }));
}

#[test]
fn extents_are_checked() {
    let with = |ne: &[u64], dtype| Raw::new(1, 0).tensor(b"w", ne, dtype, 0).data(64);
    assert!(with(&[2, 2, 2, 2], DType::F32).parse().is_ok());
    assert!(matches!(with(&[], DType::F32).refused(), Error::Dims { dims: 0, .. }));
    assert!(matches!(with(&[1; 5], DType::F32).refused(), Error::Dims { dims: 5, .. }));
    for ne in [[0, 1], [1, 0], [0, u64::MAX]] {
        assert!(matches!(with(&ne, DType::F32).refused(), Error::Extent { extent: 0, .. }));
    }
    for ne in [&[1 << 40, 1 << 40][..], &[u64::MAX], &[1 << 31, 1 << 31, 4], &[1 << 62, 4]] {
        let error = with(ne, DType::F32).refused();
        assert!(matches!(error, Error::Layout { source: LayoutError::TooLarge { .. }, .. }), "{error}");
    }
    for dtype in DType::all().filter(|dtype| dtype.block_len() > 1) {
        for ne0 in [1, dtype.block_len() as u64 - 1, dtype.block_len() as u64 + 1] {
            let error = with(&[ne0], dtype).refused();
            assert!(
                matches!(error, Error::Layout { source: LayoutError::PartialBlock { .. }, .. }),
                "{error}"
            );
        }
    }
}

#[test]
fn removed_and_unknown_types_are_refused() {
    for id in [4, 5, 31, 32, 33, 36, 37, 38, 43, u32::MAX] {
        let raw = Raw::new(1, 0).string(b"w").u32(1).u64(32).u32(id).u64(0).data(64);
        assert!(matches!(raw.refused(), Error::TensorType { id: found, .. } if found == id));
    }
}

#[test]
fn tensors_are_inside_the_file() {
    let with = |offset, len| Raw::new(1, 0).tensor(b"w", &[8], DType::F32, offset).data(len);
    assert!(with(0, 32).parse().is_ok());
    assert!(with(32, 64).parse().is_ok());
    assert!(matches!(with(0, 31).refused(), Error::OutsideFile { len: 32, .. }));
    for offset in [32, 1 << 40, u64::MAX - 31, 1 << 63] {
        let error = with(offset, 63).refused();
        // The number is the file's own, however large.
        assert!(matches!(error, Error::OutsideFile { offset: found, .. } if found == offset), "{error}");
    }
    for offset in [1, 16, 33, u64::MAX] {
        assert!(matches!(with(offset, 100).refused(), Error::Unaligned { .. }), "{offset}");
    }
}

#[test]
fn tensors_do_not_overlap() {
    let check = |offsets: [u64; 3]| {
        let raw = Raw::new(3, 0);
        let raw = [(b"a", offsets[0]), (b"b", offsets[1]), (b"c", offsets[2])]
            .into_iter()
            .fold(raw, |raw, (name, offset)| raw.tensor(name, &[16], DType::F32, offset));
        raw.data(512).parse().map(drop)
    };
    // In order, with gaps, and reordered.
    for fine in [[0, 64, 128], [0, 96, 256], [128, 64, 0], [64, 0, 128], [256, 0, 128]] {
        check(fine).unwrap();
    }
    for bad in [[0, 0, 64], [0, 32, 96], [128, 64, 96], [64, 0, 32], [0, 64, 64], [96, 0, 64]] {
        assert!(matches!(check(bad), Err(Error::Overlap { .. })), "{bad:?}");
    }
    let Err(error) = check([64, 0, 32]) else { panic!() };
    assert_eq!(error.to_string(), "tensors 'b' and 'c' overlap");
}

#[test]
fn only_checked_ranges_reach_data() {
    let raw = Raw::new(1, 0).tensor(b"w", &[8], DType::F32, 0).data(32);
    let header = raw.parse().unwrap();
    let info = header.tensor("w").unwrap();
    assert_eq!(info.bytes_in(&raw.0).unwrap().len(), 32);
    assert!(matches!(info.bytes_in(&raw.0[..raw.0.len() - 1]), Err(Error::OutsideFile { .. })));
}

#[test]
fn other_magics_and_versions_are_refused() {
    for magic in [*b"ggml", *b"GGJT", *b"PK\x03\x04", [0; 4]] {
        let mut raw = Raw::new(0, 0);
        raw.0[..4].copy_from_slice(&magic);
        assert!(matches!(raw.refused(), Error::Magic { found } if found == magic));
    }
    for version in [0_u32, 4, 100, 0x0001_0000, 0x0400_0000, u32::MAX] {
        let mut raw = Raw::new(0, 0);
        raw.0[4..8].copy_from_slice(&version.to_le_bytes());
        assert!(matches!(raw.refused(), Error::Version { .. }), "{version:#x}");
    }
    for short in [&b""[..], b"X", b"GGU"] {
        let Err(error) = Header::parse(short) else { panic!() };
        let s = if short.len() == 1 { "" } else { "s" };
        assert_eq!(error.to_string(), format!("not a GGUF file: only {} byte{s} long", short.len()));
    }
    for short in [&b"GGUF"[..], b"GGUF\x03\0\0"] {
        assert!(matches!(Header::parse(short), Err(Error::Truncated { place: Place::Preamble, .. })));
    }
    assert!(matches!(Header::parse(b"no gguf"), Err(Error::Magic { .. })));
}

#[test]
fn big_endian_and_version_1_are_read_right() {
    let mut big = b"GGUF".to_vec();
    big.extend(3_u32.to_be_bytes());
    big.extend(0_u64.to_be_bytes());
    big.extend(1_u64.to_be_bytes());
    big.extend(1_u64.to_be_bytes());
    big.push(b'k');
    big.extend(4_u32.to_be_bytes());
    big.extend(0x0102_0304_u32.to_be_bytes());
    let header = Header::parse(&big).unwrap();
    assert_eq!(header.format().byte_order, crate::ByteOrder::Big);
    assert_eq!(header.metadata().require("k").unwrap().u32().unwrap(), 0x0102_0304);

    let mut v1 = b"GGUF".to_vec();
    for n in [1_u32, 0, 1, 1] {
        v1.extend(n.to_le_bytes());
    }
    v1.push(b'k');
    v1.extend(0_u32.to_le_bytes());
    v1.push(7);
    let header = Header::parse(&v1).unwrap();
    assert_eq!(header.format().version, crate::Version::V1);
    assert_eq!(header.metadata().require("k").unwrap().u32().unwrap(), 7);
}

#[test]
fn time_is_linear_in_the_header() {
    // A hundred thousand keys with a long common prefix, all the smallest values.
    let mut raw = Raw::new(0, 100_000);
    for i in 0..100_000 {
        raw = raw.key(format!("{:0>100}", i * 7919 % 100_000).as_bytes(), U8).u8(1);
    }
    let start = std::time::Instant::now();
    let header = raw.parse().unwrap();
    // Tenths of a second; a search through all keys for each of them would take minutes.
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
    assert_eq!(header.metadata().iter().count(), 100_000);
    let key = format!("{:0>100}", 4242);
    assert_eq!(header.metadata().get(&key).unwrap().u32().unwrap(), 1);
    assert_eq!(header.metadata().get("4242"), None);
}
