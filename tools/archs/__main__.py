#!/usr/bin/env python3
"""Tiny random models of all architectures, or of some: what the reference makes of them and what we do, side by side.

    python3 tools/archs --mode logits|caches|types --seed SEED --generator PROGRAM --venv VENV --oxcart BINARY --folder DIR [NAME...]

tools/archs.sh calls it with what it needs, and says what the modes are. Goes on after a failure; the exit code says whether there
was any.
"""

import argparse
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent
sys.path.append(str(TOOLS / "interop"))

import caches
import logits
import types_of_tensors
from version import Crashed, Version, end_with

MODES = {"logits": logits, "caches": caches, "types": types_of_tensors}

PROMPT, MORE = 24, 8
SEQUENCES = 3
# The fewest tokens that a vocabulary of the generator has.
VOCABULARY = 128
# The fewest models that the generator makes of all architectures.
MODELS = 128
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
    # A file is ARCHITECTURE-dense.gguf or ARCHITECTURE-moe.gguf.
    made = {model.stem.rsplit("-", 1)[0] for model in models}
    for name in args.names:
        assert name in made, f"the generator made no model of {name}"
    assert args.names or len(models) >= MODELS, f"the generator made {len(models)} models, not {MODELS}"
    return models


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=MODES, required=True)
    parser.add_argument("--seed", type=int, required=True)
    for name in ("--generator", "--venv"):
        parser.add_argument(name, required=True)
    parser.add_argument("--oxcart")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()

    mode = MODES[args.mode]
    dice = random.Random(args.seed)
    tokens = [[dice.randrange(VOCABULARY) for _ in range(PROMPT + MORE)] for _ in range(SEQUENCES)]
    models = generate(args)
    version = Version("7.0", args.venv)
    mode.prepare(args, tokens, PROMPT)
    passed = compared = 0
    print(mode.HEADER, flush=True)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        # A verdict is None where there is nothing to compare.
        for text, verdict in pool.map(lambda model: mode.line(args, version, model, tokens, PROMPT), models):
            compared += verdict is not None
            passed += verdict is True
            print(text, flush=True)
    print(f"{passed} of {compared} {mode.SUCCESS}, seed {args.seed}")
    return 0 if passed == compared else 1


if __name__ == "__main__":
    end_with(main)
