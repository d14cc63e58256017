// Markdown's tree as elements. Text becomes text nodes, so nothing that a model writes is ever markup.

import { h, icon, ICONS } from "./dom.js";
import { parse, type Block, type Inline } from "./markdown.js";

/** An element that shows Markdown and can be given longer text again and again: blocks that did not change stay as they are. */
export class MarkdownView {
  readonly element = h("div", { class: "markdown" });
  private shown: string[] = [];

  update(text: string): void {
    const found = parse(text);
    let same = 0;
    while (same < found.length && found[same]!.source === this.shown[same]) same += 1;
    while (this.element.childNodes.length > same) this.element.lastChild!.remove();
    for (const { block } of found.slice(same)) this.element.append(blockElement(block));
    this.shown = found.map(({ source }) => source);
  }
}

function inlines(parts: Inline[]): Node[] {
  return parts.map((part) => {
    switch (part.kind) {
      case "text":
        return document.createTextNode(part.text);
      case "code":
        return h("code", {}, part.text);
      case "break":
        return h("br");
      case "strong":
        return h("strong", {}, ...inlines(part.parts));
      case "emphasis":
        return h("em", {}, ...inlines(part.parts));
      case "struck":
        return h("s", {}, ...inlines(part.parts));
      case "link":
        return h("a", { href: part.url, target: "_blank", rel: "noopener noreferrer" }, ...inlines(part.parts));
    }
  });
}

function blockElement(block: Block): HTMLElement {
  switch (block.kind) {
    case "paragraph":
      return h("p", {}, ...inlines(block.parts));
    case "heading":
      // The page's title is the heading above these.
      return h(`h${Math.min(block.level + 1, 6)}` as "h2", {}, ...inlines(block.parts));
    case "rule":
      return h("hr");
    case "quote":
      return h("blockquote", {}, ...block.blocks.map(blockElement));
    case "list": {
      const items = block.items.map((item) => {
        const [first, ...rest] = item;
        // A short item is its text, without the space around a paragraph.
        const begin = first?.kind === "paragraph" ? inlines(first.parts) : first ? [blockElement(first)] : [];
        return h("li", {}, ...begin, ...rest.map(blockElement));
      });
      return block.start === null ? h("ul", {}, ...items) : h("ol", { start: block.start }, ...items);
    }
    case "table": {
      const cell = (tag: "th" | "td", parts: Inline[], column: number): HTMLElement => {
        const align = block.align[column];
        return h(tag, { class: align && `align-${align}` }, ...inlines(parts));
      };
      const head = h("tr", {}, ...block.head.map((parts, column) => cell("th", parts, column)));
      const rows = block.rows.map((row) => h("tr", {}, ...row.map((parts, column) => cell("td", parts, column))));
      const table = h("table", {}, h("thead", {}, head), h("tbody", {}, ...rows));
      return h("div", { class: "table", tabindex: 0, role: "region", "aria-label": "Table" }, table);
    }
    case "code": {
      const copy = copyButton(() => block.text, "Copy code");
      const bar = h("div", { class: "code-bar" }, h("span", {}, block.language || "text"), copy);
      const code = h("pre", { tabindex: 0, role: "group", "aria-label": "Code" }, h("code", {}, block.text));
      return h("div", { class: "code" }, bar, code);
    }
  }
}

/** A button that copies a text and says so. */
export function copyButton(text: () => string, label: string): HTMLButtonElement {
  const button = h("button", { type: "button", class: "quiet", "aria-label": label, title: label });
  button.append(icon(ICONS.copy));
  button.addEventListener("click", async () => {
    const isCopied = await copied(text());
    button.replaceChildren(icon(isCopied ? ICONS.check : ICONS.close));
    button.setAttribute("aria-label", isCopied ? "Copied" : "Could not copy");
    setTimeout(() => {
      button.replaceChildren(icon(ICONS.copy));
      button.setAttribute("aria-label", label);
    }, 1500);
  });
  return button;
}

async function copied(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without TLS, pages of other machines have no clipboard but this old one.
    const area = h("textarea", { class: "unseen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    return isCopied;
  }
}
