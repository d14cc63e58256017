"""The golden data as its README describes it; nothing of it is changed."""

import array
import json
import sys
from pathlib import Path


class Tiny:
    """One of the random models, with what the reference computed for it."""

    def __init__(self, folder, entry):
        self.name, self.path = entry["name"], str(folder / entry["model"])
        self.types, self.noise = list(entry["types"].values()), entry["reference_noise"]
        self.prompt, self.decode = entry["prompt"], entry.get("decode", [])
        self.tokenize = entry["tokenize"]
        self.arrays = {each["name"]: each for each in entry["arrays"]}
        self._data = folder / entry["data"]

    @property
    def is_encoder(self):
        return not self.decode

    def array(self, name):
        count, width = self.arrays[name]["shape"]
        start = self.arrays[name]["offset"]
        numbers = array.array("f", self._data.read_bytes()[start : start + 4 * count * width])
        if sys.byteorder == "big":
            numbers.byteswap()
        return [list(numbers[at * width : (at + 1) * width]) for at in range(count)]


class Text:
    """The text for perplexity."""

    def __init__(self, folder):
        (entry,) = json.loads((folder / "perplexity.json").read_text())["texts"]
        self.path, self.runs = folder / entry["text"], entry["runs"]
        ids = array.array("i", (folder / entry["token_file"]).read_bytes())
        if sys.byteorder == "big":
            ids.byteswap()
        self.tokens = list(ids)

    def recorded(self):
        """Variant, cache type and values after each window; those without flash attention and repacking, which change sums."""
        for run in self.runs:
            if run["flags"].startswith("-fa off") and "--no-repack" in run["flags"]:
                yield run["model"], "f32" if "-ctk f32" in run["flags"] else "f16", run["after_chunk"]


class Vocabulary:
    """A vocabulary without weights, and texts in its tokens: (text, ids, with specials)."""

    def __init__(self, path):
        self.name, self.path = path.stem.removeprefix("ggml-vocab-"), str(path)
        texts = Path(f"{path}.inp").read_bytes().split(b"\n__ggml_vocab_test__\n")[:-1]
        lines = Path(f"{path}.out").read_text().splitlines()
        self.cases = [(text.decode(), list(map(int, ids.split())), False) for text, ids in zip(texts, lines, strict=True)]
        extra = json.loads((path.parent / f"extra-{self.name}.json").read_text())
        for case in extra["cases"]:
            if "input" in case:
                self.cases += [(case["input"], case["ids"], False), (case["input"], case["ids_special"], True)]


class Golden:
    def __init__(self, folder):
        index = json.loads((folder / "tiny-models" / "index.json").read_text())
        self.tiny = [Tiny(folder / "tiny-models", entry) for entry in index["models"]]
        self.smollm2 = json.loads((folder / "smollm2.json").read_text())
        self.text = Text(folder / "perplexity")
        self.vocabularies = [Vocabulary(path) for path in sorted((folder / "vocab").glob("ggml-vocab-*.gguf"))]

    def recorded(self, variant, kv):
        """The recorded texts of a variant of the real model with that cache: pairs of prompt and run."""
        cases = self.smollm2["greedy"] if variant == "Q4_1" else self.smollm2["requantized"][variant]["cases"]
        return [(case["prompt_ids"], case[f"kv_{kv}"]) for case in cases if f"kv_{kv}" in case]

    def recorded_windows(self, variant, kv):
        """Perplexity of a variant after each window."""
        return next(values for name, cache, values in self.text.recorded() if (name, cache) == (variant, kv))
