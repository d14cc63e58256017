// The server: what is asked of it, and with which key. The key is kept for this tab alone and sent as a header.

import { EventParser } from "./sse.js";

const KEY = "oxcart.key";

/** How long the server may take to say how things are. */
const LOOK_MS = 10_000;

export interface Model {
  id: string;
  /** Whether it answers; others make embeddings. */
  answers: boolean;
}

export interface ChatMessage {
  role: "system" | "user" | "assistant";
  content: string;
}

export interface ChatRequest {
  model: string;
  messages: ChatMessage[];
  temperature?: number;
  top_p?: number;
  max_tokens?: number;
}

/** A piece of an answer. */
export interface Piece {
  text?: string;
  reasoning?: string;
  /** Why it ended. */
  end?: string;
  /** Tokens of the answer, told at the end. */
  tokens?: number;
}

// The picture of the cluster, as crates/http/src/cluster.rs has it.
export interface Link {
  sent_bytes: number;
  received_bytes: number;
  round_trips: number;
}
export interface Machine {
  name: string;
  link: Link | null;
  failure: string | null;
}
export interface DeviceShare {
  machine: string;
  device: string;
  description: string;
  blocks: [number, number];
  has_input: boolean;
  has_output: boolean;
  weights_bytes: number;
  cache_bytes: number;
  results_bytes: number;
  free_bytes: number;
  is_mapped: boolean;
}
export interface ClusterPlacement {
  shares: DeviceShare[];
  problem: string | null;
}
export interface DeviceBlocks {
  machine: string;
  device: string;
  blocks: [number, number];
}
export interface ClusterInterruption {
  uptime_seconds: number;
  lost: { machine: string; reason: string }[];
  returned: string[];
  before: DeviceBlocks[];
  after: DeviceBlocks[];
  requests: number;
  tokens: number;
  noticing_ms: number;
  planning_ms: number;
  loading_ms: number;
  recomputing_ms: number;
  stall_ms: number;
  numerics_changed: boolean;
}
export interface RequestState {
  id: number;
  prompt_tokens: number;
  answer_tokens: number;
  limit: number;
}
export interface ModelState {
  name: string;
  presence: "loaded" | "loading" | "unloaded";
  purpose: "chat" | "embeddings";
  architecture: string;
  parameters: number | null;
  quantization: string | null;
  context: number;
  slots: number;
  running: RequestState[];
  waiting: number;
  answer_tokens: number;
  computed_tokens: number;
  finished: number;
  failed: number;
  trouble: string | null;
  interruptions: ClusterInterruption[];
  plans: { blocks: number; now: ClusterPlacement; without: { machine: string; plan: ClusterPlacement }[] };
}
export interface Cluster {
  version: string;
  uptime_seconds: number;
  machines: Machine[];
  models: ModelState[];
}

/** The server refused, in its own words. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

export function setKey(key: string): void {
  sessionStorage.setItem(KEY, key);
}

export function hasKey(): boolean {
  return sessionStorage.getItem(KEY) !== null;
}

async function ask(path: string, options: RequestInit = {}): Promise<Response> {
  const headers = new Headers(options.headers);
  const key = sessionStorage.getItem(KEY);
  if (key !== null) headers.set("authorization", `Bearer ${key}`);
  const response = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
  if (response.ok) return response;
  let message = `the server answered with ${response.status}`;
  try {
    const told = (await response.json()) as { error?: { message?: string } };
    message = told.error?.message ?? message;
  } catch {
    // What is no JSON has nothing to add.
  }
  throw new Refused(response.status, message);
}

export async function models(): Promise<Model[]> {
  const response = await ask("/v1/models", { signal: AbortSignal.timeout(LOOK_MS) });
  const { data } = (await response.json()) as { data: { id: string; meta: { answers: boolean } }[] };
  return data.map(({ id, meta }) => ({ id, answers: meta.answers }));
}

export async function cluster(): Promise<Cluster> {
  const response = await ask("/cluster", { signal: AbortSignal.timeout(LOOK_MS) });
  return (await response.json()) as Cluster;
}

interface Chunk {
  error?: { message: string };
  usage?: { completion_tokens: number };
  choices?: { delta: { content?: string; reasoning_content?: string }; finish_reason: string | null }[];
}

/** An answer, piece by piece, until it ends or `signal` is given. */
export async function* chat(request: ChatRequest, signal: AbortSignal): AsyncGenerator<Piece> {
  const body = JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } });
  const headers = { "content-type": "application/json" };
  const response = await ask("/v1/chat/completions", { method: "POST", body, headers, signal });
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const parser = new EventParser();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Refused(0, "the connection ended before the answer did");
    for (const data of parser.push(value)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data) as Chunk;
      if (chunk.error) throw new Refused(500, chunk.error.message);
      const choice = chunk.choices?.[0];
      const piece: Piece = {};
      if (choice?.delta.content) piece.text = choice.delta.content;
      if (choice?.delta.reasoning_content) piece.reasoning = choice.delta.reasoning_content;
      if (choice?.finish_reason) piece.end = choice.finish_reason;
      if (chunk.usage) piece.tokens = chunk.usage.completion_tokens;
      yield piece;
    }
  }
}
