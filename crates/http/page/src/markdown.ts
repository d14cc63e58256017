// Markdown as models write it, from text to a tree; what shows the tree is elsewhere. HTML in it is text.
//
// Invariants: any text is a tree, in time that grows with its length and its nesting is bounded; a text that grows at its end
// changes only blocks at the end, as far as their source did.

export type Inline =
  | { kind: "text"; text: string }
  | { kind: "code"; text: string }
  | { kind: "strong" | "emphasis" | "struck"; parts: Inline[] }
  | { kind: "link"; url: string; parts: Inline[] }
  | { kind: "break" };

export type Block =
  | { kind: "paragraph"; parts: Inline[] }
  | { kind: "heading"; level: number; parts: Inline[] }
  | { kind: "code"; language: string; text: string }
  | { kind: "quote"; blocks: Block[] }
  | { kind: "list"; start: number | null; items: Block[][] }
  | { kind: "table"; head: Inline[][]; align: ("left" | "right" | "center" | null)[]; rows: Inline[][][] }
  | { kind: "rule" };

/** A block and the text that it was made from. */
export interface SourcedBlock {
  source: string;
  block: Block;
}

const DEPTH = 8;
/** A table has a cell for each of them in every row, however short the row is. */
const MAX_COLUMNS = 100;
const MAX_ADDRESS = 2048;
const FENCE = /^ {0,3}(`{3,}(?!`)|~{3,}(?!~))([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/s;
const RULE = /^ {0,3}([-*_])[ \t]*(\1[ \t]*){2,}$/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(\s+|$)/;
const QUOTE = /^ {0,3}> ?/;
const ROW = /^\s*:?-+:?\s*$/;

export function parse(text: string): SourcedBlock[] {
  return blocks(text.replace(/\r\n?/g, "\n").split("\n"), 0);
}

function blocks(lines: string[], depth: number): SourcedBlock[] {
  const found: SourcedBlock[] = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at]!.trim() === "") {
      at += 1;
      continue;
    }
    const [block, end] = one(lines, at, depth);
    found.push({ source: lines.slice(at, end).join("\n"), block });
    at = end;
  }
  return found;
}

const bare = (found: SourcedBlock[]): Block[] => found.map(({ block }) => block);

/** The block at a line, and the line after it. */
function one(lines: string[], at: number, depth: number): [Block, number] {
  const line = lines[at]!;
  const fence = FENCE.exec(line);
  if (fence) return fenced(lines, at, fence[1]!, fence[2]!.trim().split(/\s/, 1)[0]!);
  const heading = HEADING.exec(line);
  if (heading) return [{ kind: "heading", level: heading[1]!.length, parts: inline(unclosed(heading[2]!)) }, at + 1];
  if (RULE.test(line)) return [{ kind: "rule" }, at + 1];
  if (depth < DEPTH && QUOTE.test(line)) {
    let end = at;
    while (end < lines.length && QUOTE.test(lines[end]!)) end += 1;
    const inner = lines.slice(at, end).map((quoted) => quoted.replace(QUOTE, ""));
    return [{ kind: "quote", blocks: bare(blocks(inner, depth + 1)) }, end];
  }
  if (depth < DEPTH && ITEM.test(line)) return list(lines, at, depth);
  return table(lines, at) ?? paragraph(lines, at, depth);
}

/** A heading without the marks that may close it: `C# ##` is `C#`. */
function unclosed(text: string): string {
  const whole = text.trimEnd();
  let end = whole.length;
  while (whole[end - 1] === "#") end -= 1;
  return end === 0 || /\s/.test(whole[end - 1]!) ? whole.slice(0, end).trimEnd() : whole;
}

function fenced(lines: string[], at: number, fence: string, language: string): [Block, number] {
  const indent = /^ */.exec(lines[at]!)![0].length;
  const close = new RegExp(`^ {0,3}\\${fence[0]}{${fence.length},}\\s*$`);
  let end = at + 1;
  while (end < lines.length && !close.test(lines[end]!)) end += 1;
  const inner = lines.slice(at + 1, end).map((code) => code.replace(new RegExp(`^ {0,${indent}}`), ""));
  // One that is still being written has no end yet.
  return [{ kind: "code", language, text: inner.join("\n") }, Math.min(end + 1, lines.length)];
}

function list(lines: string[], at: number, depth: number): [Block, number] {
  const first = ITEM.exec(lines[at]!)!;
  const isOrdered = /\d/.test(first[2]!);
  const items: Block[][] = [];
  let end = at;
  while (end < lines.length) {
    const marker = ITEM.exec(lines[end]!);
    if (!marker || /\d/.test(marker[2]!) !== isOrdered || RULE.test(lines[end]!)) break;
    const width = marker[1]!.length + marker[2]!.length + Math.min(Math.max(marker[3]!.length, 1), 4);
    const inner = [lines[end]!.slice(Math.min(width, lines[end]!.length))];
    end += 1;
    while (end < lines.length) {
      const next = lines[end]!;
      const indent = /^ */.exec(next)![0].length;
      if (next.trim() === "") {
        // Empty lines belong to the item if more of it follows.
        let more = end + 1;
        while (more < lines.length && lines[more]!.trim() === "") more += 1;
        if (more === lines.length || /^ */.exec(lines[more]!)![0].length < 2) break;
        for (; end < more; end += 1) inner.push("");
        continue;
      } else if (indent >= Math.min(width, 2)) {
        inner.push(next.slice(Math.min(indent, width)));
      } else if (ITEM.test(next) || starts(next)) {
        break;
      } else {
        inner.push(next);
      }
      end += 1;
    }
    items.push(bare(blocks(inner, depth + 1)));
    // One empty line between items is still the same list.
    const after = lines[end + 1];
    if (end < lines.length && lines[end]!.trim() === "" && after !== undefined) {
      const next = ITEM.exec(after);
      if (next && /\d/.test(next[2]!) === isOrdered) end += 1;
    }
  }
  return [{ kind: "list", start: isOrdered ? Number.parseInt(first[2]!, 10) : null, items }, end];
}

/** Whether a line ends a paragraph by what it begins with. */
function starts(line: string): boolean {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line);
}

function paragraph(lines: string[], at: number, depth: number): [Block, number] {
  let end = at + 1;
  while (end < lines.length && lines[end]!.trim() !== "") {
    if (starts(lines[end]!) || (depth < DEPTH && ITEM.test(lines[end]!))) break;
    end += 1;
  }
  return [{ kind: "paragraph", parts: inline(lines.slice(at, end).join("\n").trim()) }, end];
}

function cells(line: string): string[] {
  const inner = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function table(lines: string[], at: number): [Block, number] | null {
  const rule = lines[at + 1];
  if (!lines[at]!.includes("|") || rule === undefined || !rule.includes("-")) return null;
  const columns = cells(rule);
  const head = cells(lines[at]!);
  if (head.length > MAX_COLUMNS || columns.length !== head.length || !columns.every((column) => ROW.test(column))) return null;
  const align = columns.map((column) => {
    const [left, right] = [column.startsWith(":"), column.endsWith(":")];
    return right ? (left ? "center" : "right") : left ? "left" : null;
  });
  let end = at + 2;
  const rows: Inline[][][] = [];
  while (end < lines.length && lines[end]!.trim() !== "" && lines[end]!.includes("|")) {
    const row = cells(lines[end]!);
    rows.push(head.map((_, column) => inline(row[column] ?? "")));
    end += 1;
  }
  return [{ kind: "table", head: head.map((cell) => inline(cell)), align, rows }, end];
}

const ESCAPABLE = /[\\`*_{}[\]()#+\-.!~|<>]/;
const URL_START = /^https?:\/\/[^\s<>"'`]+/;

/** Text with what is marked in it. */
export function inline(text: string, depth = 0): Inline[] {
  const parts: Inline[] = [];
  // Whole lines, and the one that follows: the end of a short text is looked at in no time.
  let [lines, plain] = ["", ""];
  const flush = (): void => {
    if (lines + plain !== "") parts.push({ kind: "text", text: lines + plain });
    [lines, plain] = ["", ""];
  };
  const add = (part: Inline): void => {
    flush();
    parts.push(part);
  };
  // Markers that were looked for in vain are not looked for again: otherwise a text of nothing else takes for ever.
  const missing = new Set<string>();
  const find = (marker: string, from: number): number => {
    if (missing.has(marker)) return -1;
    const found = text.indexOf(marker, from);
    if (found < 0) missing.add(marker);
    return found;
  };
  let at = 0;
  while (at < text.length) {
    const char = text[at]!;
    if (char === "\\" && at + 1 < text.length && ESCAPABLE.test(text[at + 1]!)) {
      plain += text[at + 1]!;
      at += 2;
      continue;
    }
    if (char === "\n") {
      const isHard = plain.endsWith("  ");
      plain = plain.trimEnd();
      if (isHard) {
        add({ kind: "break" });
      } else {
        lines += `${plain}\n`;
        plain = "";
      }
      at += 1;
      continue;
    }
    if (char === "`") {
      const ticks = /^`+/.exec(text.slice(at, at + 32))![0];
      const end = find(ticks, at + ticks.length);
      if (end >= 0) {
        const code = text.slice(at + ticks.length, end);
        const isPadded = code.startsWith(" ") && code.endsWith(" ") && /[^ ]/.test(code);
        add({ kind: "code", text: isPadded ? code.slice(1, -1) : code });
        at = end + ticks.length;
      } else {
        plain += ticks;
        at += ticks.length;
      }
      continue;
    }
    if (depth < DEPTH && (char === "*" || char === "_" || char === "~")) {
      const marked = emphasis(text, at, find, depth);
      if (marked) {
        add(marked[0]);
        at = marked[1];
        continue;
      }
    }
    if (depth < DEPTH && char === "[") {
      const linked = link(text, at, find, depth);
      if (linked) {
        add(linked[0]);
        at = linked[1];
        continue;
      }
    }
    if (char === "h" && !/\w/.test(text[at - 1] ?? " ")) {
      const address = URL_START.exec(text.slice(at, at + MAX_ADDRESS))?.[0].replace(/[.,;:!?)\]}*_]+$/, "");
      const url = address && safeUrl(address);
      if (url) {
        add({ kind: "link", url, parts: [{ kind: "text", text: address }] });
        at += address.length;
        continue;
      }
    }
    plain += char;
    at += 1;
  }
  flush();
  return parts;
}

type Find = (marker: string, from: number) => number;

function emphasis(text: string, at: number, find: Find, depth: number): [Inline, number] | null {
  const char = text[at]!;
  const isDouble = text[at + 1] === char;
  if (char === "~" && !isDouble) return null;
  const marker = isDouble ? char + char : char;
  const start = at + marker.length;
  // What opens touches what follows; an underscore in a word is one.
  if (start >= text.length || /\s/.test(text[start]!)) return null;
  if (char === "_" && /\w/.test(text[at - 1] ?? " ")) return null;
  let end = find(marker, start);
  while (end >= 0) {
    const after = text[end + marker.length] ?? " ";
    const touches = !/\s/.test(text[end - 1]!) && end > start;
    const isWhole = !(char === "_" && /\w/.test(after)) && !(marker.length === 1 && after === char);
    if (touches && isWhole) break;
    const skip = marker.length === 1 && after === char ? 2 : 1;
    end = find(marker, end + skip);
  }
  if (end < 0) return null;
  // Of three marks, the last two close what the first two opened.
  if (isDouble && text[end + 2] === char) end += 1;
  const kind = char === "~" ? "struck" : isDouble ? "strong" : "emphasis";
  return [{ kind, parts: inline(text.slice(start, end), depth + 1) }, end + marker.length];
}

function link(text: string, at: number, find: Find, depth: number): [Inline, number] | null {
  const middle = find("](", at + 1);
  if (middle < 0 || middle - at > 1000 || text.slice(at + 1, middle).includes("[")) return null;
  // Addresses have parentheses of their own, in pairs.
  let [end, open] = [middle + 2, 1];
  for (; end < text.length && end - middle < MAX_ADDRESS; end += 1) {
    if (text[end] === "(") open += 1;
    else if (text[end] === ")" && (open -= 1) === 0) break;
  }
  if (open > 0) return null;
  const url = safeUrl(text.slice(middle + 2, end).trim().split(/\s/)[0] ?? "");
  if (!url) return null;
  return [{ kind: "link", url, parts: unlinked(inline(text.slice(at + 1, middle), depth + 1)) }, end + 1];
}

/** What is in a link has no links of its own. */
function unlinked(parts: Inline[]): Inline[] {
  return parts.flatMap((part): Inline[] => {
    if (part.kind === "link") return part.parts;
    return "parts" in part ? [{ ...part, parts: unlinked(part.parts) }] : [part];
  });
}

/** An address that may be followed; scripts and the like may not. */
export function safeUrl(address: string): string | null {
  try {
    const url = new URL(address);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}
