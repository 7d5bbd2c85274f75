// <t-select>: the bar of selected rows. It counts checked rows, freezes the selection of all that match the filter, and
// gives both to the actions of the bar, which start a bulk operation. It must not act on anything itself.

import { send, toast } from "./actions.js";

const boxes = () => [...document.querySelectorAll("[data-pick]")];
const list = () => document.querySelector("[data-part=list]");
const number = (count) => count.toLocaleString("en-GB");

/** @typedef {{q: string, until: string, count: number, is_exact: boolean, description: string}} Frozen */

class Selection extends HTMLElement {
  connectedCallback() {
    /** @type {Frozen | null} */
    this.frozen = null;
    this.anchor = null;
    this.asked = new Map([...this.querySelectorAll("button[data-dialog]")].map((each) => [each, JSON.parse(each.dataset.dialog)]));
    this.stop = new AbortController();
    const { signal } = this.stop;
    document.addEventListener("change", (event) => this.onChange(event), { signal });
    document.addEventListener("click", (event) => this.onPick(event), { signal });
    document.addEventListener("tenuto:updated", () => this.update(), { signal });
    document.addEventListener("tenuto:select", (event) => this.toggle(event.detail.row, event.detail.range), { signal });
    document.addEventListener("tenuto:done", (event) => this.contains(event.detail) && this.clear(), { signal });
    this.addEventListener("click", (event) => this.onClick(event));
    for (const each of boxes()) each.checked = history.state?.picked?.includes(each.value) ?? false; // on the way back
    this.update();
  }

  disconnectedCallback() {
    this.stop.abort();
  }

  /** Select or clear a row; with `range` all rows from the one that was changed last. */
  toggle(row, range) {
    const box = row.querySelector("[data-pick]");
    if (!box) return;
    box.checked = range || !box.checked;
    this.change(box, range);
  }

  onPick(event) {
    const box = event.target.closest?.("[data-pick]");
    if (box) this.change(box, event.shiftKey);
  }

  change(box, range) {
    const all = boxes();
    const [from, to] = [all.indexOf(this.anchor), all.indexOf(box)].sort((a, b) => a - b);
    if (range && from >= 0) for (const each of all.slice(from, to + 1)) each.checked = box.checked;
    this.anchor = box;
    this.frozen = null;
    this.update();
  }

  onChange(event) {
    if (!event.target.matches?.("[data-pick-all]")) return;
    for (const each of boxes()) each.checked = event.target.checked;
    this.frozen = null;
    this.update();
  }

  clear() {
    for (const each of boxes()) each.checked = false;
    this.frozen = null;
    this.anchor = null;
    this.update();
  }

  get count() {
    return this.frozen ? this.frozen.count : boxes().filter((each) => each.checked).length;
  }

  get countText() {
    return `${number(this.count)}${this.frozen && !this.frozen.is_exact ? "+" : ""}`;
  }

  update() {
    const all = boxes();
    if (this.frozen) for (const each of all) each.checked = true;
    const head = document.querySelector("[data-pick-all]");
    const checked = all.filter((each) => each.checked).length;
    if (head) {
      head.checked = checked > 0 && checked === all.length;
      head.indeterminate = checked > 0 && checked < all.length;
    }
    const picked = all.filter((each) => each.checked).map((each) => each.value);
    if (picked.join() !== (history.state?.picked ?? []).join()) history.replaceState({ ...history.state, picked }, "");
    const held = document.activeElement;
    this.hidden = !checked && !this.frozen;
    if (this.hidden && this.contains(held)) document.querySelector("#main").focus();
    this.querySelector("[data-selected]").textContent = this.hidden ? "" : `${this.countText} selected`;
    const total = list()?.dataset.total;
    const button = this.querySelector("[data-select-all]");
    button.hidden = Boolean(this.frozen) || !total || total === number(checked);
    button.textContent = `Select all ${total} matching`;
    const compare = this.querySelector("[data-compare]");
    if (!compare) return;
    compare.hidden = Boolean(this.frozen) || picked.length !== 2;
    if (!compare.hidden) compare.href = `${compare.dataset.compare}?a=${picked[1]}&b=${picked[0]}`;
  }

  async onClick(event) {
    const button = event.target.closest("button");
    if (!button || button.disabled) return;
    if (button.matches("[data-select-none]")) this.clear();
    else if (button.matches("[data-select-all]")) await this.selectAll(button);
    else if (this.asked.has(button)) this.prepare(button);
  }

  /** Freeze the selection: the server counts what matches now, and the operation leaves out what appears later. */
  async selectAll(button) {
    const kind = JSON.parse(this.querySelector("[data-body]")?.dataset.body ?? "{}").kind ?? this.dataset.kind;
    const q = list().dataset.q ?? "";
    button.setAttribute("aria-busy", "true");
    const actions = [...this.asked.keys()].filter((each) => !each.disabled);
    for (const each of actions) each.disabled = true; // until the answer is there, they would act on the rows of this page
    try {
      const { response, data } = await send("POST", this.dataset.preview, { body: { kind, q, zone: this.dataset.zone } });
      if (response.ok) this.frozen = { ...data, q };
      else toast({ text: data?.detail ?? "The selection was refused.", remedy: data?.remedy ?? "", isError: true });
    } catch {
      toast({ text: "The server cannot be reached.", isError: true });
    }
    button.removeAttribute("aria-busy");
    for (const each of actions) each.disabled = false;
    this.update();
    this.querySelector(".actions button:not([disabled])")?.focus();
  }

  /** Give the selection to an action before its dialog opens. */
  prepare(button) {
    const asked = this.asked.get(button);
    const { kind } = JSON.parse(button.dataset.body);
    const what = `${asked.submit} ${this.countText} ${this.dataset.noun}`;
    const text = this.frozen ? `${asked.text} Selection: ${this.frozen.description}. Those that appear later are not included.` : asked.text;
    const body = this.frozen
      ? { kind, q: this.frozen.q, until: this.frozen.until, zone: this.dataset.zone, ...(this.frozen.is_exact ? { expected: this.count } : {}) }
      : { kind, ids: boxes().filter((each) => each.checked).map((each) => each.value) };
    button.dataset.body = JSON.stringify(body);
    button.dataset.dialog = JSON.stringify({ ...asked, title: what, submit: what, text, expected: this.count });
  }
}

customElements.define("t-select", Selection);
