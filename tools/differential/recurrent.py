"""State-space, RWKV and delta-net recurrences, and the ops of hyper-connections."""

import math
from dataclasses import replace

import numpy as np

from case import Case, near, nmse

# Long sums and products in single precision.
RECURRENCE = 1e-9


def ssm_conv(d):
    taps, channels, tokens, sequences = d.between(1, 5), d.length(100), d.between(1, 9), d.between(1, 3)
    a = d.tensor("f32", [taps - 1 + tokens, channels, sequences], "planes", scale=1.0)
    kernel = d.tensor("f32", [taps, channels], "c", scale=1.0)
    return Case("SSM_CONV", [a, kernel], near(1e-5, 1e-5), out=("f32", [channels, tokens, sequences]))


def side_by_side(d, x, b, c):
    """The three as columns of one tensor, as a projection leaves them."""
    widths = [t.ne[0] * t.ne[1] for t in (x, b, c)]
    tokens, sequences = x.ne[2:]
    all_ = d.tensor("f32", [sum(widths), tokens, sequences], "c", scale=1.0)
    row = all_.nb[1]
    parts, start = [], all_.offset
    for part, width in zip((x, b, c), widths):
        nb = [4, 4 * part.ne[0], row, row * tokens]
        parts.append(replace(all_, ne=part.ne, nb=nb, offset=start, shares=1 if parts else None))
        start += 4 * width
    return parts


def ssm_scan(d):
    state, dim, heads = d.pick((1, 3, 8, 16, 20, 64, 128)), d.pick((1, 2, 5, 8)), d.pick((1, 2, 4, 6))
    tokens, sequences = d.between(1, 40 if d.large else 7), d.between(1, 3)
    groups, rows = d.divisor(heads), sequences + d.between(0, 2)
    decays = d.pick((1, 1, state))
    snapshots = d.between(1, tokens + 1) if decays == 1 and d.chance(0.4) else 1
    s = d.tensor("f32", [state, dim, heads, rows], "c", scale=1.0)
    x = d.tensor("f32", [dim, heads, tokens, sequences], "planes", scale=1.0)
    dt = d.tensor("f32", [heads, tokens, sequences], "c", scale=d.pick((1.0, 5.0)))
    a_ne = [decays, heads, 1, 1]
    a = d.tensor("f32", a_ne, "c", -np.exp(d.normal(a_ne, 0.5)))
    b, c = (d.tensor("f32", [state, groups, tokens, sequences], "planes", scale=1.0) for _ in range(2))
    if d.chance(0.3):
        x, b, c = side_by_side(d, x, b, c)
    ids = d.tensor("i32", [sequences], "c", d.rng.permutation(rows)[:sequences].reshape(1, 1, 1, sequences))
    size = dim * heads * sequences * (tokens + snapshots * state)
    return Case("SSM_SCAN", [s, x, dt, a, b, c, ids], nmse(RECURRENCE), out=("f32", [size]), params=(snapshots,))


def linear_shape(d, sizes):
    size, heads, sequences = d.pick(sizes), d.between(1, 4), d.between(1, 3)
    return size, heads, sequences * d.between(1, 30 if d.large else 4), sequences


def linear(op, sizes):
    def family(d):
        size, heads, tokens, sequences = linear_shape(d, sizes)
        one = lambda scale=0.5: d.tensor("f32", [size, heads, tokens], "c", scale=scale)
        gate = lambda: d.tensor("f32", [size, heads, tokens], "c", d.rng.uniform(0.3, 1.0, (1, tokens, heads, size)))
        state = d.tensor("f32", [size * size * heads, sequences], "c", scale=0.5)
        params = ()
        if op == "RWKV_WKV6":
            sources = [one(), one(), one(), d.tensor("f32", [size, heads], "c", scale=0.5), gate(), state]
        elif op == "RWKV_WKV7":
            small = 0.5 / math.sqrt(size)
            sources = [one(), gate(), one(), one(), one(small), one(small), state]
        else:
            sources = [one(), one(), one(), gate(), state]
            params = (d.pick((1.0, 0.125)),)
        out = ("f32", [size * heads, tokens + size * sequences])
        return Case(op, sources, nmse(RECURRENCE), out=out, params=params)

    return family


def solve_tri(d):
    n, columns, batch = d.between(1, 24), d.between(1, 12), [d.between(1, 3), d.between(1, 2)]
    matrix = d.normal([n, n, *batch], 0.5) / math.sqrt(n)
    matrix[..., np.arange(n), np.arange(n)] = d.rng.uniform(0.8, 2.0, (*batch[::-1], n))
    a = d.tensor("f32", [n, n, *batch], "c", matrix)
    b = d.tensor("f32", [columns, n, *batch], "c", scale=1.0)
    return Case("SOLVE_TRI", [a, b], nmse(RECURRENCE), out=("f32", b.ne))


def gated_delta_net(d):
    size, heads, tokens, batch = d.pick((8, 16, 32, 64, 128, 20)), d.pick((1, 2, 4)), d.between(1, 6), d.between(1, 2)
    q_heads, q_batch = d.divisor(heads), d.divisor(batch)
    unit = lambda ne: d.normal(ne, 1.0) / math.sqrt(size)
    q_ne, v_ne = [size, q_heads, tokens, q_batch], [size, heads, tokens, batch]
    q, k = (d.tensor("f32", q_ne, "rows", unit(q_ne)) for _ in range(2))
    v = d.tensor("f32", v_ne, "rows", scale=1.0)
    g_ne = [d.pick((1, size)), heads, tokens, batch]
    g = d.tensor("f32", g_ne, "c", -np.abs(d.normal(g_ne, 0.5)))
    beta_ne = [1, heads, tokens, batch]
    beta = d.tensor("f32", beta_ne, "c", d.rng.uniform(0, 1, beta_ne[::-1]))
    state = d.tensor("f32", [size, size, heads, batch], "c", scale=0.5)
    snapshots = d.between(1, tokens + 2) if d.chance(0.4) else 1
    out = ("f32", [size * heads, tokens * batch + snapshots * size * batch])
    return Case("GATED_DELTA_NET", [q, k, v, g, beta, state], nmse(RECURRENCE), out=out, params=(snapshots,))


def hc_comb(d):
    tokens = d.between(1, 20)
    mixes = d.tensor("f32", [24, tokens], "any", scale=1.0)
    scale = d.tensor("f32", [d.between(3, 5)], "any", scale=1.0)
    base = d.tensor("f32", [24], "any", scale=1.0)
    params = (d.pick((1e-6, 1e-3)), d.pick((1, 3, 20)))
    return Case("DSV4_HC_COMB", [mixes, scale, base], nmse(1e-9), out=("f32", [4, 4, tokens]), params=params)


def hc_pre(d):
    width, streams, tokens = d.length(200), d.between(1, 6), d.between(1, 9)
    gated = int(d.chance(0.5))
    x = d.tensor("f32", [width, streams, tokens], "any", scale=1.0)
    w = d.tensor("f32", [width, streams, tokens] if gated else [streams, tokens], "any", scale=1.0)
    out = ("f32", [width, tokens])
    return Case("DSV4_HC_PRE", [x, w], near(1e-5, 1e-5), out=out, params=(d.pick((1.0, 0.5)), gated))


def hc_post(d):
    width, streams, tokens = d.length(200), d.between(1, 6), d.between(1, 9)
    x = d.tensor("f32", [width, tokens], "any", scale=1.0)
    residual = d.tensor("f32", [width, streams, tokens], "any", scale=1.0)
    post = d.tensor("f32", [streams, tokens], "any", scale=1.0)
    sources = [x, residual, post]
    if d.chance(0.7):
        sources.append(d.tensor("f32", [streams, streams, tokens], "any", scale=1.0))
    return Case("DSV4_HC_POST", sources, near(1e-5, 1e-5), out=("f32", residual.ne))


FAMILIES = {
    "ssm_conv": (3, ssm_conv),
    "ssm_scan": (5, ssm_scan),
    "rwkv_wkv6": (3, linear("RWKV_WKV6", (7, 8, 16, 24, 32, 64))),
    "rwkv_wkv7": (3, linear("RWKV_WKV7", (64,))),
    "gated_linear_attn": (3, linear("GATED_LINEAR_ATTN", (7, 8, 16, 24, 32, 64))),
    "solve_tri": (2, solve_tri),
    "gated_delta_net": (4, gated_delta_net),
    "dsv4_hc_comb": (2, hc_comb),
    "dsv4_hc_pre": (2, hc_pre),
    "dsv4_hc_post": (2, hc_post),
}
