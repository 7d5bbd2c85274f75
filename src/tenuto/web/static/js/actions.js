// Actions: buttons and forms that send a request to the API, with a dialog that states the effect, and a toast after it.
// The server decides what is allowed; this module must not know roles or states.

import { refresh, serverNow, showLogin } from "./live.js";

const root = document.documentElement;

/**
 * Show a message.
 * @param {{text: string, remedy?: string, link?: string, label?: string, isError?: boolean, stays?: boolean}} message
 */
export function toast({ text, remedy = "", link = "", label = "Open", isError = false, stays = false }) {
  const element = document.createElement("div");
  element.className = isError ? "toast is-error" : "toast";
  const content = document.createElement("div");
  for (const line of [text, remedy].filter(Boolean)) {
    const paragraph = document.createElement("p");
    paragraph.textContent = line;
    content.append(paragraph);
  }
  if (link) {
    const anchor = document.createElement("a");
    anchor.href = link;
    anchor.textContent = label;
    content.append(anchor);
  }
  const close = document.createElement("button");
  close.type = "button";
  close.className = "plain small";
  close.textContent = "×";
  close.setAttribute("aria-label", "Close message");
  close.addEventListener("click", () => element.remove());
  element.append(content, close);
  document.querySelector("#toasts").append(element);
  if (!stays) setTimeout(() => element.remove(), isError ? 30_000 : 12_000);
}

/** Send a request to the API. Returns the response and its JSON; throws if the server cannot be reached. */
export async function send(method, url, { body, reason, key, version } = {}) {
  const headers = { Accept: "application/json", "Tenuto-Page": "1" };
  if (method === "POST") headers["Idempotency-Key"] = key ?? crypto.randomUUID();
  if (reason) headers["X-Reason"] = `UTF-8''${encodeURIComponent(reason)}`;
  if (version) headers["If-Match"] = version;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const request = { method, headers };
  if (body !== undefined) request.body = JSON.stringify(body);
  const response = await fetch(url, request);
  if (response.status === 401) showLogin();
  const text = await response.text();
  let data = null;
  try {
    data = text ? JSON.parse(text) : null;
  } catch {
    data = null;
  }
  return { response, data };
}

/** Run the action of a button with the values of its dialog. Returns the problem, or null after success. */
async function run(button, values, key, openedAt = serverNow()) {
  const { method, done, goto } = button.dataset;
  const { reason, ...fields } = values;
  const url = button.dataset.url.replace(/%7B(\w+)%7D/g, (_, name) => {
    const value = encodeURIComponent(fields[name]);
    delete fields[name];
    return value;
  });
  const hasBody = button.dataset.body || Object.keys(fields).length;
  const given = (button.dataset.body || "{}").replaceAll("{opened_at}", new Date(openedAt).toISOString());
  const body = hasBody ? { ...JSON.parse(given), ...fields } : undefined;
  button.setAttribute("aria-busy", "true");
  try {
    const { response, data } = await send(method, url, { body, reason, key });
    if (!response.ok) {
      const problem = data ?? { detail: `The server answered ${response.status}.` };
      if ([404, 409].includes(response.status)) refresh();
      return problem;
    }
    const link = goto && data ? goto.replace(/\{(\w+)\}|%7B(\w+)%7D/g, (_, a, b) => encodeURIComponent(data[a || b] ?? "")) : goto;
    const text = (done || "Done.").replace(/\{(\w+)\}/g, (_, name) => data?.[name] ?? "");
    if (done || link) toast({ text, link: link || "", stays: text !== done });
    refresh();
    document.dispatchEvent(new CustomEvent("tenuto:done", { detail: button }));
    return null;
  } catch {
    return { detail: "The server cannot be reached. Nothing was sent twice; try again." };
  } finally {
    button.removeAttribute("aria-busy");
  }
}

function showProblem(problem) {
  toast({ text: sentence(problem.detail || problem.title), remedy: sentence(problem.remedy || ""), isError: true });
}

const sentence = (text) => (text ? `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}` : "");

// --- the dialog -------------------------------------------------------------------------------------------------------

function labelled(text, field, description = "") {
  const label = document.createElement("label");
  label.append(text, field);
  const parts = [label];
  if (description) {
    const hint = document.createElement("p");
    hint.className = "muted";
    hint.textContent = description;
    parts.push(hint);
  }
  return parts;
}

function createField({ name, label, type = "text", value = "", required = false, description = "", options = null, when = "" }) {
  const field = document.createElement(options ? "select" : type === "textarea" || type === "json" ? "textarea" : "input");
  field.name = name;
  field.required = required;
  field.dataset.type = type;
  if (options) for (const each of options) field.append(new Option(each.label ?? each, each.value ?? each, false, (each.value ?? each) === value));
  else if (field.localName === "input") field.type = type;
  else field.rows = 8;
  if (type === "password") field.autocomplete = "off";
  if (type === "checkbox") field.checked = Boolean(value);
  else field.value = value;
  const parts = labelled(label, field, description);
  if (when) for (const part of parts) part.dataset.when = when; // it exists with "FIELD=VALUE,VALUE", or "FIELD" not empty
  return parts;
}

/** Show and enable the fields whose condition is met. */
function applyConditions(form) {
  for (const part of form.querySelectorAll("[data-when]")) {
    const [name, values] = part.dataset.when.split("=");
    const given = form.elements[name].value.trim();
    part.hidden = values === undefined ? !given : !values.split(",").includes(given);
    for (const field of part.querySelectorAll("[name]")) field.disabled = part.hidden;
  }
}

/** Set a value of the request; a name with dots is a path. Parts of objects that are empty do not exist. */
function put(values, name, value) {
  const path = name.split(".");
  const last = path.pop();
  if (path.length && (value === null || value.length === 0)) return;
  let target = values;
  for (const each of path) target = target[each] ??= {};
  target[last] = value;
}

function readField(field) {
  const text = field.value.trim();
  switch (field.dataset.type) {
    case "checkbox": return field.checked;
    case "number": return text === "" ? null : Number(text);
    case "json": return text === "" ? null : JSON.parse(text);
    case "list": return text.split(",").map((each) => each.trim()).filter(Boolean);
    case "password": return field.value;
    case "instant": return readInstant(field, text);
    default: return text === "" ? null : text;
  }
}

/** Return an instant of the form `in 2 h`, or one with an offset; one in the past must be confirmed. */
function readInstant(field, text) {
  const [, count, unit] = text.match(/^in\s+(\d+)\s*(s|min|h|d)$/i) ?? [];
  if (!count && !/(z|[+-]\d\d:?\d\d)$/i.test(text)) return text; // the server names what is wrong
  const at = count ? serverNow() + count * { s: 1e3, min: 6e4, h: 36e5, d: 864e5 }[unit.toLowerCase()] : Date.parse(text);
  if (at < serverNow() && field.dataset.confirmed !== text) {
    field.dataset.confirmed = text;
    throw new Error("This instant is in the past, so it runs at once. Press the button again to confirm.");
  }
  return count ? new Date(at).toISOString() : text;
}

/** Show a problem in the form, and mark the field that the server names. */
function showAtField(form, problem) {
  form.querySelector("[role=alert]").textContent = [problem.detail || problem.title, problem.remedy].filter(Boolean).map(sentence).join(" ");
  for (const each of form.querySelectorAll("[aria-invalid]")) each.removeAttribute("aria-invalid");
  const name = problem.errors?.[0]?.field;
  const field = name && form.querySelector(`[name="${CSS.escape(name)}"]:enabled`);
  if (!field) return;
  field.closest("details")?.setAttribute("open", "");
  field.setAttribute("aria-invalid", "true");
  field.focus();
}

/** Open the dialog of a button; resolves when it is closed. */
function openDialog(button) {
  const asked = JSON.parse(button.dataset.dialog);
  const dialog = document.querySelector("#action-dialog");
  const form = document.createElement("form");
  form.method = "dialog";
  const title = document.createElement("h2");
  title.id = "action-title";
  title.textContent = asked.title;
  const effect = document.createElement("p");
  effect.textContent = asked.text;
  const error = document.createElement("p");
  error.className = "field-error";
  error.setAttribute("role", "alert");
  const fields = asked.fields.filter((each) => !each.section).flatMap(createField);
  for (const section of new Set(asked.fields.map((each) => each.section).filter(Boolean))) {
    const details = document.createElement("details");
    const summary = document.createElement("summary");
    summary.textContent = section;
    details.append(summary, ...asked.fields.filter((each) => each.section === section).flatMap(createField));
    fields.push(details);
  }
  if (asked.reason) {
    const label = asked.reason === "required" ? "Reason" : "Reason (optional)";
    fields.push(...createField({ name: "reason", label, required: asked.reason === "required" }));
  }
  if (asked.expected > 1000) fields.push(...createField({ name: "expected-number", label: `Type ${asked.expected} to confirm`, required: true }));
  const cancel = document.createElement("button");
  cancel.type = "button";
  cancel.textContent = "Keep as it is";
  cancel.addEventListener("click", () => dialog.close());
  const submit = document.createElement("button");
  submit.className = button.classList.contains("danger") ? "primary danger" : "primary";
  submit.textContent = asked.submit;
  const actions = document.createElement("div");
  actions.className = "actions";
  actions.append(cancel, submit);
  form.append(title, ...(asked.text ? [effect] : []), ...fields, error, actions);
  dialog.replaceChildren(form);
  applyConditions(form);
  form.addEventListener("input", () => applyConditions(form));
  const key = crypto.randomUUID();
  const openedAt = serverNow();

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (submit.getAttribute("aria-busy")) return;
    const values = {};
    try {
      for (const field of form.querySelectorAll("[name]:enabled")) {
        if (field.name === "expected-number") {
          if (Number(field.value.replaceAll(/\D/g, "")) !== asked.expected) throw new Error(`Type the number ${asked.expected}.`);
          continue;
        }
        const value = readField(field);
        if (value !== null || field.dataset.type !== "text") put(values, field.name, value);
      }
    } catch (problem) {
      error.textContent = problem instanceof SyntaxError ? `This is not valid JSON: ${problem.message}` : problem.message;
      return;
    }
    submit.setAttribute("aria-busy", "true");
    const problem = await run(button, values, key, openedAt);
    submit.removeAttribute("aria-busy");
    if (problem) showAtField(form, problem);
    else dialog.close();
  });
  const menu = button.closest("[popover]");
  const opener = (menu && document.querySelector(`[popovertarget="${CSS.escape(menu.id)}"]`)) || button;
  dialog.addEventListener("close", () => (opener.checkVisibility() ? opener : document.querySelector("#main")).focus(), { once: true });
  dialog.showModal();
  (form.querySelector("[name]") ?? submit).focus();
}

async function onClick(event) {
  const button = event.target.closest?.("button[data-url]");
  if (!button || button.disabled || button.getAttribute("aria-busy")) return;
  if (button.dataset.dialog) {
    openDialog(button);
    return;
  }
  button.closest("[popover]")?.hidePopover();
  const problem = await run(button, {}, crypto.randomUUID());
  if (problem) showProblem(problem);
}

/** A form with `data-url` sends its named fields as JSON; a field named `reason` becomes the reason of the audit entry. */
async function onSubmit(event) {
  const form = event.target.closest?.("form[data-url]");
  if (!form) return;
  event.preventDefault();
  const submit = event.submitter ?? form.querySelector("button");
  if (submit.getAttribute("aria-busy")) return;
  const error = form.querySelector("[role=alert]");
  const values = {};
  try {
    for (const field of form.querySelectorAll("[name]")) {
      const value = readField(field);
      if (value !== null) values[field.name] = value;
    }
  } catch (problem) {
    if (error) error.textContent = `This is not valid JSON: ${problem.message}`;
    return;
  }
  submit.setAttribute("aria-busy", "true");
  form.dataset.key ??= crypto.randomUUID();
  const problem = await run(form, values, form.dataset.key);
  submit.removeAttribute("aria-busy");
  if (!problem) {
    delete form.dataset.key;
    if (error) error.textContent = "";
    form.closest("dialog")?.close();
  } else if (error) error.textContent = [problem.detail || problem.title, problem.remedy].filter(Boolean).map(sentence).join(" ");
  else showProblem(problem);
}

async function onCopy(event) {
  const button = event.target.closest?.("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(button.dataset.copy || button.parentElement.querySelector("code, pre").textContent);
  toast({ text: "Copied." });
}

export function startActions() {
  document.addEventListener("click", onClick);
  document.addEventListener("click", onCopy);
  document.addEventListener("submit", onSubmit);
  document.addEventListener("tenuto:toast", (event) => toast(event.detail));
  document.addEventListener("click", (event) => {
    const opener = event.target.closest?.("[data-opens]");
    if (opener) document.getElementById(opener.dataset.opens)?.showModal();
    if (event.target.closest?.("[data-closes]")) event.target.closest("dialog")?.close();
  });
  root.dataset.scripts = "on";
}
