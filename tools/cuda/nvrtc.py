"""NVRTC, NVIDIA's run-time compiler, as a library: CUDA C++ to PTX or machine code. It needs no card."""

import ctypes
import pathlib


class Nvrtc:
    """One version of the compiler, from the folder its wheel was unpacked to."""

    def __init__(self, folder):
        lib = pathlib.Path(folder) / "nvidia/cuda_nvrtc/lib"
        # The compiler looks for its built-in functions by name; they must be there before.
        for builtins in sorted(lib.glob("libnvrtc-builtins.so.*")):
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        self.lib = ctypes.CDLL(str(lib / "libnvrtc.so.12"))

    def _check(self, code):
        if code:
            self.lib.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise RuntimeError(self.lib.nvrtcGetErrorString(code).decode())

    def _text(self, program, size, get):
        length = ctypes.c_size_t()
        self._check(getattr(self.lib, size)(program, ctypes.byref(length)))
        buffer = ctypes.create_string_buffer(length.value)
        self._check(getattr(self.lib, get)(program, buffer))
        return buffer.raw

    def compile(self, source, name, options, cubin):
        """PTX (without its last zero) or machine code, and what the compiler said."""
        program = ctypes.c_void_p()
        text = ctypes.c_char_p(source.encode())
        self._check(self.lib.nvrtcCreateProgram(ctypes.byref(program), text, name.encode(), 0, None, None))
        array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        code = self.lib.nvrtcCompileProgram(program, len(options), array)
        log = self._text(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog").rstrip(b"\0").decode()
        if code:
            raise RuntimeError(f"{name}: {log}")
        if cubin:
            image = self._text(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN")
        else:
            image = self._text(program, "nvrtcGetPTXSize", "nvrtcGetPTX").rstrip(b"\0")
        self._check(self.lib.nvrtcDestroyProgram(ctypes.byref(program)))
        return image, log
