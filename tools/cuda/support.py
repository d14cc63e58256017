#!/usr/bin/env python3
"""Which cases of ggml's conformance suite one device supports and another does not, by op.

    support.py THEIRS.csv OURS.csv          what `test-backend-ops support --output csv` says of each
    support.py --ops THEIRS.csv             the ops of which a device supports something, those with most cases first
"""

import collections
import csv
import sys


def read(path):
    with open(path, newline="") as file:
        lines = [line for line in file if line.startswith("\"")]
    return {(row["op_name"], row["op_params"]): row["supported"] in ("1", "true", "yes") for row in csv.DictReader(lines)}


def main():
    if sys.argv[1] == "--ops":
        count = collections.Counter(op for (op, _), supported in read(sys.argv[2]).items() if supported)
        print("\n".join(op for op, _ in count.most_common()))
        return
    theirs, ours = (read(path) for path in sys.argv[1:3])
    print(f"{len(ours)} cases; supported there {sum(theirs.values())}, here {sum(ours.values())}")
    missing = collections.defaultdict(list)
    for case, supported in theirs.items():
        if supported and not ours.get(case):
            missing[case[0]].append(case[1])
    for op, cases in sorted(missing.items()):
        print(f"missing: {op} {len(cases)}, for example {cases[0][:120]}")
    if not missing:
        print("missing: none")


main()
