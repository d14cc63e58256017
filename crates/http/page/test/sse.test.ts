import assert from "node:assert/strict";
import { test } from "node:test";
import { EventParser } from "../src/sse.js";

test("events are the same however bytes are cut", () => {
  const text = 'data: {"a":1}\n\nevent: x\r\ndata: one\r\ndata:two\r\n\r\n: nothing\n\ndata: [DONE]\n\n';
  const expected = ['{"a":1}', "one\ntwo", "[DONE]"];
  for (let size = 1; size <= text.length; size += 1) {
    const parser = new EventParser();
    const found: string[] = [];
    for (let at = 0; at < text.length; at += size) found.push(...parser.push(text.slice(at, at + size)));
    assert.deepEqual(found, expected, `pieces of ${size}`);
  }
});

test("what has no end is not told", () => {
  assert.deepEqual(new EventParser().push("data: half\n"), []);
});
