"""The real peer: libggml of one version, its RPC client and its RPC worker, through ctypes.

One process loads one version; the structs are those of tools/ggml_structs.py, whose folder must be on the path.
"""

import ctypes
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint8, c_uint32, c_void_p

import numpy as np
from ggml_structs import InitParams, Tensor, load

Node = POINTER(Tensor)

FUNCTIONS = {
    "ggml_init": (c_void_p, [InitParams]),
    "ggml_free": (None, [c_void_p]),
    "ggml_new_graph": (c_void_p, [c_void_p]),
    "ggml_build_forward_expand": (None, [c_void_p, Node]),
    "ggml_new_tensor_4d": (Node, [c_void_p, c_int, c_int64, c_int64, c_int64, c_int64]),
    "ggml_nbytes": (c_size_t, [Node]),
    "ggml_quantize_chunk": (c_size_t, [c_int, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p]),
    "ggml_add": (Node, [c_void_p, Node, Node]),
    "ggml_cont": (Node, [c_void_p, Node]),
    "ggml_cpy": (Node, [c_void_p, Node, Node]),
    "ggml_get_rows": (Node, [c_void_p, Node, Node]),
    "ggml_mul": (Node, [c_void_p, Node, Node]),
    "ggml_mul_mat": (Node, [c_void_p, Node, Node]),
    "ggml_permute": (Node, [c_void_p, Node, c_int, c_int, c_int, c_int]),
    "ggml_reshape_2d": (Node, [c_void_p, Node, c_int64, c_int64]),
    "ggml_reshape_3d": (Node, [c_void_p, Node, c_int64, c_int64, c_int64]),
    "ggml_rms_norm": (Node, [c_void_p, Node, c_float]),
    "ggml_rope": (Node, [c_void_p, Node, Node, c_int, c_int]),
    "ggml_silu": (Node, [c_void_p, Node]),
    "ggml_soft_max_ext": (Node, [c_void_p, Node, Node, c_float, c_float]),
    "ggml_transpose": (Node, [c_void_p, Node]),
    "ggml_view_2d": (Node, [c_void_p, Node, c_int64, c_int64, c_size_t, c_size_t]),
    "ggml_backend_alloc_buffer": (c_void_p, [c_void_p, c_size_t]),
    "ggml_backend_alloc_ctx_tensors": (c_void_p, [c_void_p, c_void_p]),
    "ggml_backend_buffer_clear": (None, [c_void_p, c_uint8]),
    "ggml_backend_buffer_free": (None, [c_void_p]),
    "ggml_backend_buffer_get_base": (c_void_p, [c_void_p]),
    "ggml_backend_buffer_get_size": (c_size_t, [c_void_p]),
    "ggml_backend_buffer_set_usage": (None, [c_void_p, c_int]),
    "ggml_backend_cpu_init": (c_void_p, []),
    "ggml_backend_cpu_set_n_threads": (None, [c_void_p, c_int]),
    "ggml_backend_cpu_reg": (c_void_p, []),
    "ggml_backend_free": (None, [c_void_p]),
    "ggml_backend_get_alignment": (c_size_t, [c_void_p]),
    "ggml_backend_graph_compute": (c_int, [c_void_p, c_void_p]),
    "ggml_backend_reg_dev_get": (c_void_p, [c_void_p, c_size_t]),
    "ggml_backend_tensor_alloc": (c_int, [c_void_p, Node, c_void_p]),
    "ggml_backend_tensor_copy": (None, [Node, Node]),
    "ggml_backend_tensor_get": (None, [Node, c_void_p, c_size_t, c_size_t]),
    "ggml_backend_tensor_memset": (None, [Node, c_uint8, c_size_t, c_size_t]),
    "ggml_backend_tensor_set": (None, [Node, c_void_p, c_size_t, c_size_t]),
}
SIZES = [POINTER(c_size_t), POINTER(c_size_t)]
RPC = {
    # An endpoint is a device.
    "2.0": {
        "ggml_backend_device_register": (None, [c_void_p]),
        "ggml_backend_rpc_add_device": (c_void_p, [c_char_p]),
        "ggml_backend_rpc_get_device_memory": (None, [c_char_p, *SIZES]),
        "ggml_backend_rpc_init": (c_void_p, [c_char_p]),
        "ggml_backend_rpc_start_server": (None, [c_void_p, c_char_p, c_char_p, c_size_t, c_size_t]),
    },
    # An endpoint is a server of devices.
    "7.0": {
        "ggml_backend_register": (None, [c_void_p]),
        "ggml_backend_rpc_add_server": (c_void_p, [c_char_p]),
        "ggml_backend_rpc_get_device_memory": (None, [c_char_p, c_uint32, *SIZES]),
        "ggml_backend_rpc_init": (c_void_p, [c_char_p, c_uint32]),
        "ggml_backend_rpc_start_server": (None, [c_char_p, c_char_p, c_size_t, c_size_t, POINTER(c_void_p)]),
    },
}
F32, F16, Q4_0, Q8_0, Q6_K, I8, I32 = 0, 1, 2, 8, 14, 24, 26
WEIGHTS = 1
GIB = 1 << 30


class Peer:
    """A version, by the protocol it speaks."""

    def __init__(self, protocol, folder):
        self.protocol = protocol
        self.is_old = protocol == "2.0"
        load(self, folder, ("-base", "-cpu", "-rpc", ""), FUNCTIONS | RPC[protocol])

    def device(self):
        """The arguments that mean the first device, where there can be several."""
        return [] if self.is_old else [0]

    def register(self, endpoint):
        """Registers a worker's devices with ggml's registry."""
        if self.is_old:
            self.backend_device_register(self.backend_rpc_add_device(endpoint.encode()))
        else:
            self.backend_register(self.backend_rpc_add_server(endpoint.encode()))

    def memory(self, endpoint):
        free, total = c_size_t(), c_size_t()
        self.backend_rpc_get_device_memory(endpoint.encode(), *self.device(), ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def connect(self, endpoint):
        return self.backend_rpc_init(endpoint.encode(), *self.device())

    def serve(self, endpoint, cache):
        """Lends the processor, one client at a time, for ever."""
        cache = str(cache).encode() if cache else None
        if self.is_old:
            backend = self.backend_cpu_init()
            self.backend_cpu_set_n_threads(backend, 1)
            self.backend_rpc_start_server(backend, endpoint.encode(), cache, GIB, GIB)
        else:
            devices = (c_void_p * 1)(self.backend_reg_dev_get(self.backend_cpu_reg(), 0))
            self.backend_rpc_start_server(endpoint.encode(), cache, 1, 1, devices)

    def context(self):
        """Descriptions of tensors, without memory for them."""
        return self.init(InitParams(1 << 20, None, True))

    def tensor(self, context, dtype, *ne):
        return self.new_tensor_4d(context, dtype, *ne, *[1] * (4 - len(ne)))

    def set(self, tensor, values, offset=0):
        values = np.ascontiguousarray(values)
        self.backend_tensor_set(tensor, values.ctypes.data, offset, values.nbytes)

    def get(self, tensor, dtype=np.uint8):
        values = np.zeros(self.nbytes(tensor), np.uint8)
        self.backend_tensor_get(tensor, values.ctypes.data, 0, values.nbytes)
        return values.view(dtype)

    def packed(self, dtype, rows):
        """Rows of f32 as another type."""
        rows = np.ascontiguousarray(rows, np.float32)
        if dtype == F32:
            return rows
        if dtype == F16:
            return rows.astype(np.float16)
        out = np.zeros(rows.nbytes, np.uint8)
        count, length = rows.shape
        used = self.quantize_chunk(dtype, rows.ctypes.data, out.ctypes.data, 0, count, length, None)
        return out[:used]
