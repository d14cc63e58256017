// Answers that are being written in this tab, by conversation. They go on while another conversation is shown.
//
// Invariant: a conversation has at most one; what has come so far is kept in the browser now and then, and at the end.

import * as api from "./api.js";
import * as store from "./store.js";

/** How often what has come so far is kept. */
const KEEP_MS = 1000;

export class Generation {
  readonly message: store.Message;
  /** What the server had against it. */
  refusal: api.Refused | undefined;
  private readonly abort = new AbortController();
  private first = 0;
  private last = 0;
  private pieces = 0;
  private kept = performance.now();

  private constructor(
    readonly conversation: store.Conversation,
    private readonly model: string,
    private readonly changed: (generation: Generation, isOver: boolean) => void,
  ) {
    this.message = { role: "assistant", text: "", model };
    conversation.messages.push(this.message);
  }

  private static readonly all = new Map<string, Generation>();

  static of(id: string): Generation | undefined {
    return Generation.all.get(id);
  }

  /** Asks for an answer to the last message of a conversation. */
  static start(
    conversation: store.Conversation,
    model: string,
    changed: (generation: Generation, isOver: boolean) => void,
  ): Generation {
    const history = conversation.messages.map(({ role, text }) => ({ role, content: text }));
    const generation = new Generation(conversation, model, changed);
    Generation.all.set(conversation.id, generation);
    void generation.run(history);
    return generation;
  }

  stop(): void {
    this.abort.abort();
  }

  /** Tokens so far, and per second. */
  stats(now = this.last): store.Stats | undefined {
    if (this.pieces === 0) return undefined;
    return { tokens: this.pieces, firstMs: this.first - this.began, answerMs: now - this.first };
  }

  private began = performance.now();

  private async run(history: api.ChatMessage[]): Promise<void> {
    const { temperature, topP, maxTokens, system } = store.settings();
    const messages = system.trim() ? [{ role: "system" as const, content: system }, ...history] : history;
    const request: api.ChatRequest = { model: this.model, messages };
    if (temperature !== null) request.temperature = temperature;
    if (topP !== null) request.top_p = topP;
    if (maxTokens !== null) request.max_tokens = maxTokens;
    this.began = performance.now();
    try {
      for await (const piece of api.chat(request, this.abort.signal)) this.take(piece);
    } catch (error) {
      if (error instanceof api.Refused) this.refusal = error;
      if (this.abort.signal.aborted) this.message.note = "Stopped";
      else this.message.note = error instanceof api.Refused ? error.message : "The server cannot be reached.";
    }
    const stats = this.stats();
    if (stats) this.message.stats = stats;
    Generation.all.delete(this.conversation.id);
    this.keep();
    this.changed(this, true);
  }

  private take(piece: api.Piece): void {
    if (piece.text !== undefined || piece.reasoning !== undefined) {
      this.last = performance.now();
      if (this.pieces === 0) this.first = this.last;
      this.pieces += 1;
      this.message.text += piece.text ?? "";
      if (piece.reasoning !== undefined) this.message.reasoning = (this.message.reasoning ?? "") + piece.reasoning;
    }
    if (piece.end === "length") this.message.note = "Cut off: the answer reached its token limit.";
    if (piece.tokens !== undefined) this.pieces = piece.tokens;
    if (performance.now() - this.kept > KEEP_MS) this.keep();
    this.changed(this, false);
  }

  private keep(): void {
    this.kept = performance.now();
    this.conversation.changed = Date.now();
    // A conversation that was deleted meanwhile stays so.
    if (store.load(this.conversation.id) && !store.save(this.conversation)) {
      this.message.note = "The browser's storage is full: this conversation cannot be saved.";
    }
  }
}
