#!/usr/bin/env python3
"""Importance data of two programs, number by number: same metadata, names, shapes and counts, and sums that are near each other.

    tools/imatrix.py OURS THEIRS
    tools/imatrix.py --quantized OURS THEIRS      models that two programs quantized: same metadata, types and bytes

Activations differ in their last digits, and where weights are quantized they may become a whole step more or less; so the
sums of a tensor are held to a mean relative difference, not to bits. Types with a codebook are encoded by a search of our own,
whose error docs/comparison.md compares with the reference's; of tensors of these types, bytes may differ."""

import array
import math
import struct
import sys
from pathlib import Path

# The mean relative difference of the sums of a tensor that is allowed.
ALLOWED = 0.02

F32 = 0
# The numbers of IQ2_XXS, IQ2_XS, IQ3_XXS, IQ1_S, IQ3_S, IQ2_S and IQ1_M.
CODEBOOKS = {16, 17, 18, 19, 21, 22, 29}

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class Reader:
    """A GGUF file: its metadata, and of each tensor the shape, the number of its type, and the bytes."""

    def __init__(self, path):
        self.data = Path(path).read_bytes()
        self.at = 0
        magic, version, tensors, records = self.take("4sIQQ")
        if (magic, version) != (b"GGUF", 3):
            sys.exit(f"{path}: not a GGUF file of version 3")
        self.metadata = {}
        for _ in range(records):
            key = self.text()
            self.metadata[key] = self.value(self.take("I")[0])
        infos = [self.info() for _ in range(tensors)]
        start = -(-self.at // 32) * 32
        ends = sorted(offset for *_, offset in infos) + [len(self.data) - start]
        self.tensors = {}
        for name, shape, kind, offset in infos:
            end = next(end for end in ends if end > offset)
            self.tensors[name] = (shape, kind, self.data[start + offset : start + end])

    def numbers(self, name):
        """The shape and the elements of a tensor of F32."""
        shape, kind, data = self.tensors[name]
        if kind != F32:
            sys.exit(f"{name} is not F32")
        numbers = array.array("f", data[: 4 * math.prod(shape)])
        if sys.byteorder == "big":
            numbers.byteswap()
        return shape, numbers

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values

    def text(self):
        (length,) = self.take("Q")
        return self.take(f"{length}s")[0].decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            kind, count = self.take("IQ")
            return [self.value(kind) for _ in range(count)]
        return self.take(NUMBERS[kind])[0]

    def info(self):
        name = self.text()
        (dimensions,) = self.take("I")
        shape = self.take(f"{dimensions}Q")
        kind, offset = self.take("IQ")
        return name, shape, kind, offset


def compare_quantized(ours, theirs):
    wrong = [] if ours.metadata == theirs.metadata else ["metadata"]
    if list(ours.tensors) != list(theirs.tensors):
        wrong.append("tensors")
    searched = 0
    for name in set(ours.tensors) & set(theirs.tensors):
        (*our_kind, our), (*their_kind, their) = ours.tensors[name], theirs.tensors[name]
        if our_kind != their_kind or len(our) != len(their):
            wrong.append(f"{name}: {our_kind} and {their_kind}")
        elif our_kind[1] in CODEBOOKS:
            searched += 1
        elif our != their:
            wrong.append(f"{name}: bytes")
    same = len(ours.tensors) - searched
    print(f"quantized: {same} tensors to be the same, {searched} of types with a codebook to have the same types")
    return wrong


def compare_importance(ours, theirs):
    wrong = []
    keys = ["general.type", "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"]
    for key in keys:
        if ours.metadata.get(key) != theirs.metadata.get(key):
            wrong.append(f"{key}: {ours.metadata.get(key)} and {theirs.metadata.get(key)}")
    if list(ours.metadata) != list(theirs.metadata):
        wrong.append(f"keys: {list(ours.metadata)} and {list(theirs.metadata)}")
    if list(ours.tensors) != list(theirs.tensors):
        only = set(ours.tensors) ^ set(theirs.tensors)
        wrong.append(f"tensors: {sorted(only)[:5] or 'in another order'}")
    largest = (0.0, "-")
    for name in sorted(set(ours.tensors) & set(theirs.tensors)):
        (our_shape, our), (their_shape, their) = ours.numbers(name), theirs.numbers(name)
        if our_shape != their_shape:
            wrong.append(f"{name}: {our_shape} and {their_shape}")
        elif name.endswith(".counts"):
            if our != their:
                wrong.append(f"{name}: {our.tolist()[:4]} and {their.tolist()[:4]}")
        else:
            apart = sum(abs(a - b) for a, b in zip(our, their, strict=True))
            difference = apart / max(sum(map(abs, their)), 1e-30)
            largest = max(largest, (difference, name))
            if not difference <= ALLOWED:
                wrong.append(f"{name}: differs by {difference:.4f}")
    print(f"imatrix: {len(ours.tensors)} tensors, largest mean difference {largest[0]:.5f} ({largest[1]}) [{ALLOWED}]")
    return wrong


def main():
    *mode, ours, theirs = sys.argv[1:]
    compare = compare_quantized if mode == ["--quantized"] else compare_importance
    wrong = compare(Reader(ours), Reader(theirs))
    for line in wrong[:20]:
        print(f"  {line}")
    sys.exit(1 if wrong else 0)


main()
