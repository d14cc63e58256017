// A real server, real workers, a real browser.

import { spawn } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const command = process.env.OXCART_COMMAND;
export const model = process.env.OXCART_SMOLLM2;
export const pictures = process.env.OXCART_PICTURES;

const axeSource = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** A process of the command that has said where it listens. */
export class Listening {
  constructor(child, address) {
    this.child = child;
    this.address = address;
  }

  static async start(args) {
    const child = spawn(command, args, { stdio: ["ignore", "ignore", "pipe"], env: { ...process.env, NO_COLOR: "1" } });
    let log = "";
    const address = await new Promise((found, failed) => {
      child.stderr.on("data", (bytes) => {
        log += bytes;
        const said = /listening on (\S+?)[,\s]/.exec(log);
        if (said) found(said[1]);
      });
      child.on("exit", () => failed(new Error(`it ended before it listened: ${log}`)));
    });
    return new Listening(child, address);
  }

  async end() {
    if (this.child.exitCode !== null || this.child.signalCode !== null) return;
    const ended = new Promise((done) => this.child.once("exit", done));
    this.child.kill("SIGKILL");
    await ended;
  }
}

export function serve(...args) {
  return Listening.start(["serve", "-m", model, "--alias", "smollm2", "--port", "0", "--ctx", "2048", "--parallel", "2", ...args]);
}

export function worker() {
  return Listening.start(["worker", "--port", "0", "--threads", "1"]);
}

/** A browser with a profile of its own. */
export async function browser() {
  const profile = await mkdtemp(join(tmpdir(), "oxcart-page-"));
  const args = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"];
  args.push("--disable-component-update", "--disable-sync", "--force-prefers-reduced-motion");
  const options = { executablePath: process.env.OXCART_CHROMIUM, headless: true, args, viewport: { width: 1280, height: 800 } };
  const context = await chromium.launchPersistentContext(profile, options);
  return {
    context,
    async end() {
      await context.close();
      await rm(profile, { recursive: true, force: true });
    },
  };
}

/** A tab that fails its test if the page logs an error or asks anything of another server. */
export async function tab(context, server) {
  const page = await context.newPage();
  page.problems = [];
  page.on("console", (message) => {
    if (message.type() === "error" && !/status of 401/.test(message.text())) page.problems.push(message.text());
  });
  page.on("pageerror", (error) => page.problems.push(String(error)));
  page.on("request", (request) => {
    if (!request.url().startsWith(server.address)) page.problems.push(`asked for ${request.url()}`);
  });
  await page.goto(`${server.address}/`);
  return page;
}

/** What axe-core has to say, as lines. It comes in by the debugger's door; the page's policy would not let it in by another. */
export async function violations(page) {
  await page.evaluate(axeSource);
  return page.evaluate(async () => {
    const { violations } = await globalThis.axe.run(document, { resultTypes: ["violations"] });
    return violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map((node) => node.html.slice(0, 160)).join(" | ")}`);
  });
}

/** Writes a picture, where pictures are wanted. */
export async function picture(page, name) {
  if (pictures) await page.screenshot({ path: join(pictures, `page-${name}.png`), animations: "disabled" });
}

/** Says something and waits for the end of the answer. */
export async function say(page, text) {
  const before = await page.locator(".message.answer").count();
  await page.getByLabel("Message", { exact: true }).fill(text);
  await page.keyboard.press("Enter");
  await page.locator(".message.answer").nth(before).waitFor();
  await idle(page);
}

/** Waits until nothing is being written. */
export async function idle(page) {
  await page.locator("#send[aria-label=Send]").waitFor({ timeout: 120_000 });
}

/** Answers are short and always the same. */
export async function settle(page, settings = {}) {
  await page.evaluate((settings) => {
    localStorage.setItem("oxcart.settings", JSON.stringify({ temperature: 0, maxTokens: 24, ...settings }));
  }, settings);
  await page.reload();
  await page.locator("#model option").first().waitFor({ state: "attached" });
}
