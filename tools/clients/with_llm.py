"""llm, a library and a command for models, set up as its users do: by a file of models that speak OpenAI's interface.

The command takes seconds to start, so it is started once; the rest goes through the library that it is made of.
"""

import functools
import json
import os
import pathlib
import signal
import subprocess
import sys

from shared import EMBEDDER, MODEL, PERSON, TEXTS, Suite, check_freed, check_vectors

suite = Suite("llm")
OPTIONS = {"temperature": 0, "max_tokens": 20}


def tests():
    return suite.list


@functools.cache
def set_up(url):
    folder = pathlib.Path(os.environ["LLM_USER_PATH"])
    folder.mkdir(parents=True, exist_ok=True)
    models = (
        f"- model_id: served\n  model_name: {MODEL}\n  api_base: {url}/v1\n  api_key_name: served\n"
        "  supports_schema: true\n  supports_tools: true\n"
        f"- model_id: nothing\n  model_name: nothing\n  api_base: {url}/v1\n  api_key_name: served\n"
    )
    (folder / "extra-openai-models.yaml").write_text(models)
    (folder / "keys.json").write_text('{"served": "none"}')


def model(url, name="served"):
    set_up(url)
    import llm

    return llm.get_model(name)


@suite.test()
def the_command(url):
    set_up(url)
    command = [str(pathlib.Path(sys.executable).parent / "llm"), "-m", "served", "-o", "temperature", "0", "-o", "max_tokens", "20"]
    said = subprocess.run([*command, "Name three colours."], check=True, stdout=subprocess.PIPE, timeout=300).stdout.decode()
    assert said.strip() == model(url).prompt("Name three colours.", stream=False, **OPTIONS).text().strip()


@suite.test()
def a_stream_says_the_same(url):
    whole = model(url).prompt("Name three colours.", stream=False, **OPTIONS).text()
    assert "".join(model(url).prompt("Name three colours.", stream=True, **OPTIONS)) == whole and whole


@suite.test()
def json_by_a_schema(url):
    answer = model(url).prompt("Invent a person, as JSON.", schema=PERSON, stream=False, temperature=0, max_tokens=200)
    assert set(json.loads(answer.text())) == {"name", "grown_up"}


@suite.test()
def tools_may_be_called(url):
    def get_weather(city: str) -> str:
        """The weather in a city"""
        return f"Sunny in {city}"

    chain = model(url).conversation().chain("What is the weather in Paris?", tools=[get_weather], chain_limit=2, options=OPTIONS)
    assert isinstance(chain.text(), str)


@suite.test("embeddings")
def vectors_of_texts(url):
    from llm.default_plugins.openai_models import OpenAIEmbeddingModel

    # Its models for embeddings have no address of their own; they go where OpenAI's library is sent.
    os.environ["OPENAI_BASE_URL"] = f"{url}/v1"
    embedder = OpenAIEmbeddingModel(EMBEDDER, EMBEDDER)
    embedder.key = "none"
    try:
        check_vectors(list(embedder.embed_multi(TEXTS)))
    finally:
        del os.environ["OPENAI_BASE_URL"]


@suite.test("unknown-model")
def a_model_that_is_not_there(url):
    try:
        model(url, "nothing").prompt("Hi", stream=False).text()
    except Exception as error:
        assert "404" in str(error) or "there is no model" in str(error), error
    else:
        raise AssertionError("it was answered")


@suite.test()
def a_command_that_is_interrupted(url):
    set_up(url)
    command = [str(pathlib.Path(sys.executable).parent / "llm"), "-m", "served", "-o", "max_tokens", "3000", "Tell a long story."]
    # A script that runs in the background has its children ignore this signal, and Python keeps to that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        assert running.stdout.read(1)
        running.send_signal(signal.SIGINT)
        running.stdout.read()
        assert running.wait(timeout=60) != 0
    check_freed(url)


@suite.test()
def a_stream_that_is_left(url):
    pieces = iter(model(url).prompt("Tell a long story.", stream=True, max_tokens=3000))
    next(pieces)
    # Whether the server is told of it is up to the library: five seconds later, neither ours nor llama-server had been. Others are
    # answered meanwhile.
    pieces.close()
    assert model(url).prompt("Hi", stream=False, max_tokens=3).text() is not None
