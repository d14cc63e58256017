"""What is drawn at random: extents, layouts, values, and tensors made of them."""

import math
from dataclasses import dataclass

import numpy as np

from ggml import CODEBOOK

NUMPY = {"f32": "<f4", "f16": "<f2", "f64": "<f8", "i8": "<i1", "i16": "<i2", "i32": "<i4", "i64": "<i8", "bf16": "<u2"}
REAL = ("f32", "f16", "bf16")
LEGACY = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "mxfp4", "nvfp4", "q1_0", "q2_0")
SUPER = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs", "tq1_0", "tq2_0")
# Types whose blocks expand to floats; types a graph can write; both without the plain ones.
EXPANDING = LEGACY + SUPER + CODEBOOK
WRITABLE = LEGACY + SUPER
# What activations become beside a weight type.
PARTNER = {
    **dict.fromkeys(LEGACY, "q8_0"),
    **dict.fromkeys(("q4_1", "q5_1"), "q8_1"),
    **dict.fromkeys(SUPER + CODEBOOK, "q8_k"),
    **{name: name for name in REAL},
}
LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 11, 13, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 96, 100, 127, 128, 129, 200, 255, 256, 257, 300)
LONG = (511, 512, 513, 1000, 1023, 1025, 2048, 4096)


def to_bf16(values):
    """Round to nearest even; the bits."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


@dataclass
class Source:
    """A tensor and the bytes it lies in. With `shares`, those are the bytes of that source."""

    dtype: object
    ne: list
    nb: list
    offset: int
    storage: np.ndarray
    shares: int = None
    param: bool = False

    def view(self):
        """The elements (or, of a quantized type, the bytes of the rows), slowest dimension first."""
        ne, nb = self.ne, self.nb
        if self.dtype.is_quantized:
            shape = (ne[3], ne[2], ne[1], ne[0] // self.dtype.block * self.dtype.bytes)
            return np.ndarray(shape, np.uint8, self.storage, self.offset, (nb[3], nb[2], nb[1], 1))
        return np.ndarray(ne[::-1], NUMPY[self.dtype.name], self.storage, self.offset, nb[::-1])

    def floats(self, ggml):
        """The elements as numbers, slowest dimension first."""
        if self.dtype.is_quantized:
            return ggml.expand(self.dtype, self.view()).astype(np.float64)
        values = self.view()
        return (from_bf16(values) if self.dtype.name == "bf16" else values).astype(np.float64)


def byte_len(dtype, ne, nb):
    if 0 in ne:
        return 0
    return dtype.bytes + (ne[0] // dtype.block - 1) * nb[0] + sum((n - 1) * s for n, s in zip(ne[1:], nb[1:]))


def packed(dtype, ne):
    nb = [dtype.bytes, ne[0] // dtype.block * dtype.bytes]
    nb.append(nb[1] * ne[1])
    nb.append(nb[2] * ne[2])
    return nb


class Draw:
    """A source of random choices for one case."""

    def __init__(self, ggml, rng):
        self.ggml, self.rng = ggml, rng
        # Some are large enough to be worth several threads.
        self.large = self.chance(0.06)

    # Choices.

    def chance(self, probability):
        return self.rng.random() < probability

    def pick(self, options):
        return options[int(self.rng.integers(len(options)))]

    def between(self, low, high):
        return int(self.rng.integers(low, high + 1))

    def uniform(self, low, high):
        return float(self.rng.uniform(low, high))

    def type(self, name):
        return self.ggml.types[name]

    def length(self, most=300, least=1, multiple=1):
        """A row length: mostly those next to powers of two."""
        fitting = [n for n in LENGTHS + LONG if least <= n * multiple <= most]
        return self.pick(fitting) * multiple if fitting else -(-least // multiple) * multiple

    def shape(self, most=3000, first=None, multiple=1, dims=4):
        """Extents with at most `most` elements (if `first` allows), often with ones. Large cases have more."""
        most *= 12 if self.large else 1
        if first is None:
            long = self.chance(0.1)
            first = self.length(min(most, 4096 if long else 300), 1, multiple)
        ne, room = [first], max(1, most // max(first, 1))
        for dim in range(1, 4):
            extent = 1
            if dim < dims and self.chance(0.75 if dim == 1 else 0.5):
                rows = (33, 64, 100, 257) if self.large else (2, 3, 4, 5, 7, 9, 12, 17, 33)
                extent = min(room, self.pick(rows if dim == 1 else (2, 3, 4, 5)))
            ne.append(extent)
            room = max(1, room // extent)
        return ne

    def divisor(self, n):
        return self.pick([k for k in range(1, n + 1) if n % k == 0])

    # Layouts.

    def layout(self, dtype, ne, rule):
        """Strides under a rule, and the byte the tensor starts at.

        any: every order of dimensions, gaps anywhere; rows: dimension 0 packed; c1: rows at one common distance;
        planes: dimensions 0 and 1 packed; c: packed. Any of them may begin inside its storage. With a star, the same
        elements may be read again and again.
        """
        offset = dtype.bytes * self.pick((0, 0, 0, 1, 3, 8, 17))
        if rule == "c" or self.chance(0.3):
            return packed(dtype, ne), offset
        gap = lambda: dtype.bytes * self.pick((0, 0, 1, 2, 5, 16)) if self.chance(0.6) else 0
        if rule == "c1":
            nb = packed(dtype, ne)
            nb[1] += gap()
            nb[2] = nb[1] * ne[1]
            nb[3] = nb[2] * ne[2]
            return nb, offset
        order = [0, 1, 2, 3]
        fixed = {"any": 0, "rows": 1, "planes": 2}[rule.rstrip("*")]
        fixed = max(fixed, int(dtype.is_quantized))
        if self.chance(0.5):
            order[fixed:] = [int(i) for i in self.rng.permutation(order[fixed:])]
        nb, step = [0] * 4, dtype.bytes + (gap() if fixed == 0 else 0)
        for place, dim in enumerate(order):
            nb[dim] = step
            step *= max(1, ne[dim] // dtype.block if dim == 0 else ne[dim])
            step += gap() if place + 1 >= fixed else 0
        if rule.endswith("*") and self.chance(0.06):
            nb[self.between(max(fixed, 1), 3)] = 0
        return nb, offset

    # Values.

    def normal(self, ne, scale=None):
        """Numbers around zero, slowest dimension first. Sometimes all tiny or large, sometimes with zeros among them."""
        if scale is None:
            scale = self.pick((1.0, 1.0, 1.0, 0.01, 10.0))
        values = self.rng.standard_normal(ne[::-1]) * scale
        if self.chance(0.1):
            values[self.rng.random(values.shape) < 0.2] = 0.0
        return values

    def distinct(self, ne):
        """No two equal numbers in a row, as f32."""
        steps = np.sort(self.rng.random(ne[::-1]), axis=-1) * 0.5 + np.arange(ne[0])
        return self.rng.permuted(steps - ne[0] / 2, axis=-1)

    def integers(self, ne, low, high):
        """Whole numbers from low to high, both included."""
        return self.rng.integers(low, high + 1, ne[::-1])

    # Tensors.

    def blank(self, dtype, ne, rule):
        """A tensor in bytes of noise."""
        dtype = self.type(dtype) if isinstance(dtype, str) else dtype
        ne = list(ne) + [1] * (4 - len(ne))
        nb, offset = self.layout(dtype, ne, rule)
        return self.place(dtype, ne, nb, offset)

    def place(self, dtype, ne, nb, offset=0):
        size = offset + byte_len(dtype, ne, nb) + dtype.bytes * self.pick((0, 0, 1, 4))
        storage = np.frombuffer(self.rng.bytes(max(size, dtype.bytes)), np.uint8).copy()
        return Source(dtype, ne, nb, offset, storage)

    def fill(self, source, values):
        """Writes numbers (slowest dimension first) into a tensor, in its type."""
        dtype = source.dtype
        if dtype.name in CODEBOOK:
            pool = self.ggml.pool(dtype)
            shape = (*source.ne[:0:-1], source.ne[0] // dtype.block)
            rows = pool[self.rng.integers(len(pool), size=shape)].reshape(*shape[:-1], -1)
        elif dtype.is_quantized:
            rows = self.ggml.quantize(dtype, values)
        elif dtype.name == "bf16":
            rows = to_bf16(values)
        else:
            rows = np.asarray(values)
            if dtype.name in ("f16", "f32"):
                with np.errstate(over="ignore"):
                    rows = rows.astype(np.float32).astype(NUMPY[dtype.name])
        np.copyto(source.view(), rows, casting="unsafe")
        return source

    def tensor(self, dtype, ne, rule="rows", values=None, scale=None):
        source = self.blank(dtype, ne, rule)
        if values is None:
            if source.dtype.name.startswith("i") and not source.dtype.is_quantized:
                values = self.integers(source.ne, -100, 100)
            else:
                values = self.normal(source.ne, scale)
        return self.fill(source, np.broadcast_to(values, tuple(source.ne[::-1])))

    def like(self, source, values=None, scale=None):
        """Another tensor of the same type, extents and strides."""
        other = self.place(source.dtype, source.ne, source.nb, source.offset)
        return self.fill(other, self.normal(source.ne, scale) if values is None else values)

    def indices(self, dtype, ne, count, rule="any"):
        """Whole numbers below count."""
        return self.tensor(dtype, ne, rule, self.integers(list(ne) + [1] * (4 - len(ne)), 0, count - 1))


def padded(ne):
    return list(ne) + [1] * (4 - len(ne))


def elements(ne):
    return math.prod(ne)
