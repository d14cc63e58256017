import assert from "node:assert/strict";
import { test } from "node:test";
import { inline, parse, safeUrl, type Block } from "../src/markdown.js";

const blocks = (text: string): Block[] => parse(text).map(({ block }) => block);
const kinds = (text: string): string[] => blocks(text).map(({ kind }) => kind);

test("blocks are told apart", () => {
  const text = "# Title\n\nSome text\non two lines.\n\n- one\n- two\n\n1. first\n2. second\n\n> said\n\n---\n\n```rust\nfn main() {}\n```\n\n| a | b |\n|---|--:|\n| 1 | 2 |";
  assert.deepEqual(kinds(text), ["heading", "paragraph", "list", "list", "quote", "rule", "code", "table"]);
  const found = blocks(text);
  assert.deepEqual(found[6], { kind: "code", language: "rust", text: "fn main() {}" });
  assert.deepEqual((found[7] as { align: unknown }).align, [null, "right"]);
  assert.equal((found[3] as { start: number }).start, 1);
});

test("lists nest, and code may stand in them", () => {
  const [list] = blocks("1. one\n   - inner\n   - more\n2. two\n\n   ```\n   code\n   ```\n3. three");
  assert.equal(list?.kind, "list");
  const { items } = list as { items: Block[][] };
  assert.equal(items.length, 3);
  assert.deepEqual(items[0]!.map(({ kind }) => kind), ["paragraph", "list"]);
  assert.deepEqual(items[1]![1], { kind: "code", language: "", text: "code" });
});

test("what is marked in a line", () => {
  assert.deepEqual(inline("a **b *c* d** `e*f*` g_h_i ~~j~~"), [
    { kind: "text", text: "a " },
    { kind: "strong", parts: [{ kind: "text", text: "b " }, { kind: "emphasis", parts: [{ kind: "text", text: "c" }] }, { kind: "text", text: " d" }] },
    { kind: "text", text: " " },
    { kind: "code", text: "e*f*" },
    { kind: "text", text: " g_h_i " },
    { kind: "struck", parts: [{ kind: "text", text: "j" }] },
  ]);
  assert.deepEqual(inline("2 * 3 * 4"), [{ kind: "text", text: "2 * 3 * 4" }]);
  assert.deepEqual(inline("\\*no\\*"), [{ kind: "text", text: "*no*" }]);
  assert.deepEqual(inline("see [here](https://example.org/a) or https://example.org/b."), [
    { kind: "text", text: "see " },
    { kind: "link", url: "https://example.org/a", parts: [{ kind: "text", text: "here" }] },
    { kind: "text", text: " or " },
    { kind: "link", url: "https://example.org/b", parts: [{ kind: "text", text: "https://example.org/b" }] },
    { kind: "text", text: "." },
  ]);
});

test("scripts are no links", () => {
  for (const bad of ["javascript:alert(1)", "JavaScript:x", "data:text/html,x", "vbscript:x", "file:///etc/passwd", "//x", ""]) {
    assert.equal(safeUrl(bad), null, bad);
    assert.ok(!JSON.stringify(inline(`[x](${bad})`)).includes('"link"'), bad);
  }
});

test("a code block that is still being written is one", () => {
  assert.deepEqual(blocks("Look:\n```js\nlet a = 1;"), [
    { kind: "paragraph", parts: [{ kind: "text", text: "Look:" }] },
    { kind: "code", language: "js", text: "let a = 1;" },
  ]);
});

test("longer text changes only its end", () => {
  const text = "First.\n\n- a\n- b\n\n```\ncode\n```\n\nLast *one*.";
  let before: string[] = [];
  for (let end = 1; end <= text.length; end += 1) {
    const now = parse(text.slice(0, end)).map(({ source }) => source);
    const same = before.slice(0, -1).filter((source, at) => source === now[at]).length;
    assert.equal(same, Math.max(before.length - 1, 0), text.slice(0, end));
    before = now;
  }
});

test("text that is made to take long does not", () => {
  const start = performance.now();
  for (const piece of ["*a ", "**a", "_a ", "[a](", "`a``", "> ", "- ", "![[", "~~a ", "|a|\n|-|\n", "1. \n", "a_", "***", "h", "http://a "]) {
    parse(piece.repeat(30000));
  }
  assert.ok(performance.now() - start < 20000);
});
