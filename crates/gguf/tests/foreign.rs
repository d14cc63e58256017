//! Files made by the reference's Python writer, in both byte orders (see `data/make.py`).
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::PathBuf;

use oxcart_gguf::{ByteOrder, Format, Gguf, Text, Value, Version};

fn open(name: &str) -> Gguf {
    Gguf::open(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)).unwrap()
}

#[test]
fn values_read_the_same_in_both_byte_orders() {
    for (name, byte_order) in
        [("gguf-py-little.gguf", ByteOrder::Little), ("gguf-py-big.gguf", ByteOrder::Big)]
    {
        let file = open(name);
        assert_eq!(file.format(), Format { version: Version::V3, byte_order });
        let get = |key| file.metadata().require(key).unwrap();
        assert_eq!(get("general.architecture").str().unwrap(), "llama");
        assert_eq!(get("t.u8").value(), Value::U8(200));
        assert_eq!(get("t.i8").value(), Value::I8(-100));
        assert_eq!(get("t.u16").value(), Value::U16(60_000));
        assert_eq!(get("t.i16").value(), Value::I16(-30_000));
        assert_eq!(get("t.u32").value(), Value::U32(4_000_000_000));
        assert_eq!(get("t.i32").value(), Value::I32(-2_000_000_000));
        assert_eq!(get("t.u64").value(), Value::U64((1 << 63) + 1));
        assert_eq!(get("t.i64").value(), Value::I64(-(1 << 62)));
        assert_eq!(get("t.f32").value(), Value::F32(1.5));
        assert_eq!(get("t.f64").value(), Value::F64(-2.25));
        assert_eq!(get("t.bool").value(), Value::Bool(true));
        assert_eq!(get("t.string").str().unwrap(), "grüße");
        assert!(get("t.strings").strings().unwrap().eq(["a", "", "ß"].map(Text::from)));
        assert!(get("t.ints").integers().unwrap().eq([1, -2, 3]));
        assert!(get("t.floats").array::<f32>().unwrap().eq([0.5, -1.0]));
        assert!(get("t.bools").array::<bool>().unwrap().eq([true, false]));
    }
}

#[test]
fn tensor_data_is_raw_in_the_files_byte_order() {
    for name in ["gguf-py-little.gguf", "gguf-py-big.gguf"] {
        let file = open(name);
        let layouts: Vec<_> =
            file.tensors().iter().map(|info| (info.name(), info.layout().to_string())).collect();
        let want = [("vector", "f32[5]"), ("matrix", "f16[3, 2]"), ("ints", "i32[1, 2]")];
        assert_eq!(layouts, want.map(|(name, layout)| (name, layout.to_owned())));
        let mut bytes = [0; 8];
        file.read_tensor(&file.tensor("ints").unwrap(), &mut bytes).unwrap();
        match file.format().byte_order {
            ByteOrder::Little => assert_eq!(bytes, [1, 0, 0, 0, 2, 0, 0, 0]),
            ByteOrder::Big => assert_eq!(bytes, [0, 0, 0, 1, 0, 0, 0, 2]),
        }
    }
}

#[test]
fn they_are_written_again_to_the_same_bytes() {
    for name in ["gguf-py-little.gguf", "gguf-py-big.gguf"] {
        let file = open(name);
        let mut written = Vec::new();
        file.to_builder().write(&mut written).unwrap();
        assert!(written == std::fs::read(file.path()).unwrap(), "{name}");
    }
}
