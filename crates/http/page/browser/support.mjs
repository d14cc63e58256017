// A real server, real workers, a real browser.

import { spawn } from "node:child_process";
import { createServer, request } from "node:http";
import { mkdtemp, readFile, rm, symlink } from "node:fs/promises";
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

/** Keeps both sequences of a server busy until it is left: more answers, and longer ones, than it could give in minutes. */
export async function busy(server) {
  const left = new AbortController();
  const body = JSON.stringify({ prompt: "Once upon a time", max_tokens: 2000, ignore_eos: true, n: 16, stream: true });
  const { body: answers } = await fetch(`${server.address}/v1/completions`, { method: "POST", body, signal: left.signal });
  // They have to be read, or the server would give them up.
  const read = async () => {
    for await (const _ of answers);
  };
  read().catch(() => {});
  return { leave: () => left.abort() };
}

/** A server with several models, loaded when they are asked for: names and the files behind them. */
export async function serveAll(files) {
  const folder = await mkdtemp(join(tmpdir(), "oxcart-models-"));
  await Promise.all(Object.entries(files).map(([name, path]) => symlink(path, join(folder, `${name}.gguf`))));
  const server = await Listening.start(["serve", "--models", folder, "--max-models", "1", "--port", "0", "--ctx", "2048"]);
  server.child.once("exit", () => void rm(folder, { recursive: true, force: true }));
  return server;
}

export function worker() {
  return Listening.start(["worker", "--port", "0", "--threads", "1"]);
}

/** The longest that anything here may take. */
const PATIENCE_MS = 120_000;

/** Checks something until it holds: what a click or another tab changes may take effect a moment later. */
export async function eventually(check) {
  for (const start = performance.now(); ; ) {
    try {
      return await check();
    } catch (error) {
      if (performance.now() - start > PATIENCE_MS) throw error;
      await new Promise((later) => setTimeout(later, 50));
    }
  }
}

/** A way to a server on which answers can be held after a few pieces, so that a test need not be quicker than an answer. */
export class Way {
  /** Pieces that get by before an answer is held. */
  most = Infinity;
  /** Answers that the page did not wait for. */
  left = 0;

  static async to(server) {
    const way = new Way();
    way.server = server;
    way.http = createServer((asked, reply) => way.pass(asked, reply));
    await new Promise((done) => way.http.listen(0, "127.0.0.1", done));
    way.address = `http://127.0.0.1:${way.http.address().port}`;
    return way;
  }

  /** Holds answers from now on, each after so many pieces. */
  hold(pieces) {
    this.most = pieces;
    this.opened = new Promise((open) => (this.open = open));
  }

  /** Lets all answers by again. */
  release() {
    this.most = Infinity;
    this.open?.();
  }

  pass(asked, reply) {
    const { method, url, headers } = asked;
    const onward = request(`${this.server.address}${url}`, { method, headers }, (answer) => {
      reply.writeHead(answer.statusCode, answer.headers);
      const isStream = answer.headers["content-type"] === "text/event-stream";
      if (isStream) void this.tell(answer, reply).catch(() => reply.destroy());
      else answer.pipe(reply);
    });
    onward.on("error", () => reply.destroy());
    // Who leaves here leaves there, too.
    reply.on("close", () => onward.destroy()).on("error", () => {});
    asked.pipe(onward);
  }

  /** Passes an answer on, piece by piece. */
  async tell(answer, reply) {
    const closed = new Promise((done) => reply.once("close", done));
    void closed.then(() => (this.left += reply.writableFinished ? 0 : 1));
    let [text, passed] = ["", 0];
    for await (const more of answer.setEncoding("utf8")) {
      const pieces = (text + more).split(/(?<=\n\n)/);
      text = pieces.at(-1).endsWith("\n\n") ? "" : pieces.pop();
      for (const piece of pieces) {
        if (passed >= this.most) await Promise.race([this.opened, closed]);
        reply.write(piece);
        passed += 1;
      }
    }
    reply.end(text);
  }

  async end() {
    this.http.closeAllConnections();
    await new Promise((done) => this.http.close(done));
  }
}

/** A browser with a profile of its own. */
export async function browser() {
  const profile = await mkdtemp(join(tmpdir(), "oxcart-page-"));
  const args = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"];
  args.push("--disable-component-update", "--disable-sync", "--force-prefers-reduced-motion");
  const options = { executablePath: process.env.OXCART_CHROMIUM, headless: true, args, viewport: { width: 1280, height: 800 } };
  const context = await chromium.launchPersistentContext(profile, { ...options, timeout: PATIENCE_MS });
  context.setDefaultTimeout(PATIENCE_MS);
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
  // It knows its models, or has been asked for a key.
  await page.locator("#model option, dialog[open]").first().waitFor({ state: "attached" });
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
  await page.locator("#send[aria-label=Send]").waitFor();
}

/** Answers are short and always the same. */
export async function settle(page, settings = {}) {
  await page.evaluate((settings) => {
    localStorage.setItem("oxcart.settings", JSON.stringify({ temperature: 0, maxTokens: 24, ...settings }));
  }, settings);
  await page.reload();
  await page.locator("#model option").first().waitFor({ state: "attached" });
}
