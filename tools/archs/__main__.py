#!/usr/bin/env python3
"""Tiny random models of all architectures, or of some: the reference's logits and ours, side by side.

    python3 tools/archs --seed SEED --generator PROGRAM --venv VENV --oxcart BINARY --folder DIR [NAME...]

tools/archs.sh calls it with what it needs. Goes on after a failure; the exit code says whether there was any.
"""

import argparse
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent
sys.path.append(str(TOOLS / "interop"))

import judge
import ours
import reference
from version import Crashed, Version, end_with

PROMPT, MORE = 24, 8
SEQUENCES = 3
# The fewest tokens that a vocabulary of the generator has.
VOCABULARY = 128
# Models looked at at a time.
AT_A_TIME = 3


def generate(args):
    """The files of the models that the generator makes."""
    command = [args.generator, "-s", str(args.seed), "-o", str(args.folder)]
    if args.names:
        command += ["-a", f"^({'|'.join(args.names)})$"]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode < 0:
        raise Crashed(f"the generator was ended by signal {-made.returncode}")
    assert made.returncode == 0, made.stderr[-2000:]
    models = sorted(args.folder.glob("*.gguf"))
    for name in args.names:
        assert any(model.stem.startswith(name) for model in models), f"the generator made no model of {name}"
    return models


def settings(args, model, tokens, vocabulary):
    """What computes our logits in each setting."""
    return {
        "alone": lambda: ours.written(model, "alone"),
        "local:2": lambda: ours.over_workers(args.oxcart, model, tokens[0], PROMPT, vocabulary),
        "beside": lambda: ours.written(model, "beside"),
    }


def compare(args, model, tokens, expected):
    """The largest difference in each setting, and what is wrong; the same fault in all of them is told once."""
    columns, faults = [], []
    for name, compute in settings(args, model, tokens, expected.shape[1]).items():
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


def line(args, version, model, tokens):
    """A model's line of the table, and whether it is as the reference has it."""
    try:
        expected, refusal = reference.logits(version, model, PROMPT, tokens)
    except Crashed as crashed:
        expected, refusal = None, str(crashed)
    columns, faults = [""] * 3, [f"the reference: {refusal}"]
    if refusal is None:
        columns, faults = compare(args, model, tokens, expected)
    text = f"{model.stem:28} {columns[0]:>9} {columns[1]:>9} {columns[2]:>9}  {'  '.join(faults) or 'ok'}"
    return text, not faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    for name in ("--generator", "--venv", "--oxcart"):
        parser.add_argument(name, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()

    dice = random.Random(args.seed)
    tokens = [[dice.randrange(VOCABULARY) for _ in range(PROMPT + MORE)] for _ in range(SEQUENCES)]
    models = generate(args)
    version = Version("7.0", args.venv)
    ours.in_process(args.folder, tokens, PROMPT, args.seed)
    passed = 0
    print(f"{'model':28} {'alone':>9} {'local:2':>9} {'beside':>9}", flush=True)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for text, is_equal in pool.map(lambda model: line(args, version, model, tokens), models):
            passed += is_equal
            print(text, flush=True)
    print(f"{passed} of {len(models)} as the reference has them, seed {args.seed}")
    return 0 if passed == len(models) else 1


if __name__ == "__main__":
    end_with(main)
