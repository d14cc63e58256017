// Chats: answers as they come, stopped, edited, tried again, kept, seen from two tabs, on a phone, by keyboard alone.

import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { browser, eventually, idle, picture, pictures, say, serve, settle, tab, violations, Way } from "./support.mjs";

let server, way, chromium;
before(async () => {
  [server, chromium] = await Promise.all([serve(), browser()]);
  way = await Way.to(server);
});
afterEach(() => way.release());
after(async () => {
  await chromium?.end();
  await way?.end();
  await server?.end();
});

/** A fresh tab on a browser that remembers nothing. */
async function fresh(settings) {
  const page = await tab(chromium.context, way);
  await page.evaluate(() => localStorage.clear());
  await page.goto(`${way.address}/`);
  await settle(page, settings);
  return page;
}

async function closed(page) {
  assert.deepEqual(page.problems, []);
  await page.close();
}

/** Waits until there are so many of something. */
const counts = (locator, count) => eventually(async () => assert.equal(await locator.count(), count));

const answers = (page) => page.locator(".message.answer .markdown").allInnerTexts();

test("an answer comes piece by piece and says how fast it was", async () => {
  const page = await fresh({ maxTokens: 60 });
  assert.deepEqual(await violations(page), []);
  way.hold(20);
  await page.getByLabel("Message", { exact: true }).fill("Why is the sky blue?");
  await page.keyboard.press("Enter");
  const answer = page.locator(".message.answer .markdown");
  await page.waitForFunction(() => document.querySelector(".message.answer .markdown")?.textContent.length > 5);
  const early = (await answer.innerText()).length;
  await page.waitForFunction(() => /tokens\/s · \d+ tokens/.test(document.querySelector("#live").textContent));
  way.release();
  await idle(page);
  assert.ok((await answer.innerText()).length > early, "it was told before it was whole");
  assert.match(await page.locator(".stats").innerText(), /^smollm2 · [\d.]+ tokens\/s · 60 tokens · first after/);
  assert.match(await page.locator(".note").innerText(), /token limit/);
  assert.match(await page.locator("#announcer").textContent(), /^Answer: /);
  assert.equal(await page.locator("#conversations a").innerText(), "Why is the sky blue?");
  assert.deepEqual(await violations(page), []);
  await closed(page);
});

test("an answer can be stopped, and the server stops, too", async () => {
  for (const stop of [(page) => page.getByRole("button", { name: "Stop" }).click(), (page) => page.keyboard.press("Escape")]) {
    const page = await fresh({ maxTokens: null });
    const { left } = way;
    way.hold(20);
    await page.getByLabel("Message", { exact: true }).fill("Write a very long story about an ox and a cart.");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.querySelector(".message.answer .markdown")?.textContent.length > 20);
    await stop(page);
    await idle(page);
    assert.equal(await page.locator(".note").innerText(), "Stopped");
    await eventually(() => assert.equal(way.left, left + 1, "the page still listens"));
    await eventually(async () => {
      const slots = await (await fetch(`${server.address}/slots`)).json();
      assert.ok(slots.every(({ is_processing }) => !is_processing), "it still computes");
    });
    await closed(page);
  }
});

test("a message is said differently, an answer tried again", async () => {
  const page = await fresh();
  await say(page, "Say hello.");
  await say(page, "And now goodbye.");
  assert.equal(await page.locator(".message").count(), 4);
  const [first] = await answers(page);
  await page.locator(".message.answer").last().getByRole("button", { name: "Retry" }).click();
  await idle(page);
  await counts(page.locator(".message"), 4);
  await page.locator(".message.user").first().hover();
  await page.locator(".message.user").first().getByRole("button", { name: "Edit" }).click();
  const field = page.getByLabel("Edit message");
  assert.equal(await field.inputValue(), "Say hello.");
  await field.fill("What is two plus two?");
  assert.deepEqual(await violations(page), []);
  await page.keyboard.press("Enter");
  // What followed is gone.
  await counts(page.locator(".message"), 2);
  await idle(page);
  assert.notEqual((await answers(page))[0], first);
  assert.equal(await page.locator("#conversations a").innerText(), "What is two plus two?");
  await closed(page);
});

test("conversations outlive a reload, even in the middle of an answer", async () => {
  const page = await fresh({ maxTokens: null });
  await page.getByLabel("Message", { exact: true }).fill("Write a very long story about an ox and a cart.");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => {
    const kept = Object.keys(localStorage).find((key) => key.startsWith("oxcart.chat."));
    return JSON.parse(localStorage.getItem(kept) ?? "{}").messages?.[1]?.text.length > 20;
  });
  await page.reload();
  assert.equal(await page.locator(".message.user .said").innerText(), "Write a very long story about an ox and a cart.");
  assert.ok((await answers(page))[0].length > 20);
  await settle(page, { maxTokens: 12 });
  await say(page, "Thanks.");
  assert.equal(await page.locator(".message").count(), 4);
  await page.getByRole("button", { name: "New chat" }).click();
  await counts(page.locator(".message"), 0);
  await page.locator("#conversations a").click();
  await counts(page.locator(".message"), 4);
  await page.locator("#conversations li").hover();
  await page.getByRole("button", { name: /^Delete/ }).click();
  await counts(page.locator("#conversations a"), 0);
  await page.getByRole("button", { name: "Undo" }).click();
  await counts(page.locator("#conversations a"), 1);
  await closed(page);
});

test("two tabs see the same, and neither writes over the other's", async () => {
  const one = await fresh();
  const two = await tab(chromium.context, way);
  await say(one, "First tab.");
  await two.locator("#conversations a", { hasText: "First tab." }).waitFor();
  await say(two, "Second tab.");
  await one.locator("#conversations a", { hasText: "Second tab." }).waitFor();
  // Both look at the same conversation; what one adds, the other shows.
  await two.locator("#conversations a", { hasText: "First tab." }).click();
  await eventually(async () => assert.deepEqual(await answers(two), await answers(one)));
  await say(one, "More.");
  await two.locator(".message").nth(3).waitFor();
  await two.waitForFunction(() => document.querySelectorAll(".message.answer .stats")[1]?.textContent.includes("tokens"));
  await eventually(async () => assert.deepEqual(await answers(two), await answers(one)));
  assert.equal(await one.locator("#conversations a").count(), 2);
  await closed(two);
  await closed(one);
});

test("settings are sent with the next message", async () => {
  const page = await fresh({ maxTokens: null, temperature: null });
  await page.getByRole("button", { name: "Settings" }).click();
  assert.deepEqual(await violations(page), []);
  await page.getByLabel("Temperature").fill("0.123");
  await page.getByLabel("Top-p").fill("0.9");
  await page.getByLabel("Maximum tokens per answer").fill("5");
  await page.getByLabel("System prompt").fill("You are an ox.");
  await page.getByLabel("Appearance").selectOption("dark");
  assert.deepEqual(await violations(page), []);
  await page.keyboard.press("Escape");
  const sent = page.waitForRequest("**/v1/chat/completions");
  await say(page, "Who are you?");
  const body = (await sent).postDataJSON();
  assert.equal(body.temperature, 0.123);
  assert.equal(body.top_p, 0.9);
  assert.equal(body.max_tokens, 5);
  assert.deepEqual(body.messages, [
    { role: "system", content: "You are an ox." },
    { role: "user", content: "Who are you?" },
  ]);
  assert.deepEqual(await violations(page), [], "dark");
  await page.reload();
  assert.equal(await page.evaluate(() => getComputedStyle(document.body).colorScheme), "dark");
  await closed(page);
});

const ANSWER = `Here is **an example** of a few things:

1. A list with \`code\` in it
2. and a [link](https://example.org/) beside [none](javascript:alert(1)).

\`\`\`rust
fn main() {
    println!("{}", 6 * 7);
}
\`\`\`

| machine | blocks | memory |
|---|---|--:|
| cellar | 0–14 | 3.2 GiB |
| attic | 15–29 | 3.1 GiB |

> <img src=x onerror="document.title='hacked'"><script>document.title='hacked'</script>

Is there anything else?`;

/** Has the page hear a certain answer. */
async function answered(page, text) {
  const chunk = (delta, end = null) => `data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason: end }] })}\n\n`;
  const pieces = text.match(/[\s\S]{1,7}/g).map((content) => chunk({ content }));
  const body = `${pieces.join("")}${chunk({}, "stop")}data: {"choices":[],"usage":{"completion_tokens":140}}\n\ndata: [DONE]\n\n`;
  await page.route("**/v1/chat/completions", (route) => route.fulfill({ contentType: "text/event-stream", body }));
}

test("Markdown is shown, and markup in it is text", async () => {
  const page = await fresh();
  await answered(page, ANSWER);
  await say(page, "Show me what you can write.");
  const answer = page.locator(".message.answer .markdown");
  assert.equal(await answer.locator("strong").first().innerText(), "an example");
  assert.equal(await answer.locator("ol > li").count(), 2);
  assert.equal(await answer.locator("a").count(), 1);
  assert.equal(await answer.locator("tbody tr").count(), 2);
  assert.equal(await answer.locator("img, script").count(), 0);
  assert.match(await answer.locator("blockquote").innerText(), /<img src=x/);
  assert.equal(await page.title(), "Oxcart");
  await chromium.context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: way.address });
  await answer.getByRole("button", { name: "Copy code" }).click();
  const copied = 'fn main() {\n    println!("{}", 6 * 7);\n}';
  await eventually(async () => assert.equal(await page.evaluate(() => navigator.clipboard.readText()), copied));
  assert.deepEqual(await violations(page), []);
  await page.emulateMedia({ colorScheme: "dark" });
  assert.deepEqual(await violations(page), [], "dark");
  await closed(page);
});

test("a phone is wide enough", async () => {
  const page = await fresh();
  await page.setViewportSize({ width: 360, height: 740 });
  await answered(page, ANSWER);
  await say(page, "Show me what you can write, on a screen that is as narrow as this one.");
  const wide = () => page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok((await wide()) <= 0, "nothing sticks out");
  assert.deepEqual(await violations(page), []);
  const menu = page.getByRole("button", { name: "Menu" });
  await menu.click();
  await page.getByRole("link", { name: "Show me what" }).waitFor();
  assert.equal(await menu.getAttribute("aria-expanded"), "true");
  assert.deepEqual(await violations(page), []);
  await page.keyboard.press("Escape");
  await page.locator("#sidebar").waitFor({ state: "hidden" });
  await menu.click();
  await page.getByRole("link", { name: "Cluster" }).click();
  await page.getByRole("heading", { name: "smollm2" }).waitFor();
  assert.ok((await wide()) <= 0, "nor in the cluster");
  await closed(page);
});

test("the way past the list leads to where one writes", async () => {
  const page = await fresh();
  await say(page, "Hello.");
  const skip = page.locator(".skip");
  await skip.focus();
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "input");
  assert.equal(await page.locator(".message").count(), 2, "the conversation is still there");
  await page.getByRole("link", { name: "Cluster" }).click();
  await page.getByRole("heading", { name: "smollm2" }).waitFor();
  await skip.focus();
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "cluster-view");
  // What was shown goes without a change of place, and comes back whole.
  await page.locator("#conversations li").hover();
  await page.getByRole("button", { name: /^Delete/ }).click();
  assert.ok(page.url().endsWith("#/cluster"));
  await page.getByRole("button", { name: "Undo" }).click();
  await page.locator("#conversations a").click();
  await counts(page.locator(".message"), 2);
  await closed(page);
});

test("a message that is edited outlives what other tabs do", async () => {
  const one = await fresh();
  await say(one, "Say hello.");
  const two = await tab(chromium.context, way);
  await two.locator("#conversations a").click();
  await two.locator(".message.user").hover();
  await two.getByRole("button", { name: "Edit" }).click();
  await two.getByLabel("Edit message").fill("Half a thought");
  await say(one, "More.");
  assert.equal(await two.getByLabel("Edit message").inputValue(), "Half a thought");
  await two.getByRole("button", { name: "Cancel" }).click();
  await two.locator(".message").nth(3).waitFor();
  await eventually(async () => assert.deepEqual(await answers(two), await answers(one)));
  await closed(two);
  await closed(one);
});

test("a server that begins to ask for a key is given one", async () => {
  const page = await fresh();
  const body = JSON.stringify({ error: { message: "no key" } });
  await page.route("**/v1/chat/completions", (route) => route.fulfill({ status: 401, contentType: "application/json", body }));
  await page.getByLabel("Message", { exact: true }).fill("Hello.");
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").waitFor();
  await closed(page);
});

test("the keyboard is enough", async () => {
  const page = await fresh();
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("/");
  assert.equal(await page.evaluate(() => document.activeElement.id), "input");
  await page.keyboard.type("One");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("two");
  await page.keyboard.press("Enter");
  await page.locator(".message.answer").waitFor();
  await idle(page);
  assert.equal(await page.locator(".said").innerText(), "One\ntwo");
  await page.keyboard.press("ArrowUp");
  assert.equal(await page.getByLabel("Edit message").inputValue(), "One\ntwo");
  await page.keyboard.press("Escape");
  assert.equal(await page.evaluate(() => document.activeElement.id), "input");
  await closed(page);
});

test("pictures of a real conversation", { skip: !pictures && "none are wanted" }, async () => {
  const page = await fresh({ maxTokens: 150 });
  await say(page, "Write a short Python function that adds two numbers, and explain it.");
  await picture(page, "chat");
  await page.emulateMedia({ colorScheme: "dark" });
  await page.setViewportSize({ width: 390, height: 780 });
  await picture(page, "phone");
  await closed(page);
});
