#!/usr/bin/env python3
"""What the reference makes of texts and tokens with every vocabulary there is, for the test `text_reference` to compare with.

    python3 tools/tokenizers --source LLAMA.CPP --folder OUT --seed N --count N [--only PART]

tools/tokenizers.sh calls it, with the reference's Python. OUT gets, of each vocabulary, NAME.jsonl: a line of facts (`path` is
where the vocabulary lies, `pairs` how many cases are the archive's own), then cases. A case is a text with its tokens, alone (`plain`) and as a whole text with special tokens
(`special`), and both turned back into text (hexadecimal); or tokens at random (`tokens`) and their text; or a text and its tokens
as the archive itself gives them (`expected`).
"""

import argparse
import itertools
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import llama_cpp
from reference import Vocabulary
from strings import draw, texts_of
from vocabularies import all_vocabularies


# Between texts in files of the archive, and behind the last one of most.
SEPARATOR = "\n__ggml_vocab_test__\n"


def cases(vocabulary, path, rng, count):
    texts, specials = texts_of(path)
    for _ in range(count):
        text = draw(rng, texts, specials)
        plain, special = vocabulary.encode(text, False), vocabulary.encode(text, True)
        shown, hidden = vocabulary.decode(plain, True), vocabulary.decode(special, False)
        yield {"text": text, "plain": plain, "special": special, "shown": shown.hex(), "hidden": hidden.hex()}
    for _ in range(count // 20):
        tokens = [rng.randrange(len(texts)) for _ in range(rng.randint(1, 12))]
        shown, hidden = vocabulary.decode(tokens, True), vocabulary.decode(tokens, False)
        yield {"tokens": tokens, "shown": shown.hex(), "hidden": hidden.hex()}


def pairs_of(path):
    """Texts and tokens that the archive has for a vocabulary."""
    inputs, outputs = Path(f"{path}.inp"), Path(f"{path}.out")
    if not inputs.exists():
        return []
    given = inputs.read_bytes().decode().removesuffix(SEPARATOR).split(SEPARATOR)
    return [
        {"text": text, "expected": [int(token) for token in ids.split()]}
        for text, ids in zip(given, outputs.read_text().splitlines(), strict=True)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, type=Path)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--seed", required=True, type=int)
    parser.add_argument("--count", required=True, type=int)
    parser.add_argument("--only", default="", help="vocabularies with this in their names alone")
    args = parser.parse_args()
    llama_cpp.llama_backend_init()
    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, None)
    all_pairs = 0
    for name, path in all_vocabularies(args.source, args.folder, args.seed):
        if args.only not in name:
            continue
        rng = random.Random(f"{args.seed} {name}")
        vocabulary = Vocabulary(llama_cpp, path)
        with (args.folder / f"{name}.jsonl").open("w") as out:
            pairs = pairs_of(path)
            all_pairs += len(pairs)
            out.write(json.dumps({"path": str(path), "pairs": len(pairs), **vocabulary.facts()}) + "\n")
            for case in itertools.chain(cases(vocabulary, path, rng, args.count), pairs):
                out.write(json.dumps(case) + "\n")
        vocabulary.close()
    assert args.only or all_pairs > 0, "the archive has no texts with their tokens where they are looked for"


if __name__ == "__main__":
    main()
