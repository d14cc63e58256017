//! What is written is read back; whatever else is read does no harm.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use oxcart_gguf::{Builder, ByteOrder, Format, Header, Text, Version};
use oxcart_tensor::{DType, Layout};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Any {
    U8(u8),
    I16(i16),
    U32(u32),
    I64(i64),
    U64(u64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Bytes(Vec<u8>),
    Words(Vec<String>),
    Floats(Vec<f32>),
    Ints(Vec<i32>),
    Bools(Vec<bool>),
}

impl Any {
    fn set(&self, builder: &mut Builder<'_>, key: &str) {
        match self {
            Any::U8(n) => builder.set(key, *n),
            Any::I16(n) => builder.set(key, *n),
            Any::U32(n) => builder.set(key, *n),
            Any::I64(n) => builder.set(key, *n),
            Any::U64(n) => builder.set(key, *n),
            Any::F32(x) => builder.set(key, *x),
            Any::F64(x) => builder.set(key, *x),
            Any::Bool(yes) => builder.set(key, *yes),
            Any::Bytes(bytes) => builder.set(key, Text::new(bytes)),
            Any::Words(words) => builder.set(key, words.as_slice()),
            Any::Floats(floats) => builder.set(key, floats.as_slice()),
            Any::Ints(ints) => builder.set(key, ints.as_slice()),
            Any::Bools(bools) => builder.set(key, bools.as_slice()),
        };
    }

    fn assert_read(&self, header: &Header<'_>, key: &str) {
        let entry = header.metadata().require(key).unwrap();
        let bits = |xs: &[f32]| xs.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        match self {
            Any::U8(n) => assert_eq!(entry.u64().unwrap(), u64::from(*n)),
            Any::I16(n) => assert_eq!(entry.i64().unwrap(), i64::from(*n)),
            Any::U32(n) => assert_eq!(entry.u32().unwrap(), *n),
            Any::I64(n) => assert_eq!(entry.i64().unwrap(), *n),
            Any::U64(n) => assert_eq!(entry.u64().unwrap(), *n),
            Any::F32(x) => assert_eq!(entry.f32().unwrap().to_bits(), x.to_bits()),
            Any::F64(x) => assert_eq!(entry.f64().unwrap().to_bits(), x.to_bits()),
            Any::Bool(yes) => assert_eq!(entry.bool().unwrap(), *yes),
            Any::Bytes(bytes) => assert_eq!(entry.bytes().unwrap(), bytes),
            Any::Words(words) => {
                assert!(entry.strings().unwrap().map(Text::as_bytes).eq(words.iter().map(String::as_bytes)));
            }
            Any::Floats(floats) => {
                assert_eq!(bits(&entry.array().unwrap().collect::<Vec<f32>>()), bits(floats));
            }
            Any::Ints(ints) => assert!(entry.array::<i32>().unwrap().eq(ints.iter().copied())),
            Any::Bools(bools) => assert!(entry.array::<bool>().unwrap().eq(bools.iter().copied())),
        }
    }
}

fn any_value() -> impl Strategy<Value = Any> {
    prop_oneof![
        any::<u8>().prop_map(Any::U8),
        any::<i16>().prop_map(Any::I16),
        any::<u32>().prop_map(Any::U32),
        any::<i64>().prop_map(Any::I64),
        any::<u64>().prop_map(Any::U64),
        any::<u32>().prop_map(|bits| Any::F32(f32::from_bits(bits))),
        any::<u64>().prop_map(|bits| Any::F64(f64::from_bits(bits))),
        any::<bool>().prop_map(Any::Bool),
        vec(any::<u8>(), 0..40).prop_map(Any::Bytes),
        vec(".{0,8}", 0..8).prop_map(Any::Words),
        vec(any::<u32>().prop_map(f32::from_bits), 0..8).prop_map(Any::Floats),
        vec(any::<i32>(), 0..8).prop_map(Any::Ints),
        vec(any::<bool>(), 0..8).prop_map(Any::Bools),
    ]
}

fn any_layout() -> impl Strategy<Value = Layout> {
    let dtype = proptest::sample::select(DType::all().collect::<Vec<_>>());
    (dtype, [1..4_usize, 1..4, 1..3, 1..3])
        .prop_map(|(dtype, [a, b, c, d])| Layout::packed(dtype, [a * dtype.block_len(), b, c, d]).unwrap())
}

fn any_format() -> impl Strategy<Value = Format> {
    let versions = proptest::sample::select(vec![Version::V1, Version::V2, Version::V3]);
    let orders = proptest::sample::select(vec![ByteOrder::Little, ByteOrder::Big]);
    (versions, orders).prop_map(|(version, byte_order)| Format { version, byte_order })
}

prop_compose! {
    /// A model's parts and the file made of them.
    fn any_file()(
        format in any_format(),
        records in btree_map("[a-z.]{1,12}", any_value(), 0..8),
        tensors in btree_map("[a-z0-9.]{1,63}", (any_layout(), any::<u8>()), 0..6),
        alignment in 0..8_u32,
        pad_end in any::<bool>(),
    ) -> (Vec<(String, Any)>, Vec<(String, Layout, u8)>, Vec<u8>) {
        let records: Vec<_> = records.into_iter().rev().collect();
        let tensors: Vec<_> = tensors.into_iter().rev().map(|(name, (layout, fill))| (name, layout, fill)).collect();
        let mut builder = Builder::with_format(format);
        for (key, value) in &records {
            value.set(&mut builder, key);
        }
        builder.alignment(1 << alignment).pad_end(pad_end);
        for (name, layout, fill) in &tensors {
            builder.tensor(name, *layout, vec![*fill; layout.byte_len()]);
        }
        let mut file = Vec::new();
        builder.write(&mut file).unwrap();
        (records, tensors, file)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_is_written_is_read_back((records, tensors, file) in any_file()) {
        let header = Header::parse(&file).unwrap();
        let keys: Vec<_> = header.metadata().iter().map(|entry| entry.key()).collect();
        let want: Vec<_> = records.iter().map(|(key, _)| key.as_str()).chain(["general.alignment"]).collect();
        prop_assert_eq!(keys, want);
        for (key, value) in &records {
            value.assert_read(&header, key);
        }
        prop_assert_eq!(header.tensors().len(), tensors.len());
        for (info, (name, layout, fill)) in header.tensors().iter().zip(&tensors) {
            prop_assert_eq!((info.name(), info.layout()), (name.as_str(), *layout));
            prop_assert!(info.bytes_in(&file).unwrap().iter().all(|byte| byte == fill));
        }
        common::check(&file);
    }

    #[test]
    fn a_truncated_file_is_refused_or_says_the_same((_, _, file) in any_file(), cut in any::<proptest::sample::Index>()) {
        let whole = Header::parse(&file).unwrap();
        let cut = &file[..cut.index(file.len())];
        common::check(cut);
        if let Ok(header) = Header::parse(cut) {
            common::check_same(&file, &whole, cut, &header);
        }
    }

    #[test]
    fn damage_never_panics((_, _, mut file) in any_file(), hits in vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6)) {
        for (at, byte) in hits {
            let at = at.index(file.len());
            file[at] = byte;
        }
        common::check(&file);
    }

    #[test]
    fn noise_never_panics(noise in vec(any::<u8>(), 0..200), version in 0..5_u32, big in any::<bool>()) {
        let mut file = b"GGUF".to_vec();
        file.extend(if big { version.to_be_bytes() } else { version.to_le_bytes() });
        file.extend(noise);
        common::check(&file);
    }
}
