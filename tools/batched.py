"""Tokens per second of several sequences together, `oxcart bench` and llama-batched-bench in turns; called by batched.sh.

    python3 batched.py OXCART REFERENCE MODEL THREADS TURNS SEQUENCES
"""

import json
import subprocess
import sys

PROMPT, DECODED = 128, 128


def of_oxcart(oxcart, model, threads, sequences):
    line = [oxcart, "bench", "--json", "-m", model, "--threads", threads, "-p", "0", "-n", str(DECODED), "-d", str(PROMPT)]
    found = json.loads(subprocess.run([*line, "-s", str(sequences), "-r", "1"], check=True, capture_output=True).stdout)
    return found["results"][0]["tokens_per_second"]


def of_reference(program, model, threads, sequences):
    context = (PROMPT + DECODED) * sequences
    line = [program, "-m", model, "-t", threads, "-tb", threads, "-c", str(context), "-b", "2048", "-ub", "512"]
    line += ["-npp", str(PROMPT), "-ntg", str(DECODED), "-npl", str(sequences), "--output-format", "jsonl"]
    text = subprocess.run(line, check=True, capture_output=True, text=True).stdout
    (row,) = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return row["speed_tg"]


def main():
    oxcart, reference, model, threads, turns, counts = sys.argv[1:]
    counts = [int(count) for count in counts.split(",")]
    ours, theirs = ({count: [] for count in counts} for _ in range(2))
    for _ in range(int(turns)):
        for count in counts:
            ours[count].append(of_oxcart(oxcart, model, threads, count))
            theirs[count].append(of_reference(reference, model, threads, count))
    print("sequences    oxcart  llama.cpp   ratio   oxcart, of one sequence")
    for count in counts:
        a, b, one = max(ours[count]), max(theirs[count]), max(ours[counts[0]])
        print(f"{count:9} {a:9.1f} {b:10.1f} {a / b:7.2f} {a / one:9.2f}")


main()
