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

import llama_cpp as api

PROMPT, DECODED = 512, 128


def of_oxcart(oxcart, model, threads):
    line = [oxcart, "bench", "--json", "-m", model, "--threads", str(threads), "-p", str(PROMPT), "-n", str(DECODED), "-r", "1"]
    found = json.loads(subprocess.run(line, check=True, capture_output=True).stdout)
    return [result["tokens_per_second"] for result in found["results"]]


class Llama:
    """The library without the layer of Python above it, which takes time of its own."""

    def __init__(self, model, threads):
        self.quiet = api.llama_log_callback(lambda *_: None)
        api.llama_log_set(self.quiet, None)
        api.llama_backend_init()
        self.model = api.llama_model_load_from_file(model.encode(), api.llama_model_default_params())
        options = api.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = 1024, PROMPT, PROMPT
        options.n_threads = options.n_threads_batch = threads
        self.context = api.llama_init_from_model(self.model, options)
        count = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.tokens = [(37 * at) % (count - 10) + 10 for at in range(PROMPT)]

    def rate(self, batches):
        arrays = [(api.llama_token * len(batch))(*batch) for batch in batches]
        api.llama_memory_clear(api.llama_get_memory(self.context), True)
        start = time.perf_counter()
        for array in arrays:
            if api.llama_decode(self.context, api.llama_batch_get_one(array, len(array))) != 0:
                sys.exit("llama_decode fails")
            api.llama_synchronize(self.context)
        return sum(map(len, arrays)) / (time.perf_counter() - start)

    def rates(self):
        return [self.rate([self.tokens]), self.rate([[token] for token in self.tokens[:DECODED]])]


def main():
    oxcart, model, threads, turns = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    llama = Llama(model, threads)
    llama.rates()  # reads the file for the first time
    rounds = [(of_oxcart(oxcart, model, threads), llama.rates()) for _ in range(turns)]
    for at, test in enumerate([f"pp{PROMPT}", f"tg{DECODED}"]):
        ours, theirs = ([rates[who][at] for rates in rounds] for who in (0, 1))
        for name, choose in [("best", max), ("median", statistics.median)]:
            a, b = choose(ours), choose(theirs)
            print(f"{test:6} {name:7} oxcart {a:8.1f}   llama.cpp {b:8.1f}   ratio {a / b:.2f}")


main()
