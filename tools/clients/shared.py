"""What tests of several libraries need."""

import json
import time
import urllib.request

MODEL = "smollm2"

# A model of random weights that makes embeddings, of so many numbers.
EMBEDDER = "tiny-bert"
WIDTH = 64

# A tool, as OpenAI describes it.
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}

# What even a small model can fill in.
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "grown_up": {"type": "boolean"}},
    "required": ["name", "grown_up"],
    "additionalProperties": False,
}


def check_vectors(vectors):
    """Vectors of one text, of another, and of the first one again."""
    assert [len(vector) for vector in vectors] == [WIDTH] * 3, [len(vector) for vector in vectors]
    for vector in vectors:
        assert abs(sum(x * x for x in vector) - 1) < 1e-3
    assert all(abs(x - y) < 1e-3 for x, y in zip(vectors[0], vectors[2]))
    assert any(abs(x - y) > 1e-3 for x, y in zip(vectors[0], vectors[1]))


TEXTS = ["the end", "and then", "the end"]


def check_freed(url):
    """What was left must not be computed on; all of a long story takes longer than is waited for here, unless the machine is quick."""
    for _ in range(400):
        with urllib.request.urlopen(f"{url}/slots", timeout=60) as answer:
            if not any(slot["is_processing"] for slot in json.load(answer)):
                return
        time.sleep(0.05)
    raise AssertionError("an answer that was left is still computed")


class Suite:
    """Tests of one library."""

    def __init__(self, library):
        self.library = library
        self.list = []

    def test(self, *features):
        def add(function):
            self.list.append((f"{self.library}: {function.__name__.replace('_', ' ')}", features, function))
            return function

        return add
