"""Greedy text by the real llama.cpp, with a worker or without.

    python3 text.py PROTOCOL LIBRARIES MODEL [ENDPOINT]

Prints as JSON, for each prompt, the tokens and how far each was ahead of the next best.
"""

import json
import sys
from pathlib import Path

import numpy as np
from peer import Peer

# How many tokens of each are compared. Quantized weights make results depend on rounding: the reference loses leads of up
# to 1.0 to itself when it does the same sums in another way. Here every token is ahead by more.
PROMPTS = {
    "1, 2, 3, 4, 5,": 48,
    "2, 4, 6, 8, 10, 12,": 40,
    "a b c d e f g": 10,
    "I see a red house and a blue door. " * 6 + "I see a red": 6,
}


def main():
    protocol, folder, model = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    endpoint = sys.argv[4] if len(sys.argv) > 4 else None
    peer = Peer(protocol, folder)
    if endpoint:
        peer.register(endpoint)
    import llama_cpp  # its library must find ours already there, and the worker's device in it

    llm = llama_cpp.Llama(model, n_gpu_layers=-1 if endpoint else 0, n_ctx=256, n_threads=1, verbose=False)
    found = {}
    for prompt, length in PROMPTS.items():
        llm.reset()
        llm.eval(llm.tokenize(prompt.encode(), add_bos=False))
        tokens, margins = [], []
        for _ in range(length):
            logits = llama_cpp.llama_get_logits_ith(llm.ctx, -1)
            logits = np.ctypeslib.as_array(logits, (llm.n_vocab(),))
            second, best = np.partition(logits, -2)[-2:]
            tokens.append(int(np.argmax(logits)))
            margins.append(float(best - second))
            llm.eval(tokens[-1:])
        text = llm.detokenize(tokens).decode(errors="replace")
        found[prompt] = {"tokens": tokens, "margins": margins, "text": text}
    print(json.dumps(found))


main()
