// OpenAI's own library.

import assert from "node:assert/strict";

import OpenAI from "openai";

import {
  both,
  COMPUTES_ON,
  checkBusy,
  checkFreed,
  checkPerson,
  checkVectors,
  checkWeather,
  EMBEDDER,
  EMBEDDINGS_URL,
  ENDLESS,
  LETS_TEXT_COME_FIRST,
  MODEL,
  onlyOurs,
  PERSON,
  STORY,
  STORY_TOKENS,
  TEXTS,
  TOO_LONG,
  SERVER,
  WEATHER,
} from "./shared.mjs";

const client = new OpenAI({ baseURL: `${SERVER}/v1`, apiKey: "none", maxRetries: 0 });
const embedder = new OpenAI({ baseURL: `${EMBEDDINGS_URL}/v1`, apiKey: "none", maxRetries: 0 });
const ask = (content) => [{ role: "user", content }];
const greedy = { model: MODEL, temperature: 0 };
const weather = { type: "function", function: { name: "get_weather", description: "The weather in a city", parameters: WEATHER } };
const person = { type: "json_schema", json_schema: { name: "person", strict: true, schema: PERSON } };

both("openai: models are listed", async () => {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert.ok(names.includes(MODEL), names);
});

both("openai: a chat and its stream", async () => {
  const settings = { ...greedy, messages: ask("Name three colours."), max_tokens: 30 };
  const whole = await client.chat.completions.create(settings);
  assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);
  let [text, usage] = ["", null];
  for await (const chunk of await client.chat.completions.create({ ...settings, stream: true, stream_options: { include_usage: true } })) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.ok(text.length > 0);
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
});

both("openai: several choices, with likelihoods", async () => {
  const { choices } = await client.chat.completions.create({
    model: MODEL,
    messages: ask("Name a colour."),
    max_tokens: 4,
    n: 2,
    seed: 5,
    logprobs: true,
    top_logprobs: 2,
  });
  assert.deepEqual(choices.map(({ index }) => index), [0, 1]);
  for (const { logprobs } of choices) {
    assert.ok(logprobs.content.length > 0);
    assert.ok(logprobs.content.every((token) => token.logprob <= 0 && token.top_logprobs.length === 2));
  }
});

both("openai: a completion and its stream", async () => {
  const settings = { ...greedy, prompt: "One, two, three,", max_tokens: 8 };
  const whole = await client.completions.create(settings);
  assert.match(whole.choices[0].text, /four/);
  let text = "";
  for await (const chunk of await client.completions.create({ ...settings, stream: true })) text += chunk.choices[0]?.text ?? "";
  assert.equal(text, whole.choices[0].text);
});

both("openai: a response", async () => {
  const answer = await client.responses.create({ ...greedy, instructions: "You are brief.", input: "Say hello.", max_output_tokens: 20 });
  assert.ok(answer.output_text.length > 0);
  assert.ok(answer.usage.output_tokens > 0);
});

both("openai: a streamed response", async () => {
  const settings = { ...greedy, input: "Name three colours.", max_output_tokens: 30 };
  const whole = await client.responses.create(settings);
  let [text, last] = ["", null];
  for await (const event of await client.responses.create({ ...settings, stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
    last = event;
  }
  assert.equal(text, whole.output_text);
  assert.ok(["response.completed", "response.incomplete"].includes(last.type), last.type);
});

onlyOurs("openai: a tool that must be called", LETS_TEXT_COME_FIRST, async () => {
  const messages = ask("What is the weather in Paris, in C?");
  const answer = await client.chat.completions.create({
    ...greedy,
    messages,
    tools: [weather],
    tool_choice: "required",
    max_tokens: 200,
  });
  const [{ message, finish_reason }] = answer.choices;
  assert.equal(finish_reason, "tool_calls");
  const [call] = message.tool_calls;
  assert.equal(call.function.name, "get_weather");
  checkWeather(JSON.parse(call.function.arguments));
  // The result goes back, and an answer comes.
  const result = { role: "tool", tool_call_id: call.id, content: "Sunny, 21 C" };
  const next = await client.chat.completions.create({ ...greedy, messages: [...messages, message, result], tools: [weather], max_tokens: 30 });
  assert.ok(["stop", "length", "tool_calls"].includes(next.choices[0].finish_reason));
});

onlyOurs("openai: a streamed call", LETS_TEXT_COME_FIRST, async () => {
  const stream = client.chat.completions.stream({
    ...greedy,
    messages: ask("What is the weather in Rome, in F?"),
    tools: [weather],
    tool_choice: "required",
    max_tokens: 200,
  });
  const { choices } = await stream.finalChatCompletion();
  assert.equal(choices[0].finish_reason, "tool_calls");
  const call = choices[0].message.tool_calls[0].function;
  assert.equal(call.name, "get_weather");
  checkWeather(JSON.parse(call.arguments));
});

onlyOurs("openai: a tool that the library calls itself", LETS_TEXT_COME_FIRST, async () => {
  const calls = [];
  const run = (given) => {
    calls.push(given);
    return "Sunny, 21 C";
  };
  const runner = client.chat.completions.runTools({
    ...greedy,
    messages: ask("What is the weather in Oslo, in C?"),
    tools: [{ ...weather, function: { ...weather.function, function: run, parse: JSON.parse } }],
    tool_choice: { type: "function", function: { name: "get_weather" } },
    max_tokens: 200,
  });
  await runner.done();
  assert.equal(calls.length, 1);
  checkWeather(calls[0]);
});

both("openai: tools that may be called", async () => {
  const call = { id: "call_1", type: "function", function: { name: "get_weather", arguments: '{"city": "Rome", "unit": "C"}' } };
  const messages = [
    ...ask("What is the weather in Rome, in C?"),
    { role: "assistant", content: null, tool_calls: [call] },
    { role: "tool", tool_call_id: "call_1", content: "Sunny, 21 C" },
  ];
  const { choices } = await client.chat.completions.create({ ...greedy, messages, tools: [weather], max_tokens: 30 });
  assert.ok(choices[0].message.content || choices[0].message.tool_calls.length > 0);
});

both("openai: JSON by a schema", async () => {
  const settings = { ...greedy, messages: ask("Invent a person, as JSON."), max_tokens: 200, response_format: person };
  const whole = await client.chat.completions.create(settings);
  checkPerson(JSON.parse(whole.choices[0].message.content));
  const streamed = await client.chat.completions.stream(settings).finalChatCompletion();
  assert.equal(streamed.choices[0].message.content, whole.choices[0].message.content);
});

both("openai: embeddings", async () => {
  // The library asks for base64 by itself.
  const made = await embedder.embeddings.create({ model: EMBEDDER, input: TEXTS });
  const vectors = made.data.map(({ embedding }) => embedding);
  checkVectors(vectors);
  const plain = await embedder.embeddings.create({ model: EMBEDDER, input: TEXTS, encoding_format: "float" });
  plain.data.forEach(({ embedding }, at) => assert.ok(embedding.every((x, place) => Math.abs(x - vectors[at][place]) < 1e-3)));
});

both("openai: requests that are wrong", async () => {
  await assert.rejects(
    client.chat.completions.create({ ...greedy, messages: ask(TOO_LONG), max_tokens: 5 }),
    (error) => error instanceof OpenAI.BadRequestError && /context/.test(error.message),
  );
  await assert.rejects(client.chat.completions.create({ model: MODEL, messages: "hello" }), OpenAI.APIError);
  await assert.rejects(client.get("/nothing"), OpenAI.NotFoundError);
});

onlyOurs("openai: a model that is not there", "answers whatever model is named", async () => {
  const refused = (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found";
  await assert.rejects(client.chat.completions.create({ model: "nothing", messages: ask("Hi") }), refused);
  await assert.rejects(client.chat.completions.create({ model: "nothing", messages: ask("Hi"), stream: true }), refused);
});

onlyOurs("openai: a number out of bounds", "takes any temperature", async () => {
  await assert.rejects(client.chat.completions.create({ model: MODEL, messages: ask("Hi"), temperature: -1 }), OpenAI.BadRequestError);
});

both("openai: a stream that is left", async () => {
  const stream = await client.chat.completions.create({ model: MODEL, messages: ask(STORY), max_tokens: STORY_TOKENS, ...ENDLESS, stream: true });
  for await (const chunk of stream) {
    assert.ok(chunk.choices);
    break;
  }
  await checkFreed();
  const answer = await client.chat.completions.create({ model: MODEL, messages: ask("Hi"), max_tokens: 3 });
  assert.ok(answer.usage.completion_tokens <= 3);
});

onlyOurs("openai: an answer that is not waited for", COMPUTES_ON, async () => {
  const leaving = new AbortController();
  const settings = { model: MODEL, messages: ask(STORY), max_tokens: STORY_TOKENS, ...ENDLESS };
  const left = assert.rejects(client.chat.completions.create(settings, { signal: leaving.signal }), OpenAI.APIUserAbortError);
  await checkBusy();
  leaving.abort();
  await left;
  await checkFreed();
});
