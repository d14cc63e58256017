"""Anthropic's own library."""

import json

import anthropic

from shared import MODEL, PERSON, WEATHER, Suite, check_freed

suite = Suite("anthropic")

TOOL = {
    "name": "get_weather",
    "description": WEATHER["function"]["description"],
    "input_schema": WEATHER["function"]["parameters"],
}


def tests():
    return suite.list


def client(url):
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)


# The library has no such argument any more, but the interface has it.
GREEDY = {"temperature": 0}


def ask(text):
    return [{"role": "user", "content": text}]


@suite.test()
def a_message(url):
    answer = client(url).messages.create(
        model=MODEL, max_tokens=20, extra_body=GREEDY, system="You are brief.", messages=ask("Say hello.")
    )
    assert answer.content[0].type == "text" and answer.content[0].text
    assert answer.stop_reason in ("end_turn", "max_tokens")
    assert answer.usage.output_tokens > 0


@suite.test()
def a_stream_says_the_same(url):
    settings = dict(model=MODEL, max_tokens=30, extra_body=GREEDY, messages=ask("Name three colours."))
    whole = client(url).messages.create(**settings).content[0].text
    with client(url).messages.stream(**settings) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert text == whole and last.content[0].text == whole
    assert last.usage.output_tokens > 0
    assert last.usage.input_tokens + (last.usage.cache_read_input_tokens or 0) > 5


@suite.test()
def a_stream_begins_with_the_length_of_the_prompt(url):
    settings = dict(model=MODEL, max_tokens=3, messages=ask("A question that nobody has asked before."))
    count = client(url).messages.count_tokens(model=MODEL, messages=settings["messages"]).input_tokens
    first = next(event for event in client(url).messages.create(**settings, stream=True) if event.type == "message_start")
    usage = first.message.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == count, (usage, count)


@suite.test("demanded-call")
def a_tool_that_must_be_called(url):
    answer = client(url).messages.create(
        model=MODEL,
        max_tokens=200,
        extra_body=GREEDY,
        tools=[TOOL],
        tool_choice={"type": "tool", "name": "get_weather"},
        messages=ask("What is the weather in Paris, in C?"),
    )
    assert answer.stop_reason == "tool_use", answer
    call = next(block for block in answer.content if block.type == "tool_use")
    assert call.name == "get_weather" and call.input["unit"] in ("C", "F"), call
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny, 21 C"}
    messages = ask("What is the weather in Paris, in C?") + [
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]},
        {"role": "user", "content": [result]},
    ]
    answer = client(url).messages.create(model=MODEL, max_tokens=30, tools=[TOOL], messages=messages)
    assert answer.role == "assistant"


@suite.test("demanded-call")
def a_streamed_call(url):
    with client(url).messages.stream(
        model=MODEL,
        max_tokens=200,
        extra_body=GREEDY,
        tools=[TOOL],
        tool_choice={"type": "any"},
        messages=ask("What is the weather in Rome, in F?"),
    ) as stream:
        last = stream.get_final_message()
    call = next(block for block in last.content if block.type == "tool_use")
    assert isinstance(call.input["city"], str), call


@suite.test()
def tokens_are_counted(url):
    count = client(url).messages.count_tokens(model=MODEL, messages=ask("Say hello."))
    assert count.input_tokens > 5


@suite.test("unknown-model")
def a_model_that_is_not_there(url):
    try:
        client(url).messages.create(model="claude-nothing", max_tokens=5, messages=ask("Hi"))
    except anthropic.NotFoundError as error:
        assert error.body["error"]["type"] == "not_found_error", error.body
    else:
        raise AssertionError("it was answered")


@suite.test("unknown-model")
def a_request_that_is_wrong(url):
    try:
        client(url).messages.create(model=MODEL, max_tokens=5, extra_body={"temperature": -1}, messages=ask("Hi"))
    except anthropic.BadRequestError as error:
        assert error.body["error"]["type"] == "invalid_request_error", error.body
    else:
        raise AssertionError("it was answered")


@suite.test("anthropic-schema")
def json_by_a_schema(url):
    form = {"format": {"type": "json_schema", "schema": PERSON}}
    answer = client(url).messages.create(
        model=MODEL, max_tokens=200, extra_body={"output_config": form, **GREEDY}, messages=ask("Invent a person, as JSON.")
    )
    assert set(json.loads(answer.content[0].text)) == {"name", "grown_up"}, answer


@suite.test()
def a_stream_that_is_left(url):
    one = client(url)
    with one.messages.stream(model=MODEL, max_tokens=3000, messages=ask("Tell a long story.")) as stream:
        next(iter(stream.text_stream))
    check_freed(url)
    answer = one.messages.create(model=MODEL, max_tokens=3, messages=ask("Hi"), timeout=60)
    assert answer.usage.output_tokens <= 3
