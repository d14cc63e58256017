"""Makes the files in this folder with the reference's own Python writer (package gguf), so that our reader is tested
with bytes that our writer never touched. Run it in this folder."""

import numpy as np
from gguf import GGUFEndian, GGUFWriter

for name, endian in [("little", GGUFEndian.LITTLE), ("big", GGUFEndian.BIG)]:
    writer = GGUFWriter(f"gguf-py-{name}.gguf", "llama", endianess=endian)
    writer.add_name("fixture")
    writer.add_uint8("t.u8", 200)
    writer.add_int8("t.i8", -100)
    writer.add_uint16("t.u16", 60000)
    writer.add_int16("t.i16", -30000)
    writer.add_uint32("t.u32", 4000000000)
    writer.add_int32("t.i32", -2000000000)
    writer.add_uint64("t.u64", 2**63 + 1)
    writer.add_int64("t.i64", -(2**62))
    writer.add_float32("t.f32", 1.5)
    writer.add_float64("t.f64", -2.25)
    writer.add_bool("t.bool", True)
    writer.add_string("t.string", "grüße")
    writer.add_array("t.strings", ["a", "", "ß"])
    writer.add_array("t.ints", [1, -2, 3])
    writer.add_array("t.floats", [0.5, -1.0])
    writer.add_array("t.bools", [True, False])
    writer.add_tensor("vector", np.arange(5, dtype=np.float32))
    writer.add_tensor("matrix", np.arange(6, dtype=np.float16).reshape(2, 3))
    writer.add_tensor("ints", np.array([[1], [2]], dtype=np.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
