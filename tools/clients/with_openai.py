"""OpenAI's own library."""

import json

import openai

from shared import EMBEDDER, MODEL, PERSON, TEXTS, WEATHER, Suite, check_freed, check_vectors

suite = Suite("openai")


def tests():
    return suite.list


def client(url, **more):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, **more)


def ask(text):
    return [{"role": "user", "content": text}]


@suite.test()
def models_are_listed(url):
    assert MODEL in [model.id for model in client(url).models.list()]


@suite.test()
def a_chat(url):
    answer = client(url).chat.completions.create(model=MODEL, messages=ask("Say hello."), max_tokens=20, temperature=0)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.prompt_tokens > 5 and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


@suite.test()
def a_stream_says_the_same(url):
    settings = dict(model=MODEL, messages=ask("Name three colours."), max_tokens=30, temperature=0, seed=1)
    whole = client(url).chat.completions.create(**settings).choices[0].message.content
    pieces, usage = [], None
    for chunk in client(url).chat.completions.create(**settings, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        pieces += [choice.delta.content or "" for choice in chunk.choices]
    assert "".join(pieces) == whole, (pieces, whole)
    assert usage.completion_tokens > 0


@suite.test()
def several_choices(url):
    answer = client(url).chat.completions.create(model=MODEL, messages=ask("Name a colour."), max_tokens=8, n=3, seed=5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]


@suite.test()
def likelihoods(url):
    answer = client(url).chat.completions.create(
        model=MODEL, messages=ask("Hi"), max_tokens=4, temperature=0, logprobs=True, top_logprobs=2
    )
    tokens = answer.choices[0].logprobs.content
    assert 0 < len(tokens) <= 4 and all(len(token.top_logprobs) == 2 for token in tokens)
    assert all(token.logprob <= 0 for token in tokens)


@suite.test()
def stop_strings(url):
    settings = dict(model=MODEL, messages=ask("Count from 1 to 9 with digits."), max_tokens=40, temperature=0)
    whole = client(url).chat.completions.create(**settings).choices[0].message.content
    stop = whole[5:7]
    cut = client(url).chat.completions.create(**settings, stop=[stop]).choices[0]
    assert cut.message.content == whole[: whole.index(stop)] and cut.finish_reason == "stop"


@suite.test()
def json_by_a_schema(url):
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    answer = client(url).chat.completions.create(
        model=MODEL, messages=ask("Invent a person, as JSON."), max_tokens=200, temperature=0, response_format=form
    )
    person = json.loads(answer.choices[0].message.content)
    assert set(person) == {"name", "grown_up"} and isinstance(person["grown_up"], bool)


@suite.test()
def any_json(url):
    answer = client(url).chat.completions.create(
        model=MODEL,
        messages=ask("Answer with a short JSON object that has one key."),
        max_tokens=300,
        temperature=0,
        response_format={"type": "json_object"},
    )
    choice = answer.choices[0]
    assert choice.message.content.lstrip().startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


def check_call(name, arguments):
    assert name == "get_weather", name
    arguments = json.loads(arguments)
    assert isinstance(arguments["city"], str) and arguments["unit"] in ("C", "F"), arguments


@suite.test("demanded-call")
def a_tool_that_must_be_called(url):
    answer = client(url).chat.completions.create(
        model=MODEL,
        messages=ask("What is the weather in Paris, in C?"),
        tools=[WEATHER],
        tool_choice="required",
        max_tokens=200,
        temperature=0,
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls", choice
    call = choice.message.tool_calls[0]
    check_call(call.function.name, call.function.arguments)
    assert call.id and call.type == "function"
    # The result goes back, and an answer comes.
    messages = ask("What is the weather in Paris, in C?") + [
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 21 C"},
    ]
    answer = client(url).chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER], max_tokens=30)
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")


@suite.test("demanded-call")
def a_streamed_call(url):
    name, arguments, reasons = "", "", []
    for chunk in client(url).chat.completions.create(
        model=MODEL,
        messages=ask("What is the weather in Rome, in F?"),
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        max_tokens=200,
        temperature=0,
        stream=True,
    ):
        for choice in chunk.choices:
            reasons.append(choice.finish_reason)
            for call in choice.delta.tool_calls or []:
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    check_call(name, arguments)
    assert reasons[-1] == "tool_calls", reasons[-1]


@suite.test()
def tools_that_may_be_called(url):
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome", "unit": "C"}'}}
    messages = ask("What is the weather in Rome, in C?") + [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny, 21 C"},
    ]
    answer = client(url).chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER], max_tokens=30, temperature=0)
    message = answer.choices[0].message
    assert message.content or message.tool_calls, answer


@suite.test()
def tools_that_are_not_to_be_called(url):
    answer = client(url).chat.completions.create(
        model=MODEL, messages=ask("Say hello."), tools=[WEATHER], tool_choice="none", max_tokens=20, temperature=0
    )
    assert answer.choices[0].message.content and not answer.choices[0].message.tool_calls


@suite.test()
def a_completion(url):
    answer = client(url).completions.create(model=MODEL, prompt="One, two, three,", max_tokens=8, temperature=0)
    assert "four" in answer.choices[0].text, answer.choices[0].text
    pieces = client(url).completions.create(model=MODEL, prompt="One, two, three,", max_tokens=8, temperature=0, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == answer.choices[0].text


@suite.test()
def a_response(url):
    answer = client(url).responses.create(
        model=MODEL, instructions="You are brief.", input="Say hello.", max_output_tokens=20, temperature=0
    )
    assert answer.output_text and answer.usage.output_tokens > 0


@suite.test()
def a_streamed_response(url):
    settings = dict(model=MODEL, input="Name three colours.", max_output_tokens=30, temperature=0)
    whole = client(url).responses.create(**settings)
    pieces, last = [], None
    for event in client(url).responses.create(**settings, stream=True):
        last = event
        if event.type == "response.output_text.delta":
            pieces.append(event.delta)
    assert "".join(pieces) == whole.output_text
    assert last.type in ("response.completed", "response.incomplete")
    assert last.response.output_text == whole.output_text


@suite.test("demanded-call")
def a_response_that_calls(url):
    tool = {"type": "function", **WEATHER["function"]}
    answer = client(url).responses.create(
        model=MODEL, input="The weather in Oslo, in C?", tools=[tool], tool_choice="required", max_output_tokens=200, temperature=0
    )
    call = next(item for item in answer.output if item.type == "function_call")
    check_call(call.name, call.arguments)


@suite.test("unknown-model")
def a_model_that_is_not_there(url):
    try:
        client(url).chat.completions.create(model="gpt-nothing", messages=ask("Hi"))
    except openai.NotFoundError as error:
        assert error.code == "model_not_found", error
    else:
        raise AssertionError("it was answered")


@suite.test()
def a_request_that_is_wrong(url):
    try:
        client(url).chat.completions.create(model=MODEL, messages="hello")
    except openai.APIStatusError as error:
        assert error.status_code in (400, 500), error.status_code
    else:
        raise AssertionError("it was answered")


@suite.test()
def a_prompt_that_is_too_long(url):
    try:
        client(url).chat.completions.create(model=MODEL, messages=ask("word " * 60000), max_tokens=5)
    except openai.BadRequestError as error:
        assert "context" in str(error)
    else:
        raise AssertionError("it was answered")


@suite.test()
def a_stream_that_is_left(url):
    one = client(url)
    stream = one.chat.completions.create(model=MODEL, messages=ask("Tell a long story."), max_tokens=3000, stream=True)
    next(iter(stream))
    stream.close()
    check_freed(url)
    answer = one.chat.completions.create(model=MODEL, messages=ask("Hi"), max_tokens=3, timeout=60)
    assert answer.usage.completion_tokens <= 3


@suite.test("embeddings")
def vectors_of_texts(url):
    # The library asks for base64 by itself.
    made = client(url).embeddings.create(model=EMBEDDER, input=TEXTS)
    check_vectors([one.embedding for one in made.data])
    assert made.usage.prompt_tokens > 0
    plain = client(url).embeddings.create(model=EMBEDDER, input=TEXTS, encoding_format="float")
    assert all(abs(x - y) < 1e-3 for x, y in zip(plain.data[1].embedding, made.data[1].embedding))


@suite.test("embeddings", "unknown-model")
def vectors_by_a_model_that_answers(url):
    try:
        client(url).embeddings.create(model=MODEL, input="x")
    except openai.APIStatusError as error:
        assert error.status_code == 501, error
    else:
        raise AssertionError("it was answered")
