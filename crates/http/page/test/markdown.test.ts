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

test("code in a list may have empty lines", () => {
  const text = "1. Do:\n\n   ```python\n   def a():\n       pass\n\n\n   def b():\n       pass\n   ```\n2. Next";
  const [list, ...rest] = blocks(text);
  assert.deepEqual(rest, []);
  const { items } = list as { items: Block[][] };
  assert.equal(items.length, 2);
  assert.deepEqual(items[0]![1], { kind: "code", language: "python", text: "def a():\n    pass\n\n\ndef b():\n    pass" });
});

test("a heading keeps marks that do not close it", () => {
  for (const [text, shown] of [["## Hello World in C#", "Hello World in C#"], ["# C# ##  ", "C#"], ["### Title ###", "Title"]] as const) {
    assert.deepEqual((blocks(text)[0] as { parts: unknown }).parts, [{ kind: "text", text: shown }], text);
  }
  assert.deepEqual((blocks("# #")[0] as { parts: unknown }).parts, []);
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

test("marks meet, and links have parentheses but no links in them", () => {
  const text = [{ kind: "text", text: "a" }];
  assert.deepEqual(inline("***a***"), [{ kind: "strong", parts: [{ kind: "emphasis", parts: text }] }]);
  const url = "https://en.wikipedia.org/wiki/Ox_(animal)";
  assert.deepEqual(inline(`([a](${url}))`), [
    { kind: "text", text: "(" },
    { kind: "link", url, parts: text },
    { kind: "text", text: ")" },
  ]);
  assert.deepEqual(inline("[**https://example.org/**](https://example.com/)"), [
    {
      kind: "link",
      url: "https://example.com/",
      parts: [{ kind: "strong", parts: [{ kind: "text", text: "https://example.org/" }] }],
    },
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
  for (const text of ["# a" + " ".repeat(3000) + "b", "```" + "a".repeat(1e5) + "`", "~".repeat(1e5) + "`", "` " + "a".repeat(60000) + "`"]) {
    parse(text);
  }
  parse("[a](".repeat(30000) + ")");
  parse(`${"|".repeat(30000)}\n${"|-".repeat(30000)}\n${"|\n".repeat(30000)}`);
  assert.ok(performance.now() - start < 20000);
});
