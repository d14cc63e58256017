"""The reference's logits of a model, of some sequences, each alone.

As a program, with the reference's Python:

    python3 reference.py PROTOCOL LIBRARIES MODEL OUT CACHE FLASH PROMPT SOURCE TOKENS...

Of each sequence, given by its token ids, the first PROMPT tokens go in as one batch and the others one by one. OUT gets a row
of logits after the prompt and after each later token, sequence after sequence, as 32-bit floats, after two 32-bit integers: rows
and columns. Repacked weights are off; CACHE is the type of keys and values, and flash attention is as FLASH says, 0 or 1. Models that
fill in text get all tokens as one batch, and every token sees all others, as the reference's own program for them has it; the rows
are those of the same tokens. The first SOURCE tokens are read by an encoder before the others.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "golden"), str(HERE.parent / "interop")]

from judge import read
from version import check_alive


def logits(version, model, prompt, sequences, cache="f32", flash=None, source=0):
    """Rows of all sequences, or None and why there are none; an exception if the reference crashed. Without a word about it, flash
    attention is on for every cache but F32."""
    out = model.with_suffix(f".reference-{cache}")
    flash = cache != "f32" if flash is None else flash
    sequences = (",".join(map(str, tokens)) for tokens in sequences)
    return answer(version, "reference.py", model, out, cache, str(int(flash)), str(prompt), str(source), *sequences)


def answer(version, program, model, out, *request):
    """The rows that a program beside this one finds, or None and why there are none; an exception if the reference crashed."""
    process = version.start(str(HERE / program), str(model), str(out), *request, stderr=subprocess.PIPE)
    said = process.communicate()[1]
    check_alive(process, f"the reference, with {model.name},")
    if process.returncode != 0:
        return None, said.strip().splitlines()[-1]
    return read(out), None


def main():
    protocol, libraries, model, out, cache, flash, prompt, source, *sequences = sys.argv[1:]
    from llama import Llama, Refused
    from peer import Peer

    Peer(protocol, Path(libraries))
    import llama_cpp  # its library must find ours already there

    llama_cpp.llama_backend_init()
    llama, rows = Llama(llama_cpp, 0), []
    prompt, source = int(prompt) - int(source), int(source)
    try:
        llama.load(model)
        sees_whole = llama_cpp.llama_model_is_diffusion(llama.model)
        for tokens in sequences:
            tokens = [int(token) for token in tokens.split(",")]
            context = llama.context(256 if len(tokens) <= 256 else 512, cache, flash=flash == "1")
            if sees_whole:
                llama_cpp.llama_set_causal_attn(context, False)
                rows += llama.feed(context, tokens, 0, list(range(len(tokens))))[prompt - 1 :]
                llama_cpp.llama_free(context)
                continue
            if source:
                llama.read(context, tokens[:source])
                tokens = tokens[source:]
            # Some graphs compute all tokens, and then give the first ones' logits if not all are wanted.
            rows += llama.feed(context, tokens[:prompt], 0, list(range(prompt)))[-1:]
            for at in range(prompt, len(tokens)):
                rows += llama.feed(context, tokens[at : at + 1], at, [0])
            llama_cpp.llama_free(context)
    except Refused as refused:
        sys.exit(str(refused))
    rows = np.array(rows, dtype="<f4")
    Path(out).write_bytes(np.array(rows.shape, dtype="<u4").tobytes() + rows.tobytes())


if __name__ == "__main__":
    main()
