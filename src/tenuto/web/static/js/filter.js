// <t-filter>: suggestions for the filter of a list (keys, then values), the filter in the address, saved views.
// The server parses and checks the filter; this module only completes the word at the caret.

import { visit } from "./live.js";

const TYPING_MS = 350;
const SEARCH_MS = 150;
const PARTS = ["filters", "head", "groups", "list"];
const STORE = "tenuto-views";

/**
 * The clause at the caret: where its last value begins, its key without the minus sign, and what was typed of both.
 * @param {string} text @param {number} caret
 */
export function clauseAt(text, caret) {
  let start = 0;
  let valueStart = -1;
  let isQuoted = false;
  for (let at = 0; at < caret; at += 1) {
    const char = text[at];
    if (char === "\\" && isQuoted) at += 1;
    else if (char === '"') isQuoted = !isQuoted;
    else if (isQuoted) continue;
    else if (/\s/.test(char)) [start, valueStart] = [at + 1, -1];
    else if (char === ":" && valueStart < 0) valueStart = at + 1;
    else if (char === "," && valueStart >= 0) valueStart = at + 1;
  }
  if (valueStart < 0 && text[start] === "-") start += 1;
  let end = caret;
  while (end < text.length && !/\s/.test(text[end])) end += 1;
  if (valueStart < 0) return { start, end, key: null, typed: text.slice(start, caret), isQuoted };
  const key = text.slice(start, text.indexOf(":", start)).replace(/^-/, "").toLowerCase();
  const typed = text.slice(valueStart, caret).replace(/^"|"$/g, "").replaceAll("\\", "");
  return { start: valueStart, end, key, typed, isQuoted };
}

/** Write a value as the grammar wants it; the same rule as `quote_value` on the server. */
export function quoteValue(value) {
  const isPlain = value && !/[\s",\\:]/.test(value) && !value.includes("..");
  return isPlain && (!/^[-~<>]/.test(value) || /^[<>]=?\w/.test(value)) ? value : `"${value.replaceAll("\\", "\\\\").replaceAll('"', '\\"')}"`;
}

/** Number of single-character edits between two short words. */
function distance(a, b) {
  let row = [...b].map((_, index) => index + 1);
  row.unshift(0);
  for (const [at, char] of [...a].entries()) {
    const next = [at + 1];
    for (let index = 0; index < b.length; index += 1) {
      next.push(Math.min(next[index] + 1, row[index + 1] + 1, row[index] + (char === b[index] ? 0 : 1)));
    }
    row = next;
  }
  return row[b.length];
}

class Filter extends HTMLElement {
  connectedCallback() {
    this.field = this.querySelector("input");
    this.box = this.querySelector("[role=listbox]");
    /** @type {{name: string, help: string, values: string[], source: string}[]} */
    this.keys = JSON.parse(this.dataset.keys);
    /** @type {{text: string, note: string}[]} */
    this.options = [];
    this.selected = -1;
    const given = { role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": this.box.id };
    for (const [name, value] of Object.entries(given)) this.field.setAttribute(name, value);
    this.field.addEventListener("input", () => this.onInput());
    this.field.addEventListener("click", () => this.suggest());
    this.field.addEventListener("keydown", (event) => this.onKey(event));
    this.field.addEventListener("blur", () => this.close());
    this.box.addEventListener("mousedown", (event) => {
      event.preventDefault();
      const option = event.target.closest("[role=option]");
      if (option) this.accept(Number(option.dataset.index));
    });
    this.onPop = () => { this.field.value = new URLSearchParams(location.search).get("q") ?? ""; };
    window.addEventListener("popstate", this.onPop);
    this.onUpdate = () => {
      const isWrong = document.querySelector("#filter-error") !== null;
      if (isWrong) this.field.setAttribute("aria-describedby", "filter-error");
      else this.field.removeAttribute("aria-describedby");
      this.field.setAttribute("aria-invalid", String(isWrong));
    };
    document.addEventListener("tenuto:updated", this.onUpdate);
    this.form = this.closest("form");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.apply(false);
      this.close();
    });
    this.showViews();
  }

  disconnectedCallback() {
    window.removeEventListener("popstate", this.onPop);
    document.removeEventListener("tenuto:updated", this.onUpdate);
  }

  /** Show the list with this filter: a new entry of the history, or in place of the current one while typing. */
  apply(isTyping) {
    clearTimeout(this.typing);
    const q = this.field.value.trim();
    if (isTyping && q === (new URLSearchParams(location.search).get("q") ?? "")) return;
    const url = new URL(this.dataset.path, location.href);
    if (q) url.searchParams.set("q", q);
    visit(url, PARTS, isTyping);
    this.showViews();
  }

  onInput() {
    this.suggest();
    clearTimeout(this.typing);
    const { key, typed, isQuoted } = clauseAt(this.field.value, this.field.value.length);
    const isOpen = isQuoted || (key === null ? this.keys.some((each) => typed && each.name.startsWith(typed)) : !typed);
    const isKnown = key === null || this.keys.some((each) => each.name === key);
    if (!isOpen && isKnown) this.typing = setTimeout(() => this.apply(true), TYPING_MS);
  }

  suggest() {
    clearTimeout(this.searching);
    const clause = clauseAt(this.field.value, this.field.selectionStart);
    const key = this.keys.find((each) => each.name === clause.key);
    if (clause.key === null) return this.show(this.keysFor(clause.typed));
    if (!key) {
      const near = this.keys.filter((each) => distance(each.name, clause.key) <= 2);
      return this.show(near.map((each) => ({ text: `${each.name}:`, note: `instead of ${clause.key}`, replacesKey: true })));
    }
    const typed = clause.typed.toLowerCase();
    const values = key.values.filter((each) => each.toLowerCase().includes(typed));
    this.show(values.map((each) => ({ text: each, note: key.help })));
    if (key.source && typed) this.searching = setTimeout(() => this.search(key, clause.typed), SEARCH_MS);
    return undefined;
  }

  keysFor(typed) {
    const wanted = typed.toLowerCase();
    const found = this.keys.filter((each) => each.name.includes(wanted) || each.help.includes(wanted));
    const rank = (each) => (each.name.startsWith(wanted) ? 0 : 1);
    return found.sort((a, b) => rank(a) - rank(b)).map((each) => ({ text: `${each.name}:`, note: each.help }));
  }

  /** Offer names of objects; a later input makes the answer obsolete. */
  async search(key, typed) {
    const response = await fetch(`${this.dataset.search}?q=${encodeURIComponent(typed.slice(0, 200))}`).catch(() => null);
    if (!response?.ok || clauseAt(this.field.value, this.field.selectionStart).typed !== typed) return;
    const { items } = await response.json();
    this.show(items.filter((each) => each.kind === key.source).map((each) => ({ text: each.name, note: key.help })));
  }

  show(options) {
    this.options = options.slice(0, 12);
    this.selected = -1;
    this.box.replaceChildren(...this.options.map(({ text, note }, index) => {
      const option = document.createElement("li");
      option.id = `filter-option-${index}`;
      option.dataset.index = String(index);
      option.setAttribute("role", "option");
      option.setAttribute("aria-selected", "false");
      for (const [name, content] of [["bdi", text], ["small", note]]) {
        const part = document.createElement(name);
        part.textContent = content;
        option.append(part);
      }
      return option;
    }));
    this.box.hidden = !this.options.length || document.activeElement !== this.field;
    this.field.setAttribute("aria-expanded", String(!this.box.hidden));
    this.field.removeAttribute("aria-activedescendant");
  }

  close() {
    clearTimeout(this.searching);
    this.show([]);
  }

  select(index) {
    const items = this.box.children;
    if (!items.length) return;
    this.selected = (index + items.length) % items.length;
    for (const [at, item] of [...items].entries()) item.setAttribute("aria-selected", String(at === this.selected));
    this.field.setAttribute("aria-activedescendant", items[this.selected].id);
    items[this.selected].scrollIntoView({ block: "nearest" });
  }

  /** Put a suggestion in the place of what was typed. */
  accept(index) {
    const { text, replacesKey } = this.options[index];
    const { value } = this.field;
    const clause = clauseAt(value, this.field.selectionStart);
    const isKey = text.endsWith(":");
    const start = replacesKey ? value.lastIndexOf(clause.key, clause.start) : clause.start;
    const end = replacesKey ? value.indexOf(":", start) + 1 : clause.end;
    const word = isKey ? text : `${quoteValue(text)} `;
    this.field.value = value.slice(0, start) + word + value.slice(end).replace(/^\s+/, isKey ? " " : "");
    const caret = replacesKey ? this.field.value.length : start + word.length;
    this.field.setSelectionRange(caret, caret);
    this.field.focus();
    this.onInput();
  }

  onKey(event) {
    if (event.isComposing) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (this.box.hidden) this.suggest();
      else this.select(event.key === "ArrowDown" ? this.selected + 1 : Math.max(this.selected, 0) - 1);
    } else if ((event.key === "Enter" || event.key === "Tab") && this.selected >= 0) this.accept(this.selected);
    else if (event.key === "Escape" && !this.box.hidden) this.close();
    else return;
    event.preventDefault();
  }

  // --- saved views, in this browser only ---

  /** @returns {Record<string, string>} */
  get views() {
    try {
      return JSON.parse(localStorage.getItem(STORE) || "{}")[this.dataset.noun] ?? {};
    } catch {
      return {};
    }
  }

  saveViews(views) {
    const all = JSON.parse(localStorage.getItem(STORE) || "{}");
    localStorage.setItem(STORE, JSON.stringify({ ...all, [this.dataset.noun]: views }));
    this.showViews();
  }

  showViews() {
    const place = this.closest("[data-part]").querySelector(".saved-views");
    const q = this.field.value.trim();
    const { views } = this;
    const links = Object.entries(views).map(([name, text]) => {
      const link = document.createElement("a");
      link.className = "chip";
      link.href = `${this.dataset.path}?q=${encodeURIComponent(text)}`;
      link.textContent = `★ ${name}`;
      if (text === q) link.setAttribute("aria-current", "true");
      return link;
    });
    const saved = Object.keys(views).find((name) => views[name] === q);
    if (q) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "link";
      button.textContent = saved ? `Forget the view ${saved}` : "Save as a view…";
      button.addEventListener("click", () => (saved ? this.forget(saved) : this.ask(button, q)));
      links.push(button);
    }
    place.replaceChildren(...links);
  }

  forget(name) {
    this.saveViews(Object.fromEntries(Object.entries(this.views).filter(([each]) => each !== name)));
  }

  /** Ask for the name of a view in place of the button. */
  ask(button, q) {
    const field = document.createElement("input");
    field.setAttribute("aria-label", "Name of the view");
    field.maxLength = 60;
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.showViews();
      if (event.key !== "Enter" || !field.value.trim()) return;
      event.preventDefault();
      this.saveViews({ ...this.views, [field.value.trim()]: q });
      this.field.focus();
    });
    button.replaceWith(field);
    field.focus();
  }
}

customElements.define("t-filter", Filter);
