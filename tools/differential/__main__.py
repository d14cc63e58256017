#!/usr/bin/env python3
"""Random single-op cases, computed by the reference and written in the format of crates/cases.

    python3 tools/differential --seed 1 --cases 2000 --out DIR

Case number n of a seed is always the same, whatever else is made, so that one alone can be made again:

    python3 tools/differential --seed 1 --case 1234 --out DIR

The reference is libggml of llama-cpp-python 0.3.36; --lib or OXCART_REFERENCE_LIB names the folder of its libraries.
tools/differential.sh finds or builds it, makes the cases batch by batch, and runs them on the CPU device.
"""

import argparse
import os
import sys
from pathlib import Path

import numpy as np

import elementwise
import moves
import products
import recurrent
import training
import vision
from case import Writer
from draw import Draw
from ggml import Ggml

FAMILIES = {}
for part in (elementwise, moves, products, vision, recurrent, training):
    FAMILIES.update(part.FAMILIES)
# Each family in its turn, as often as its weight says: any run of as many cases as there are entries has all families.
SCHEDULE = [name for name, (weight, _) in FAMILIES.items() for _ in range(weight)]
np.random.default_rng(0).shuffle(SCHEDULE)


def make(ggml, seed, number, only):
    family = only or SCHEDULE[number % len(SCHEDULE)]
    draw = Draw(ggml, np.random.default_rng([seed, number]))
    return family, draw, FAMILIES[family][1](draw)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lib", default=os.environ.get("OXCART_REFERENCE_LIB"), help="folder of libggml-cpu.so")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=2000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--case", type=int, help="this one alone")
    parser.add_argument("--only", choices=sorted(FAMILIES), help="this family alone; numbers mean other cases then")
    parser.add_argument("--pool", type=Path, help="file that keeps blocks of codebook types, which are slow to make")
    parser.add_argument("--repeat", action="store_true", help="run each twice, with one and two threads, and compare")
    parser.add_argument("--verbose", action="store_true", help="name each case before it runs")
    parser.add_argument("--out", required=True, type=Path, help="folder for index files and blobs; made if need be")
    args = parser.parse_args()
    if not args.lib:
        sys.exit("--lib or OXCART_REFERENCE_LIB must name the folder of the reference's libraries")
    ggml = Ggml(Path(args.lib))
    if args.pool:
        ggml.remember(args.pool)
    args.out.mkdir(parents=True, exist_ok=True)
    writer = Writer(args.out, args.seed)
    numbers = [args.case] if args.case is not None else range(args.first, args.first + args.cases)
    unstable = {}
    for number in numbers:
        if args.verbose:
            print(number, args.only or SCHEDULE[number % len(SCHEDULE)], file=sys.stderr, flush=True)
        family, draw, case = make(ggml, args.seed, number, args.only)
        writer.add(family, number, case, draw)
        if args.repeat:
            first = case.result.storage.copy()
            for threads in (1, 2):
                if not np.array_equal(case.run(draw, threads), first):
                    unstable.setdefault((family, threads), []).append(number)
    writer.close()
    for (family, threads), which in sorted(unstable.items()):
        print(f"not repeatable with {threads} threads: {family} {which}")
    print(f"{len(numbers)} cases of seed {args.seed} from number {numbers[0]} in {args.out}")


if __name__ == "__main__":
    main()
