// What tests of both libraries need: where the server is, what is asked for, and what answers must be like.
//
//   OXCART_URL=http://127.0.0.1:8080 [OXCART_EMBEDDINGS_URL=…] [OXCART_REFERENCE=1] node --test --test-concurrency=1 openai.test.mjs ai.test.mjs
//
// The files are run one after the other, because what is left of an answer is looked for among all that the server computes.

import assert from "node:assert/strict";
import test from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

export const SERVER = process.env.OXCART_URL;
export const EMBEDDINGS_URL = process.env.OXCART_EMBEDDINGS_URL ?? SERVER;
export const MODEL = "smollm2";
export const EMBEDDER = "tiny-bert";
export const TEXTS = ["the end", "and then", "the end"];
const WIDTH = 64;

// Parameters of a tool, and what even a small model can fill in.
export const WEATHER = {
  type: "object",
  properties: { city: { type: "string" }, unit: { type: "string", enum: ["C", "F"] } },
  required: ["city", "unit"],
  additionalProperties: false,
};
export const PERSON = {
  type: "object",
  properties: { name: { type: "string", maxLength: 20 }, grown_up: { type: "boolean" } },
  required: ["name", "grown_up"],
  additionalProperties: false,
};

// Far more tokens than any context here, and an answer that takes long enough to be left: both servers can be told not to let the model
// end it.
export const TOO_LONG = "word ".repeat(60000);
export const STORY = "Tell a long story.";
export const STORY_TOKENS = 3000;
export const ENDLESS = { ignore_eos: true };

// A test of what llama-server has as well.
export const both = (name, run) => test(name, run);

// A test of what llama-server 0.3.36 has not, or does in another way on purpose, as the reason says.
export const onlyOurs = (name, reason, run) =>
  test(name, { skip: process.env.OXCART_REFERENCE ? `llama-server ${reason}` : false }, run);

export const COMPUTES_ON = "still computed an answer that is no stream five seconds after the client had gone";
export const LETS_TEXT_COME_FIRST = "lets text come before a call that is demanded, which SmolLM2 never ends";

export function checkWeather({ city, unit }) {
  assert.equal(typeof city, "string");
  assert.ok(["C", "F"].includes(unit), unit);
}

export function checkPerson(person) {
  assert.deepEqual(Object.keys(person).sort(), ["grown_up", "name"]);
  assert.equal(typeof person.grown_up, "boolean");
}

export function checkVectors(vectors) {
  assert.deepEqual(vectors.map((vector) => vector.length), [WIDTH, WIDTH, WIDTH]);
  for (const vector of vectors) assert.ok(Math.abs(vector.reduce((sum, x) => sum + x * x, 0) - 1) < 1e-3);
  assert.ok(vectors[0].every((x, at) => Math.abs(x - vectors[2][at]) < 1e-3));
  assert.ok(vectors[0].some((x, at) => Math.abs(x - vectors[1][at]) > 1e-3));
}

async function computed() {
  const slots = await (await fetch(`${SERVER}/slots`)).json();
  return slots.filter((slot) => slot.is_processing).length;
}

// Waits until the server computes something.
export async function checkBusy() {
  for (let tries = 0; (await computed()) === 0; tries++) {
    assert.ok(tries < 400, "nothing is computed");
    await sleep(50);
  }
}

// What was left must not be computed on: all of the story takes longer than is waited for here, unless the machine is quick.
export async function checkFreed() {
  for (let tries = 0; (await computed()) > 0; tries++) {
    assert.ok(tries < 400, "an answer that was left is still computed");
    await sleep(50);
  }
}
