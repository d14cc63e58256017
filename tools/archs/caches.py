"""Flash attention with caches of small types: how far the reference's logits are from exact ones, and how far ours.

Exact are the reference's logits with an F32 cache and without flash attention. Ours are computed by ggml's op (`flash`) and by the
one that finds pages itself (`paged`), which is what people get. Models that keep no keys and values are passed over.
"""

import judge
import ours
import reference

CACHES = ("f16", "q8_0")
WAYS = ("flash", "paged")
HEADER = f"{'model':28} " + "   ".join(f"{cache + ' reference':>15} {'flash':>8} {'paged':>8}" for cache in CACHES)
SUCCESS = "no further from exact than they may be"


def prepare(args, tokens, prompt):
    ours.compute("logits_with_small_caches", args.folder, tokens, prompt, args.seed)


def compare(version, model, tokens, prompt, cache, exact):
    """The reference's error and ours, and what is wrong."""
    rows, refusal = reference.logits(version, model, prompt, tokens, cache)
    limit, columns, faults = None, ["-"] * 3, []
    if refusal is None:
        own = judge.error(exact, rows)
        limit, columns[0] = judge.MOST_TIMES * max(own, judge.FLOOR), f"{own:.1e}"
    for index, way in enumerate(WAYS, 1):
        try:
            error = judge.error(exact, ours.written(model, f"{way}-{cache}"))
        except ours.Failed as failed:
            # What the reference refuses, we may refuse.
            if limit is not None:
                faults.append(f"{way}, {cache}: {failed}")
            continue
        columns[index] = f"{error:.1e}"
        if limit is not None and not error <= limit:
            faults.append(f"{way}, {cache}: more than {limit:.1e}")
    return columns, faults


def line(args, version, model, tokens, prompt):
    """A model's line of the table, and whether it is near enough; None where there is no cache."""
    if (reason := ours.passed_over(model)) is not None:
        return f"{model.stem:28} {reason}", None
    columns, faults = [], []
    exact, refusal = reference.logits(version, model, prompt, tokens)
    if refusal is not None:
        return f"{model.stem:28} the reference: {refusal}", False
    for cache in CACHES:
        shown, wrong = compare(version, model, tokens, prompt, cache, exact)
        columns.append(f"{shown[0]:>15} {shown[1]:>8} {shown[2]:>8}")
        faults += wrong
    return f"{model.stem:28} {'   '.join(columns)}  {'  '.join(faults) or 'ok'}", not faults
