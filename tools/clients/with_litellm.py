"""litellm, which many programs speak to models through."""

import litellm

from shared import MODEL, WEATHER, Suite

suite = Suite("litellm")
litellm.telemetry = False


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


@suite.test("tools")
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
