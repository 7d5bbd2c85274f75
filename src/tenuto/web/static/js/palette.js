// The search palette: pages, actions of the open page, recent objects, and objects that the server finds by name or id.
// It opens links and clicks buttons of the page; it must not send requests that change something.

const MAX_RECENT = 8;
const DELAY_MS = 150;
const RECENT = "tenuto-recent";
const FOLDERS = {
  execution: "executions", task: "tasks", one_shot: "tasks", activity: "activities", dead_letter: "dead-letters", batch: "batches",
  operation: "operations", schedule: "schedules", manifest: "manifests", worker: "workers", queue: "queues", job: "jobs",
};
const BY_NAME = new Set(["schedule", "manifest", "queue", "job"]);

const prefix = document.documentElement.dataset.prefix ?? "";
const sentence = (text) => text.replaceAll("_", " ").replace(/^./, (first) => first.toUpperCase());
const dialog = () => document.querySelector("#palette-dialog");

/** @typedef {{text: string, kind: string, href?: string, button?: HTMLButtonElement, note?: string}} Entry */

/** @returns {Entry[]} */
function readRecent() {
  try {
    return JSON.parse(localStorage.getItem(RECENT) || "[]");
  } catch {
    return [];
  }
}

/** Remember the object whose page is open. */
function rememberPage() {
  const depth = location.pathname.slice(prefix.length).split("/").filter(Boolean).length;
  const title = document.querySelector("h1")?.textContent.trim();
  if (depth < 2 || !title) return;
  const kind = document.querySelector("nav.sidebar [aria-current]")?.firstChild.textContent.trim() ?? "";
  const entry = { text: title.slice(0, 120), kind: `Recent · ${kind}`, href: location.pathname };
  const others = readRecent().filter((each) => each.href !== entry.href);
  localStorage.setItem(RECENT, JSON.stringify([entry, ...others].slice(0, MAX_RECENT)));
}

/** @returns {Entry[]} */
function listLocal() {
  const buttons = [...document.querySelectorAll("main .head .actions button[data-operation]")];
  const actions = buttons.map((button) => ({
    text: button.textContent.trim(), kind: "Action", button, note: button.disabled ? button.title : "",
  }));
  const pages = [...document.querySelectorAll("nav.sidebar a")].map((link) => ({
    text: link.firstChild.textContent.trim(), kind: "Page", href: link.getAttribute("href"),
  }));
  return [...actions, ...readRecent().filter((each) => each.href !== location.pathname), ...pages];
}

function addressOf(hit) {
  if (hit.path) return prefix + hit.path;
  const folder = FOLDERS[hit.kind];
  if (!folder) return null;
  if (hit.kind === "worker") return `${prefix}/workers`;
  return `${prefix}/${folder}/${encodeURIComponent(BY_NAME.has(hit.kind) ? hit.name : hit.id)}`;
}

class Palette {
  constructor(element) {
    this.dialog = element;
    this.input = element.querySelector("input");
    this.list = element.querySelector("[role=listbox]");
    this.status = element.querySelector("[role=status]");
    /** @type {Entry[]} */
    this.entries = [];
    this.selected = 0;
    this.request = null;
    this.input.addEventListener("input", () => this.search());
    this.input.addEventListener("keydown", (event) => this.onKey(event));
    this.list.addEventListener("click", (event) => {
      const option = event.target.closest("[role=option]");
      if (option) this.open(Number(option.dataset.index));
    });
    element.addEventListener("click", (event) => {
      if (event.target === element) element.close();
    });
    element.addEventListener("close", () => this.abort());
  }

  show() {
    if (this.dialog.open) return;
    this.input.value = "";
    this.local = listLocal();
    this.found = [];
    this.render();
    this.dialog.showModal();
    this.input.focus();
  }

  abort() {
    clearTimeout(this.timer);
    this.request?.abort();
    this.request = null;
  }

  search() {
    this.abort();
    const text = this.input.value.trim();
    if (!text) this.found = [];
    this.render();
    if (text) this.timer = setTimeout(() => this.fetch(text), DELAY_MS);
  }

  /** Ask the server; a later input aborts the request. */
  async fetch(text) {
    const request = new AbortController();
    this.request = request;
    try {
      const address = `${this.dialog.dataset.search}?q=${encodeURIComponent(text.slice(0, 200))}`;
      const response = await fetch(address, { headers: { Accept: "application/json" }, signal: request.signal });
      const data = response.ok ? await response.json() : { items: [] };
      this.found = data.items.flatMap((hit) => {
        const href = addressOf(hit);
        const note = [hit.state && sentence(hit.state), hit.id && hit.id.slice(0, 13)].filter(Boolean).join(" · ");
        return href ? [{ text: hit.name, kind: sentence(hit.kind), href, note }] : [];
      });
      this.render();
    } catch (error) {
      if (error.name !== "AbortError") this.status.textContent = "The server cannot be reached.";
    }
  }

  render() {
    const words = this.input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const local = this.local.filter((each) => words.every((word) => `${each.text} ${each.kind}`.toLowerCase().includes(word)));
    this.entries = words.length ? [...local.slice(0, 8), ...this.found] : local;
    this.list.replaceChildren(...this.entries.map((entry, index) => this.createOption(entry, index)));
    this.status.textContent = this.entries.length ? `${this.entries.length} results` : "Nothing found.";
    this.select(0);
  }

  createOption(entry, index) {
    const option = document.createElement("li");
    option.id = `palette-${index}`;
    option.dataset.index = String(index);
    option.setAttribute("role", "option");
    if (entry.button?.disabled) option.setAttribute("aria-disabled", "true");
    for (const [name, text] of [["bdi", entry.text], ["small", entry.note ?? ""], ["small", entry.kind]]) {
      const part = document.createElement(name);
      part.textContent = text;
      option.append(part);
    }
    return option;
  }

  select(index) {
    const options = this.list.children;
    this.selected = options.length ? (index + options.length) % options.length : 0;
    for (const [at, option] of [...options].entries()) option.setAttribute("aria-selected", String(at === this.selected));
    const current = options[this.selected];
    if (current) this.input.setAttribute("aria-activedescendant", current.id);
    else this.input.removeAttribute("aria-activedescendant");
    current?.scrollIntoView({ block: "nearest" });
  }

  onKey(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    if (steps[event.key]) this.select(this.selected + steps[event.key]);
    else if (event.key === "Enter" && !event.isComposing) this.open(this.selected);
    else return;
    event.preventDefault();
  }

  open(index) {
    const entry = this.entries[index];
    if (!entry || entry.button?.disabled) return;
    this.dialog.close();
    if (entry.href) location.assign(entry.href);
    else entry.button.click();
  }
}

export function startPalette() {
  const element = dialog();
  if (!element) return;
  const palette = new Palette(element);
  rememberPage();
  document.addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
    event.preventDefault();
    if (!document.querySelector("dialog[open]")) palette.show();
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest?.("[data-palette]")) palette.show();
  });
}
