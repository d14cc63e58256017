use oxcart_tensor::{DType, Layout};
use tempfile::TempDir;

use super::*;
use crate::format::Version;

/// A file with `records` long records and one tensor.
fn write(path: &Path, records: usize) {
    let mut builder = Builder::new();
    for i in 0..records {
        builder.set(&format!("key.{i}"), "x".repeat(1000));
    }
    builder.tensor("w", Layout::packed(DType::F32, [4]).unwrap(), b"0123456789abcdef");
    builder.write(File::create(path).unwrap()).unwrap();
}

#[test]
fn headers_around_the_size_of_the_buffer() {
    let folder = TempDir::new().unwrap();
    for records in [0, 1, 62, 63, 64, 65, 2000] {
        let path = folder.path().join(format!("{records}.gguf"));
        write(&path, records);
        let file = Gguf::open(&path).unwrap();
        assert_eq!(file.metadata().len(), records);
        assert_eq!(file.header().bytes().len() as u64, file.header().header_len());
        let mut bytes = [0; 16];
        file.read_tensor(&file.tensor("w").unwrap(), &mut bytes).unwrap();
        assert_eq!(&bytes, b"0123456789abcdef");
    }
}

#[test]
fn a_huge_file_costs_only_its_header() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("huge.gguf");
    write(&path, 10);
    File::options().write(true).open(&path).unwrap().set_len(40 << 30).unwrap();
    let file = Gguf::open(&path).unwrap();
    assert_eq!(file.header().file_len(), 40 << 30);
    assert!(file.header().bytes().len() < 20_000);
}

#[test]
fn a_hostile_huge_file_is_refused_without_reading_it() {
    // Sparse, so it costs nothing: the counts are possible for the file but not for a header.
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("hostile.gguf");
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(0_u64.to_le_bytes());
    bytes.extend((1_u64 << 31).to_le_bytes());
    fs::write(&path, bytes).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
    let error = Gguf::open(&path).unwrap_err();
    assert!(matches!(error.what(), Error::HeaderTooLarge { .. }), "{error}");
}

#[test]
fn the_header_is_private() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("m.gguf");
    write(&path, 3);
    let file = Gguf::open(&path).unwrap();
    fs::write(&path, b"gone").unwrap();
    assert_eq!(file.metadata().require("key.2").unwrap().str().unwrap(), "x".repeat(1000));
    let info = file.tensor("w").unwrap();
    let error = file.read_tensor(&info, &mut [0; 16]).unwrap_err();
    assert!(matches!(error.what(), Error::Shrunk), "{error}");
    assert!(matches!(file.map().unwrap_err().what(), Error::Shrunk));
}

#[test]
fn parts_of_tensors() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("m.gguf");
    write(&path, 0);
    let file = Gguf::open(&path).unwrap();
    let info = file.tensor("w").unwrap();
    let mut part = [0; 4];
    file.read_tensor_part(&info, 10, &mut part).unwrap();
    assert_eq!(&part, b"abcd");
    for start in [13, 16, u64::MAX] {
        let error = file.read_tensor_part(&info, start, &mut part).unwrap_err();
        assert!(matches!(error.what(), Error::BufferSize { .. }), "{error}");
    }
    assert!(matches!(file.read_tensor(&info, &mut part).unwrap_err().what(), Error::BufferSize { .. }));
    let mut streamed = Vec::new();
    file.tensor_reader(&info).read_to_end(&mut streamed).unwrap();
    assert_eq!(streamed, b"0123456789abcdef");
}

#[test]
fn what_is_no_file() {
    let folder = TempDir::new().unwrap();
    let error = Gguf::open(folder.path()).unwrap_err();
    assert_eq!(error.to_string(), format!("{}: not a regular file", folder.path().display()));
    let error = Gguf::open(folder.path().join("none")).unwrap_err();
    assert!(matches!(error.what(), Error::Io { action: "open", .. }), "{error}");
    let empty = folder.path().join("empty");
    fs::write(&empty, b"").unwrap();
    assert!(matches!(Gguf::open(&empty).unwrap_err().what(), Error::TooShort { len: 0 }));
}

#[test]
fn big_endian_tensors_can_be_read_little_endian() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("big.gguf");
    // A scale of two bytes, then bytes that have no order.
    let block: Vec<u8> = (0..34).collect();
    let mut builder = Builder::with_format(Format { version: Version::V3, byte_order: ByteOrder::Big });
    builder.tensor("w", Layout::packed(DType::Q8_0, [32]).unwrap(), &block[..]);
    builder.write(File::create(&path).unwrap()).unwrap();
    let file = Gguf::open(&path).unwrap();
    let info = file.tensor("w").unwrap();
    let mut bytes = [0; 34];
    file.read_tensor(&info, &mut bytes).unwrap();
    assert_eq!(bytes[..], block[..]);
    file.read_tensor_little_endian(&info, &mut bytes).unwrap();
    assert_eq!(bytes[..4], [1, 0, 2, 3]);
}
