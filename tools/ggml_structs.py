"""ggml's structs and functions through ctypes, as all scripts need them that call the reference. Only Python's own modules."""

import ctypes
import os
from ctypes import POINTER, c_bool, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p


class Tensor(ctypes.Structure):
    """struct ggml_tensor."""


Tensor._fields_ = [
    ("type", c_int),
    ("buffer", c_void_p),
    ("ne", c_int64 * 4),
    ("nb", c_size_t * 4),
    ("op", c_int),
    ("op_params", c_int32 * 16),
    ("flags", c_int32),
    ("src", POINTER(Tensor) * 10),
    ("view_src", POINTER(Tensor)),
    ("view_offs", c_size_t),
    ("data", c_void_p),
    ("name", c_char * 64),
    ("extra", c_void_p),
    ("padding", c_char * 8),
]


class InitParams(ctypes.Structure):
    """struct ggml_init_params."""

    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


class TypeTraits(ctypes.Structure):
    """The beginning of struct ggml_type_traits."""

    CONVERT = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_int64)
    _fields_ = [
        ("name", c_char_p),
        ("block_len", c_int64),
        ("interleave", c_int64),
        ("block_bytes", c_size_t),
        ("is_quantized", c_bool),
        ("to_float", CONVERT),
        ("from_float", CONVERT),
    ]


def load(target, folder, parts, functions):
    """Gives an object the functions of the libraries, without their prefix, as methods."""
    os.environ["GGML_NO_BACKTRACE"] = "1"  # it would start a debugger
    # Libraries that have a version find each other by it; the names without are copies with a registry of their own.
    paths = [folder / f"libggml{part}.so" for part in parts]
    paths = [versioned if (versioned := path.with_suffix(".so.0")).exists() else path for path in paths]
    libraries = [ctypes.CDLL(str(path)) for path in paths]
    for name, (result, arguments) in functions.items():
        function = next(getattr(library, name) for library in libraries if hasattr(library, name))
        function.restype, function.argtypes = result, arguments
        setattr(target, name.removeprefix("ggml_"), function)
