"""Ops that copy, gather, scatter, pad, join or fill."""

from dataclasses import replace

import numpy as np

from case import EXACT, Case, near, nmse
from draw import EXPANDING, NUMPY, REAL, WRITABLE, byte_len, elements, packed
from elementwise import mapped, quantized

PLAIN = tuple(NUMPY)


def any_type(d):
    return d.pick((d.pick(REAL), d.pick(PLAIN), d.pick(EXPANDING)))


def contents(d, name, ne, rule):
    """A tensor of any type; plain numbers that every type holds."""
    if name in ("f64", "i8", "i16", "i64", "i32"):
        return d.tensor(name, ne, rule, d.integers(ne, -100, 100))
    return d.tensor(name, ne, rule)


def regrouped(d, ne, block=1):
    """Other extents with as many elements; rows are whole blocks."""
    count, first = elements(ne), ne[0] // block
    total = count // block
    first = d.divisor(total) if total < 400 else first
    rest = total // first
    second = d.divisor(rest) if rest < 400 else rest
    return [first * block, second, rest // second, 1]


def dup(d):
    name = any_type(d)
    ne = d.shape(4000, multiple=d.type(name).block)
    a = contents(d, name, ne, "any")
    return mapped(d, "DUP", a, name, EXACT)


def cont(d):
    name = any_type(d)
    block = d.type(name).block
    ne = d.shape(4000, multiple=block)
    other = regrouped(d, ne, block) if d.chance(0.4) else ne
    # The reference copies scattered blocks into other shapes wrongly.
    rule = "c" if block > 1 and other != ne else "any*"
    return Case("CONT", [contents(d, name, ne, rule)], EXACT, out=(name, other))


def copy_pair(d):
    """Types of a source and of a target between which there is a conversion."""
    kind = d.pick(("same", "real", "real", "int", "encode", "encode", "decode", "decode"))
    if kind == "same":
        name = any_type(d)
        return name, name
    if kind == "int":
        return d.pick((("f32", "i32"), ("i32", "f32")))
    if kind == "encode":
        return d.pick(REAL), d.pick(WRITABLE)
    if kind == "decode":
        return d.pick(EXPANDING), "f32"
    return d.pick(REAL), d.pick(REAL)


def copy_tolerance(from_type, to_type):
    if to_type not in REAL and from_type != to_type and to_type != "i32":
        return quantized(from_type, to_type)
    return nmse(1e-12) if from_type in EXPANDING and to_type == "f32" else EXACT


def extremes(d, a, to_type):
    """Numbers too large or too small for half precision."""
    if a.dtype.name in REAL and to_type in REAL and d.chance(0.15):
        d.fill(a, d.normal(a.ne, d.pick((3e4, 1e-6, 1e-8))))


def cpy(d):
    from_type, to_type = copy_pair(d)
    block = max(d.type(from_type).block, d.type(to_type).block)
    ne = d.shape(4000, multiple=block)
    other = regrouped(d, ne, block) if d.chance(0.35) else ne
    a_rule, b_rule = "any*", "any"
    if to_type in WRITABLE and from_type != to_type:
        a_rule, b_rule = "rows*", "c"
        # The reference makes room for a row of the target and puts a row of the source there.
        other = other if other[0] >= ne[0] else ne
    elif from_type in EXPANDING and to_type == "f32":
        a_rule, b_rule = "rows*", "rows"
    elif block > 1 and other != ne:
        a_rule = b_rule = "c"
    a = contents(d, from_type, ne, a_rule)
    if from_type == "f32" and to_type == "i32":
        d.fill(a, d.normal(ne, 1000.0))
    extremes(d, a, to_type)
    b = d.blank(to_type, other, b_rule)
    if from_type == to_type and d.chance(0.2):
        # From one place of a buffer to another.
        a = contents(d, from_type, ne, "c")
        room = byte_len(a.dtype, ne, a.nb)
        a.storage = np.concatenate([a.storage[: a.offset + room], a.storage[a.offset : a.offset + room]])
        b = replace(a, ne=other, nb=packed(a.dtype, other), offset=a.offset + room, shares=0)
    return Case("CPY", [a, b], copy_tolerance(from_type, to_type), alias=1)


def cast(d):
    from_type, to_type = copy_pair(d)
    block = max(d.type(from_type).block, d.type(to_type).block)
    ne = d.shape(4000, multiple=block)
    a = contents(d, from_type, ne, "rows*" if d.type(to_type).block > 1 or from_type in EXPANDING else "any*")
    extremes(d, a, to_type)
    return Case("CPY", [a], copy_tolerance(from_type, to_type), out=(to_type, ne), is_cast=True)


def concat(d):
    name = any_type(d)
    block, size = d.type(name).block, d.type(name).bytes
    dim = d.between(0, 3)
    ne = d.shape(2500, multiple=block)
    other = list(ne)
    other[dim] = d.between(1, 4) * block if dim == 0 else d.between(1, 5)
    rule = "any*" if block == 1 and size <= 4 else "rows*"
    joined = list(ne)
    joined[dim] += other[dim]
    sources = [contents(d, name, ne, rule), contents(d, name, other, rule)]
    return Case("CONCAT", sources, EXACT, out=(name, joined), params=(dim,))


def repeat(d):
    name = d.pick(("f32", "f32", "f16", "bf16", "i32", "i16"))
    ne = d.shape(600)
    a = contents(d, name, ne, "rows*")
    return Case("REPEAT", [a], EXACT, out=(name, [n * d.pick((1, 1, 2, 3)) for n in ne]))


def repeat_back(d):
    ne = d.shape(400)
    large = [n * d.pick((1, 1, 2, 3)) for n in ne]
    a = d.tensor("f32", large, "rows*", np.abs(d.normal(large)))
    return Case("REPEAT_BACK", [a], nmse(1e-11), out=("f32", ne))


def get_rows(d):
    name = d.pick(REAL + ("i32",) + EXPANDING + EXPANDING)
    ne = d.shape(4000, multiple=d.type(name).block)
    table = contents(d, name, ne, "rows*")
    count = d.between(1, 9)
    rows = d.indices("i32", [count, ne[2], ne[3]], ne[1])
    out = "i32" if name == "i32" else "f32"
    tolerance = nmse(1e-12) if name in EXPANDING else EXACT
    return Case("GET_ROWS", [table, rows], tolerance, out=(out, [ne[0], count, ne[2], ne[3]]))


def get_rows_back(d):
    name = d.pick(("f32", "f16"))
    n, count, rows = d.length(), d.between(1, 12), d.between(1, 9)
    a = d.tensor(name, [n, count], "rows", np.abs(d.normal([n, count, 1, 1])))
    b = d.indices("i32", [count], rows, "c")
    return Case("GET_ROWS_BACK", [a, b], nmse(1e-11), out=("f32", [n, rows]))


def set_rows(d):
    values_type = d.pick(("f32", "f32", "f16"))
    name = d.pick(("f32", "f16", "bf16", "i32") + WRITABLE)
    if values_type == "f16" and name == "i32":
        values_type = "f32"
    ne = d.shape(3000, multiple=d.type(name).block)
    rows = ne[1]
    ne[1] += d.between(0, 7)
    if d.chance(0.05):
        rows = 0
    values = d.tensor(values_type, [ne[0], rows, ne[2], ne[3]], "rows", scale=100.0 if name == "i32" else None)
    batch = [d.divisor(ne[2]), d.divisor(ne[3])]
    picked = np.stack([d.rng.permutation(ne[1])[:rows] for _ in range(elements(batch))]) if rows else np.zeros(0)
    index_ne = [rows, *batch, 1]
    indices = d.tensor(d.pick(("i64", "i32")), index_ne, "any", picked.reshape(index_ne[::-1]))
    target = d.tensor(name, ne, "rows", scale=100.0 if name == "i32" else None)
    tolerance = quantized(values_type, name) if name in WRITABLE else EXACT
    return Case("SET_ROWS", [values, indices, target], tolerance, alias=2)


def window(op):
    def family(d):
        name = d.pick(("f32", "i32")) if op == "SET" else "f32"
        in_place = d.chance(0.4)
        ne = d.shape(3000)
        a = contents(d, name, ne, "c")
        nb = packed(a.dtype, ne)
        part = [d.between(1, n) for n in ne]
        start = [d.between(0, n - k) for n, k in zip(ne, part)]
        offset = sum(s * step for s, step in zip(start, nb))
        b = contents(d, name, part, "rows*")
        params = (*nb[1:], offset, int(in_place))
        if in_place:
            return Case(op, [a, b], EXACT, alias=0, params=params)
        return Case(op, [a, b], EXACT, out=(name, ne), params=params)

    return family


def diag(d):
    ne = d.shape(2000, first=d.between(1, 40))
    ne[1] = 1
    a = d.tensor("f32", ne, "rows*")
    return Case("DIAG", [a], EXACT, out=("f32", [ne[0], ne[0], ne[2], ne[3]]))


def roll(d):
    ne = d.shape(3000)
    shift = [d.between(1 - n, n - 1) for n in ne]
    return Case("ROLL", [d.tensor("f32", ne, "rows*")], EXACT, out=("f32", ne), params=shift)


def pad(d):
    ne = d.shape(1000)
    circular = int(d.chance(0.4))
    most = lambda n: min(n, 3) if circular else 3
    pads = [(d.between(0, most(n)), d.between(0, most(n))) for n in ne]
    if not circular and d.chance(0.5):
        pads = [(0, right) for _, right in pads]
    larger = [n + left + right for n, (left, right) in zip(ne, pads)]
    params = [p for pair in pads for p in pair] + [circular]
    return Case("PAD", [d.tensor("f32", ne, "any*")], EXACT, out=("f32", larger), params=params)


def pad_reflect_1d(d):
    ne = d.shape(2000)
    left, right = d.between(0, ne[0] - 1), d.between(0, ne[0] - 1)
    out = [ne[0] + left + right] + ne[1:]
    return Case("PAD_REFLECT_1D", [d.tensor("f32", ne, "c")], EXACT, out=("f32", out), params=(left, right))


def arange(d):
    start, step = d.uniform(-10, 10), d.pick((1.0, 0.5, 0.25, 2.0, 0.37))
    start, step = np.float32(start), np.float32(step)
    stop = np.float32(start + step * np.float32(d.uniform(0.6, 300)))
    count = int(np.ceil((stop - start) / step))
    return Case("ARANGE", [], near(1e-6, 1e-5), out=("f32", [count]), params=(start, stop, step))


def fill(d):
    name = d.pick(("f32", "f16"))
    a = d.tensor(name, d.shape(3000), "c")
    return mapped(d, "FILL", a, name, EXACT, params=(d.pick((0.0, 1.0, -3.3, float("-inf"), 1e6)),))


def tri(d):
    n = d.between(1, 40)
    ne = [n, n, d.between(1, 3), d.between(1, 2)]
    return Case("TRI", [d.tensor("f32", ne, "c")], EXACT, out=("f32", ne), params=(d.between(0, 3),))


def diag_mask(op):
    def family(d):
        ne = d.shape(3000)
        params = (d.pick((0, 0, 1, 5, 31, 1000)),)
        if d.chance(0.5):
            # The reference takes all planes to lie at one common distance.
            return Case(op, [d.tensor("f32", ne, "c1")], EXACT, alias=0, params=params)
        return Case(op, [d.tensor("f32", ne, "c")], EXACT, out=("f32", ne), params=params)

    return family


def timestep_embedding(d):
    dim, count = d.between(1, 130), d.between(1, 12)
    steps = d.tensor("f32", [count], "c", d.rng.uniform(0, 100, (1, 1, 1, count)))
    params = (dim, d.pick((100, 10000)))
    return Case("TIMESTEP_EMBEDDING", [steps], near(0, 5e-5), out=("f32", [dim, count]), params=params)


FAMILIES = {
    "dup": (4, dup),
    "cont": (7, cont),
    "cpy": (16, cpy),
    "cast": (10, cast),
    "concat": (6, concat),
    "repeat": (4, repeat),
    "repeat_back": (3, repeat_back),
    "get_rows": (12, get_rows),
    "get_rows_back": (3, get_rows_back),
    "set_rows": (12, set_rows),
    "set": (4, window("SET")),
    "acc": (4, window("ACC")),
    "diag": (2, diag),
    "roll": (3, roll),
    "pad": (4, pad),
    "pad_reflect_1d": (2, pad_reflect_1d),
    "arange": (2, arange),
    "fill": (2, fill),
    "tri": (2, tri),
    "diag_mask_inf": (2, diag_mask("DIAG_MASK_INF")),
    "diag_mask_zero": (2, diag_mask("DIAG_MASK_ZERO")),
    "timestep_embedding": (2, timestep_embedding),
}
