"""litellm, which many programs speak to models through."""

import json
import os

# Prices are of no interest, and are not to be fetched.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

from shared import EMBEDDER, MODEL, PERSON, TEXTS, WEATHER, Suite, check_freed, check_vectors

suite = Suite("litellm")
litellm.telemetry = False
litellm.suppress_debug_info = True


def tests():
    return suite.list


def settings(url):
    return dict(model=f"openai/{MODEL}", api_base=f"{url}/v1", api_key="none", temperature=0)


def ask(text):
    return [{"role": "user", "content": text}]


@suite.test()
def a_chat_and_its_stream(url):
    whole = litellm.completion(**settings(url), messages=ask("Name three colours."), max_tokens=30)
    pieces = litellm.completion(**settings(url), messages=ask("Name three colours."), max_tokens=30, stream=True)
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert text == whole.choices[0].message.content


@suite.test("demanded-call")
def a_tool_that_must_be_called(url):
    answer = litellm.completion(
        **settings(url), messages=ask("The weather in Paris, in C?"), tools=[WEATHER], tool_choice="required", max_tokens=200
    )
    assert answer.choices[0].message.tool_calls[0].function.name == "get_weather"


@suite.test("ollama")
def by_way_of_ollama(url):
    answer = litellm.completion(
        model=f"ollama_chat/{MODEL}", api_base=url, messages=ask("Say hello."), max_tokens=20, temperature=0
    )
    assert answer.choices[0].message.content


@suite.test()
def by_way_of_anthropic(url):
    answer = litellm.completion(
        model=f"anthropic/{MODEL}", api_base=url, api_key="none", messages=ask("Say hello."), max_tokens=20, temperature=0
    )
    assert answer.choices[0].message.content


@suite.test()
def json_by_a_schema(url):
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    answer = litellm.completion(
        **settings(url), messages=ask("Invent a person, as JSON."), max_tokens=200, response_format=form
    )
    assert set(json.loads(answer.choices[0].message.content)) == {"name", "grown_up"}


@suite.test("embeddings")
def vectors_of_texts(url):
    made = litellm.embedding(model=f"openai/{EMBEDDER}", api_base=f"{url}/v1", api_key="none", input=TEXTS)
    check_vectors([one["embedding"] for one in made.data])


@suite.test("unknown-model")
def a_model_that_is_not_there(url):
    try:
        litellm.completion(**{**settings(url), "model": "openai/nothing"}, messages=ask("Hi"), num_retries=0)
    except litellm.NotFoundError as error:
        assert "nothing" in str(error)
    else:
        raise AssertionError("it was answered")


@suite.test()
def a_stream_that_is_left(url):
    stream = litellm.completion(**settings(url), messages=ask("Tell a long story."), max_tokens=3000, stream=True)
    next(iter(stream))
    stream.completion_stream.close()
    check_freed(url)
    answer = litellm.completion(**settings(url), messages=ask("Hi"), max_tokens=3, timeout=60)
    assert answer.usage.completion_tokens <= 3
