"""Ops that work element by element, or row by row, on tensors of one shape."""

from dataclasses import replace

import numpy as np

from case import EXACT, Case, near, nmse
from draw import REAL, WRITABLE, byte_len, packed, padded

# Relative error of one rounding, with some room: a result may fall on the other side.
STEP = {"f32": 2e-6, "f16": 1.1e-3, "bf16": 9e-3}


def quantized(from_type, to_type):
    """Quantizers are followed literally, but for one thing: Q8_0 of the reference multiplies by 127 / largest on x86 and by
    1 / (largest / 127) elsewhere. That shows where a value lies just between two codes, as numbers of few bits often do.

    Where a result has few blocks, `few` of them may differ.
    """
    share, few = (0.08, 4) if to_type == "q8_0" and from_type != "f32" else (0.02, 1)
    return {"kind": "quantized", "max_block_mismatch": share, "few": few, "nmse": 1e-3}


# Ops whose result a memory planner may put in the place of a source.
REUSING = ("FILL", "SCALE", "SQR", "SQRT", "LOG", "UNARY", "RMS_NORM", "CLAMP")


def widened(d, types=REAL):
    """Types of a source and of a result that may be wider."""
    a = d.pick(types)
    return a, "f32" if a != "f32" and d.chance(0.25) else a


def mapped(d, op, source, out, tolerance, **more):
    """A case of one source whose result has its shape: fresh, over the source, or in its reused memory."""
    if source.dtype.name == out and op in REUSING and source.nb == packed(source.dtype, source.ne) and d.chance(0.2):
        return Case(op, [source], tolerance, reuse=0, **more)
    if source.dtype.name == out and d.chance(0.3):
        return Case(op, [source], tolerance, alias=0, **more)
    return Case(op, [source], tolerance, out=(out, source.ne), **more)


# Two sources.


def binary(op):
    def family(d):
        a_type = d.pick(("f32", "f32", "f16", "bf16"))
        b_type = d.pick((a_type, "f32"))
        out = "f32" if b_type == "f32" and d.chance(0.3) else a_type
        ne = d.shape(4000)
        small = [n if d.chance(0.6) else d.divisor(n) for n in ne]
        if op == "ADD" and out != a_type:
            small[0] = ne[0]
        place = "fresh" if out != a_type else d.pick(("fresh", "fresh", "over", "reuse", "same"))
        reused = 0
        if place == "reuse" and b_type == a_type:
            reused = d.between(0, 1)
        if place in ("same", "reuse") and reused == 1:
            small = ne
        a = d.tensor(a_type, ne, "c" if place == "reuse" else "rows" if place == "over" else "rows*")
        b_rule = "c" if place == "reuse" and reused == 1 else "any*"
        values = d.normal(padded(small))
        if op == "DIV":
            values = np.where(np.abs(values) < 0.05, 1.5, values)
            if d.chance(0.1):
                values.flat[0] = 0.0  # IEEE says what becomes of it
        b = d.tensor(b_type, small, b_rule, values)
        if op == "DIV" and 0.0 in values:
            d.fill(a, np.abs(d.normal(ne)) + 1)
        if place == "same" and a_type == b_type and op != "DIV":
            # Two windows of the same memory, which may be the same window.
            b = overlapping(d, a)
        tolerance = EXACT if a_type != "f32" or out == "f32" else nmse(1e-12)
        if place == "over":
            return Case(op, [a, b], tolerance, alias=0)
        if place == "reuse":
            return Case(op, [a, b], tolerance, reuse=reused)
        return Case(op, [a, b], tolerance, out=(out, ne))

    return family


def overlapping(d, a):
    """A tensor in the memory of the first source, with its layout, a little further on if there is room."""
    room = (a.storage.size - a.offset - byte_len(a.dtype, a.ne, a.nb)) // a.dtype.bytes
    return replace(a, offset=a.offset + a.dtype.bytes * d.between(0, min(room, 2)), shares=0)


def add_quantized(d):
    a_type = d.pick(WRITABLE)
    out = d.pick((a_type, a_type, d.pick(WRITABLE), "f32", "f16", "bf16"))
    block = max(d.type(a_type).block, d.type(out).block)
    ne = d.shape(4096, first=block * d.between(1, 4))
    in_place = out == a_type and d.chance(0.3)
    # A result must not be permuted.
    a = d.tensor(a_type, ne, "c1" if in_place else "rows")
    b = d.tensor("f32", ne, "rows")
    if in_place:
        return Case("ADD", [a, b], quantized(a_type, out), alias=0)
    if out in REAL:
        return Case("ADD", [a, b], nmse({"f32": 1e-12, "f16": 1e-8, "bf16": 1e-6}[out]), out=(out, ne))
    return Case("ADD", [a, b], quantized(a_type, out), out=(out, ne))


def add1(d):
    a_type = d.pick(REAL + (d.pick(WRITABLE),))
    is_quantized = d.type(a_type).is_quantized
    b_type = d.pick(("f32", a_type)) if not is_quantized else "f32"
    ne = d.shape(3000, multiple=d.type(a_type).block)
    if is_quantized:
        ne[3] = 1
    a = d.tensor(a_type, ne, "c1")
    b = d.tensor(b_type, [1], "c")
    tolerance = quantized(a_type, a_type) if is_quantized else EXACT
    return mapped2(d, "ADD1", a, b, tolerance)


def mapped2(d, op, a, b, tolerance, **more):
    if d.chance(0.3):
        return Case(op, [a, b], tolerance, alias=0, **more)
    return Case(op, [a, b], tolerance, out=(a.dtype.name, a.ne), **more)


def add_id(d):
    n, used, tokens, experts = d.length(), d.between(1, 6), d.between(1, 9), d.between(1, 12)
    reuse = d.chance(0.3)
    a = d.tensor("f32", [n, used, tokens], "c" if reuse else "rows*")
    b = d.tensor("f32", [n, experts], "rows*")
    ids = d.indices("i32", [used, tokens], experts)
    if reuse:
        return Case("ADD_ID", [a, b, ids], EXACT, reuse=0)
    return Case("ADD_ID", [a, b, ids], EXACT, out=("f32", a.ne))


def back_of_two(op, types, rule, tolerance):
    """A gradient and a forward tensor of one shape; the result may take the place of either."""

    def family(d):
        name = d.pick(types)
        ne = d.shape(3000)
        reuse = d.pick((None, None, 0, 1))
        a = d.tensor(name, ne, "c" if reuse == 0 else rule)
        b = d.tensor(name, ne, "c" if reuse == 1 else rule)
        params = (d.pick((0.0, 1e-6, 1e-5, 0.1)),) if op == "RMS_NORM_BACK" else ()
        if params == (0.0,):
            b = d.tensor(name, ne, "c", d.normal(ne, 1.0) + 0.01)
            reuse = None
        out = {"reuse": reuse} if reuse is not None else {"out": (name, ne)}
        return Case(op, [a, b], tolerance(d, a, b, params), params=params, **out)

    return family


def silu_back_tolerance(d, a, b, params):
    return near(max(STEP[a.dtype.name], 1e-5), 1e-5)


def rms_norm_back_tolerance(d, a, b, params):
    """What is left of a gradient without its part along x can be much smaller than the gradient."""
    gradient, x = a.floats(d.ggml), b.floats(d.ggml)
    size = np.abs(gradient).max(axis=-1) / np.sqrt((x**2).mean(axis=-1) + params[0])
    return near(1e-5, 1e-6 * float(size.max()))


# One source.


def unary_values(d, ne, function):
    values = d.normal(ne, d.pick((1.0, 1.0, 3.0, 10.0, 0.05)))
    if function in ("ROUND", "FLOOR", "CEIL", "TRUNC") and d.chance(0.3):
        values = np.round(values * 2) / 2
    if function in ("LOG", "SQRT"):
        values = np.abs(values) + 1e-4 if d.chance(0.9) else values
    if function in ("EXP", "EXPM1"):
        values = np.clip(values, -20, 10)
    if d.chance(0.15) and function not in ("SIN", "COS", "LOG", "XIELU", "SQR"):
        extreme = np.array([0.0, -0.0, 9.99, 10.0, -10.0, -10.01, 20.0, 20.01, 60.0, -60.0, 300.0, -300.0])
        spots = d.rng.random(values.shape) < 0.3
        values[spots] = extreme[d.rng.integers(len(extreme), size=int(spots.sum()))]
    return values


BITWISE = ("ABS", "SGN", "NEG", "STEP", "RELU", "FLOOR", "CEIL", "ROUND", "TRUNC", "SQR", "SQRT")
SAME_TYPE = ("GELU", "GELU_ERF", "GELU_QUICK", "SILU")


def function_tolerance(function, a_type, out):
    if function == "SQRT":
        return near(0, 0)  # the sign of a NaN does not matter
    if function in BITWISE:
        return EXACT
    if function in ("GELU", "GELU_QUICK") and a_type in ("f32", "f16"):
        # Through a half-precision table, whose entries may be one step off.
        return near(STEP["f16"], 6e-8)
    # Functions of the C library agree to a few units in the last place; the sum 1 + tanh(x) loses digits.
    return near(max(STEP[out], 1e-5), 1e-6 if out == "f32" else 1e-6)


def unary(d):
    number = d.between(0, 21)
    function = d.ggml.unary_op_name(number).decode().upper()
    a_type, out = widened(d)
    if function in SAME_TYPE:
        out = a_type
    ne = d.shape(3000)
    a = d.tensor(a_type, ne, "c1" if function == "XIELU" else "rows", unary_values(d, ne, function))
    params = [number]
    if function == "XIELU":
        params += [d.uniform(0.2, 2), d.uniform(0.2, 2), d.uniform(0.1, 1), d.pick((-1e-6, -1e-3))]
    tolerance = function_tolerance(function, a_type, out)
    return mapped(d, "UNARY", a, out, tolerance, params=tuple(params), desc=function)


def real_function(op):
    def family(d):
        a_type, out = widened(d)
        ne = d.shape(3000)
        a = d.tensor(a_type, ne, "rows", unary_values(d, ne, op))
        return mapped(d, op, a, out, function_tolerance(op, a_type, out))

    return family


def scale(d):
    name = d.pick(("f32", "f32", "bf16"))
    a = d.tensor(name, d.shape(4000), "c")
    params = (d.pick((0.0, 1.0, -2.5, 0.125, 1e-3)), d.pick((0.0, 0.0, 1.5, -3.0)))
    return mapped(d, "SCALE", a, name, nmse(1e-12) if name == "f32" else near(STEP[name], 1e-3), params=params)


def clamp(d):
    name = d.pick(("f32", "f16"))
    low = d.pick((-1.0, 0.0, -0.5, -np.inf))
    a = d.tensor(name, d.shape(3000), "c1")
    return mapped(d, "CLAMP", a, name, EXACT, params=(float(low), d.pick((0.75, 1.0, float(np.inf)))))


def leaky_relu(d):
    name = d.pick(("f32", "f16"))
    a = d.tensor(name, d.shape(3000), "c1")
    return mapped(d, "LEAKY_RELU", a, name, EXACT, params=(d.pick((0.1, 0.01, 1.5)),))


GLU_TYPES = {3: ("f32",), 6: ("f32", "f16")}


def glu(d):
    kind = d.between(0, 6)
    name = d.pick(GLU_TYPES.get(kind, REAL))
    desc = d.ggml.glu_op_name(kind).decode().upper()
    swapped = int(d.chance(0.4))
    ne = d.shape(3000)
    split = d.chance(0.5)
    if not split:
        ne[0] = 2 * ne[0] + int(d.chance(0.2))
    scale = d.pick((1.0, 3.0, 12.0))
    sources = [d.tensor(name, ne, "c1", scale=scale) for _ in range(2 if split else 1)]
    if split and d.chance(0.3):
        # Two halves of one tensor.
        both = d.tensor(name, [2 * ne[0], *ne[1:]], "c", scale=scale)
        second = both.offset + d.type(name).bytes * ne[0]
        sources = [replace(both, ne=ne), replace(both, ne=ne, offset=second, shares=0)]
    params = (kind, swapped, 1.702, d.pick((7.0, 2.0)))
    if kind not in (3, 6):
        params = params[:2]
    out = ne if split else [ne[0] // 2] + ne[1:]
    step = STEP["f16"] if kind in (1, 5) and name == "f32" else STEP[name]
    return Case("GLU", sources, near(max(step, 1e-5) * 2, 1e-5), out=(name, out), params=params, desc=desc)


# Rows.


def norm(op, rule):
    def family(d):
        ne = d.shape(5000)
        ne[0] = max(ne[0], 2)
        a = d.tensor("f32", ne, rule)
        if d.chance(0.2):
            d.fill(a, d.normal(ne, 1.0) + 5.0)
        eps = d.pick((1e-6, 1e-5, 1e-2))
        if op == "RMS_NORM" and d.chance(0.1):
            eps = 0.0
            d.fill(a, d.normal(ne, 1.0) + 0.01)
        return mapped(d, op, a, "f32", nmse(1e-9), params=(eps,))

    return family


def group_norm(d):
    ne = [d.between(1, 9), d.between(1, 9), d.between(1, 12), d.between(1, 3)]
    a = d.tensor("f32", ne, "rows")
    groups = d.between(1, ne[2])
    return mapped(d, "GROUP_NORM", a, "f32", nmse(1e-9), params=(groups, d.pick((1e-6, 1e-2))))


def to_one_per_row(op):
    def family(d):
        a = d.tensor("f32", d.shape(5000), "rows*")
        ne = [1] + a.ne[1:] if op != "CUMSUM" else a.ne
        # Sums that cancel keep the error of their terms.
        return Case(op, [a], sum_tolerance(d, a), out=("f32", ne))

    return family


def sum_tolerance(d, a):
    largest = np.abs(a.floats(d.ggml)).sum(axis=-1).max() if 0 not in a.ne else 0.0
    return near(1e-6, 3e-7 * float(largest))


def total(d):
    name = d.pick(REAL)
    a = d.tensor(name, d.shape(5000), "rows", scale=1.0)
    d.fill(a, np.abs(d.normal(a.ne, 1.0)))  # all of one sign: nothing cancels
    return Case("SUM", [a], near(STEP[name], 0), out=(name, [1]))


def argmax(d):
    ne = d.shape(4000, dims=2)
    values = d.distinct(ne)
    if d.chance(0.2):
        values = d.integers(ne, 0, 3)  # ties: the last one wins
    return Case("ARGMAX", [d.tensor("f32", ne, "rows*", values)], EXACT, out=("i32", [ne[1]]))


def count_equal(d):
    ne = d.shape(3000, dims=2)
    values = d.integers(ne, 0, 3)
    a = d.tensor("i32", ne, "any*", values)
    b = d.tensor("i32", ne, "any*", np.where(d.rng.random(values.shape) < 0.4, values, d.integers(ne, 0, 3)))
    return Case("COUNT_EQUAL", [a, b], EXACT, out=("i64", [1]))


def argsort(d):
    ne = d.shape(4000)
    a = d.tensor("f32", ne, "c1", d.distinct(ne))
    return Case("ARGSORT", [a], EXACT, out=("i32", ne), params=(d.between(0, 1),))


def top_k(d):
    ne = d.shape(4000)
    a = d.tensor("f32", ne, "c1", d.distinct(ne))
    return Case("TOP_K", [a], {"kind": "set_per_row"}, out=("i32", [d.between(1, ne[0])] + ne[1:]))


FAMILIES = {
    "add": (9, binary("ADD")),
    "add_quantized": (6, add_quantized),
    "sub": (6, binary("SUB")),
    "mul": (8, binary("MUL")),
    "div": (6, binary("DIV")),
    "add_id": (3, add_id),
    "add1": (4, add1),
    "silu_back": (3, back_of_two("SILU_BACK", ("f32", "f16"), "c1", silu_back_tolerance)),
    "rms_norm_back": (3, back_of_two("RMS_NORM_BACK", ("f32",), "rows", rms_norm_back_tolerance)),
    "unary": (36, unary),
    **{op.lower(): (3, real_function(op)) for op in ("SQR", "SQRT", "LOG", "SIN", "COS")},
    "scale": (4, scale),
    "clamp": (3, clamp),
    "leaky_relu": (3, leaky_relu),
    "glu": (12, glu),
    "norm": (4, norm("NORM", "any")),
    "rms_norm": (5, norm("RMS_NORM", "rows")),
    "l2_norm": (3, norm("L2_NORM", "any")),
    "group_norm": (3, group_norm),
    **{op.lower(): (3, to_one_per_row(op)) for op in ("SUM_ROWS", "MEAN", "CUMSUM")},
    "sum": (3, total),
    "argmax": (3, argmax),
    "count_equal": (2, count_equal),
    "argsort": (4, argsort),
    "top_k": (4, top_k),
}
