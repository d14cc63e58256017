// The conversation that is shown: its messages, and where the next one is written.

import type * as api from "./api.js";
import { byId, h, icon, ICONS, replace } from "./dom.js";
import { rate, seconds } from "./format.js";
import { Generation } from "./generation.js";
import { copyButton, MarkdownView } from "./render.js";
import * as store from "./store.js";

/** What the chat needs from the page. */
export interface Host {
  model(): string | null;
  /** A conversation came, went or changed its title. */
  listChanged(): void;
  announce(text: string): void;
  refused(error: api.Refused): void;
}

/** A message on the page. */
interface Shown {
  element: HTMLElement;
  refresh(): void;
}

export class Chat {
  private readonly list = byId("messages");
  private readonly scroller = byId("scroller");
  private readonly empty = byId("empty");
  private readonly form = byId<HTMLFormElement>("composer");
  private readonly input = byId<HTMLTextAreaElement>("input");
  private readonly button = byId<HTMLButtonElement>("send");
  private readonly live = byId("live");
  private conversation = store.fresh();
  private shown: Shown[] = [];
  /** Whether the end is kept in view. */
  private isFollowing = true;
  private isDue = false;
  /** Whether another tab changed the conversation while a message was edited here. */
  private isStale = false;

  constructor(private readonly host: Host) {
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.generation) this.generation.stop();
      else this.send();
    });
    this.input.addEventListener("input", () => this.sized());
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.scroller.addEventListener("scroll", () => {
      const { scrollTop, scrollHeight, clientHeight } = this.scroller;
      this.isFollowing = scrollHeight - scrollTop - clientHeight < 40;
    });
    this.renderAll();
  }

  get id(): string {
    return this.conversation.id;
  }

  private get generation(): Generation | undefined {
    return Generation.of(this.conversation.id);
  }

  /** Shows a conversation, or a new one. */
  show(conversation: store.Conversation | null): void {
    const id = conversation?.id;
    // One that is being answered here is further than what was kept of it.
    this.conversation = (id && Generation.of(id)?.conversation) || conversation || store.fresh();
    this.isFollowing = true;
    this.isStale = false;
    this.renderAll();
  }

  /** Another tab changed a conversation. */
  changedElsewhere(id: string): void {
    if (id !== this.conversation.id || this.generation) return;
    // What is edited here would be lost.
    this.isStale = this.list.querySelector(".editing") !== null;
    if (this.isStale) return;
    const found = store.load(id);
    if (found) {
      this.conversation = found;
      this.renderAll();
    }
  }

  focus(): void {
    this.input.focus();
  }

  stop(): boolean {
    const generation = this.generation;
    generation?.stop();
    return generation !== undefined;
  }

  private key(event: KeyboardEvent): void {
    // Where words are composed, Enter ends one; some browsers say so by the code alone.
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229) {
      event.preventDefault();
      if (!this.generation) this.send();
    } else if (event.key === "ArrowUp" && this.input.value === "" && !this.generation) {
      const last = this.conversation.messages.findLastIndex(({ role }) => role === "user");
      if (last >= 0) {
        event.preventDefault();
        this.edit(last);
      }
    }
  }

  /** As high as its text, up to a limit of the style. */
  private sized(): void {
    this.input.style.height = "auto";
    this.input.style.height = `${this.input.scrollHeight + 2}px`;
    this.controls();
  }

  private send(): void {
    const text = this.input.value.trim();
    if (text === "" || this.host.model() === null) return;
    this.input.value = "";
    this.sized();
    this.ask(this.conversation.messages.length, text);
  }

  /** Says something in place of a message and all that follow, and has it answered. */
  private ask(at: number, text: string): void {
    const model = this.host.model();
    if (model === null || this.generation) return;
    const { conversation } = this;
    conversation.messages.length = at;
    conversation.messages.push({ role: "user", text });
    if (at === 0) conversation.title = store.titleOf(text);
    this.answer(model);
  }

  private retry(at: number): void {
    const model = this.host.model();
    if (model === null || this.generation) return;
    this.conversation.messages.length = at;
    this.answer(model);
  }

  private answer(model: string): void {
    this.conversation.changed = Date.now();
    if (!store.save(this.conversation)) {
      this.host.announce("The browser's storage is full: this conversation cannot be saved.");
    }
    this.isFollowing = true;
    this.host.announce("Answering");
    Generation.start(this.conversation, model, (generation, isOver) => this.progress(generation, isOver));
    this.renderAll();
    this.host.listChanged();
    if (location.hash !== `#/chat/${this.id}`) history.replaceState(null, "", `#/chat/${this.id}`);
  }

  private progress(generation: Generation, isOver: boolean): void {
    if (isOver) this.host.listChanged();
    if (generation.refusal) this.host.refused(generation.refusal);
    if (generation.conversation !== this.conversation) return;
    if (isOver) {
      const { text, note } = generation.message;
      this.host.announce(note && !text ? note : `Answer: ${text}`);
      this.shown.at(-1)?.refresh();
      this.controls();
      this.follow();
    } else if (!this.isDue) {
      // Once per frame is as often as it can be seen.
      this.isDue = true;
      requestAnimationFrame(() => {
        this.isDue = false;
        this.shown.at(-1)?.refresh();
        this.controls();
        this.follow();
      });
    }
  }

  private follow(): void {
    if (this.isFollowing) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  private renderAll(): void {
    this.shown = this.conversation.messages.map((message, at) =>
      message.role === "user" ? this.userMessage(message, at) : this.answerMessage(message, at),
    );
    replace(this.list, ...this.shown.map(({ element }) => element));
    this.empty.hidden = this.shown.length > 0;
    this.controls();
    this.follow();
  }

  private controls(): void {
    const generation = this.generation;
    const label = generation ? "Stop" : "Send";
    if (this.button.getAttribute("aria-label") !== label) {
      this.button.setAttribute("aria-label", label);
      this.button.title = generation ? "Stop (Esc)" : "Send (Enter)";
      replace(this.button, icon(generation ? ICONS.stop : ICONS.send));
    }
    this.button.disabled = !generation && (this.input.value.trim() === "" || this.host.model() === null);
    const stats = generation?.stats(performance.now());
    this.live.textContent = !generation ? "" : stats ? `${rateOf(stats)} · ${stats.tokens} tokens` : "Waiting for the first token…";
    // What would change an answer that is being written waits for its end.
    for (const action of this.list.querySelectorAll<HTMLButtonElement>("button.changes")) {
      action.disabled = generation !== undefined;
    }
  }

  modelsChanged(): void {
    this.controls();
  }

  private userMessage(message: store.Message, at: number): Shown {
    const text = h("div", { class: "said" }, message.text);
    const edit = action("Edit", ICONS.edit, () => this.edit(at));
    edit.classList.add("changes");
    const actions = h("div", { class: "actions" }, edit, copyButton(() => message.text, "Copy message"));
    const element = h("article", { class: "message user", "aria-label": "You" }, text, actions);
    return { element, refresh: () => {} };
  }

  private answerMessage(message: store.Message, at: number): Shown {
    const view = new MarkdownView();
    const thoughts = h("p", {});
    const thinking = h("details", { class: "thinking" }, h("summary", {}, "Thinking"), thoughts);
    const note = h("p", { class: "note" });
    const stats = h("span", { class: "stats" });
    const retry = action("Retry", ICONS.retry, () => this.retry(at));
    retry.classList.add("changes");
    const actions = h("div", { class: "actions" }, copyButton(() => message.text, "Copy answer"), retry, stats);
    const element = h("article", { class: "message answer", "aria-label": "Answer" }, thinking, view.element, note, actions);
    const refresh = (): void => {
      const isWriting = this.generation?.message === message;
      view.update(message.text);
      thoughts.textContent = message.reasoning ?? "";
      thinking.hidden = !message.reasoning;
      note.textContent = message.note ?? "";
      note.hidden = !message.note;
      stats.textContent = message.stats ? described(message) : (message.model ?? "");
      actions.hidden = isWriting;
      element.classList.toggle("writing", isWriting);
      element.setAttribute("aria-busy", String(isWriting));
    };
    refresh();
    return { element, refresh };
  }

  /** Puts a message back into a field, to be said differently. */
  private edit(at: number): void {
    const message = this.conversation.messages[at];
    const shown = this.shown[at];
    if (!message || !shown || this.generation) return;
    const field = h("textarea", { "aria-label": "Edit message", rows: 3 });
    field.value = message.text;
    const close = (): void => {
      this.renderAll();
      if (this.isStale) this.changedElsewhere(this.id);
      this.focus();
    };
    const save = (): void => {
      const text = field.value.trim();
      if (text !== "") this.ask(at, text);
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229) {
        event.preventDefault();
        save();
      }
    });
    const buttons = h(
      "div",
      { class: "buttons" },
      h("button", { type: "button", onclick: close }, "Cancel"),
      h("button", { type: "button", class: "primary", onclick: save }, "Send"),
    );
    replace(shown.element, h("div", { class: "editing" }, field, buttons));
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }
}

function action(label: string, path: string, act: () => void): HTMLButtonElement {
  return h("button", { type: "button", class: "quiet", "aria-label": label, title: label, onclick: act }, icon(path));
}

/** Tokens per second: the first one is there when the time begins. */
function rateOf(stats: store.Stats): string {
  const perSecond = stats.answerMs > 0 ? ((stats.tokens - 1) * 1000) / stats.answerMs : 0;
  return `${rate(perSecond)} tokens/s`;
}

function described(message: store.Message): string {
  const { stats, model } = message;
  const parts = model ? [model] : [];
  if (stats) {
    if (stats.tokens > 1) parts.push(rateOf(stats));
    parts.push(`${stats.tokens} ${stats.tokens === 1 ? "token" : "tokens"}`, `first after ${seconds(stats.firstMs)}`);
  }
  return parts.join(" · ");
}
