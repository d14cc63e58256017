"""Logits with exact caches: the reference's, and ours alone, over two workers, and of several sequences at a time."""

import judge
import ours
import reference

HEADER = f"{'model':28} {'alone':>9} {'local:2':>9} {'beside':>9}"
SUCCESS = "as the reference has them"


def prepare(args, tokens, prompt):
    ours.compute("logits_of_a_folder", args.folder, tokens, prompt, args.seed)


def settings(args, model, tokens, prompt, vocabulary):
    """What computes our logits in each setting."""
    return {
        "alone": lambda: ours.written(model, "alone"),
        "local:2": lambda: ours.over_workers(args.oxcart, model, tokens[0], prompt, vocabulary),
        "beside": lambda: ours.written(model, "beside"),
    }


def compare(args, model, tokens, prompt, expected):
    """The largest difference in each setting, and what is wrong; the same fault in all of them is told once."""
    columns, faults = [], []
    for name, compute in settings(args, model, tokens, prompt, expected.shape[1]).items():
        try:
            verdict = judge.compare(expected, compute())
        except ours.Failed as failed:
            columns.append("-")
            faults.append((name, str(failed)))
            continue
        columns.append(f"{verdict.difference:.1e}")
        faults += [(name, fault) for fault in verdict.faults]
    if len({fault for _, fault in faults}) == 1:
        return columns, [faults[0][1]]
    return columns, [f"{name}: {fault}" for name, fault in faults]


def line(args, version, model, tokens, prompt):
    """A model's line of the table, and whether it is as the reference has it."""
    expected, refusal = reference.logits(version, model, prompt, tokens)
    columns, faults = [""] * 3, [f"the reference: {refusal}"]
    if refusal is None:
        columns, faults = compare(args, model, tokens, prompt, expected)
    text = f"{model.stem:28} {columns[0]:>9} {columns[1]:>9} {columns[2]:>9}  {'  '.join(faults) or 'ok'}"
    return text, not faults
