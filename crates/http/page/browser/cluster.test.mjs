// The cluster: who has what, what runs, a worker that dies; and a server that asks for a key.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { resolve } from "node:path";
import { browser, busy, eventually, model, picture, pictures, say, serve, serveAll, settle, tab, violations, worker } from "./support.mjs";

let chromium;
before(async () => {
  chromium = await browser();
});
after(() => chromium?.end());

test("machines, their parts of the model, and one that dies", async () => {
  const workers = await Promise.all([worker(), worker()]);
  const addresses = workers.map(({ address }) => address);
  const server = await serve("--workers", addresses.join(","), "--split", "2,1,1", "--threads", "1");
  try {
    const page = await tab(chromium.context, server);
    await settle(page);
    const others = await busy(server);
    await page.getByRole("link", { name: "Cluster" }).click();
    const machine = (at) => page.locator(".machine").nth(at);
    await machine(2).waitFor();
    assert.deepEqual(await page.locator(".machine h3").allInnerTexts(), [...addresses, "this machine"]);
    assert.deepEqual(await page.locator(".state").allInnerTexts(), ["Alive", "Alive", "Alive, runs this server"]);
    assert.match(await machine(0).innerText(), /blocks 0–\d+/);
    assert.match(await machine(0).innerText(), /If it left[\s\S]*it fits: blocks 0–\d+ on /);
    assert.match(await page.locator(".layers").innerText(), new RegExp(`${addresses[0]}[\\s\\S]*${addresses[1]}[\\s\\S]*this machine`));
    // It is live: tokens, bytes and round trips per second are more than none.
    await page.waitForFunction(() => Number.parseFloat(document.querySelector(".figure strong").textContent) > 0);
    // What one worker computes goes directly to the next, so only the last is waited for with every token.
    await page.waitForFunction(() => [...document.querySelectorAll(".link")].some((link) => /Round trips\s+(?!0\.0\/s)/.test(link.innerText)));
    await eventually(async () => assert.equal(await page.locator(".requests tbody tr").count(), 2));
    assert.deepEqual(await violations(page), []);
    // Lines of a minute are more to look at than those of a second.
    if (pictures) await page.waitForTimeout(6000);
    await page.setViewportSize({ width: 1280, height: 980 });
    await picture(page, "cluster");

    // Answers end first: a worker that is idle when it dies is found out by its connection alone.
    others.leave();
    await page.waitForFunction(() => document.querySelector(".requests").hidden);
    await workers[1].end();
    await page.locator(".machine.dead").waitFor();
    assert.match(await machine(1).locator(".state").innerText(), /^Dead: .*closed the connection/);
    assert.equal(await page.locator(".machine.dead").count(), 1);
    assert.equal(await page.locator(".segment.dead").count(), 1);
    assert.match(await page.locator("#cluster-state").innerText(), /^3 machines, 1 dead/);
    assert.equal(await page.locator("#announcer").textContent(), "3 machines, 1 dead");
    assert.deepEqual(await violations(page), []);
    await picture(page, "cluster-dead");
    await page.emulateMedia({ colorScheme: "dark" });
    assert.deepEqual(await violations(page), [], "dark");
    // Who asks now is answered by the others, which have its blocks from then on.
    await page.goBack();
    await say(page, "Are you there?");
    assert.ok((await page.locator(".message.answer .markdown").last().innerText()).length > 0);
    await page.getByRole("link", { name: "Cluster" }).click();
    await page.locator(".segment.dead").waitFor({ state: "detached" });
    const owners = await page.locator(".segment-name").allInnerTexts();
    assert.deepEqual(owners, [addresses[0], "this machine"]);
    assert.equal(await page.locator(".machine.dead").count(), 1, "it is still shown");
    // What the loss did: the plan before and after, and how long the answer paused.
    const loss = page.getByRole("region", { name: "Interruptions of smollm2" }).getByRole("listitem");
    await eventually(async () => assert.equal(await loss.count(), 1));
    const told = await loss.innerText();
    assert.match(told, new RegExp(`^${addresses[1]} was lost\\s`));
    assert.match(told, /ago · answers paused for \d[\d.]* m?s · noticing \d[\d.]* m?s, planning \d[\d.]* m?s, loading \d[\d.]* m?s, computing again \d[\d.]* m?s · \d+ tokens? computed again/);
    assert.match(told, new RegExp(`Before\\s+blocks 0–\\d+ on ${addresses[0]}, blocks \\d+–\\d+ on ${addresses[1]}, `));
    assert.match(told, new RegExp(`After\\s+blocks 0–\\d+ on ${addresses[0]}, blocks \\d+–29 on this machine$`));
    assert.deepEqual(await violations(page), [], "dark, with an interruption");
    assert.deepEqual(page.problems, []);
    await page.close();
  } finally {
    await server.end();
    await Promise.all(workers.map((one) => one.end()));
  }
});

test("a server that asks for a key gets it from this tab alone", async () => {
  const key = "a-key-of-some-length";
  const server = await serve("--api-key", key);
  try {
    const page = await tab(chromium.context, server);
    const dialog = page.getByRole("dialog");
    await dialog.waitFor();
    assert.deepEqual(await violations(page), []);
    await page.getByLabel("API key").fill("no-kéy");
    await page.keyboard.press("Enter");
    await dialog.getByText("visible ASCII").waitFor();
    await page.getByLabel("API key").fill("not-the-right-key-at-all");
    await page.keyboard.press("Enter");
    await dialog.getByText("rejected that key").waitFor();
    await page.getByLabel("API key").fill(key);
    await page.keyboard.press("Enter");
    await dialog.waitFor({ state: "hidden" });
    await settle(page);
    await say(page, "Hello.");
    assert.ok((await page.locator(".message.answer .markdown").innerText()).length > 0);
    assert.deepEqual(await chromium.context.cookies(), []);
    assert.ok(!JSON.stringify(await page.evaluate(() => ({ ...localStorage }))).includes(key));
    const other = await tab(chromium.context, server);
    await other.getByRole("dialog").waitFor();
    assert.deepEqual([...page.problems, ...other.problems], []);
    await other.close();
    await page.close();
  } finally {
    await server.end();
  }
});

test("several models: one is chosen, loaded, and shown beside those that are not", async () => {
  const bert = resolve(import.meta.dirname, "../../../cli/tests/data/tiny-bert.gguf");
  const server = await serveAll({ another: model, smollm2: model, vectors: bert });
  try {
    const page = await tab(chromium.context, server);
    await settle(page);
    assert.deepEqual(await page.locator("#model option").allInnerTexts(), ["another", "smollm2"], "those that answer");
    await page.locator("#model").selectOption("smollm2");
    await say(page, "Hello.");
    assert.ok((await page.locator(".message.answer .markdown").innerText()).length > 0);
    await page.getByRole("link", { name: "Cluster" }).click();
    await page.locator(".away li").first().waitFor();
    assert.deepEqual(await page.locator(".card.model h2").allInnerTexts(), ["smollm2"]);
    assert.deepEqual(await page.locator(".away strong").allInnerTexts(), ["another", "vectors"]);
    assert.deepEqual(await violations(page), []);
    // Another one takes its place.
    await page.goBack();
    await page.locator("#model").selectOption("another");
    await say(page, "And you?");
    await page.getByRole("link", { name: "Cluster" }).click();
    await page.waitForFunction(() => document.querySelector(".card.model h2")?.textContent === "another");
    assert.deepEqual(await page.locator(".away strong").allInnerTexts(), ["smollm2", "vectors"]);
    assert.deepEqual(page.problems, []);
    await page.close();
  } finally {
    await server.end();
  }
});
