// Editor of schedules and manifests: the fields of the page are the definition, and the server checks every state of it.
// It moves step cards, shows the answer of the check, and saves by the API. It must not know rules of definitions.

import { send } from "./actions.js";
import { formatAge, formatDuration } from "./app.js";
import { parse, serverNow } from "./live.js";
import { FieldProblem, clearErrors, fill, locate, markField, messageOf, read, updateConditions } from "./forms.js";

const CHECK_DELAY_MS = 250;

/** Create an element with a class, a text and children. */
function make(tag, { text, ...properties } = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  if (text !== undefined) element.textContent = text;
  element.append(...children);
  return element;
}

const FORMAT = { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZoneName: "short" };

/** An instant in a zone; without the date if it is the same as in another zone. */
function formatInstant(text, timeZone, other = "") {
  const partsIn = (zone) => Object.fromEntries(new Intl.DateTimeFormat("en-GB", { ...FORMAT, timeZone: zone }).formatToParts(new Date(text)).map((each) => [each.type, each.value]));
  const { weekday, day, month, hour, minute, timeZoneName } = partsIn(timeZone);
  const date = other && partsIn(other).day === day ? "" : `${weekday} ${day} ${month} `;
  return `${date}${hour}:${minute} ${timeZoneName}`;
}

class Editor extends HTMLElement {
  #timer = 0;
  #asked = 0;
  #cards = new Map();
  #dragged = null;
  #isValid = false;
  #definition = null;
  #changes = [];
  #isDirty = false;

  connectedCallback() {
    this.addEventListener("input", () => this.#onInput());
    this.addEventListener("change", (event) => this.#onChange(event));
    this.addEventListener("click", (event) => this.#onClick(event));
    this.addEventListener("keydown", (event) => this.#onKey(event));
    this.querySelector("[data-save-dialog] form").addEventListener("submit", (event) => this.#save(event));
    const zones = this.querySelector("#zone-names");
    for (const name of Intl.supportedValuesOf("timeZone")) zones.append(new Option("", name));
    window.addEventListener("beforeunload", (event) => this.#isDirty && event.preventDefault());
    if (this.board) this.#startDragging();
    this.#number();
    this.#check();
  }

  board = this.querySelector("[data-list=steps]");
  text = this.querySelector("[data-yaml-text]");

  get isText() {
    return !this.querySelector("[data-yaml]").hidden;
  }

  // --- definition -------------------------------------------------------------------------------------------------

  /** The definition that the fields or the YAML text describe. */
  async #read() {
    if (!this.isText) return this.#readFields();
    const { response, data } = await send("POST", this.dataset.convert, { body: { text: this.text.value } });
    if (!response.ok || data.errors.length) throw new FieldProblem(this.text, messageOf(data?.errors?.[0] ?? data ?? {}));
    return data.definition;
  }

  #readFields() {
    const definition = read(this);
    if (definition.steps) definition.steps = definition.steps.map((group) => (group.length === 1 ? group[0] : group));
    if (this.dataset.kind === "manifest") {
      const { kind } = definition.trigger;
      if (!["cron", "times", "interval"].includes(kind)) delete definition.trigger;
      if (kind === "on_demand") definition.on_demand = true;
    }
    return definition;
  }

  async #write(definition) {
    const { trigger, on_demand: isOnDemand, after, steps = [], ...others } = definition;
    const inline = Object.fromEntries(["cron", "times", "every", "between", "days", "anchor", "zone", "start", "end", "excluded", "jitter"].filter((each) => each in others).map((each) => [each, others[each]]));
    const kind = "cron" in inline ? "cron" : "times" in inline ? "times" : "every" in inline ? "interval" : isOnDemand ? "on_demand" : after ? "after" : "manual";
    const whole = typeof trigger === "object" && trigger ? trigger : { ...inline, kind };
    const misfire = typeof others.misfire === "string" ? { policy: others.misfire } : others.misfire ?? { policy: "once" };
    const isManifest = this.dataset.kind === "manifest";
    const retry = "max_attempts" in others ? { ...others.retry, max_attempts: others.max_attempts } : others.retry;
    if (isManifest && others.job) await this.#replaceArguments(others.job);
    fill(this, isManifest ? { ...others, after, retry, trigger: whole } : { overlap: "skip", ...others, misfire, trigger: whole });
    updateConditions(this);
    if (!this.board) return;
    const columns = await Promise.all(steps.map((entry) => Promise.all((Array.isArray(entry) ? entry : [entry]).map((step) => this.#createFilledCard(step)))));
    this.board.replaceChildren(...columns.map((cards) => this.#createColumn(...cards)));
    this.#number();
  }

  async #createFilledCard(step) {
    const type = "job" in step ? "job" : "schedule" in step ? "schedule" : step.kind ?? "job";
    const card = await this.#createCard(type, step[type] ?? step.target ?? "");
    fill(card, "max_attempts" in step ? { ...step, retry: { ...step.retry, max_attempts: step.max_attempts } } : step);
    this.#summarize(card);
    return card;
  }

  // --- checking ---------------------------------------------------------------------------------------------------

  #onInput() {
    this.#isDirty = true;
    updateConditions(this);
    for (const card of this.querySelectorAll(".step-card:has(:focus)")) this.#summarize(card);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#check(), CHECK_DELAY_MS);
  }

  async #check() {
    const asked = ++this.#asked;
    try {
      const definition = await this.#read();
      const { response, data } = await send("POST", this.dataset.check, { body: definition });
      if (asked !== this.#asked) return;
      if (!response.ok) throw new FieldProblem(null, messageOf(data ?? { detail: `The server answered ${response.status}.` }));
      this.#definition = definition;
      this.#isValid = data.is_valid;
      this.#changes = data.changes;
      this.#showErrors(data.errors);
      this.#showAnswer(data);
    } catch (problem) {
      if (asked !== this.#asked) return;
      this.#isValid = false;
      clearErrors(this);
      if (problem.field) markField(problem.field, problem.message);
      this.#report(problem instanceof FieldProblem ? problem.message : "The server cannot be reached.", "fail");
    }
    this.querySelector("[data-do=save]")?.setAttribute("aria-disabled", String(!this.#isValid));
  }

  #showErrors(errors) {
    clearErrors(this);
    for (const each of this.querySelectorAll("[data-summary=error]")) each.textContent = "";
    const untouched = this.querySelector("[data-name]:not([data-touched])");
    for (const error of errors) {
      if (this.isText) {
        markField(this.text, `${error.field ? `${error.field}: ` : ""}${messageOf(error)}`);
        continue;
      }
      const field = locate(this, error.field) ?? this.querySelector("[data-name]");
      // A new definition has no name yet: the field is marked when it was left empty.
      if (field === untouched && !field.value && !this.dataset.version && document.activeElement !== field) continue;
      markField(field, messageOf(error));
      const summary = field.closest(".step-card")?.querySelector("[data-summary=error]");
      if (summary) summary.textContent = messageOf(error);
    }
  }

  #report(text, tone) {
    const status = this.querySelector("[data-checked]");
    status.className = `is-${tone}`;
    if (status.textContent !== text) status.textContent = text;
  }

  #showAnswer({ errors, explanation, usual_seconds: usual, conflicts = [], notes = [] }) {
    const count = errors.length;
    this.#report(count ? `${count} error${count > 1 ? "s" : ""}` : "No errors", count ? "fail" : "done");
    const parts = [];
    if (explanation) {
      const own = explanation.zone ?? "UTC";
      const viewer = this.dataset.zone;
      parts.push(make("p", { className: "preview-line", text: explanation.description }));
      if (explanation.next_runs.length) parts.push(this.#runTable(explanation.next_runs, own, viewer));
      for (const change of explanation.clock_changes) parts.push(make("p", { className: "clock-change", text: `${change.message[0].toUpperCase()}${change.message.slice(1)}.` }));
    } else parts.push(make("p", { className: "muted", text: count ? "No preview while there are errors in the times." : "It runs only when it is started." }));
    if (usual >= 1) parts.push(make("p", { text: `Usually takes ${formatDuration(usual)}.` }));
    for (const each of conflicts.slice(0, 5)) parts.push(make("p", { className: "is-retry", text: `${formatInstant(each.at, this.dataset.zone)}: ${each.message}` }));
    if (conflicts.length > 5) parts.push(make("p", { className: "muted", text: `${conflicts.length - 5} more conflicts.` }));
    for (const note of notes.filter((each) => !each.startsWith("no history"))) parts.push(make("p", { className: "muted", text: note }));
    this.querySelector("[data-preview]").replaceChildren(...parts);
  }

  #runTable(runs, own, viewer) {
    const zones = [...new Set([own, viewer])];
    const head = make("tr", {}, ...zones.map((zone) => make("th", { scope: "col", text: zone })), make("th", { scope: "col", text: "Starts" }));
    const rows = runs.map((run) => {
      const cells = zones.map((zone) => make("td", {}, make("time", { dateTime: run, text: formatInstant(run, zone, zone === own ? "" : own) })));
      return make("tr", {}, ...cells, make("td", { className: "muted", text: formatAge((Date.parse(run) - serverNow()) / 1000) }));
    });
    return make("table", { className: "runs" }, make("caption", { className: "visually-hidden", text: "Next runs" }), make("thead", {}, head), make("tbody", {}, ...rows));
  }

  // --- steps ------------------------------------------------------------------------------------------------------

  async #fetchPart(part, query) {
    const address = `${this.dataset.steps}?${new URLSearchParams(query)}`;
    if (!this.#cards.has(address)) {
      const response = await fetch(address, { headers: { Accept: "text/html", "Tenuto-Parts": part } });
      if (!response.ok) throw new FieldProblem(null, `The server answered ${response.status}.`);
      this.#cards.set(address, await response.text());
    }
    const element = parse(this.#cards.get(address)).querySelector(`[data-part="${part}"]`);
    element.removeAttribute("data-part");
    return document.importNode(element, true);
  }

  #createCard = (type, target) => this.#fetchPart("step", { type, target });

  #createColumn(...cards) {
    const add = make("button", { type: "button", className: "small", text: "+ Step", ariaLabel: "Add a parallel step" });
    add.dataset.do = "add-step";
    const column = make("li", { className: "column" }, make("div", { className: "column-head" }, make("h3"), add), ...cards);
    column.dataset.list = column.dataset.own = "";
    return column;
  }

  /** Number the groups, remove empty ones, and disable the moves that are not possible. */
  #number() {
    if (!this.board) return;
    for (const column of this.board.querySelectorAll(".column:not(:has(.step-card))")) column.remove();
    const columns = [...this.board.children];
    for (const [index, column] of columns.entries()) {
      const cards = [...column.querySelectorAll(".step-card")];
      column.querySelector("h3").textContent = `Group ${index + 1}${cards.length > 1 ? `, ${cards.length} in parallel` : ""}`;
      for (const [place, card] of cards.entries()) {
        const alone = cards.length === 1;
        card.querySelector("[data-do=earlier]").disabled = alone && index === 0;
        card.querySelector("[data-do=later]").disabled = alone && index === columns.length - 1;
        card.querySelector("[data-do=up]").disabled = place === 0;
        card.querySelector("[data-do=down]").disabled = place === cards.length - 1;
      }
    }
  }

  /** The summary of a card in the same words as the server. */
  #summarize(card) {
    const value = (name) => card.querySelector(`[name="${name}"]`)?.value.trim() ?? "";
    const type = card.querySelector("[data-step-type]").value;
    const target = value(type);
    for (const each of card.querySelectorAll("[data-summary=title]")) each.textContent = value("name") || target || "New step";
    card.querySelector("[data-summary=runs]").textContent = [type, target].filter(Boolean).join(" ");
    const attempts = value("max_attempts");
    const options = [[attempts && `${attempts} attempt${attempts === "1" ? "" : "s"}`, value("timeout") && `timeout ${value("timeout")}`].filter(Boolean).join(", ")];
    if (card.querySelector("[name=continue_on_failure]").checked) options.push("continues on failure");
    const needs = value("needs").split("\n").map((each) => each.trim()).filter(Boolean);
    if (needs.length) options.push(`needs ${needs.join(", ")}`);
    if (value("when")) options.push(`if ${value("when")}`);
    card.querySelector("[data-summary=options]").textContent = options.filter(Boolean).join(" · ");
  }

  /** A step alone in its group joins the next group; one with others gets a separate group beside it. */
  #move(card, isLater) {
    const column = card.closest(".column");
    const isAlone = column.querySelectorAll(".step-card").length === 1;
    const beside = isLater ? column.nextElementSibling : column.previousElementSibling;
    if (!isAlone) column[isLater ? "after" : "before"](this.#createColumn(card));
    else beside?.append(card);
  }

  async #onChange(event) {
    const card = event.target.closest(".step-card");
    if (event.target.matches("[data-name]")) event.target.dataset.touched = "";
    if (card && event.target.matches("[data-step-type], [name=job]")) {
      const type = card.querySelector("[data-step-type]").value;
      const target = event.target.name === "job" ? event.target.value.trim() : "";
      const fresh = await this.#createCard(type, target);
      const hadFocus = card.contains(document.activeElement);
      card.querySelector(".step-body").replaceWith(fresh.querySelector(".step-body"));
      if (hadFocus && !card.contains(document.activeElement)) card.querySelector(".step-body [data-main], .step-body [name]")?.focus();
      this.#summarize(card);
    } else if (!card && event.target.matches("[name=job]")) await this.#replaceArguments(event.target.value.trim());
    this.#onInput();
  }

  /** Show the fields of the properties of another job. */
  async #replaceArguments(job) {
    const fresh = await this.#fetchPart("properties", { job });
    this.querySelector("[data-properties]").replaceChildren(...fresh.childNodes);
  }

  async #onClick(event) {
    const button = event.target.closest("[data-do]");
    if (!button || button.disabled) return;
    const card = button.closest(".step-card");
    switch (button.dataset.do) {
      case "discard": this.#isDirty = false; return;
      case "edit": card.querySelector("dialog").showModal(); return;
      case "close": button.closest("dialog").close(); return;
      case "save": this.#openSaveDialog(); return;
      case "yaml": await this.#toggleText(button); return;
      case "add-step":
      case "add-group": {
        const created = await this.#createCard("job", "");
        if (button.dataset.do === "add-step") button.closest(".column").append(created);
        else this.board.append(this.#createColumn(created));
        this.#number();
        created.querySelector("dialog").showModal();
        break;
      }
      case "remove": {
        const next = card.nextElementSibling ?? card.closest(".column").nextElementSibling ?? this.querySelector("[data-do=add-group]");
        card.remove();
        (next.querySelector?.("button") ?? next).focus();
        break;
      }
      case "up": card.previousElementSibling.before(card); break;
      case "down": card.nextElementSibling.after(card); break;
      default: this.#move(card, button.dataset.do === "later");
    }
    this.#number();
    if (card?.isConnected) (button.disabled ? card.querySelector("[data-do=edit]") : button).focus();
    this.#onInput();
  }

  #onKey(event) {
    if (event.key === "Enter" && event.target.matches(".step-dialog input:not([type=checkbox])")) {
      event.preventDefault();
      event.target.dispatchEvent(new Event("change", { bubbles: true }));
      event.target.closest("dialog").close();
    }
  }

  #startDragging() {
    this.board.addEventListener("dragstart", (event) => {
      this.#dragged = event.target.closest(".step-card");
      event.dataTransfer.effectAllowed = "move";
      event.dataTransfer.setData("text/plain", "");
    });
    this.board.addEventListener("dragover", (event) => this.#dragged && event.preventDefault());
    this.board.addEventListener("dragend", () => (this.#dragged = null));
    this.board.addEventListener("drop", (event) => {
      event.preventDefault();
      const column = event.target.closest(".column");
      const card = event.target.closest(".step-card");
      if (!this.#dragged || card === this.#dragged) return;
      if (!column) this.board.append(this.#createColumn(this.#dragged));
      else if (card) card.after(this.#dragged);
      else column.append(this.#dragged);
      this.#number();
      this.#onInput();
    });
  }

  // --- YAML and saving --------------------------------------------------------------------------------------------

  /** Switch between fields and YAML. A text with an error of form stays as it is. */
  async #toggleText(button) {
    const frame = this.querySelector("[data-yaml]");
    clearErrors(this);
    try {
      if (frame.hidden) {
        const { data } = await send("POST", this.dataset.convert, { body: { definition: this.#readFields() } });
        this.text.value = data.text;
      } else await this.#write(await this.#read());
    } catch (problem) {
      if (problem.field) markField(problem.field, problem.message);
      problem.field?.focus();
      return;
    }
    frame.hidden = !frame.hidden;
    button.setAttribute("aria-pressed", String(!frame.hidden));
    for (const each of this.querySelectorAll(":scope > .card:not([data-yaml]), :scope > .editor-top > .card:not(.preview)")) each.hidden = !frame.hidden;
    this.#check();
  }

  async #openSaveDialog() {
    await this.#check();
    if (!this.#isValid) {
      this.querySelector("[data-name]")?.setAttribute("data-touched", "");
      await this.#check();
      const field = this.querySelector("[aria-invalid]");
      field?.closest("dialog")?.showModal();
      for (let each = field?.closest("details"); each; each = each.parentElement.closest("details")) each.open = true;
      field?.focus();
      return;
    }
    const changes = this.#changes.flatMap(({ title, lines }) => [make("h3", { text: title }), make("pre", { className: "diff" }, ...lines.map(diffLine))]);
    this.querySelector("[data-changes]").replaceChildren(...(changes.length ? changes : [make("p", { className: "muted", text: "Nothing has changed." })]));
    this.querySelector("[data-save-dialog] [role=alert]").replaceChildren();
    this.querySelector("[data-save-dialog]").showModal();
  }

  async #save(event) {
    event.preventDefault();
    const form = event.target;
    const alert = form.querySelector("[role=alert]");
    const submit = form.querySelector(".primary");
    if (submit.getAttribute("aria-busy")) return;
    submit.setAttribute("aria-busy", "true");
    form.dataset.key ??= crypto.randomUUID();
    try {
      const reason = form.querySelector("[data-reason]").value.trim();
      const version = this.dataset.version && `"v${this.dataset.version}"`;
      const { response, data } = await send(this.dataset.method, this.dataset.save, { body: this.#definition, reason, key: form.dataset.key, version });
      delete form.dataset.key;
      if (response.ok) {
        this.#isDirty = false;
        location.assign(this.dataset.page + encodeURIComponent(data.name && this.dataset.kind === "schedule" ? data.name : data.external_id));
        return;
      }
      alert.replaceChildren(messageOf(data ?? {}));
      if (data?.code === "definition.version_conflict") alert.append(" ", make("a", { href: `${location.pathname.replace(/\/edit$/, "")}?tab=versions`, target: "_blank", text: "See what changed" }), ", or ", make("a", { href: location.href, text: "load the present version" }), " and lose your changes.");
    } catch {
      alert.replaceChildren("The server cannot be reached. Nothing was sent twice; try again.");
    } finally {
      submit.removeAttribute("aria-busy");
    }
  }
}

function diffLine(line) {
  const kind = { "-": "del", "+": "add" }[line[0]] ?? "";
  return make("span", { className: kind, text: `${line}\n` });
}

customElements.define("t-editor", Editor);
