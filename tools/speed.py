"""Tokens per second of `oxcart bench` and of llama.cpp's library, in turns; called by speed.sh.

    python3 speed.py OXCART MODEL THREADS TURNS

Both compute a prompt of 512 tokens at once, then 128 tokens one after another from an empty cache of f16. llama.cpp has its
defaults otherwise, repacked weights among them.
"""

import json
import statistics
import subprocess
import sys
import time

from llama_cpp import Llama

PROMPT, DECODED = 512, 128


def of_oxcart(oxcart, model, threads):
    line = [oxcart, "bench", "--json", "-m", model, "--threads", str(threads), "-p", str(PROMPT), "-n", str(DECODED), "-r", "1"]
    found = json.loads(subprocess.run(line, check=True, capture_output=True).stdout)
    return [result["tokens_per_second"] for result in found["results"]]


def of_llama(llama):
    tokens = [(37 * at) % (llama.n_vocab() - 10) + 10 for at in range(PROMPT)]
    rates = []
    for batches in [[tokens], [[token] for token in tokens[:DECODED]]]:
        llama.reset()
        start = time.perf_counter()
        for batch in batches:
            llama.eval(batch)
        rates.append(sum(map(len, batches)) / (time.perf_counter() - start))
    return rates


def main():
    oxcart, model, threads, turns = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    llama = Llama(model, n_ctx=1024, n_batch=PROMPT, n_threads=threads, n_threads_batch=threads, verbose=False)
    of_llama(llama)  # reads the file for the first time
    rounds = [(of_oxcart(oxcart, model, threads), of_llama(llama)) for _ in range(turns)]
    for at, test in enumerate([f"pp{PROMPT}", f"tg{DECODED}"]):
        ours, theirs = ([rates[who][at] for rates in rounds] for who in (0, 1))
        for name, choose in [("best", max), ("median", statistics.median)]:
            a, b = choose(ours), choose(theirs)
            print(f"{test:6} {name:7} oxcart {a:8.1f}   llama.cpp {b:8.1f}   ratio {a / b:.2f}")


main()
