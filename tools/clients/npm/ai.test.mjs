// ai, with its provider for servers that speak OpenAI's interface.

import assert from "node:assert/strict";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, embed, embedMany, generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";

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

const provider = (at) =>
  createOpenAICompatible({ name: "served", baseURL: `${at}/v1`, apiKey: "none", supportsStructuredOutputs: true, includeUsage: true });
const served = provider(SERVER);
const common = { model: served(MODEL), temperature: 0, maxRetries: 0 };
const weather = { description: "The weather in a city", inputSchema: jsonSchema(WEATHER) };

both("ai: a chat and its stream", async () => {
  const settings = { ...common, system: "You are brief.", prompt: "Name three colours.", maxOutputTokens: 30 };
  const whole = await generateText(settings);
  const streamed = streamText(settings);
  let text = "";
  for await (const piece of streamed.textStream) text += piece;
  assert.ok(text.length > 0);
  assert.equal(text, whole.text);
  assert.ok(whole.usage.outputTokens > 0);
  assert.equal((await streamed.usage).outputTokens, whole.usage.outputTokens);
  assert.equal(await streamed.finishReason, whole.finishReason);
});

both("ai: a completion", async () => {
  const { text } = await generateText({ ...common, model: served.completionModel(MODEL), prompt: "Say hello.", maxOutputTokens: 8 });
  assert.ok(text.length > 0);
});

onlyOurs("ai: a tool that must be called", LETS_TEXT_COME_FIRST, async () => {
  const { toolCalls, finishReason } = await generateText({
    ...common,
    prompt: "What is the weather in Paris, in C?",
    tools: { get_weather: tool(weather) },
    toolChoice: "required",
    maxOutputTokens: 200,
  });
  assert.equal(finishReason, "tool-calls");
  assert.equal(toolCalls[0].toolName, "get_weather");
  checkWeather(toolCalls[0].input);
});

onlyOurs("ai: a tool that the library calls itself, in a stream", LETS_TEXT_COME_FIRST, async () => {
  const calls = [];
  const execute = async (given) => {
    calls.push(given);
    return "Sunny, 21 C";
  };
  const streamed = streamText({
    ...common,
    prompt: "What is the weather in Rome, in F?",
    tools: { get_weather: tool({ ...weather, execute }) },
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
    stopWhen: stepCountIs(2),
    maxOutputTokens: 200,
  });
  const kinds = new Set();
  for await (const part of streamed.fullStream) kinds.add(part.type);
  for (const kind of ["tool-input-delta", "tool-call", "tool-result", "finish"]) assert.ok(kinds.has(kind), [...kinds].join());
  assert.equal(calls.length, 1);
  checkWeather(calls[0]);
  assert.equal((await streamed.steps).length, 2);
});

both("ai: tools that may be called", async () => {
  const answer = await generateText({ ...common, prompt: "Say hello.", tools: { get_weather: tool(weather) }, maxOutputTokens: 30 });
  assert.ok(answer.text || answer.toolCalls.length > 0);
});

both("ai: JSON by a schema", async () => {
  const settings = { ...common, prompt: "Invent a person, as JSON.", output: Output.object({ schema: jsonSchema(PERSON) }), maxOutputTokens: 200 };
  const { output } = await generateText(settings);
  checkPerson(output);
  let last;
  for await (const part of streamText(settings).partialOutputStream) last = part;
  assert.deepEqual(last, output);
});

both("ai: embeddings", async () => {
  const model = provider(EMBEDDINGS_URL).embeddingModel(EMBEDDER);
  const { embeddings } = await embedMany({ model, values: TEXTS, maxRetries: 0 });
  checkVectors(embeddings);
  const { embedding } = await embed({ model, value: TEXTS[1], maxRetries: 0 });
  assert.ok(embedding.every((x, at) => Math.abs(x - embeddings[1][at]) < 1e-3));
});

both("ai: a request that is wrong", async () => {
  const refused = (error) => APICallError.isInstance(error) && error.statusCode === 400 && /context/.test(error.message);
  await assert.rejects(generateText({ ...common, prompt: TOO_LONG, maxOutputTokens: 5 }), refused);
  const errors = [];
  const streamed = streamText({ ...common, prompt: TOO_LONG, maxOutputTokens: 5, onError: ({ error }) => errors.push(error) });
  for await (const _ of streamed.fullStream);
  assert.equal(errors.length, 1);
  assert.ok(refused(errors[0]), errors[0]);
});

onlyOurs("ai: a model that is not there", "answers whatever model is named", async () => {
  const settings = { ...common, model: served("nothing"), prompt: "Hi" };
  await assert.rejects(generateText(settings), (error) => APICallError.isInstance(error) && error.statusCode === 404);
});

both("ai: a stream that is left", async () => {
  const leaving = new AbortController();
  const streamed = streamText({ ...common, prompt: STORY, maxOutputTokens: STORY_TOKENS, providerOptions: { served: ENDLESS }, abortSignal: leaving.signal });
  const kinds = [];
  for await (const part of streamed.fullStream) {
    kinds.push(part.type);
    if (part.type === "text-delta") leaving.abort();
  }
  assert.equal(kinds.at(-1), "abort");
  await checkFreed();
  const answer = await generateText({ ...common, prompt: "Hi", maxOutputTokens: 3 });
  assert.ok(answer.usage.outputTokens <= 3);
});

onlyOurs("ai: an answer that is not waited for", COMPUTES_ON, async () => {
  const leaving = new AbortController();
  const asked = generateText({ ...common, prompt: STORY, maxOutputTokens: STORY_TOKENS, providerOptions: { served: ENDLESS }, abortSignal: leaving.signal });
  const left = assert.rejects(asked, (error) => error.name === "AbortError");
  await checkBusy();
  leaving.abort();
  await left;
  await checkFreed();
});
