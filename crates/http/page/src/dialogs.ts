// Dialogs: settings, and the key that a server beyond this machine asks for.

import * as api from "./api.js";
import { byId } from "./dom.js";
import * as store from "./store.js";

export function applyTheme(): void {
  const { theme } = store.settings();
  if (theme === "auto") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
}

/** A number within the bounds of its field, or null. */
function number(field: HTMLInputElement): number | null {
  return field.value.trim() === "" || !field.validity.valid ? null : field.valueAsNumber;
}

export class SettingsDialog {
  private readonly dialog = byId<HTMLDialogElement>("settings");
  private readonly temperature = byId<HTMLInputElement>("temperature");
  private readonly topP = byId<HTMLInputElement>("top-p");
  private readonly maxTokens = byId<HTMLInputElement>("max-tokens");
  private readonly system = byId<HTMLTextAreaElement>("system");
  private readonly theme = byId<HTMLSelectElement>("theme");

  constructor() {
    // What is changed holds at once; there is nothing to confirm.
    this.dialog.addEventListener("input", () => {
      store.saveSettings({
        temperature: number(this.temperature),
        topP: number(this.topP),
        maxTokens: number(this.maxTokens),
        system: this.system.value,
        theme: this.theme.value as store.Settings["theme"],
      });
      applyTheme();
    });
    byId("settings-close").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close();
    });
  }

  open(): void {
    const settings = store.settings();
    const text = (value: number | null): string => (value === null ? "" : String(value));
    this.temperature.value = text(settings.temperature);
    this.topP.value = text(settings.topP);
    this.maxTokens.value = text(settings.maxTokens);
    this.system.value = settings.system;
    this.theme.value = settings.theme;
    this.dialog.showModal();
  }
}

export class KeyDialog {
  private readonly dialog = byId<HTMLDialogElement>("key-dialog");
  private readonly field = byId<HTMLInputElement>("key");
  private readonly problem = byId("key-problem");

  constructor(given: () => void) {
    this.dialog.addEventListener("cancel", (event) => event.preventDefault());
    byId<HTMLFormElement>("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const key = this.field.value.trim();
      if (key === "") return;
      if (!/^[\x21-\x7e]+$/.test(key)) {
        this.problem.textContent = "A key may contain only visible ASCII characters.";
        return;
      }
      api.setKey(key);
      this.field.value = "";
      this.dialog.close();
      given();
    });
  }

  open(): void {
    if (this.dialog.open) return;
    this.problem.textContent = api.hasKey() ? "The server rejected that key." : "";
    this.dialog.showModal();
    this.field.focus();
  }
}
