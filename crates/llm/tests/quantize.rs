//! Files come out as the reference makes them, to the byte: all metadata, types and data of a real model.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test may panic, and says when it is skipped")]

use std::io::{self, Write};

use oxcart_gguf::GgufSet;
use oxcart_llm::quantize::Quantization;
use serde_json::Value;
use sha2::{Digest, Sha256};

struct Hashing(Sha256, u64);

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        self.1 += bytes.len() as u64;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn files_are_those_of_the_reference() {
    let (Some(golden), Some(model)) = (oxcart_fixtures::golden(), oxcart_fixtures::smollm2()) else { return };
    let golden = std::fs::read_to_string(golden.join("smollm2.json")).unwrap();
    let golden: Value = serde_json::from_str(&golden).unwrap();
    let model = GgufSet::open(model).unwrap();
    let variants = golden["requantized"].as_object().unwrap();
    assert!(variants.len() >= 5);
    for (name, about) in variants {
        let quantization = Quantization::new(&model, name.parse().unwrap(), None).unwrap();
        let mut file = Hashing(Sha256::new(), 0);
        quantization.write(&mut file, 2, &mut |_, _| {}).unwrap();
        assert_eq!(file.1, about["bytes"].as_u64().unwrap(), "{name}");
        let sha256: String = file.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(sha256, about["sha256"].as_str().unwrap(), "{name}");
    }
}
