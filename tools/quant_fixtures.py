#!/usr/bin/env python3
"""Records what the reference library makes of fixed rows and blocks, as fixtures for crates/tensor.

    quant_fixtures.py --lib DIR                            rewrite the committed fixtures
    quant_fixtures.py --lib DIR --out DIR --rows N --seed S a larger set, for OXCART_QUANT_FIXTURES

DIR holds libggml-base.so; OXCART_REFERENCE_LIB is used when --lib is not given. The same seed, library and options
give the same bytes. Files are plain little-endian arrays, named in index.json:

    rows.f32, importance.f32   rows of `row_len` values, and one weight per value
    scalars.*                  single numbers and their f16 and bf16 patterns
    TYPE.blocks, TYPE.f32      blocks of arbitrary bytes, and what they decode to
    TYPE.run_time              every row as a graph would convert it
    TYPE.offline               every row as a model file would hold it
    TYPE.weighted              the same, with the row's importance data

A type lacks the files of conversions it does not have.
"""

import argparse
import ctypes
import json
import os
import sys
from pathlib import Path

try:
    import numpy as np
except ImportError as missing:
    sys.exit(f"{missing}; this needs the Python packages numpy (pip install them)")

from ggml_structs import TypeTraits

ROW_LEN = 512

# name: (number, elements and bytes per block, offsets of f16 scales)
TYPES = {
    "f16": (1, 1, 2, ()),
    "bf16": (30, 1, 2, ()),
    "q1_0": (41, 128, 18, (0,)),
    "q2_0": (42, 64, 18, (0,)),
    "q4_0": (2, 32, 18, (0,)),
    "q4_1": (3, 32, 20, (0, 2)),
    "q5_0": (6, 32, 22, (0,)),
    "q5_1": (7, 32, 24, (0, 2)),
    "q8_0": (8, 32, 34, (0,)),
    "q8_1": (9, 32, 36, (0, 2)),
    "q2_K": (10, 256, 84, (80, 82)),
    "q3_K": (11, 256, 110, (108,)),
    "q4_K": (12, 256, 144, (0, 2)),
    "q5_K": (13, 256, 176, (0, 2)),
    "q6_K": (14, 256, 210, (208,)),
    "q8_K": (15, 256, 292, ()),
    "iq1_s": (19, 256, 50, (0,)),
    "iq1_m": (29, 256, 56, ()),
    "iq2_xxs": (16, 256, 66, (0,)),
    "iq2_xs": (17, 256, 74, (0,)),
    "iq2_s": (22, 256, 82, (0,)),
    "iq3_xxs": (18, 256, 98, (0,)),
    "iq3_s": (21, 256, 110, (0,)),
    "iq4_nl": (20, 32, 18, (0,)),
    "iq4_xs": (23, 256, 136, (0,)),
    "tq1_0": (34, 256, 54, (52,)),
    "tq2_0": (35, 256, 66, (64,)),
    "mxfp4": (39, 32, 17, ()),
    "nvfp4": (40, 64, 36, ()),
}
NEEDS_IMPORTANCE = {"iq1_s", "iq2_xxs", "iq2_xs"}
# Activation formats: the library offers no offline quantizer and stops the process when asked for one.
ACTIVATION = {"q8_1", "q8_K"}


class Reference:
    """The compiled library, as array functions."""

    def __init__(self, folder):
        self.lib = ctypes.CDLL(str(Path(folder) / "libggml-base.so"))
        self.lib.ggml_get_type_traits.restype = ctypes.POINTER(TypeTraits)
        self.lib.ggml_quantize_chunk.restype = ctypes.c_size_t
        self.lib.ggml_fp32_to_fp16.restype = ctypes.c_uint16
        self.lib.ggml_fp32_to_fp16.argtypes = [ctypes.c_float]
        for number, block_len, block_bytes, _ in TYPES.values():
            traits = self.traits(number)
            if (traits.block_len, traits.block_bytes) != (block_len, block_bytes):
                sys.exit(f"{traits.name.decode()}: this library has another block layout than the table here")
            self.lib.ggml_quantize_init(number)

    def traits(self, number):
        return self.lib.ggml_get_type_traits(number).contents

    def decode(self, name, blocks):
        number, block_len, block_bytes, _ = TYPES[name]
        count = len(blocks) // block_bytes * block_len
        if name == "q8_1":  # the library has no decoder for it; the value is q*d
            fields = np.frombuffer(blocks, np.dtype([("d", "<f2"), ("s", "<f2"), ("q", "i1", 32)]))
            with np.errstate(invalid="ignore"):
                return (fields["q"].astype("<f4") * fields["d"].astype("<f4")[:, None]).reshape(-1)
        convert = self.lib.dequantize_row_q8_K if name == "q8_K" else self.traits(number).to_float
        out = np.zeros(count, "<f4")
        convert(ctypes.c_char_p(blocks), ctypes.c_void_p(out.ctypes.data), ctypes.c_int64(count))
        return out

    def run_time(self, name, row):
        number = TYPES[name][0]
        convert = self.lib.quantize_row_q8_K_ref if name == "q8_K" else self.traits(number).from_float
        if not convert:
            return None
        out = np.zeros(row_bytes(name, len(row)), np.uint8)
        source, target = ctypes.c_void_p(row.ctypes.data), ctypes.c_void_p(out.ctypes.data)
        convert(source, target, ctypes.c_int64(len(row)))
        if name == "iq4_nl":  # blocks without a scale hold whatever was in memory; make them reproducible
            out.reshape(-1, 18)[np.abs(row).reshape(-1, 32).max(axis=1) < 1e-15] = 0
        return out.tobytes()

    def offline(self, name, row, importance=None):
        out = np.zeros(row_bytes(name, len(row)), np.uint8)
        weights = None if importance is None else ctypes.c_void_p(importance.ctypes.data)
        size = self.lib.ggml_quantize_chunk(
            TYPES[name][0],
            ctypes.c_void_p(row.ctypes.data),
            ctypes.c_void_p(out.ctypes.data),
            ctypes.c_int64(0),
            ctypes.c_int64(1),
            ctypes.c_int64(len(row)),
            weights,
        )
        assert size == len(out)
        return out.tobytes()


def row_bytes(name, length):
    _, block_len, block_bytes, _ = TYPES[name]
    return length // block_len * block_bytes


def fixed_rows(rng):
    """Rows in which quantizers disagree first: ties, zeros, extremes, equal magnitudes."""
    i = np.arange(ROW_LEN)
    sign = np.where(i % 2 == 0, 1.0, -1.0)
    normal = rng.standard_normal
    halves = (rng.integers(-31, 32, ROW_LEN) / 2.0).astype("<f4")
    halves[::32] = 16.0  # a power of two as the extreme makes the step exact and x.5 a real tie
    outlier = normal(ROW_LEN) * 0.01
    outlier[37::256] = -9.0
    equal = rng.choice([-1.0, 1.0], ROW_LEN) * rng.choice([0.25, 0.5, 1.0], ROW_LEN)
    sparse = normal(ROW_LEN) * (rng.random(ROW_LEN) < 0.1)
    steps = normal(ROW_LEN) * np.repeat(2.0 ** rng.integers(-12, 6, ROW_LEN // 16), 16)
    return {
        "cosine": 0.1 + 2.0 * np.cos(i),
        "zeros": np.zeros(ROW_LEN),
        "negative_zeros": np.full(ROW_LEN, -0.0),
        "mixed_zeros": np.where(rng.random(ROW_LEN) < 0.5, 0.0, -0.0),
        "half_zero": np.where(i < 256, 0.0, normal(ROW_LEN)),
        "constant": np.full(ROW_LEN, 0.75),
        "negative_constant": np.full(ROW_LEN, -3.1),
        "alternating": sign,
        "alternating_with_zero": np.maximum(sign, 0.0) * 1.7,
        "ties": halves,
        "equal_magnitudes": equal,
        "outlier": outlier,
        "sparse": sparse,
        "tiny": normal(ROW_LEN) * 1e-20,
        "subnormal_scale": normal(ROW_LEN) * 1e-6,
        "positive": 5.0 + np.abs(normal(ROW_LEN)),
        "negative": -0.5 - np.abs(normal(ROW_LEN)),
        "steps": steps,
    }


def random_row(rng, kind):
    normal = rng.standard_normal(ROW_LEN)
    match kind:
        case 0:
            return "normal", normal
        case 1:
            return "wide", normal * np.exp(2.5 * rng.standard_normal(ROW_LEN))
        case 2:
            return "uniform", rng.random(ROW_LEN) * rng.choice([0.01, 1.0, 100.0]) - rng.choice([0.0, 0.3])
        case 3:
            return "integers", rng.integers(-8, 9, ROW_LEN).astype(float)
        case 4:
            return "small", normal * 10.0 ** rng.uniform(-12, -2)
        case 5:
            ulps = np.exp2(rng.integers(-20, 13, ROW_LEN)).astype("<f4").view("<i4") - rng.integers(0, 4, ROW_LEN)
            return "below_powers", ulps.astype("<i4").view("<f4") * rng.choice([-1.0, 1.0], ROW_LEN)
        case 6:
            return "large", normal * 10.0 ** rng.uniform(1, 4)
        case 7:
            levels = rng.standard_normal(rng.integers(1, 5))
            return "few_levels", rng.choice(levels, ROW_LEN)
        case 8:
            return "almost_nothing", normal * 10.0 ** rng.uniform(-34, -14)
        case _:
            return "grouped", normal * np.repeat(np.exp(2.0 * rng.standard_normal(ROW_LEN // 32)), 32)


def make_rows(rng, count):
    rows = fixed_rows(rng)
    named = list(rows.items())
    named += [random_row(rng, k % 10) for k in range(max(0, count - len(named)))]
    names, values = zip(*named)
    importance = np.exp(rng.standard_normal((len(values), ROW_LEN)))
    importance[-1::-8] *= rng.random(ROW_LEN) < 0.75  # some columns may not matter at all
    return names, np.array(values).astype("<f4"), importance.astype("<f4")


HALF_EDGES = np.array(
    [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFE55],
    "<u2",
)


def make_blocks(rng, name, count):
    """Arbitrary bytes; two thirds of the blocks get a scale of usual size, so that sums are ordinary numbers."""
    _, _, block_bytes, scales = TYPES[name]
    blocks = rng.integers(0, 256, (count, block_bytes), dtype=np.uint8)
    for k in range(count):
        usual = (rng.standard_normal(4) * 2.0 ** rng.integers(-10, 2)).astype("<f2").view("<u2")
        halves = usual if k % 3 else np.array([HALF_EDGES[(k // 3 + 5 * j) % len(HALF_EDGES)] for j in range(4)], "<u2")
        for j, offset in enumerate(scales):
            blocks[k, offset : offset + 2] = np.frombuffer(halves[j].tobytes(), np.uint8)
        if name == "iq1_m":  # the scale is spread over the top nibbles of the last four u16
            for j in range(4):
                blocks[k, 49 + 2 * j] = blocks[k, 49 + 2 * j] & 0x0F | (int(halves[0]) >> 4 * j & 0x0F) << 4
        if name == "q8_K" and k % 3:
            blocks[k, 0:4] = np.frombuffer(np.array([rng.standard_normal()], "<f4").tobytes(), np.uint8)
    if name == "mxfp4":
        blocks[: min(count, 4), 0] = [0, 1, 2, 254][: min(count, 4)]
    if name == "nvfp4":
        blocks[0, 0:4], blocks[1, 0:4] = (0x00, 0x7F, 0x80, 0xFF), (0x01, 0x07, 0x08, 0x7E)
    return blocks.tobytes()


def make_scalars(rng, count):
    edges = np.array([0, 0x33000000, 0x33000001, 0x33800000, 0x387FC000, 0x38800000, 0x477FE000, 0x477FEFFF, 0x477FF000])
    halfway = (rng.integers(0, 0x7C00, count) << 13 | 0x1000) + 0x38000000  # between two f16, and a bit aside
    near = halfway + rng.integers(-1, 2, count)
    bf16_ties = rng.integers(0, 0x7F80, count) << 16 | 0x8000
    special = np.array([0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0x7FA5A5A5, 0x7F7FFFFF, 0x7F7F8000, 1, 0x7FFFFF])
    patterns = np.concatenate([edges, special, near % 2**31, bf16_ties, rng.integers(0, 2**31, count)]).astype("<u4")
    return np.concatenate([patterns, patterns | np.uint32(0x80000000)])


def write(folder, name, data):
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.tobytes())
    return name


def main():
    here = Path(__file__).resolve().parent.parent / "crates/tensor/tests/data/quant"
    parser = argparse.ArgumentParser(description="Record quantization fixtures from the reference library.")
    parser.add_argument("--lib", default=os.environ.get("OXCART_REFERENCE_LIB"), help="folder of libggml-base.so")
    parser.add_argument("--out", type=Path, default=here, help="where to write")
    parser.add_argument("--rows", type=int, default=28, help="rows to quantize (at least the fixed ones are)")
    parser.add_argument("--blocks", type=int, default=16, help="blocks of 256 to decode; smaller blocks get more")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--types", nargs="*", default=list(TYPES), choices=list(TYPES), metavar="TYPE")
    args = parser.parse_args()
    if not args.lib:
        parser.error("say where the reference library is: --lib DIR or OXCART_REFERENCE_LIB")
    reference = Reference(args.lib)
    args.out.mkdir(parents=True, exist_ok=True)

    names, rows, importance = make_rows(np.random.default_rng(args.seed), args.rows)
    index = {
        "seed": args.seed,
        "row_len": ROW_LEN,
        "row_names": names,
        "rows": write(args.out, "rows.f32", rows),
        "importance": write(args.out, "importance.f32", importance),
    }

    patterns = make_scalars(np.random.default_rng(args.seed + 1), args.rows * 4)
    values = patterns.view("<f4")
    bf16 = np.zeros(len(values), "<u2")
    reference.lib.ggml_fp32_to_bf16_row_ref(
        ctypes.c_void_p(values.ctypes.data), ctypes.c_void_p(bf16.ctypes.data), ctypes.c_int64(len(values))
    )
    f16 = np.array([to_half(reference, p) for p in patterns], "<u2")
    index["scalars"] = {
        "f32": write(args.out, "scalars.f32", patterns),
        "f16": write(args.out, "scalars.f16", f16),
        "bf16": write(args.out, "scalars.bf16", bf16),
    }

    index["types"] = []
    for name in args.types:
        number, block_len, _, _ = TYPES[name]
        entry = {"dtype": name}
        rng = np.random.default_rng([args.seed, number])
        blocks = make_blocks(rng, name, args.blocks * max(1, 128 // block_len) if block_len > 1 else 2048)
        entry["blocks"] = write(args.out, f"{name}.blocks", blocks)
        entry["decoded"] = write(args.out, f"{name}.f32", reference.decode(name, blocks))
        made = {"run_time": [reference.run_time(name, row) for row in rows]}
        if block_len > 1 and name not in ACTIVATION:
            if name not in NEEDS_IMPORTANCE:
                made["offline"] = [reference.offline(name, row) for row in rows]
            made["weighted"] = [reference.offline(name, row, w) for row, w in zip(rows, importance)]
        for flavour, parts in made.items():
            if parts[0] is not None:
                entry[flavour] = write(args.out, f"{name}.{flavour}", b"".join(parts))
        index["types"].append(entry)
        print(name, [key for key in entry if key != "dtype"], file=sys.stderr)
    (args.out / "index.json").write_text(json.dumps(index, indent=1) + "\n")


def to_half(reference, pattern):
    value = ctypes.c_float.from_buffer_copy(int(pattern).to_bytes(4, "little"))
    return reference.lib.ggml_fp32_to_fp16(value)


if __name__ == "__main__":
    main()
