"""Matrix products, soft maximum, attention and rotary positions: ops whose error has a model.

Products are judged by their distance to the answer in double precision. A good result rounds its activations as the
reference does (8 bits beside quantized weights, half precision beside half-precision weights); how much error that makes
is computed from the values, so that the limit holds for a single element as well as for thousands.
"""

import math
from dataclasses import replace

import numpy as np

from case import Case, near, nmse
from draw import CODEBOOK, EXPANDING, LEGACY, PARTNER, REAL, SUPER

WEIGHTS = REAL + LEGACY + SUPER + CODEBOOK
# Variance of a rounding error, relative to the square of a value (or of the largest of its block).
HALF, BRAIN, EIGHT = 2.0**-22 / 3, 2.0**-16 / 3, 1 / (12 * 127**2)


def rounding_variance(partner, values):
    """Of each activation (rows last), what converting it to the partner type costs."""
    if partner == "f32":
        return np.zeros_like(values)
    if partner in ("f16", "bf16"):
        return values**2 * (HALF if partner == "f16" else BRAIN) + (1e-15 if partner == "f16" else 0)
    block = 256 if partner == "q8_k" else 32
    blocks = values.reshape(*values.shape[:-1], -1, block)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    # The scale of a block is a half-precision number.
    scale = 0 if partner == "q8_k" else HALF
    variance = np.broadcast_to(largest**2 * EIGHT, blocks.shape) + blocks**2 * scale
    return variance.reshape(values.shape)


def allowed_error(expected, exact, count):
    """An upper bound of what a good result of `count` elements may have, given the expected sum of squared errors.

    The limit is twice this; for few elements the sum may exceed its expectation by much.
    """
    size = float((exact[np.isfinite(exact)] ** 2).sum())
    spread = 1 + 4 / math.sqrt(count) + 16 / count
    return 0.75 * expected * spread / max(size, 1e-30)


def product_answer(d, a, b, partner, pairs):
    """The product of rows a with rows b; `pairs` gives matrices whose rows are multiplied."""

    def answer():
        left, right = a.floats(d.ggml), b.floats(d.ggml)
        variance = np.zeros_like(right) if b.dtype.name == partner else rounding_variance(partner, right)
        exact, noise = pairs(left, right), pairs(left**2, variance)
        # Sums in single precision, and the stored sums of blocks that have a minimum.
        sums = pairs(left**2, right**2) * (1e-11 if partner != "q8_1" else 2e-6)
        return exact, allowed_error(float(noise.sum() + sums.sum()), exact, exact.size)

    return answer


def weight_rows(d, name, k, m, rest):
    """Weights as rows, quantized where the type says so; strides as a product allows."""
    rule = d.pick(("rows", "rows", "c"))
    return d.tensor(name, [k, m, *rest], rule, scale=1.0)


def activation_type(d, name, rows):
    # The reference's batched kernels take Q8_K activations from where it has not put them.
    if d.chance(0.12) and (PARTNER[name] != "q8_k" or rows <= 4):
        return PARTNER[name]
    return "f32"


def activations(d, name, b_type, ne):
    scale = d.pick((1.0, 1.0, 0.01, 30.0))
    if name not in REAL and PARTNER[name] != "q8_1" and d.chance(0.1):
        scale = 1e5  # beyond what half precision holds; Q8_1 keeps a half-precision sum
    return d.tensor(b_type, ne, d.pick(("rows", "rows*", "c")), scale=scale)


def row_length(d, name, most=512):
    block = d.type(name).block
    return d.length(most, 1, block) if block < 256 else 256 * d.pick((1, 1, 2, 3))


def mul_mat(d):
    name = d.pick((d.pick(REAL), d.pick(WEIGHTS), d.pick(WEIGHTS)))
    k = row_length(d, name, d.pick((512, 512, 2048)))
    most = 120000
    m = min(d.pick((1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 48, 64, 130, 257)), max(1, most // k // 4))
    n = min(d.pick((1, 1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 64)), max(1, most // k // 4))
    b2, b3 = d.pick(((1, 1), (1, 1), (2, 1), (4, 1), (3, 2), (1, 3), (6, 2)))
    a2, a3 = d.divisor(b2), d.divisor(b3)
    a = weight_rows(d, name, k, m, [a2, a3])
    b_type = activation_type(d, name, n)
    if name == "f32" and d.chance(0.1):
        b_type = "bf16"
    b = activations(d, name, b_type, [k, n, b2, b3])
    params = (d.pick((0, 0, 10)), 0, *((0, 0) if d.chance(0.8) else (d.pick((10, 15, 20, 30)), 10)))

    def pairs(left, right):
        left = np.repeat(np.repeat(left, b2 // a2, axis=1), b3 // a3, axis=0)
        return right @ left.transpose(0, 1, 3, 2)

    partner = "f32" if name == "f32" else PARTNER[name]
    answer = product_answer(d, a, b, partner, pairs) if expandable(b_type) else None
    return Case("MUL_MAT", [a, b], nmse(1e-6), out=("f32", [m, n, b2, b3]), params=params, answer=answer)


def expandable(name):
    """Q8_1 and Q8_K exist only as activations; the reference cannot expand them."""
    return name not in ("q8_1", "q8_k")


def hadamard(d):
    k = 2 ** d.between(0, 9)
    matrix = np.array([[1.0]])
    while len(matrix) < k:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    a = d.tensor("f32", [k, k], "c", (matrix / math.sqrt(k)).reshape(1, 1, k, k))
    n, b2, b3 = d.between(1, 5), d.between(1, 3), d.between(1, 2)
    b = d.tensor(d.pick(("f32", "f16")), [k, n, b2, b3], "rows")
    return Case("MUL_MAT", [a, b], nmse(1e-10), out=("f32", [k, n, b2, b3]), params=(0, 1))


def mul_mat_id(d):
    name = d.pick((d.pick(REAL), d.pick(WEIGHTS), d.pick(WEIGHTS)))
    k = row_length(d, name, 256)
    experts, tokens = d.pick((1, 2, 4, 8, 16)), d.pick((1, 1, 2, 3, 5, 9, 17, 32))
    used = d.between(1, min(experts, 6))
    given = d.pick([u for u in (1, used) if used % u == 0])
    m = min(d.pick((1, 3, 8, 16, 17, 32)), max(1, 60000 // k // experts))
    a = weight_rows(d, name, k, m, [experts])
    b_type = activation_type(d, name, tokens)
    b = activations(d, name, b_type, [k, given, tokens])
    chosen = np.stack([d.rng.permutation(experts)[:used] for _ in range(tokens)])
    if d.chance(0.1):
        chosen = d.rng.integers(0, experts, (tokens, used))
    ids = d.tensor("i32", [used, tokens], "any", chosen.reshape(1, 1, tokens, used))

    def pairs(left, right):
        rows = right[0][:, np.arange(used) % given]
        return np.einsum("tumk,tuk->tum", left[0][chosen], rows, optimize=True)[None]

    answer = product_answer(d, a, b, PARTNER[name], pairs) if expandable(b_type) else None
    return Case("MUL_MAT_ID", [a, b, ids], nmse(1e-6), out=("f32", [m, used, tokens]), answer=answer)


def out_prod(d):
    name = d.pick(("f32", "f32", "f16", d.pick(EXPANDING)))
    m = row_length(d, name, 200)
    n, k = d.pick((1, 2, 5, 16, 33)), d.pick((1, 2, 3, 7, 16, 40))
    b2, b3 = d.pick(((1, 1), (2, 1), (4, 3)))
    a2, a3 = (d.divisor(b2), d.divisor(b3)) if name == "f32" else (b2, b3)
    a = weight_rows(d, name, m, k, [a2, a3])
    b = d.tensor("f32", [n, k, b2, b3], "any")

    def pairs(left, right):
        left = np.repeat(np.repeat(left, b2 // a2, axis=1), b3 // a3, axis=0)
        return right.transpose(0, 1, 3, 2) @ left

    def answer():
        left, right = a.floats(d.ggml), b.floats(d.ggml)
        exact = pairs(left, right)
        return exact, allowed_error(float(pairs(left**2, right**2).sum()) * 1e-11, exact, exact.size)

    return Case("OUT_PROD", [a, b], nmse(1e-9), out=("f32", [m, n, b2, b3]), answer=answer)


# Soft maximum.


def slopes(heads, max_bias):
    if max_bias <= 0:
        return np.ones(heads)
    base = 2 ** int(math.floor(math.log2(heads)))
    m0, m1 = 2 ** (-max_bias / base), 2 ** (-max_bias / 2 / base)
    return np.array([m0 ** (h + 1) if h < base else m1 ** (2 * (h - base) + 1) for h in range(heads)])


def mask_values(d, ne, holes=True):
    """Zeros and infinities as attention uses them, or small numbers; some columns always stay."""
    values = np.zeros(ne[::-1]) if d.chance(0.5) else d.normal(ne, 1.0)
    if holes:
        values[d.rng.random(values.shape) < d.pick((0.0, 0.3, 0.8))] = -np.inf
        values[..., 0] = 0.0
    return values


def soft_max(d):
    ne = d.shape(6000)
    has_mask, has_sinks = d.chance(0.6), d.chance(0.3)
    a = d.tensor("f32", ne, "c", scale=d.pick((1.0, 5.0, 30.0)))
    if not has_mask and d.chance(0.15):
        values = d.normal(ne, 3.0)
        values[..., 1:][d.rng.random(values[..., 1:].shape) < 0.3] = -np.inf
        d.fill(a, values)
    mask = None
    if has_mask:
        mask_ne = [ne[0], ne[1] + d.pick((0, 0, 3)), d.divisor(ne[2]), d.divisor(ne[3])]
        mask = d.tensor(d.pick(("f16", "f32")), mask_ne, "c", mask_values(d, mask_ne))
    sinks = d.tensor("f32", [ne[2]], "c", scale=3.0) if has_sinks else None
    scale = d.pick((1.0, 0.125, 0.5))
    max_bias = d.pick((0.0, 0.0, 8.0, 4.0)) if has_mask else 0.0

    def answer():
        scores = a.floats(d.ggml) * scale
        if mask is not None:
            bias = mask.floats(d.ggml)[:, :, : ne[1]]
            bias = np.tile(bias, (ne[3] // mask.ne[3], ne[2] // mask.ne[2], 1, 1))
            with np.errstate(invalid="ignore"):
                scores = scores + slopes(ne[2], max_bias)[:, None, None] * bias
        top = scores.max(axis=-1, keepdims=True)
        if sinks is not None:
            sink = sinks.floats(d.ggml).reshape(-1)[:, None, None]
            top = np.maximum(top, sink)
        weights = np.exp(scores - top)
        below = weights.sum(axis=-1, keepdims=True)
        if sinks is not None:
            below = below + np.exp(sink - top)
        # Scores are single-precision numbers: their error, in units of one, is that of the exponential.
        largest = np.abs(a.floats(d.ggml)[np.isfinite(a.floats(d.ggml))]).max() * scale + 10
        return weights / below, 2e-13 + (largest * 1e-7) ** 2

    out = {"alias": 0} if d.chance(0.3) else {"out": ("f32", ne)}
    sources = [a, mask, sinks] if has_sinks else [a, mask] if has_mask else [a]
    return Case("SOFT_MAX", sources, nmse(1e-9), params=(scale, max_bias), answer=answer, **out)


def soft_max_back(d):
    ne = d.shape(4000)
    gradient = d.tensor("f32", ne, "c")
    scores = np.exp(d.normal(ne, 1.0))
    y = d.tensor("f32", ne, "c", scores / scores.sum(axis=-1, keepdims=True))
    size = float(np.abs(gradient.floats(d.ggml)).max() * y.floats(d.ggml).max())
    # In the memory of y the reference overwrites what it is about to read.
    out = d.pick(({"out": ("f32", ne)}, {"out": ("f32", ne)}, {"alias": 0}, {"reuse": 0}))
    return Case("SOFT_MAX_BACK", [gradient, y], near(1e-5, 2e-6 * size), params=(d.pick((1.0, 0.3)), 0.0), **out)


# Attention.

# Squared relative error of attention by what the reference keeps in that type.
ATTENTION = {"f32": 1e-11, "f16": 2e-6, "bf16": 1e-5}


def flash_attn_ext(d):
    k_type = d.pick((d.pick(REAL), d.pick(LEGACY), d.pick(WEIGHTS)))
    v_type = d.pick((k_type, k_type, d.pick(REAL), d.pick(EXPANDING)))
    dk = 256 if d.type(k_type).block == 256 else 64 * d.pick((1, 2)) if d.type(k_type).block > 1 else d.pick((8, 16, 40, 64, 72, 80, 128))
    dv = 256 if d.type(v_type).block == 256 else 128 if d.type(v_type).block > 64 else 64 if d.type(v_type).block > 1 else d.pick((dk, 8, 24, 64))
    if d.type(k_type).block == 128:
        dk = 128
    heads = d.pick((1, 2, 3, 4, 6, 8))
    hk, hv = d.divisor(heads), d.divisor(heads)
    if d.chance(0.7):
        hv = hk
    batch = d.pick((1, 1, 1, 2))
    tokens, kv = d.pick((1, 1, 2, 3, 7, 33)), d.pick((1, 2, 5, 16, 31, 32, 64, 65, 100, 113))
    if dk <= 128 and heads <= 4 and d.chance(0.15):
        tokens, kv = d.pick(((1, 512), (1, 700), (64, 96), (75, 130)))
    q = d.tensor("f32", [dk, tokens, heads, batch], "rows", scale=1.0)
    k = d.tensor(k_type, [dk, kv, hk, d.divisor(batch)], "rows", scale=1.0)
    v = d.tensor(v_type, [dv, kv, hv, k.ne[3]], "rows", scale=1.0)
    if k_type == v_type and dv <= dk and hk == hv and k_type in REAL and d.chance(0.3):
        v = replace(k, ne=[dv, *k.ne[1:]], shares=1)  # values that are the beginning of the keys
    has_mask, has_sinks = d.chance(0.7), d.chance(0.25)
    mask = None
    if has_mask:
        mask_ne = [kv + d.pick((0, 0, 5)), tokens + d.pick((0, 0, 30)), d.divisor(heads), d.divisor(batch)]
        mask = d.tensor("f16", mask_ne, "c", mask_values(d, mask_ne))
        if d.chance(0.1):
            values = mask.floats(d.ggml)
            values[..., 0, :] = -np.inf  # a token that sees nothing
            d.fill(mask, values)
    sinks = d.tensor("f32", [heads], "c", scale=3.0) if has_sinks else None
    max_bias = d.pick((0.0, 0.0, 8.0)) if has_mask else 0.0
    softcap = d.pick((0.0, 0.0, 0.0, 20.0))
    scale = float(np.float32(1 / math.sqrt(dk)))

    def answer():
        keys, values = k.floats(d.ggml), v.floats(d.ggml)
        keys = np.repeat(np.repeat(keys, heads // hk, axis=1), batch // k.ne[3], axis=0)
        values = np.repeat(np.repeat(values, heads // hv, axis=1), batch // v.ne[3], axis=0)
        queries = q.floats(d.ggml)
        scores = queries @ keys.transpose(0, 1, 3, 2) * scale
        rounding = rounding_variance(PARTNER[k_type], queries) @ (keys**2).transpose(0, 1, 3, 2) * scale**2
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        if mask is not None:
            bias = mask.floats(d.ggml)[:, :, :tokens, :kv]
            bias = np.tile(bias, (batch // mask.ne[3], heads // mask.ne[2], 1, 1))
            with np.errstate(invalid="ignore"):
                scores = scores + slopes(heads, max_bias)[:, None, None] * bias
        top = scores.max(axis=-1, keepdims=True)
        sink = sinks.floats(d.ggml).reshape(-1)[:, None, None] if sinks is not None else None
        if sink is not None:
            top = np.maximum(top, sink)
        top = np.where(np.isfinite(top), top, 0.0)
        weights = np.exp(scores - top)
        below = weights.sum(axis=-1, keepdims=True) + (np.exp(sink - top) if sink is not None else 0.0)
        weights = weights / np.where(below > 0, below, 1.0)
        exact = weights @ values
        # An error e of a score moves a result by w * e * (v - y): bounded by w² e² (|v| + |y|)².
        noise = (weights**2 * rounding) @ (values**2) * 2 + (weights**2 * rounding).sum(-1, keepdims=True) * exact**2 * 2
        plain = ATTENTION[v_type if v_type in REAL else "f32"] * (exact**2 + (weights @ values**2) * 0.1)
        expected = float(noise.sum() + plain.sum()) * 2
        return exact.transpose(0, 2, 1, 3), allowed_error(expected, exact, exact.size)

    sources = [q, k, v] + ([mask, sinks] if has_sinks else [mask] if has_mask else [])
    params = (scale, max_bias, softcap, d.pick((0, 10)))
    return Case("FLASH_ATTN_EXT", sources, nmse(1e-6), out=("f32", [dv, heads, tokens, batch]), params=params, answer=answer)


def lightning_indexer(d):
    name = d.pick((d.pick(REAL), d.pick(EXPANDING)))
    dk = 128 if d.type(name).block < 256 else 256
    heads, tokens, kv, streams = d.pick((1, 3, 8)), d.between(1, 6), d.pick((1, 5, 16, 33)), d.pick((1, 1, 2, 3))
    q = d.tensor("f32", [dk, heads, tokens, streams], "rows", scale=1.0)
    k = d.tensor(name, [dk, 1, kv, streams], "rows", scale=1.0)
    weights = d.tensor("f32", [heads, tokens, 1, streams], "rows", scale=1.0)
    mask_ne = [kv, tokens, 1, d.divisor(streams)]
    mask = d.tensor("f16", mask_ne, "rows", mask_values(d, mask_ne))

    def answer():
        dots = np.einsum("sthd,sjd->stjh", q.floats(d.ggml), k.floats(d.ggml)[:, :, 0])
        terms = np.maximum(dots, 0) * weights.floats(d.ggml)[:, 0][:, :, None, :]
        bias = np.tile(mask.floats(d.ggml)[:, 0], (streams // mask.ne[3], 1, 1))
        exact = (terms.sum(-1) + bias)[:, None]
        size = np.einsum("sthd,sjd->stjh", q.floats(d.ggml) ** 2, k.floats(d.ggml)[:, :, 0] ** 2)
        size = (size * (dots > 0) * weights.floats(d.ggml)[:, 0][:, :, None, :] ** 2).sum(-1)
        seen = np.isfinite(bias)
        return exact, allowed_error(float(size[seen].sum()) * 1e-11, exact, exact.size)

    out = ("f32", [kv, tokens, 1, streams])
    return Case("LIGHTNING_INDEXER", [q, k, weights, mask], nmse(1e-9), out=out, answer=answer)


# Rotary positions.


def rope(op):
    def family(d):
        name = d.pick(("f32", "f32", "f16"))
        mode = d.pick((0, 0, 2, 2, 8, 24, 40))
        row = 2 * d.pick((1, 2, 3, 4, 8, 16, 20, 32, 48, 64))
        if mode == 24:
            row = 4 * d.pick((1, 2, 4, 8, 16))
        heads, tokens, batch = d.between(1, 5), d.between(1, 9), d.pick((1, 1, 1, 2))
        if d.large:
            heads, tokens = d.pick((7, 16)), d.pick((33, 64))
        n_dims = row // 2 if mode == 24 else 2 * d.between(1, row // 2) if d.chance(0.5) else row
        first = 0 if mode == 24 else 2 * d.between(0, (row - n_dims) // 2)
        sections = [0] * 4
        if mode in (8, 24, 40):
            most = max(1, row // 4)
            sections = [d.between(0, most) for _ in range(4)]
            if mode == 40:
                sections = [max(1, n_dims // 6)] * 3 + [0]
            if not any(sections[:3]):
                sections[0] = 1
            while sum(sections) > row:
                sections[int(np.argmax(sections))] -= 1
        reuse = d.chance(0.15)
        a = d.tensor(name, [row, heads, tokens, batch], "c" if reuse else "rows", scale=1.0)
        count = tokens * (4 if mode & 8 else 1)
        low, high = d.pick(((0, 60), (-60, 60), (0, 4000)))
        positions = d.tensor("i32", [count], "c", d.integers([count, 1, 1, 1], low, high))
        factors = None
        if d.chance(0.3):
            factors = d.tensor("f32", [row // 2 + d.pick((0, 3))], "c")
            d.fill(factors, d.rng.uniform(0.5, 4.0, factors.ne[::-1]))
        ext = d.pick((0.0, 0.0, 1.0, 0.5))
        params = [0, n_dims, mode, 0, d.pick((0, 512, 8192)), d.pick((1e4, 1e6, 100.0)), d.pick((1.0, 0.25)), ext]
        params += [d.pick((1.0, 1.2)), 32.0, 1.0, *sections, first]
        # Angles are products in single precision: their error grows with the position.
        angle = (max(abs(low), abs(high)) * 6e-7) ** 2 * 4 + 1e-12
        tolerance = nmse(angle + (0 if name == "f32" else 2e-7))
        sources = [a, positions] + ([factors] if factors is not None else [])
        if reuse:
            return Case(op, sources, tolerance, reuse=0, params=params)
        if d.chance(0.3):
            return Case(op, sources, tolerance, alias=0, params=params)
        return Case(op, sources, tolerance, out=(name, a.ne), params=params)

    return family


FAMILIES = {
    "mul_mat": (40, mul_mat),
    "hadamard": (2, hadamard),
    "mul_mat_id": (16, mul_mat_id),
    "out_prod": (6, out_prod),
    "soft_max": (10, soft_max),
    "soft_max_back": (3, soft_max_back),
    "flash_attn_ext": (24, flash_attn_ext),
    "lightning_indexer": (4, lightning_indexer),
    "rope": (14, rope("ROPE")),
    "rope_back": (6, rope("ROPE_BACK")),
}
