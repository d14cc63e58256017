// The page as a whole: what is shown, the list of conversations, the choice of models, and keys that work everywhere.

import * as api from "./api.js";
import { Chat } from "./chat.js";
import { ClusterView } from "./cluster.js";
import { applyTheme, KeyDialog, SettingsDialog } from "./dialogs.js";
import { byId, h, icon, ICONS, replace } from "./dom.js";
import { Generation } from "./generation.js";
import * as store from "./store.js";

/** How long something that was deleted can be had back. */
const UNDO_MS = 8000;

class Page {
  private readonly list = byId("conversations");
  private readonly models = byId<HTMLSelectElement>("model");
  private readonly notice = byId("notice");
  private readonly announcer = byId("announcer");
  private readonly sidebar = byId("sidebar");
  private readonly menu = byId<HTMLButtonElement>("menu");
  private readonly toast = byId("toast");
  /** The list of conversations as it was last shown. */
  private listed = "";
  private toastTimer: ReturnType<typeof setTimeout> | undefined;
  private readonly settings = new SettingsDialog();
  private readonly keyDialog = new KeyDialog(() => void this.loadModels());
  private readonly cluster = new ClusterView({
    refused: (error) => this.refused(error),
    announce: (text) => this.announce(text),
  });
  private readonly chat = new Chat({
    model: () => this.models.value || null,
    listChanged: () => this.renderList(),
    announce: (text) => this.announce(text),
    refused: (error) => this.refused(error),
  });

  start(): void {
    applyTheme();
    for (const element of document.querySelectorAll<HTMLElement>("[data-icon]")) {
      element.prepend(icon(ICONS[element.dataset["icon"] as keyof typeof ICONS]));
    }
    // Its fragment would be taken for a place in the page.
    document.querySelector(".skip")!.addEventListener("click", (event) => {
      event.preventDefault();
      if (location.hash === "#/cluster") byId("cluster-view").focus();
      else this.chat.focus();
    });
    byId("new-chat").addEventListener("click", () => this.newChat());
    byId("open-settings").addEventListener("click", () => this.settings.open());
    this.menu.addEventListener("click", () => this.openSidebar(!this.sidebar.classList.contains("open")));
    byId("shade").addEventListener("click", () => this.openSidebar(false));
    this.models.addEventListener("change", () => {
      store.saveSettings({ model: this.models.value });
      this.chat.modelsChanged();
    });
    addEventListener("hashchange", () => this.route());
    addEventListener("keydown", (event) => this.key(event));
    store.onChange((id) => {
      if (id === null) applyTheme();
      else this.chat.changedElsewhere(id);
      // While an answer is written elsewhere, it changes every second; the keyboard would lose its place.
      if (outline(store.conversations()) !== this.listed) this.renderList();
    });
    this.route();
    void this.loadModels();
  }

  private key(event: KeyboardEvent): void {
    const isTyping = (event.target as Element | null)?.matches?.("input, textarea, select");
    if (event.key === "Escape") {
      if (document.querySelector("dialog[open]")) return;
      if (this.sidebar.classList.contains("open")) this.openSidebar(false);
      else this.chat.stop();
    } else if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !document.querySelector("dialog[open]")) {
      event.preventDefault();
      this.chat.focus();
    }
  }

  private route(): void {
    const isCluster = location.hash === "#/cluster";
    byId("chat-view").hidden = isCluster;
    byId("cluster-view").hidden = !isCluster;
    this.cluster.show(isCluster);
    byId("cluster-link").toggleAttribute("aria-current", false);
    if (isCluster) byId("cluster-link").setAttribute("aria-current", "page");
    const id = /^#\/chat\/(.+)$/.exec(location.hash)?.[1];
    if (!isCluster) {
      const found = id === undefined ? null : store.load(id);
      if (found?.id !== this.chat.id || found === null) this.chat.show(found);
    }
    byId("title").textContent = isCluster ? "Cluster" : "Oxcart";
    byId("title").classList.toggle("unseen", !isCluster);
    this.models.hidden = isCluster;
    document.title = isCluster ? "Cluster · Oxcart" : "Oxcart";
    this.openSidebar(false);
    this.renderList();
    if (!isCluster && matchMedia("(min-width: 50rem)").matches) this.chat.focus();
  }

  private newChat(): void {
    if (location.hash === "#/") this.route();
    else location.hash = "#/";
    this.chat.focus();
  }

  private openSidebar(isOpen: boolean): void {
    const wasOpen = this.sidebar.classList.contains("open");
    this.sidebar.classList.toggle("open", isOpen);
    byId("shade").hidden = !isOpen;
    this.menu.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) byId("new-chat").focus();
    else if (wasOpen) this.menu.focus();
  }

  private renderList(): void {
    const isChat = location.hash !== "#/cluster";
    const conversations = store.conversations();
    this.listed = outline(conversations);
    const items = conversations.map((one) => {
      const isCurrent = isChat && one.id === this.chat.id;
      const link = h("a", { href: `#/chat/${one.id}`, "aria-current": isCurrent && "page" }, one.title);
      const label = `Delete “${one.title}”`;
      const remove = h("button", { type: "button", class: "quiet", "aria-label": label, title: "Delete" }, icon(ICONS.trash));
      remove.addEventListener("click", () => this.remove(one));
      return h("li", { class: Generation.of(one.id) && "busy" }, link, remove);
    });
    replace(this.list, ...items);
    byId("no-conversations").hidden = items.length > 0;
  }

  private remove(one: store.Conversation): void {
    // What was listed is older than what was said since.
    const kept = Generation.of(one.id)?.conversation ?? store.load(one.id) ?? one;
    Generation.of(one.id)?.stop();
    store.remove(one.id);
    if (one.id === this.chat.id) {
      if (location.hash === "#/cluster") this.chat.show(null);
      else this.newChat();
    }
    this.renderList();
    byId("new-chat").focus();
    const undo = h("button", { type: "button" }, "Undo");
    undo.addEventListener("click", () => {
      store.save(kept);
      this.toast.hidden = true;
      this.renderList();
    });
    replace(this.toast, h("span", {}, "Conversation deleted"), undo);
    this.toast.hidden = false;
    clearTimeout(this.toastTimer);
    this.toastTimer = setTimeout(() => (this.toast.hidden = true), UNDO_MS);
  }

  private refused(error: api.Refused): void {
    if (error.status === 401) this.keyDialog.open();
  }

  private async loadModels(): Promise<void> {
    try {
      const found = (await api.models()).filter(({ answers }) => answers);
      replace(this.models, ...found.map(({ id }) => h("option", { value: id }, id)));
      const chosen = store.settings().model;
      if (found.some(({ id }) => id === chosen)) this.models.value = chosen!;
      this.tell(found.length > 0 ? "" : "This server has no chat model, only embeddings.");
      this.route();
    } catch (error) {
      if (error instanceof api.Refused) this.refused(error);
      if (!(error instanceof api.Refused) || error.status !== 401) {
        this.tell(error instanceof api.Refused ? error.message : "The server cannot be reached.");
        setTimeout(() => void this.loadModels(), 3000);
      }
    }
    this.chat.modelsChanged();
  }

  private announce(text: string): void {
    this.announcer.textContent = text;
  }

  private tell(text: string): void {
    this.notice.textContent = text;
    this.notice.hidden = text === "";
  }
}

/** What is shown of conversations in their list. */
function outline(conversations: store.Conversation[]): string {
  return JSON.stringify(conversations.map(({ id, title }) => [id, title]));
}

new Page().start();
