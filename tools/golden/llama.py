"""The real llama.cpp, asked what `oxcart score`, `embed` and `perplexity` are asked, with answers of the same form.

    python3 llama.py PROTOCOL LIBRARIES [ENDPOINT...]

With endpoints, every block and its cache is on these workers, in equal parts. Each line of stdin is a request, each line of
stdout the answer to it, both JSON; `{"error": ...}` where llama.cpp says no. Flash attention and repacked weights are off, as
when the golden data was recorded, except that a quantized cache needs flash attention.
"""

import ctypes
import json
import os
import sys
from pathlib import Path

import numpy as np
from peer import Peer

TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}
POOLING = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}


class Refused(Exception):
    """llama.cpp does not do it."""


class Llama:
    """One model at a time, and the contexts that requests ask for."""

    def __init__(self, api, workers):
        self.api, self.workers = api, workers
        self.path = self.model = None
        self.split = (ctypes.c_float * api.llama_max_devices())(*[1.0] * workers)

    def load(self, path):
        if self.path == path:
            return
        if self.model:
            self.api.llama_model_free(self.model)
        parameters = self.api.llama_model_default_params()
        parameters.use_extra_bufts = False
        parameters.n_gpu_layers = 999 if self.workers else 0
        if self.workers:
            parameters.tensor_split = ctypes.cast(self.split, ctypes.POINTER(ctypes.c_float))
        self.path, self.model = None, self.api.llama_model_load_from_file(path.encode(), parameters)
        if not self.model:
            raise Refused("the model does not load")
        self.path = path
        self.vocabulary = self.api.llama_vocab_n_tokens(self.api.llama_model_get_vocab(self.model))

    def context(self, size, kv="f16", pooling=None, flash=False):
        parameters = self.api.llama_context_default_params()
        parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = size
        parameters.n_threads = parameters.n_threads_batch = 1
        parameters.type_k = parameters.type_v = TYPES[kv]
        flash = flash or kv.startswith("q")
        if hasattr(parameters, "flash_attn_type"):
            parameters.flash_attn_type = int(flash)
        else:
            parameters.flash_attn = flash
        if pooling:
            parameters.embeddings, parameters.pooling_type = True, POOLING[pooling]
        context = self.api.llama_init_from_model(self.model, parameters)
        if not context:
            raise Refused(f"no context with a cache of {kv}")
        return context

    def read(self, context, source):
        """Has the first half of a model read a text, for all that follows."""
        self._compute(self.api.llama_encode, context, source, 0, [])

    def feed(self, context, tokens, position, wanted):
        """Computes tokens as one batch; rows of logits of those that `wanted` says."""
        self._compute(self.api.llama_decode, context, tokens, position, wanted)
        rows = [self.api.llama_get_logits_ith(context, at) for at in wanted]
        return [np.ctypeslib.as_array(row, (self.vocabulary,)).copy() for row in rows]

    def _compute(self, function, context, tokens, position, wanted):
        batch = self.api.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for at, token in enumerate(tokens):
            batch.token[at], batch.pos[at] = token, position + at
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, 0
            batch.logits[at] = at in wanted
        code = function(context, batch)
        self.api.llama_batch_free(batch)
        if code != 0:
            raise Refused(f"{function.__name__} says {code}")

    def score(self, request):
        tokens, prompt, top = request["tokens"], request["prompt"], request["top"]
        context = self.context(request["ctx"], request["kv"])
        try:
            rows = self.feed(context, tokens[:prompt], 0, range(prompt))
            logprobs = [None] + [logprob(row, token) for row, token in zip(rows, tokens[1:])]
            tops = [largest(rows[-1], top)]
            for at in range(prompt, len(tokens)):
                (row,) = self.feed(context, tokens[at : at + 1], at, range(1))
                logprobs += [logprob(row, token) for token in tokens[at + 1 : at + 2]]
                tops.append(largest(row, top))
        finally:
            self.api.llama_free(context)
        return {"logprobs": logprobs, "top": tops}

    def perplexity(self, request):
        tokens, window = request["tokens"], request["ctx"]
        context = self.context(window, request["kv"])
        losses, after = [], []
        try:
            for start in range(0, request["chunks"] * window, window):
                self.api.llama_memory_clear(self.api.llama_get_memory(context), True)
                part = tokens[start : start + window]
                scored = range(window // 2, window - 1)
                rows = self.feed(context, part, 0, scored)
                losses += [-logprob(row, part[at + 1]) for at, row in zip(scored, rows)]
                after.append(float(np.exp(np.mean(losses))))
        finally:
            self.api.llama_free(context)
        return {"after_window": after}

    def embed(self, request):
        tokens = request["tokens"]
        context = self.context(256, pooling=request["pooling"])
        try:
            self.feed(context, tokens, 0, [])
            vector = self.api.llama_get_embeddings_seq(context, 0)
            width = self.api.llama_model_n_embd(self.model)
            return {"embeddings": [{"embedding": np.ctypeslib.as_array(vector, (width,)).tolist()}]}
        finally:
            self.api.llama_free(context)

    def answer(self, request):
        try:
            self.load(request["model"])
            return getattr(self, request["do"])(request)
        except Refused as refused:
            return {"error": str(refused)}


def logprob(row, token):
    row = row.astype(np.float64)
    return float(row[token] - row.max() - np.log(np.sum(np.exp(row - row.max()))))


def largest(row, count):
    order = np.argsort(-row, kind="stable")[:count]
    return [[int(token), float(row[token])] for token in order]


def main():
    protocol, folder, endpoints = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    # llama.cpp tells much on stdout and stderr; answers go where it does not write.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer = Peer(protocol, folder)
    for endpoint in endpoints:
        peer.register(endpoint)
    import llama_cpp  # its library must find ours already there, and the workers' devices in it

    llama_cpp.llama_backend_init()
    llama = Llama(llama_cpp, len(endpoints))
    for line in sys.stdin:
        answers.write(json.dumps(llama.answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
