"""A case: one op over drawn sources, run on the reference and written down."""

import ctypes
import json
from dataclasses import dataclass, field

import numpy as np

from draw import Source, byte_len, packed, padded
from ggml import PARAM, Tensor, float_bits

EXACT = {"kind": "exact"}


def nmse(most):
    return {"kind": "nmse", "max": float(most)}


def near(rtol, atol):
    return {"kind": "elementwise", "rtol": float(rtol), "atol": float(atol)}


@dataclass
class Case:
    """`out` is the type and the extents of a result in memory of its own, and its strides if it is not packed.

    Otherwise the result lies in a source: `alias` as the op prescribes or as an in-place builder would have it, `reuse` as
    a memory planner would have it. Parameters are words; floats are turned into their bits. `answer` gives the result in
    double precision, and how far from it a good result may be.
    """

    op: str
    sources: list
    tolerance: dict
    out: tuple = None
    params: tuple = ()
    alias: int = None
    reuse: int = None
    desc: str = None
    is_cast: bool = False
    answer: object = None
    result: Source = field(default=None, init=False)

    def words(self):
        words = [float_bits(p) if isinstance(p, (float, np.floating)) else int(p) for p in self.params]
        return words + [0] * (16 - len(words))

    def run(self, draw, threads=1):
        """The bytes of the result after a run on the reference; sources are as before."""
        storages = {}
        for slot, source in enumerate(self.sources):
            if source is not None:
                storages[slot] = storages[source.shares] if source.shares is not None else aligned(source.storage)
        target = self.alias if self.alias is not None else self.reuse
        if target is not None:
            like = self.sources[target]
            result, storage = (like.dtype, like.ne, like.nb, like.offset), storages[target]
        else:
            dtype, ne = draw.type(self.out[0]), padded(self.out[1])
            nb = self.out[2] if len(self.out) > 2 else packed(dtype, ne)
            # A pattern that nothing computes, so that what is left unwritten shows.
            storage = aligned(np.full(max(byte_len(dtype, ne, nb), dtype.bytes), 0xA5, np.uint8))
            result = (dtype, ne, nb, 0)
        tensors = {}
        for slot, storage_ in storages.items():
            source = self.sources[slot]
            tensors[slot] = tensor(source.dtype, source.ne, source.nb, source.offset, storage_)
            tensors[slot].flags = PARAM if source.param else 0
        node = tensor(*result, storage)
        node.op = draw.ggml.ops[self.op]
        node.op_params = (ctypes.c_int32 * 16)(*self.words())
        for slot, made in tensors.items():
            node.src[slot] = ctypes.pointer(made)
        if self.alias is not None:
            node.view_src = ctypes.pointer(tensors[self.alias])
        if self.is_cast:
            node.src[1] = ctypes.pointer(node)
        draw.ggml.compute(node, threads)
        for used in (*storages.values(), storage):
            check_guards(used)
        self.result = Source(*result, storage)
        self.written = {slot: storages[slot] for slot in storages if slot in ALSO_WRITES.get(self.op, ())}
        return storage


ALSO_WRITES = {"OPT_STEP_ADAMW": (2, 3)}


GUARD = 1024


def aligned(storage):
    """A copy that starts at a multiple of 64 bytes, between guards."""
    room = np.full(storage.size + 2 * GUARD + 64, 0x5A, np.uint8)
    start = GUARD + -room.ctypes.data % 64
    copy = room[start : start + storage.size]
    copy[:] = storage
    return copy


def check_guards(storage):
    """A case during which the reference writes past the end of its memory is no case."""
    room = storage.base
    start = storage.ctypes.data - room.ctypes.data
    if (room[:start] != 0x5A).any() or (room[start + storage.size :] != 0x5A).any():
        raise RuntimeError("the reference wrote outside its memory")


def tensor(dtype, ne, nb, offset, storage):
    made = Tensor()
    made.type = dtype.number
    made.ne, made.nb = (ctypes.c_int64 * 4)(*ne), (ctypes.c_size_t * 4)(*nb)
    made.data = storage.ctypes.data + offset
    return made


class Writer:
    """Index files and blobs, one pair per family."""

    def __init__(self, folder, seed):
        self.folder, self.seed = folder, seed
        self.blobs, self.indices = {}, {}

    def store(self, family, storage):
        """Appends bytes; where they begin and how many."""
        if family not in self.blobs:
            self.blobs[family] = open(self.folder / f"{family}.bin", "wb")
        blob = self.blobs[family]
        start = blob.tell()
        blob.write(storage.tobytes())
        blob.write(bytes(-storage.size % 16))
        return {"offset": start, "size": int(storage.size)}

    def tensor(self, family, source, place):
        return {
            "type": source.dtype.name,
            "ne": [int(n) for n in source.ne],
            "nb": [int(n) for n in source.nb],
            "view_offset": int(source.offset),
            **place,
        }

    def add(self, family, number, case, draw):
        try:
            storage = case.run(draw)
        except RuntimeError as error:
            raise RuntimeError(f"case {number} of {family}: {error}") from None
        sources, places = [], {}
        for slot, source in enumerate(case.sources):
            if source is None:
                sources.append(None)
                continue
            shared = source.shares
            places[slot] = places[shared] if shared is not None else self.store(family, source.storage)
            extra = {"shares_src": shared} if shared is not None else {}
            if slot in case.written:
                extra["after"] = self.store(family, case.written[slot])
            sources.append({**self.tensor(family, source, places[slot]), **extra})
        if case.is_cast:
            sources.append({"same_as": "dst"})
        dst = self.tensor(family, case.result, self.store(family, storage))
        if case.alias is not None:
            dst["aliases_src"] = case.alias
        if case.reuse is not None:
            dst["reuses_src"] = case.reuse
        record = {
            "id": f"{family}/{number:06}",
            "label": f"seed {self.seed}; {describe(case, draw)}",
            "op": case.op,
            "op_number": draw.ggml.ops[case.op],
            "desc": case.desc or case.op,
            "op_params": case.words(),
            "src": sources,
            "dst": dst,
            "tolerance": loosened(case),
        }
        if case.answer is not None:
            record["tolerance"], record["exact"] = self.judge(family, case, draw)
        self.indices.setdefault(family, []).append(record)

    def judge(self, family, case, draw):
        """The exact answer with the error it may have, and the tolerance to the reference that follows."""
        exact, allowed = case.answer()
        exact = exact.astype(np.float32).astype(np.float64)
        got = case.result.floats(draw.ggml)
        finite = np.isfinite(exact)
        size = float((exact[finite] ** 2).sum())
        error = float(((got[finite] - exact[finite]) ** 2).sum())
        measured = error / size if error else 0.0
        limit = max(1e-9, 2 * max(measured, allowed))
        place = self.store(family, exact.astype("<f4").view(np.uint8).ravel())
        return nmse(4 * limit), {"type": "f32", **place, "reference_nmse": max(measured, allowed)}

    def close(self):
        for family, cases in self.indices.items():
            self.blobs[family].close()
            index = {"family": family, "seed": self.seed, "blob": f"{family}.bin", "cases": cases}
            (self.folder / f"{family}.json").write_text(json.dumps(index, allow_nan=False))


def loosened(case):
    """With as much of a result allowed to differ as its size asks for. A code of 8 bits that is one off is a small error."""
    tolerance, result = dict(case.tolerance), case.result
    if tolerance["kind"] == "quantized":
        blocks = max(1, result.storage.size // result.dtype.bytes)
        share = max(tolerance["max_block_mismatch"], tolerance.pop("few") / blocks)
        tolerance["max_block_mismatch"] = min(share, 1.0)
        if result.dtype.name == "q8_0":
            tolerance["nmse"] = 3e-5
    return tolerance


def describe(case, draw):
    """Types, extents and strides, for people."""

    def one(source):
        if source is None:
            return "-"
        strides = "" if source.nb == packed(source.dtype, source.ne) else f"/{','.join(map(str, source.nb))}"
        shares = "" if source.shares is None else f" in {source.shares}"
        return f"{source.dtype}[{','.join(map(str, source.ne))}]{strides}{shares}"

    where = ""
    if case.alias is not None:
        where = f" over {case.alias}"
    if case.reuse is not None:
        where = f" reusing {case.reuse}"
    words = [p for p in case.params]
    while words and not words[-1]:
        words.pop()
    params = f" {[round(p, 6) if isinstance(p, float) else int(p) for p in words]}" if words else ""
    name = case.desc or case.op
    sources = " ".join(one(source) for source in case.sources)
    return f"{name}{params} {sources} -> {case.result.dtype}{where}"
