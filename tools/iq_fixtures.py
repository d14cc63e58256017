#!/usr/bin/env python3
"""Records what the reference library makes of rows and blocks in the IQ formats.

    iq_fixtures.py --lib DIR                                   rewrite the committed fixtures
    iq_fixtures.py --lib DIR --out DIR --rows N --blocks N     a larger set, for OXCART_IQ_FIXTURES

DIR holds libggml-base.so; OXCART_REFERENCE_LIB is used when --lib is not given. The same options give the same bytes.
Files are plain little-endian arrays:

    rows.f32, importance.f32   N rows of each kind in KINDS, and one weight per value
    TYPE.blocks, TYPE.f32      blocks of arbitrary bytes, and what they decode to
    TYPE.plain, TYPE.weighted  every row, packed without and with its importance
"""

import argparse
import ctypes
import os
import pathlib
import sys
import time

try:
    import numpy as np
except ImportError as missing:
    sys.exit(f"{missing}; this needs the Python packages numpy (pip install them)")

from ggml_structs import TypeTraits

ROW_LEN = 512
KINDS = ("normal", "laplace", "cosine", "outlier")

# name: (number, bytes per block of 256, whether it can be made without importance)
TYPES = {
    "iq1_s": (19, 50, False),
    "iq1_m": (29, 56, True),
    "iq2_xxs": (16, 66, False),
    "iq2_xs": (17, 74, False),
    "iq2_s": (22, 82, True),
    "iq3_xxs": (18, 98, True),
    "iq3_s": (21, 110, True),
}


class Reference:
    def __init__(self, folder):
        self.lib = ctypes.CDLL(str(pathlib.Path(folder) / "libggml-base.so"))
        self.lib.ggml_get_type_traits.restype = ctypes.POINTER(TypeTraits)
        self.lib.ggml_quantize_chunk.restype = ctypes.c_size_t
        for name, (number, block_bytes, _) in TYPES.items():
            if self.lib.ggml_get_type_traits(number).contents.block_bytes != block_bytes:
                sys.exit(f"{name}: this library has another block layout than the table here")
            self.lib.ggml_quantize_init(number)

    def decode(self, name, blocks):
        number, block_bytes, _ = TYPES[name]
        out = np.zeros(len(blocks) // block_bytes * 256, "<f4")
        to_float = self.lib.ggml_get_type_traits(number).contents.to_float
        to_float(ctypes.c_char_p(blocks), ctypes.c_void_p(out.ctypes.data), ctypes.c_int64(out.size))
        return out

    def encode(self, name, row, importance=None):
        number, block_bytes, _ = TYPES[name]
        out = np.zeros(len(row) // 256 * block_bytes, np.uint8)
        size = self.lib.ggml_quantize_chunk(
            number,
            ctypes.c_void_p(row.ctypes.data),
            ctypes.c_void_p(out.ctypes.data),
            ctypes.c_int64(0),
            ctypes.c_int64(1),
            ctypes.c_int64(len(row)),
            None if importance is None else ctypes.c_void_p(importance.ctypes.data),
        )
        assert size == out.size
        return out.tobytes()


def make_row(rng, kind):
    match kind:
        case "normal":
            return rng.standard_normal(ROW_LEN) * 0.02
        case "laplace":
            return rng.laplace(size=ROW_LEN)
        case "cosine":
            return 0.1 + 2.0 * np.cos(np.arange(ROW_LEN) + 100.0 * rng.random())
        case "outlier":
            return rng.standard_normal(ROW_LEN) * np.where(rng.random(ROW_LEN) < 0.02, 8.0, 1.0)


def make_blocks(rng, name, count):
    """Arbitrary bytes. Every fourth scale is arbitrary as well, infinities and NaN included; the others are usual."""
    blocks = rng.integers(0, 256, (count, TYPES[name][1]), dtype=np.uint8)
    scales = rng.integers(0, 1 << 16, count, dtype=np.uint16)
    usual = (rng.standard_normal(count) * 0.1).astype("<f2").view("<u2")
    edges = np.array([0x7C00, 0xFC00, 0x7E01, 0x0001, 0x83FF, 0x8000, 0x7BFF], np.uint16)
    scales = np.where(np.arange(count) % 4 == 0, scales, usual)
    scales[: min(count, len(edges))] = edges[:count]
    if name == "iq1_m":  # spread over the top nibbles of the last four u16
        for i in range(4):
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | (scales >> 4 * i & 15).astype(np.uint8) << 4
    else:
        blocks[:, :2] = scales.astype("<u2").view(np.uint8).reshape(count, 2)
    return blocks.tobytes()


def main():
    here = pathlib.Path(__file__).resolve().parent.parent / "crates/tensor/src/quant/iq/testdata"
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--lib", default=os.environ.get("OXCART_REFERENCE_LIB"), help="folder of libggml-base.so")
    args.add_argument("--out", type=pathlib.Path, default=here, help="where to write")
    args.add_argument("--rows", type=int, default=3, help="rows of each kind")
    args.add_argument("--blocks", type=int, default=16, help="blocks of each type")
    args.add_argument("--seed", type=int, default=1)
    options = args.parse_args()
    if not options.lib:
        args.error("say where the reference library is: --lib DIR or OXCART_REFERENCE_LIB")
    reference = Reference(options.lib)
    options.out.mkdir(parents=True, exist_ok=True)

    def write(name, data):
        (options.out / name).write_bytes(data)

    rng = np.random.default_rng(options.seed)
    rows = np.array([make_row(rng, kind) for kind in KINDS for _ in range(options.rows)]).astype("<f4")
    importance = np.exp(rng.standard_normal(rows.shape)).astype("<f4")
    write("rows.f32", rows.tobytes())
    write("importance.f32", importance.tobytes())
    for name, (number, _, plain) in TYPES.items():
        blocks = make_blocks(np.random.default_rng([options.seed, number]), name, options.blocks)
        write(f"{name}.blocks", blocks)
        write(f"{name}.f32", reference.decode(name, blocks).tobytes())
        start = time.perf_counter()
        write(f"{name}.weighted", b"".join(map(reference.encode, [name] * len(rows), rows, importance)))
        seconds = time.perf_counter() - start
        if plain:
            write(f"{name}.plain", b"".join(map(reference.encode, [name] * len(rows), rows)))
        print(f"{name}: {seconds / rows.size * 256e6:.1f} us per weighted block", file=sys.stderr)


if __name__ == "__main__":
    main()
