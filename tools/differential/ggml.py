"""The reference: libggml's CPU backend through ctypes.

Tensors are made by hand, struct by struct, so that any layout can be asked for; the one graph is cleared after each run.
"""

import ctypes
import os
import sys
import tempfile
from ctypes import POINTER, c_bool, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent))

from ggml_structs import InitParams, Tensor, load


Convert = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_int64)


class Traits(ctypes.Structure):
    """struct ggml_type_traits."""

    _fields_ = [
        ("name", c_char_p),
        ("block", c_int64),
        ("interleave", c_int64),
        ("bytes", c_size_t),
        ("is_quantized", c_bool),
        ("to_float", Convert),
        ("from_float", Convert),
    ]


class CpuTraits(ctypes.Structure):
    """struct ggml_type_traits_cpu."""

    _fields_ = [("from_float", Convert), ("vec_dot", c_void_p), ("vec_dot_type", c_int), ("nrows", c_int64)]


class Type:
    """An element type."""

    def __init__(self, number, traits):
        self.number = number
        self.name = traits.name.decode().lower()
        self.block, self.bytes = traits.block, traits.bytes
        self.is_quantized = traits.is_quantized
        self.to_float = traits.to_float

    def __repr__(self):
        return self.name


FUNCTIONS = {
    "ggml_init": (c_void_p, [InitParams]),
    "ggml_new_graph_custom": (c_void_p, [c_void_p, c_size_t, c_bool]),
    "ggml_graph_clear": (None, [c_void_p]),
    "ggml_build_forward_expand": (None, [c_void_p, POINTER(Tensor)]),
    "ggml_op_name": (c_char_p, [c_int]),
    "ggml_unary_op_name": (c_char_p, [c_int]),
    "ggml_glu_op_name": (c_char_p, [c_int]),
    "ggml_get_type_traits": (POINTER(Traits), [c_int]),
    "ggml_get_type_traits_cpu": (POINTER(CpuTraits), [c_int]),
    "ggml_quantize_chunk": (c_size_t, [c_int, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p]),
    "ggml_backend_cpu_init": (c_void_p, []),
    "ggml_backend_cpu_set_n_threads": (None, [c_void_p, c_int]),
    "ggml_backend_graph_compute": (c_int, [c_void_p, c_void_p]),
}
CODEBOOK = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")
PARAM = 4
TYPES = 43


class Ggml:
    """The library, its types by name and its ops by name."""

    def __init__(self, folder):
        load(self, folder, ("-base", "-cpu"), FUNCTIONS)
        self.ops = {}
        while "GLU" not in self.ops:  # the last one
            self.ops[self.op_name(len(self.ops)).decode()] = len(self.ops)
        traits = [(i, self.get_type_traits(i).contents) for i in range(TYPES)]
        self.types = {t.name: t for t in (Type(i, traits) for i, traits in traits if traits.bytes)}
        if len(self.ops) != 101 or len(self.types) != 35:
            sys.exit("this is not the version of ggml that the cases are written for (llama-cpp-python 0.3.36)")
        context = self.init(InitParams(1 << 20, None, True))
        self.graph = self.new_graph_custom(context, 64, False)
        self.backend = self.backend_cpu_init()
        self.ones = np.ones(1 << 16, np.float32)
        self.pools = {}

    def remember(self, path):
        """Keeps the blocks of codebook types in a file: their quantizers take seconds to get ready."""
        if path.exists():
            self.pools = dict(np.load(path))
        else:
            for name in CODEBOOK:
                self.pool(self.types[name])
            with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".npz", delete=False) as file:
                np.savez(file, **self.pools)
            os.replace(file.name, path)

    def quantize(self, dtype, values):
        """Rows of f32 as rows of blocks."""
        rows = np.ascontiguousarray(values, np.float32)
        length = rows.shape[-1]
        out = np.zeros(rows.shape[:-1] + (length // dtype.block * dtype.bytes,), np.uint8)
        count = rows.size // length if length else 0
        if count and dtype.name in ("q8_1", "q8_k"):  # activations only, not for files
            self.get_type_traits_cpu(dtype.number).contents.from_float(rows.ctypes.data, out.ctypes.data, rows.size)
        elif count:
            self.quantize_chunk(
                dtype.number, rows.ctypes.data, out.ctypes.data, 0, count, length, self.ones.ctypes.data
            )
        return out

    def pool(self, dtype):
        """Blocks of a codebook type, whose quantizer searches too long to be run for every case."""
        if dtype.name not in self.pools:
            rng = np.random.default_rng(dtype.number)
            values = rng.standard_normal((48, dtype.block)) * 10 ** rng.uniform(-1.5, 0.2, (48, 1))
            self.pools[dtype.name] = self.quantize(dtype, values)
        return self.pools[dtype.name]

    def expand(self, dtype, blocks):
        """Rows of blocks as rows of f32."""
        blocks = np.ascontiguousarray(blocks, np.uint8)
        out = np.zeros(blocks.shape[:-1] + (blocks.shape[-1] // dtype.bytes * dtype.block,), np.float32)
        if out.size:
            dtype.to_float(blocks.ctypes.data, out.ctypes.data, out.size)
        return out

    def compute(self, node, threads=1):
        """Runs one node whose sources are leaves."""
        self.backend_cpu_set_n_threads(self.backend, threads)
        self.graph_clear(self.graph)
        self.build_forward_expand(self.graph, ctypes.pointer(node))
        status = self.backend_graph_compute(self.backend, self.graph)
        if status != 0:
            raise RuntimeError(f"the reference failed with status {status}")


def float_bits(value):
    """A parameter word that holds a float."""
    return int(np.float32(value).view(np.int32))
