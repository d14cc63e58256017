"""Ollama's own library."""

import json

import ollama

from shared import EMBEDDER, MODEL, PERSON, TEXTS, WEATHER, Suite, check_freed, check_vectors

suite = Suite("ollama")
OPTIONS = {"temperature": 0, "num_predict": 30}


def tests():
    return suite.list


def ask(text):
    return [{"role": "user", "content": text}]


@suite.test("ollama")
def a_chat_and_its_stream(url):
    client = ollama.Client(host=url)
    whole = client.chat(model=MODEL, messages=ask("Name three colours."), options=OPTIONS)
    assert whole.message.content and whole.done and whole.eval_count > 0
    pieces = client.chat(model=MODEL, messages=ask("Name three colours."), options=OPTIONS, stream=True)
    assert "".join(piece.message.content for piece in pieces) == whole.message.content


@suite.test("ollama")
def generated_text(url):
    client = ollama.Client(host=url)
    whole = client.generate(model=MODEL, prompt="One, two, three,", raw=True, options=OPTIONS)
    assert "four" in whole.response, whole.response
    pieces = client.generate(model=MODEL, prompt="One, two, three,", raw=True, options=OPTIONS, stream=True)
    assert "".join(piece.response for piece in pieces) == whole.response


@suite.test("ollama")
def json_by_a_schema(url):
    options = {"temperature": 0, "num_predict": 200}
    answer = ollama.Client(host=url).chat(model=MODEL, messages=ask("Invent a person."), format=PERSON, options=options)
    assert set(json.loads(answer.message.content)) == {"name", "grown_up"}


@suite.test("ollama")
def tools_may_be_called(url):
    options = {"temperature": 0, "num_predict": 100}
    answer = ollama.Client(host=url).chat(
        model=MODEL, messages=ask("What is the weather in Paris?"), tools=[WEATHER], options=options
    )
    assert answer.message.content or answer.message.tool_calls


@suite.test("ollama")
def what_there_is(url):
    client = ollama.Client(host=url)
    assert MODEL in [model.model for model in client.list().models]
    assert MODEL in [model.model for model in client.ps().models]
    assert client.show(MODEL).details.family == "llama"
    assert client.pull(MODEL).status == "success"


@suite.test("ollama")
def a_model_that_is_not_there(url):
    try:
        ollama.Client(host=url).chat(model="nothing", messages=ask("Hi"))
    except ollama.ResponseError as error:
        assert error.status_code == 404, error
    else:
        raise AssertionError("it was answered")


@suite.test("ollama", "embeddings")
def vectors_of_texts(url):
    made = ollama.Client(host=url).embed(model=EMBEDDER, input=TEXTS)
    check_vectors(made.embeddings)


@suite.test("ollama")
def a_stream_that_is_left(url):
    client = ollama.Client(host=url)
    stream = client.chat(model=MODEL, messages=ask("Tell a long story."), stream=True)
    next(stream)
    stream.close()
    check_freed(url)
    answer = client.chat(model=MODEL, messages=ask("Hi"), options={"num_predict": 3})
    assert answer.eval_count <= 3
