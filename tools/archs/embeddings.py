"""What the reference's encoders make of a text.

As a program, with the reference's Python:

    python3 embeddings.py PROTOCOL LIBRARIES MODEL OUT POOLING TOKENS

OUT gets a row for each token without pooling, else one row, as `reference.py` writes rows of logits.
"""

import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "golden"), str(HERE.parent / "interop")]

from reference import answer


def embeddings(version, model, tokens, pooling):
    """Rows, or None and why there are none; an exception if the reference crashed."""
    out = model.with_suffix(".reference")
    return answer(version, "embeddings.py", model, out, pooling, ",".join(map(str, tokens)))


def main():
    protocol, libraries, model, out, pooling, tokens = sys.argv[1:]
    from llama import Llama, Refused
    from peer import Peer

    Peer(protocol, Path(libraries))
    import llama_cpp  # its library must find ours already there

    llama_cpp.llama_backend_init()
    llama, tokens = Llama(llama_cpp, 0), [int(token) for token in tokens.split(",")]
    try:
        llama.load(model)
        context = llama.context(256, "f32", pooling)
        # What was made to be the first half of a model is asked as such; as anything else, tokens would see only those before them.
        if llama_cpp.llama_model_has_encoder(llama.model):
            llama.read(context, tokens)
        else:
            llama.feed(context, tokens, 0, [])
    except Refused as refused:
        sys.exit(str(refused))
    width = llama_cpp.llama_model_n_cls_out(llama.model) if pooling == "rank" else llama_cpp.llama_model_n_embd(llama.model)
    if pooling == "none":
        found = [llama_cpp.llama_get_embeddings_ith(context, at) for at in range(len(tokens))]
    else:
        found = [llama_cpp.llama_get_embeddings_seq(context, 0)]
    rows = np.array([np.ctypeslib.as_array(row, (width,)) for row in found], dtype="<f4")
    Path(out).write_bytes(np.array(rows.shape, dtype="<u4").tobytes() + rows.tobytes())


if __name__ == "__main__":
    main()
