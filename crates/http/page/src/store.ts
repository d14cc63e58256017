// What is kept in this browser: conversations, each under a key of its own so that two tabs do not write over each other's, and
// settings. What cannot be read is as if it were not there.

export interface Stats {
  tokens: number;
  /** From the request to the first piece. */
  firstMs: number;
  /** From the first piece to the last. */
  answerMs: number;
}

export interface Message {
  role: "user" | "assistant";
  text: string;
  reasoning?: string;
  model?: string;
  stats?: Stats;
  /** Why there is no more of it, if it did not end by itself. */
  note?: string;
}

export interface Conversation {
  id: string;
  title: string;
  /** When it was last changed. */
  changed: number;
  messages: Message[];
}

export interface Settings {
  temperature: number | null;
  topP: number | null;
  maxTokens: number | null;
  system: string;
  theme: "auto" | "light" | "dark";
  model: string | null;
}

const CHAT = "oxcart.chat.";
const SETTINGS = "oxcart.settings";

const DEFAULTS: Settings = { temperature: null, topP: null, maxTokens: null, system: "", theme: "auto", model: null };

function parsed(text: string | null): unknown {
  if (text === null) return null;
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return null;
  }
}

function conversation(value: unknown): Conversation | null {
  const found = value as Conversation | null;
  const isOne =
    typeof found?.id === "string" &&
    typeof found.title === "string" &&
    typeof found.changed === "number" &&
    Array.isArray(found.messages) &&
    found.messages.every((message) => typeof message?.text === "string" && /^(user|assistant)$/.test(message.role));
  return isOne ? found : null;
}

/** All conversations, the latest first. */
export function conversations(): Conversation[] {
  const found: Conversation[] = [];
  for (let at = 0; at < localStorage.length; at += 1) {
    const key = localStorage.key(at);
    if (key?.startsWith(CHAT)) {
      const one = conversation(parsed(localStorage.getItem(key)));
      if (one) found.push(one);
    }
  }
  return found.sort((a, b) => b.changed - a.changed);
}

export function load(id: string): Conversation | null {
  return conversation(parsed(localStorage.getItem(CHAT + id)));
}

/** Keeps a conversation; `false` if the browser has no more room. */
export function save(one: Conversation): boolean {
  try {
    localStorage.setItem(CHAT + one.id, JSON.stringify(one));
    return true;
  } catch {
    return false;
  }
}

export function remove(id: string): void {
  localStorage.removeItem(CHAT + id);
}

export function fresh(): Conversation {
  const random = crypto.getRandomValues(new Uint32Array(3));
  const id = Array.from(random, (part) => part.toString(36)).join("");
  return { id, title: "New chat", changed: Date.now(), messages: [] };
}

/** What a conversation is called: how it begins. */
export function titleOf(text: string): string {
  const line = text.trim().replace(/\s+/g, " ");
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line || "New chat";
}

export function settings(): Settings {
  const found = parsed(localStorage.getItem(SETTINGS));
  return { ...DEFAULTS, ...(typeof found === "object" ? found : {}) };
}

export function saveSettings(changed: Partial<Settings>): Settings {
  const all = { ...settings(), ...changed };
  try {
    localStorage.setItem(SETTINGS, JSON.stringify(all));
  } catch {
    // They hold for now, then.
  }
  return all;
}

/** Calls back when another tab changed a conversation, with its id, or the settings, with null. */
export function onChange(changed: (id: string | null) => void): void {
  addEventListener("storage", (event) => {
    if (event.key === SETTINGS) changed(null);
    else if (event.key?.startsWith(CHAT)) changed(event.key.slice(CHAT.length));
  });
}
