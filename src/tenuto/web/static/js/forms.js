// Structured forms: reads, fills and marks nested fields by the names of a definition.
// The server renders the fields from JSON schemas and checks their values; this module must not know what they mean.
// An element with `data-object` or `data-list` contains the fields of one value. Disabled fields are left out.

import { send, toast } from "./actions.js";
import { refresh } from "./live.js";

const CONTAINER = "[data-object], [data-list]";
const isActive = (element) => !element.matches(":disabled") && !element.closest("fieldset[disabled]");
const nameOf = (element) => element.getAttribute("name") ?? element.dataset.object ?? element.dataset.list;

/** @returns {HTMLElement[]} the fields and containers directly inside a container */
export function childrenOf(container, all = false) {
  return [...container.querySelectorAll(`[name], ${CONTAINER}`)].filter(
    (each) => each.parentElement.closest(CONTAINER) === container && (all || isActive(each)),
  );
}

// Control characters and those that change the direction of writing, as in tenuto.model.validation.
const INVISIBLE = /(?![\t\n])[\p{Cc}\u200e\u200f\u202a-\u202e\u2066-\u2069]/u;

/** Returns a value as JSON for people: invisible characters are written as escapes, which mean the same. */
const toDocument = (value) =>
  JSON.stringify(value, null, 2).replace(new RegExp(INVISIBLE, "gu"), (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** An error of a value that cannot be read. */
export class FieldProblem extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

function parseField(field) {
  const text = field.value.trim();
  const split = (separator) => text.split(separator).map((each) => each.trim()).filter(Boolean);
  const toNumber = (each) => (each === "" || Number.isNaN(Number(each)) ? each : Number(each));
  switch (field.dataset.type) {
    case "number": return toNumber(text);
    case "scalar": return /^-?\d+(\.\d+)?$/.test(text) ? Number(text) : text;
    case "list": return split(/[,\n]/);
    case "numbers": return split(/[,\s]/).map(toNumber);
    case "lines": return split("\n");
    case "json":
    case "rest":
      try {
        return JSON.parse(text);
      } catch (error) {
        throw new FieldProblem(field, `This is not valid JSON: ${error.message}`);
      }
    default: return field.localName === "textarea" ? field.value : text;
  }
}

/** Returns the value of a field; undefined if it is left out. */
function readField(field) {
  if (field.type === "radio" && !field.checked) return undefined;
  const { empty } = field.dataset;
  if (field.type !== "checkbox" && field.value.trim() === "") return empty === "null" ? null : empty === "text" ? "" : undefined;
  const value = field.type === "checkbox" ? field.checked : parseField(field);
  const isDefault = field.dataset.given === undefined && JSON.stringify(value) === field.dataset.default;
  return isDefault ? undefined : value;
}

/** Returns the value of a container: an object or a list; undefined if it is left out. */
export function read(container) {
  const isList = container.dataset.list !== undefined;
  const result = isList ? [] : {};
  for (const child of childrenOf(container)) {
    const value = child.matches(CONTAINER) ? read(child) : readField(child);
    if (value === undefined) continue;
    if (isList) result.push(value);
    else if (child.dataset.type === "rest") Object.assign(result, value);
    else result[nameOf(child)] = value;
  }
  if (container.dataset.empty === "omit" && !Object.keys(result).length) return undefined;
  return container.dataset.initial !== undefined && JSON.stringify(result) === container.dataset.initial ? undefined : result;
}

function fillField(field, value) {
  if (field.type === "radio") {
    field.checked = field.value === value;
    return;
  }
  if (value === undefined) delete field.dataset.given;
  else field.dataset.given = "";
  if (value === null) field.dataset.empty = "null";
  if (field.type === "checkbox") field.checked = value ?? field.dataset.default === "true";
  else if (value === undefined || value === null) field.value = "";
  else if (["json", "rest"].includes(field.dataset.type)) field.value = toDocument(value);
  else if ([value].flat().some((each) => typeof each === "string" && INVISIBLE.test(each))) asDocument(field).value = toDocument(value);
  else if (Array.isArray(value)) field.value = value.join(field.dataset.type === "lines" ? "\n" : ", ");
  else if (typeof value === "object") asDocument(field).value = toDocument(value);
  else {
    if (field.localName === "select" && ![...field.options].some((each) => each.value === String(value))) field.append(new Option(value));
    field.value = value;
  }
}

/** Replace a field by one for JSON, for a value that the field cannot show. */
function asDocument(field) {
  const area = document.createElement("textarea");
  area.name = field.name;
  area.rows = 3;
  area.dataset.type = "json";
  field.replaceWith(area);
  return area;
}

/** Write a value into the fields of a container. Lists of containers are the concern of the caller. */
export function fill(container, value) {
  const rest = { ...value };
  const children = childrenOf(container, true);
  for (const [index, child] of children.entries()) {
    const name = container.dataset.list === undefined ? nameOf(child) : index;
    if (child.dataset.type === "rest") continue;
    delete rest[name];
    if (!child.matches(CONTAINER)) fillField(child, value?.[name]);
    else if (!child.matches("[data-own]")) fill(child, value?.[name]);
  }
  for (const child of children) if (child.dataset.type === "rest") fillField(child, Object.keys(rest).length ? rest : undefined);
  updateConditions(container);
}

/** Enable the fieldsets whose condition `data-when="field=value,value"` holds, and hide the others. */
export function updateConditions(root) {
  for (const each of root.querySelectorAll("fieldset[data-when]")) {
    const [name, values] = each.dataset.when.split("=");
    const fields = [...each.parentElement.closest(CONTAINER).querySelectorAll(`[name="${name}"], [data-choice="${name}"]`)];
    const chosen = fields.find((field) => field.type !== "radio" || field.checked);
    each.disabled = each.hidden = !values.split(",").includes(chosen?.value ?? "");
  }
}

// --- errors -----------------------------------------------------------------------------------------------------------

/** Returns the field that a path such as `steps[1][0].input.n` names, or the main field of the part that has it. */
export function locate(root, path) {
  let container = root;
  for (const part of (path ?? "").match(/[^.[\]]+/g) ?? []) {
    const name = part.replace(/^'|'$/g, "");
    const find = () => {
      const children = childrenOf(container);
      return container.dataset.list !== undefined ? children[Number(name)] : children.find((each) => nameOf(each) === name && (each.type !== "radio" || each.checked));
    };
    // A group of one step is that step.
    if (container.dataset.list !== undefined && Number.isNaN(Number(name))) [container] = childrenOf(container);
    const found = container && find();
    if (!found) break;
    if (!found.matches(CONTAINER)) return found;
    container = found;
  }
  if (!container || container === root) return null;
  return container.querySelector("[data-main]") ?? childrenOf(container).find((each) => !each.matches(CONTAINER)) ?? null;
}

let errorCount = 0;

/** Show a message beside a field. */
export function markField(field, message) {
  const text = document.createElement("p");
  text.className = "field-error";
  text.id = `field-error-${++errorCount}`;
  text.textContent = message;
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-describedby", text.id);
  (field.closest(".field") ?? field.parentElement).append(text);
}

export function clearErrors(root) {
  for (const each of root.querySelectorAll("p.field-error:not([role])")) each.remove();
  for (const each of root.querySelectorAll("[aria-invalid]")) {
    each.removeAttribute("aria-invalid");
    each.removeAttribute("aria-describedby");
  }
}

export const sentence = (text) => (text ? `${text[0].toUpperCase()}${text.slice(1)}${/[.!?…]$/.test(text) ? "" : "."}` : "");

/** The message of a problem without the path of its field, which is shown beside the field. */
export function messageOf({ field, message, detail, title, remedy }) {
  const text = message ?? detail ?? title ?? "";
  const short = (field && text.startsWith(`${field}: `) ? text.slice(field.length + 2) : text).replace(/^step '[^']*': /, "");
  return [short, remedy].filter(Boolean).map(sentence).join(" ");
}

function showProblem(form, problem) {
  const field = problem.errors?.[0]?.field;
  const found = field && [field, ...["input", "arguments"].map((each) => `${each}.${field}`)].map((each) => locate(form, each)).find(Boolean);
  if (found) {
    markField(found, messageOf({ ...problem, field }));
    found.focus();
  } else form.querySelector("[role=alert]").textContent = messageOf(problem);
}

// --- forms that send a request --------------------------------------------------------------------------------------

async function onSubmit(event) {
  const form = event.target.closest?.("form[data-action]");
  if (!form) return;
  event.preventDefault();
  const submit = form.querySelector("button.primary");
  if (submit.getAttribute("aria-busy")) return;
  clearErrors(form);
  form.querySelector("[role=alert]").textContent = "";
  try {
    const body = { ...JSON.parse(form.dataset.body || "{}"), ...read(form) };
    const reason = form.querySelector("[data-reason]")?.value.trim();
    submit.setAttribute("aria-busy", "true");
    form.dataset.key ??= crypto.randomUUID();
    const { response, data } = await send(form.dataset.method, form.dataset.action, { body, reason, key: form.dataset.key });
    if (response.ok) {
      delete form.dataset.key;
      const link = (form.dataset.goto ?? "").replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(data?.[name] ?? ""));
      toast({ text: form.dataset.done, link });
      form.closest("dialog")?.close();
      refresh();
    } else {
      delete form.dataset.key;
      showProblem(form, data ?? { detail: `The server answered ${response.status}.` });
    }
  } catch (problem) {
    if (problem instanceof FieldProblem) {
      markField(problem.field, problem.message);
      problem.field.focus();
    } else showProblem(form, { detail: "The server cannot be reached. Nothing was sent twice; try again." });
  } finally {
    submit.removeAttribute("aria-busy");
  }
}

/** Switch an object between its fields and JSON. */
function onSwitch(event) {
  const button = event.target.closest?.("[data-as-json]");
  if (!button) return;
  const frame = button.closest(".arguments");
  const [fields, text] = frame.querySelectorAll(":scope > fieldset");
  const area = text.querySelector("textarea");
  clearErrors(frame);
  try {
    if (text.disabled) area.value = toDocument(read(fields) ?? {});
    else fill(fields, JSON.parse(area.value || "{}"));
  } catch (problem) {
    markField(problem.field ?? area, problem.message);
    return;
  }
  fields.disabled = fields.hidden = text.disabled;
  text.disabled = text.hidden = !fields.disabled;
  button.textContent = fields.disabled ? "Edit as fields" : "Edit as JSON";
  frame.dispatchEvent(new Event("change", { bubbles: true }));
}

document.addEventListener("submit", onSubmit);
document.addEventListener("click", onSwitch);
for (const each of document.querySelectorAll("[data-changed-only]")) each.dataset.initial = JSON.stringify(read(each));
