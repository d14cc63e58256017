// The cluster: machines as they are, who has which part of which model, what is computed now, and what would be without one.
//
// Elements are made once for a set of machines and models and then kept up to date, so that the keyboard does not lose its place;
// only rows of tables, where it has none, are made anew each time.

import * as api from "./api.js";
import { byId, h, replace, svg } from "./dom.js";
import { blocks, bytes, count, deviceName, duration, list, pause, rate } from "./format.js";
import { Series } from "./rates.js";

/** How often it is looked at. */
const EVERY_MS = 1000;

/** Colours that machines take turns with; the style has as many. */
const COLOURS = 6;

/** What the cluster needs from the page. */
export interface Host {
  refused(error: api.Refused): void;
  announce(text: string): void;
}

type Refresh = (picture: api.Cluster) => void;

export class ClusterView {
  private readonly root = byId("machines-and-models");
  private readonly state = byId("cluster-state");
  private timer: ReturnType<typeof setTimeout> | undefined;
  private isShown = false;
  private signature = "";
  private refreshers: Refresh[] = [];
  private readonly series = new Map<string, Series>();

  /** How many machines were dead when it was last told. */
  private dead = 0;

  /** When the last interruption was that is known; none before the first look. */
  private interrupted: number | undefined;

  constructor(private readonly host: Host) {
    document.addEventListener("visibilitychange", () => this.schedule(0));
  }

  show(isShown: boolean): void {
    this.isShown = isShown;
    this.schedule(0);
  }

  private schedule(delay: number): void {
    clearTimeout(this.timer);
    if (this.isShown && !document.hidden) this.timer = setTimeout(() => void this.look(), delay);
  }

  private async look(): Promise<void> {
    try {
      this.take(await api.cluster());
    } catch (error) {
      const told = error instanceof api.Refused ? error.message : "The server cannot be reached.";
      if (this.state.textContent !== told) {
        this.state.textContent = told;
        this.host.announce(told);
      }
      this.state.classList.add("bad");
      if (error instanceof api.Refused) this.host.refused(error);
    }
    this.schedule(EVERY_MS);
  }

  private take(picture: api.Cluster): void {
    const dead = picture.machines.filter(({ failure }) => failure !== null).length;
    const all = picture.machines.length;
    const machines = `${all} ${all === 1 ? "machine" : "machines"}${dead > 0 ? `, ${dead} dead` : ""}`;
    const told = `${machines} · Oxcart ${picture.version} · up ${duration(picture.uptime_seconds)}`;
    if (this.state.textContent !== told) this.state.textContent = told;
    // How long it is up changes all the time; nobody wants to hear that.
    const news = [dead !== this.dead && machines, ...this.interruptionsSince(picture)].filter(Boolean);
    if (news.length > 0) this.host.announce(news.join(". "));
    this.dead = dead;
    this.state.classList.toggle("bad", dead > 0);
    const signature = JSON.stringify([
      picture.machines.map(({ name }) => name),
      picture.models.map(({ name, presence, plans }) => [name, presence, plans]),
    ]);
    if (signature !== this.signature) {
      this.signature = signature;
      this.build(picture);
    }
    for (const refresh of this.refreshers) refresh(picture);
  }

  /** Interruptions that were not there at the last look, in words. */
  private interruptionsSince(picture: api.Cluster): string[] {
    const all = picture.models.flatMap(({ interruptions }) => interruptions);
    const known = this.interrupted;
    this.interrupted = Math.max(known ?? 0, ...all.map((one) => one.uptime_seconds));
    if (known === undefined) return [];
    const fresh = all.filter((one) => one.uptime_seconds > known);
    return fresh.map((one) => `${happened(one)}; answers paused for ${pause(one.stall_ms)}`);
  }

  private build(picture: api.Cluster): void {
    this.refreshers = [];
    const isLoaded = ({ presence }: api.ModelState): boolean => presence === "loaded";
    const models = picture.models.filter(isLoaded).map((model) => this.model(model, picture));
    const others = picture.models.filter((model) => !isLoaded(model)).map((model) => this.away(model));
    const machines = picture.machines.map((machine, at) => this.machine(machine, at, picture));
    replace(
      this.root,
      ...models,
      ...(others.length > 0 ? [h("h2", {}, "Loaded when they are asked for"), h("ul", { class: "card away" }, ...others)] : []),
      h("h2", {}, "Machines"),
      h("div", { class: "machines" }, ...machines),
    );
  }

  /** A model that is not loaded, in a line. */
  private away(model: api.ModelState): HTMLElement {
    const facts = [model.architecture, model.parameters !== null && `${count(model.parameters)} parameters`, model.quantization];
    const state = h("span", { class: "facts" });
    this.refreshers.push((now) => {
      const found = now.models.find(({ name }) => name === model.name);
      const told = [
        ...facts,
        found?.presence === "loading" && "being loaded",
        found && found.waiting > 0 && `${found.waiting} waiting`,
        found?.trouble && `was not loaded: ${found.trouble}`,
      ];
      const text = told.filter(Boolean).join(" · ");
      if (state.textContent !== text) state.textContent = text;
    });
    return h("li", {}, h("strong", {}, model.name), " ", state);
  }

  private model(model: api.ModelState, picture: api.Cluster): HTMLElement {
    const facts = [
      model.architecture,
      model.parameters !== null && `${count(model.parameters)} parameters`,
      model.quantization,
      `${model.plans.blocks} blocks`,
      `context of ${model.context} tokens`,
    ];
    const speed = figure("tokens per second");
    const running = figure(`of ${model.slots} running`);
    const waiting = figure("waiting");
    const finished = figure("answered");
    const line = svg("polyline", { class: "spark-line" });
    const spark = svg("svg", { class: "spark", viewBox: "0 0 120 32", preserveAspectRatio: "none", "aria-hidden": "true" }, line);
    const trouble = h("p", { class: "trouble", role: "status" });
    const requests = h("tbody");
    const table = h(
      "table",
      { class: "requests" },
      h("caption", {}, "Requests in progress"),
      h("thead", {}, h("tr", {}, ...["Request", "Prompt", "Answer", "Tokens/s"].map((title) => h("th", { scope: "col" }, title)))),
      requests,
    );
    /** Of requests in progress. */
    const asked = new Map<number, Series>();
    this.refreshers.push((now) => {
      const state = now.models.find(({ name }) => name === model.name);
      if (!state) return;
      const series = counted(this.series, `model ${model.name}`, now, state.answer_tokens);
      speed.set(rate(series.now()));
      running.set(String(state.running.length));
      waiting.set(String(state.waiting));
      finished.set(count(state.finished));
      line.setAttribute("points", points(series));
      const told = state.trouble ? `The last step failed: ${state.trouble}` : "";
      if (trouble.textContent !== told) trouble.textContent = told;
      trouble.hidden = !state.trouble;
      table.hidden = state.running.length === 0;
      const ids = new Set(state.running.map(({ id }) => id));
      for (const id of asked.keys()) if (!ids.has(id)) asked.delete(id);
      const rows = state.running.map((request) => {
        const speed = counted(asked, request.id, now, request.answer_tokens).now();
        const cells = [`#${request.id}`, `${request.prompt_tokens}`, `${request.answer_tokens} of ${request.limit}`, rate(speed)];
        return h("tr", {}, ...cells.map((text) => h("td", {}, text)));
      });
      replace(requests, ...rows);
    });
    return h(
      "section",
      { class: "card model", "aria-label": `Model ${model.name}` },
      h("header", {}, h("h2", {}, model.name), h("p", { class: "facts" }, facts.filter(Boolean).join(" · "))),
      h("div", { class: "figures" }, speed.element, running.element, waiting.element, finished.element, spark as Node),
      trouble,
      this.layers(model, picture),
      table,
      this.interruptions(model),
    );
  }

  /** Losses and returns of machines, the latest first: the plan before and after, and how long answers paused. */
  private interruptions(model: api.ModelState): HTMLElement {
    const rows = h("ol");
    const title = h("h3", {}, "Losses and returns of machines");
    const section = h("section", { class: "interruptions", "aria-label": `Interruptions of ${model.name}` }, title, rows);
    this.refreshers.push((now) => {
      const all = now.models.find(({ name }) => name === model.name)?.interruptions ?? [];
      section.hidden = all.length === 0;
      replace(rows, ...all.toReversed().map((one) => interruption(one, now.uptime_seconds)));
    });
    return section;
  }

  /** Blocks of a model in a row, each in the colour of its machine. */
  private layers(model: api.ModelState, picture: api.Cluster): HTMLElement {
    const withBlocks = model.plans.now.shares.filter(({ blocks: [first, end] }) => end > first);
    const segments = withBlocks.map((share) => {
      const at = picture.machines.findIndex(({ name }) => name === share.machine);
      const [first, end] = share.blocks;
      const element = h(
        "li",
        { class: `segment colour-${Math.max(at, 0) % COLOURS}` },
        h("span", { class: "segment-name" }, share.machine),
        h("span", { class: "segment-blocks" }, first + 1 === end ? `${first}` : `${first}–${end - 1}`),
      );
      element.style.flexGrow = String(end - first);
      this.refreshers.push((now) => {
        const isDead = Boolean(now.machines.find(({ name }) => name === share.machine)?.failure);
        element.classList.toggle("dead", isDead);
      });
      return element;
    });
    return h("ol", { class: "layers", "aria-label": "Blocks by machine" }, ...segments);
  }

  private machine(machine: api.Machine, at: number, picture: api.Cluster): HTMLElement {
    const state = h("p", { class: "state" });
    const rows = h("tbody");
    const titles = ["", "now", "total"].map((title) => (title ? h("th", { scope: "col" }, title) : h("td")));
    const link = h("table", { class: "link", "aria-label": "Traffic" }, h("thead", {}, h("tr", {}, ...titles)), rows);
    const devices = picture.models.flatMap((model) =>
      model.plans.now.shares
        .filter((share) => share.machine === machine.name)
        .map((share) => device(share, picture.models.length > 1 ? model.name : null)),
    );
    const departures = picture.models.flatMap((model) => {
      const found = model.plans.without.find((without) => without.machine === machine.name);
      return found ? [departure(model, found.plan, picture.models.length > 1)] : [];
    });
    const absence = h("h4");
    const card = h(
      "section",
      { class: `card machine colour-${at % COLOURS}`, "aria-label": `Machine ${machine.name}` },
      h("header", {}, h("h3", {}, machine.name), state),
      ...devices,
      link,
      departures.length > 0 && h("div", { class: "departure" }, absence, ...departures),
    );
    this.refreshers.push((now) => {
      const found = now.machines.find(({ name }) => name === machine.name);
      if (!found) return;
      const isDead = found.failure !== null;
      card.classList.toggle("dead", isDead);
      absence.textContent = isDead ? "Without it" : "If it left";
      const told = isDead ? `Dead: ${found.failure}` : found.link ? "Alive" : "Alive, runs this server";
      if (state.textContent !== told) state.textContent = told;
      link.hidden = !found.link;
      if (!found.link) return;
      const { sent_bytes: sent, received_bytes: received, round_trips: trips } = found.link;
      const per = (what: string, value: number): number => counted(this.series, `${what} ${machine.name}`, now, value).now();
      replace(
        rows,
        row("Sent", `${bytes(per("sent", sent))}/s`, bytes(sent)),
        row("Received", `${bytes(per("received", received))}/s`, bytes(received)),
        row("Round trips", `${rate(per("trips", trips))}/s`, count(trips)),
      );
    });
    return card;
  }
}

/** The series of a counter, with its newest value. */
function counted<K>(all: Map<K, Series>, key: K, picture: api.Cluster, value: number): Series {
  let series = all.get(key);
  if (!series) all.set(key, (series = new Series()));
  series.push(picture.uptime_seconds, value);
  return series;
}

/** A number with what it counts. */
function figure(label: string): { element: HTMLElement; set(text: string): void } {
  const value = h("strong", {}, "0");
  const element = h("p", { class: "figure" }, value, " ", h("span", {}, label));
  return { element, set: (text) => (value.textContent = text) };
}

function row(label: string, now: string, total: string): HTMLElement {
  return h("tr", {}, h("th", { scope: "row" }, label), h("td", {}, now), h("td", {}, total));
}

function points(series: Series): string {
  const steps = series.steps();
  const most = Math.max(1, ...steps.map(({ rate }) => rate));
  return steps.map(({ ago, rate }) => `${(120 - ago * 2).toFixed(1)},${(30 - (rate / most) * 28).toFixed(1)}`).join(" ");
}

/** What a device has, and how much of its memory that is. */
function device(share: api.DeviceShare, model: string | null): HTMLElement {
  const parts = [share.has_input && "embeddings", blocks(share.blocks), share.has_output && "output"].filter(Boolean);
  const weights = share.is_mapped ? 0 : share.weights_bytes;
  const needed = weights + share.cache_bytes + share.results_bytes;
  const bar = h("div", { class: "bar", "aria-hidden": "true" });
  for (const [kind, size] of [["weights", weights], ["cache", share.cache_bytes], ["results", share.results_bytes]] as const) {
    const piece = h("span", { class: kind });
    piece.style.width = `${(100 * size) / Math.max(share.free_bytes, needed, 1)}%`;
    bar.append(piece);
  }
  const mapped = share.is_mapped && share.weights_bytes > 0 ? " in the mapped file" : "";
  return h(
    "div",
    { class: "device" },
    h("p", { class: "device-name" }, h("strong", {}, deviceName(share.device)), model && ` · ${model}`),
    h("p", { class: "holds" }, parts.length > 0 ? parts.join(", ") : "no part of the model"),
    bar,
    h(
      "p",
      { class: "memory" },
      `${bytes(share.weights_bytes)} weights${mapped}, ${bytes(share.cache_bytes)} cache, ${bytes(share.results_bytes)} results; ` +
        `${bytes(share.free_bytes)} free at start`,
    ),
  );
}

/** What happened to machines, in a sentence without its end. */
function happened({ lost, returned }: api.ClusterInterruption): string {
  const names = lost.map(({ machine }) => machine);
  const parts = [
    names.length > 0 && `${list(names)} ${names.length === 1 ? "was" : "were"} lost`,
    returned.length > 0 && `${list(returned)} came back`,
  ].filter((part) => part !== false);
  return parts.length > 0 ? parts.join(", and ") : "a machine waited in vain for another";
}

/** An interruption: what happened, how long it took, and the plan before and after. */
function interruption(one: api.ClusterInterruption, now: number): HTMLElement {
  const reasons = one.lost.filter(({ reason }) => reason !== "").map(({ machine, reason }) => `${machine}: ${reason}`);
  const facts = [
    `${duration(Math.max(0, now - one.uptime_seconds))} ago`,
    `answers paused for ${pause(one.stall_ms)}`,
    `noticing ${pause(one.noticing_ms)}, planning ${pause(one.planning_ms)}, loading ${pause(one.loading_ms)}, ` +
      `computing again ${pause(one.recomputing_ms)}`,
    `${count(one.tokens)} ${one.tokens === 1 ? "token" : "tokens"} computed again`,
  ];
  if (one.numerics_changed) facts.push("last digits may differ from then on");
  const plan = (shares: api.DeviceBlocks[]): string => shares.map((share) => `${blocks(share.blocks)} on ${share.machine}`).join(", ");
  return h(
    "li",
    {},
    h("p", {}, h("strong", {}, happened(one))),
    h("p", { class: "facts" }, facts.join(" · ")),
    ...reasons.map((reason) => h("p", { class: "facts" }, reason)),
    h("dl", {}, h("dt", {}, "Before"), h("dd", {}, plan(one.before)), h("dt", {}, "After"), h("dd", {}, plan(one.after))),
  );
}

/** The plan that there would be without a machine, in a sentence or two. */
function departure(model: api.ModelState, plan: api.ClusterPlacement, isNamed: boolean): HTMLElement {
  const prefix = isNamed ? `${model.name}: ` : "";
  const parts = plan.shares
    .filter(({ blocks: [first, end] }) => end > first)
    .map((share) => `${blocks(share.blocks)} on ${share.machine}`);
  const verdict = plan.problem
    ? h("p", { class: "trouble" }, `${prefix}It would not work: ${plan.problem}.`)
    : h("p", {}, `${prefix}Restarted without it, it fits: ${parts.join(", ")}.`);
  return verdict;
}
