use oxcart_tensor::DType;

use super::*;
use crate::format::{ByteOrder, Version};
use crate::text::Text;
use crate::value::{Value, ValueType};

const FORMATS: [(Version, ByteOrder); 6] = [
    (Version::V1, ByteOrder::Little),
    (Version::V1, ByteOrder::Big),
    (Version::V2, ByteOrder::Little),
    (Version::V2, ByteOrder::Big),
    (Version::V3, ByteOrder::Little),
    (Version::V3, ByteOrder::Big),
];

fn layout(ne: impl Into<oxcart_tensor::Shape>) -> Layout {
    Layout::packed(DType::F32, ne).unwrap()
}

fn written(builder: Builder<'_>) -> Vec<u8> {
    let mut file = Vec::new();
    let len = builder.write(&mut file).unwrap();
    assert_eq!(len, file.len() as u64);
    file
}

#[test]
fn every_type_in_every_format() {
    for (version, byte_order) in FORMATS {
        let format = Format { version, byte_order };
        let mut builder = Builder::with_format(format);
        builder
            .set("u8", 200_u8)
            .set("i8", -100_i8)
            .set("u16", 60_000_u16)
            .set("i16", -30_000_i16)
            .set("u32", 4_000_000_000_u32)
            .set("i32", -2_000_000_000_i32)
            .set("u64", u64::MAX)
            .set("i64", i64::MIN)
            .set("f32", 1.5_f32)
            .set("f64", -2.25_f64)
            .set("yes", true)
            .set("text", "grüße")
            .set("bytes", Text::new(b"\xff\0"))
            .set("floats", [1.0_f32, f32::INFINITY])
            .set("bools", [true, false])
            .set("words", ["", "b"])
            .set("none", Vec::<u64>::new())
            .tensor("w", layout([2, 1, 3]), vec![7; 24]);
        let file = written(builder);
        let header = Header::parse(&file).unwrap();
        assert_eq!(header.format(), format);

        let metadata = header.metadata();
        let get = |key| metadata.require(key).unwrap();
        assert_eq!(metadata.len(), 17);
        assert_eq!(get("u8").u32().unwrap(), 200);
        assert_eq!(get("i8").i64().unwrap(), -100);
        assert_eq!(get("u16").value(), Value::U16(60_000));
        assert_eq!(get("i16").value(), Value::I16(-30_000));
        assert_eq!(get("u32").usize().unwrap(), 4_000_000_000);
        assert_eq!(get("i32").value(), Value::I32(-2_000_000_000));
        assert_eq!(get("u64").u64().unwrap(), u64::MAX);
        assert_eq!(get("i64").i64().unwrap(), i64::MIN);
        assert_eq!(get("f32").f32().unwrap(), 1.5);
        assert_eq!(get("f64").f64().unwrap(), -2.25);
        assert_eq!(get("f64").f32().unwrap(), -2.25);
        assert!(get("yes").bool().unwrap());
        assert_eq!(get("text").str().unwrap(), "grüße");
        assert_eq!(get("bytes").bytes().unwrap(), b"\xff\0");
        assert_eq!(get("floats").array::<f32>().unwrap().collect::<Vec<_>>(), [1.0, f32::INFINITY]);
        assert_eq!(get("bools").array::<bool>().unwrap().collect::<Vec<_>>(), [true, false]);
        assert_eq!(
            get("words").strings().unwrap().map(Text::as_bytes).collect::<Vec<_>>(),
            [b"".as_slice(), b"b"]
        );
        assert_eq!(get("none").integers().unwrap().len(), 0);

        let info = header.tensor("w").unwrap();
        assert_eq!((info.layout(), info.dims()), (layout([2, 1, 3]), 3));
        assert_eq!(info.bytes_in(&file).unwrap(), [7; 24]);

        let mut again = Builder::like(&header);
        again.tensor_like(&info, info.bytes_in(&file).unwrap());
        assert_eq!(written(again), file, "{format:?}");
    }
}

#[test]
fn wrong_questions_name_key_found_and_wanted() {
    let mut builder = Builder::new();
    builder
        .set("n", 300_i32)
        .set("minus", -1_i8)
        .set("f", 1.0_f32)
        .set("a", ["x"])
        .set("s", Text::new(b"\xff"));
    let file = written(builder);
    let header = Header::parse(&file).unwrap();
    let get = |key| header.metadata().require(key).unwrap();
    let check = |error: Error, want: &str| assert_eq!(error.to_string(), want);
    check(get("n").f32().unwrap_err(), "metadata key 'n' has type i32, wanted f32");
    check(get("f").u32().unwrap_err(), "metadata key 'f' has type f32, wanted u32");
    check(get("n").array::<u8>().unwrap_err(), "metadata key 'n' has type i32, wanted array of u8");
    check(
        get("a").array::<u8>().unwrap_err(),
        "metadata key 'a' has type array of string, wanted array of u8",
    );
    check(get("a").text().unwrap_err(), "metadata key 'a' has type array, wanted string");
    check(get("s").str().unwrap_err(), "the value of 's' is not UTF-8");
    check(header.metadata().require("gone").unwrap_err(), "metadata key 'gone' is missing");
    check(get("minus").u64().unwrap_err(), "metadata key 'minus' is -1, which does not fit u64");
}

#[test]
fn setting_twice_replaces_in_place() {
    let mut builder = Builder::new();
    builder.set("a", 1_u8).set("b", 2_u8).set("a", "new");
    let file = written(builder);
    let header = Header::parse(&file).unwrap();
    let keys: Vec<_> = header.metadata().iter().map(|entry| (entry.key(), entry.value_type())).collect();
    assert_eq!(keys, [("a", ValueType::String), ("b", ValueType::U8)]);
}

#[test]
fn what_the_reader_refuses_is_not_written() {
    fn refused(build: impl FnOnce(&mut Builder<'_>)) -> Error {
        let mut builder = Builder::new();
        build(&mut builder);
        let mut out = Vec::new();
        let error = builder.write(&mut out).unwrap_err();
        assert!(out.is_empty(), "nothing may be written before the check");
        error
    }
    assert!(matches!(
        refused(|b| {
            b.set("", 1_u8);
        }),
        Error::Empty { .. }
    ));
    assert!(matches!(
        refused(|b| {
            b.alignment(48);
        }),
        Error::Alignment { alignment: 48 }
    ));
    assert!(matches!(
        refused(|b| {
            b.set(ALIGNMENT_KEY, "32");
        }),
        Error::AlignmentType { .. }
    ));
    assert!(matches!(
        refused(|b| {
            b.tensor("w", layout([1]), &[0; 4]).tensor("w", layout([1]), &[0; 4]);
        }),
        Error::DuplicateTensor { .. }
    ));
    assert!(matches!(
        refused(|b| {
            b.tensor(&"n".repeat(64), layout([1]), &[0; 4]);
        }),
        Error::TooLong { .. }
    ));
    assert!(matches!(
        refused(|b| {
            b.tensor("w", layout([0]), &[]);
        }),
        Error::Extent { extent: 0, .. }
    ));
    let strided = Layout::strided(DType::F32, [2, 2], [4, 16, 32, 32]).unwrap();
    assert!(matches!(
        refused(|b| {
            b.tensor("w", strided, &[0; 16]);
        }),
        Error::Layout { .. }
    ));
}

#[test]
fn version_1_refuses_what_it_cannot_hold() {
    let mut builder = Builder::with_format(Format { version: Version::V1, ..Format::default() });
    builder.tensor("w", Layout::packed(DType::I8, [1 << 32]).unwrap(), Data::reader(io::empty()));
    let error = builder.write(io::sink()).unwrap_err();
    assert_eq!(error.to_string(), "tensor 'w' has length 4294967296, which GGUF version 1 cannot hold");
}

#[test]
fn a_stream_of_the_wrong_length_is_an_error() {
    for (given, ok) in [(15, false), (16, true), (17, false)] {
        let mut builder = Builder::new();
        builder.tensor("w", layout([4]), Data::reader(io::repeat(1).take(given)));
        let outcome = builder.write(io::sink());
        assert_eq!(outcome.is_ok(), ok, "{outcome:?}");
    }
}

#[test]
fn padding_is_as_asked() {
    for (pad_end, alignment) in [(true, 32), (false, 32), (true, 4096), (false, 1)] {
        let mut builder = Builder::new();
        builder.alignment(alignment).pad_end(pad_end);
        builder.tensor("a", layout([1]), &[1; 4]).tensor("b", layout([1]), &[2; 4]);
        let file = written(builder);
        let header = Header::parse(&file).unwrap();
        let (a, b) = (header.tensor("a").unwrap(), header.tensor("b").unwrap());
        assert_eq!(a.offset() % u64::from(alignment), 0);
        assert_eq!(b.offset(), a.offset() + u64::from(alignment.max(4)));
        assert_eq!(b.range().end == header.file_len(), !pad_end || alignment <= 4);
    }
}
