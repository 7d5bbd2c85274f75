// Live updates: one event stream per visible tab marks parts of the page as stale; one request fetches all stale parts.
// It knows nothing about what a part shows. Parts are elements with `data-part`, their topics are in `data-live`.

import { morph } from "./morph.js";

const GATHER_MS = 50; // pages that learn of a change within this time share one computation of the server
const MIN_GAP_MS = 500;
const MAX_GAP_MS = 10_000;
const HIDDEN_MS = 10_000;
const RECONNECT_MS = [1000, 2000, 4000];
/** Why the page cannot be shown again, by the status of the response. */
const REFUSALS = { 403: "No longer allowed", 404: "No longer found" };
const policy = window.trustedTypes?.createPolicy("tenuto", { createHTML: (text) => text }) ?? { createHTML: (text) => text };
const root = document.documentElement;

/** Difference between the clock of the server and that of the browser. */
let clockOffset = Number(root.dataset.now || Date.now()) - Date.now();
export const serverNow = () => Date.now() + clockOffset;

const stale = new Set();
/** Names and ETag of the parts that were changed last; what other parts show may no longer be what an older ETag names. */
let shown = [];
let markedAt = 0;
let source = null;
let subscribed = "";
let timer = 0;
let dueAt = 0;
let isFetching = false;
let isVisit = false;
let gap = MIN_GAP_MS;
let lastFetch = 0;
let isPaused = false;
let offlineSince = 0;
let offlineText = "";
let attempts = 0;
let reconnectAt = 0;
let hiddenTimer = 0;
let reportedVersion = root.dataset.version;
/** Changes up to here are shown: the next stream begins with those since then. */
let position = root.dataset.loaded;

const parts = () => [...document.querySelectorAll("[data-part]")];
const liveParts = () => parts().filter((each) => each.dataset.live);

/** Parse HTML that our own server has rendered. */
export function parse(text) {
  const template = document.createElement("template");
  template.innerHTML = policy.createHTML(text);
  return template.content;
}

function mark(names) {
  for (const name of names) stale.add(name);
  markedAt = performance.now();
}

const markTopic = (topic) => mark(liveParts().filter((part) => part.dataset.live.split(" ").includes(topic)).map((part) => part.dataset.part));

/** Fetch all parts again, also those without a topic. */
export function refresh() {
  mark(parts().map((part) => part.dataset.part));
  schedule(0);
}

/** Mark one part as stale. */
export function markStale(name) {
  mark([name]);
  schedule();
}

function schedule(wait = Math.max(GATHER_MS, lastFetch + gap - Date.now())) {
  if (isPaused || document.hidden || isFetching || !stale.size || (timer && dueAt <= Date.now() + wait)) return;
  clearTimeout(timer);
  dueAt = Date.now() + wait;
  timer = setTimeout(fetchStale, wait);
}

async function fetchStale() {
  clearTimeout(timer);
  timer = 0;
  if (isFetching || !stale.size) return;
  isFetching = true;
  stale.add("title");
  const names = [...stale].sort().join(",");
  stale.clear();
  const started = performance.now();
  try {
    // What the server computed before the last change does not show it.
    const headers = { Accept: "text/html", "Tenuto-Parts": names, "Tenuto-Max-Age": String(Math.floor(started - markedAt)) };
    if (shown[0] === names) headers["If-None-Match"] = shown[1];
    const response = await fetch(location.href, { headers, cache: "no-store", redirect: "error" });
    if (response.status >= 500) fail(names, response.status === 503 ? "The database is currently unreachable" : "");
    else {
      apply(response, names, response.status === 200 || response.status === 422 ? await response.text() : "");
      gap = Math.min(Math.max(MIN_GAP_MS, 10 * serverTime(response, started)), MAX_GAP_MS);
    }
  } catch {
    fail(names);
  } finally {
    isFetching = false;
    for (const part of document.querySelectorAll("[data-part][aria-busy]")) if (!stale.has(part.dataset.part)) part.removeAttribute("aria-busy");
    lastFetch = Date.now();
    if (!loginDialog.open) schedule();
  }
}

/** What was asked for is still stale: ask again, later each time. */
function fail(names, text = "") {
  for (const name of names.split(",")) stale.add(name);
  gap = Math.min(gap * 2, MAX_GAP_MS);
  setOffline(text);
}

function serverTime(response, started) {
  const stated = /dur=([\d.]+)/.exec(response.headers.get("Server-Timing") ?? "");
  return stated ? Number(stated[1]) : performance.now() - started;
}

function apply(response, names, text) {
  if (response.status === 401) {
    for (const name of names.split(",")) stale.add(name); // for after the login
    return showLogin();
  }
  if (loginDialog.open) {
    loginDialog.close();
    start();
  }
  if (![200, 304, 422].includes(response.status)) return setOffline(REFUSALS[response.status] ?? `Error ${response.status}`);
  if (source?.readyState === EventSource.OPEN || !currentTopics().length) setOnline();
  clockOffset = Number(response.headers.get("Tenuto-Now")) - Date.now();
  if (root.dataset.code) reloadChanges(response.headers);
  else reportVersion(response.headers.get("Tenuto-Version"));
  if (response.status === 304) return undefined;
  shown = [names, response.headers.get("ETag")];
  const focused = document.activeElement;
  const isHolding = !isVisit;
  isVisit = false;
  for (const target of parse(text).querySelectorAll("[data-part]")) {
    const current = document.querySelector(`[data-part="${CSS.escape(target.dataset.part)}"]`);
    if (current && !(isHolding && holdNewRows(current, target))) morph(current, target);
  }
  if (!focused.isConnected || focused.disabled) focusMain();
  updateTopics();
  document.dispatchEvent(new CustomEvent("tenuto:updated"));
  return undefined;
}

/** Where the focus goes when its element is gone or disabled. */
const focusMain = () => document.querySelector("#main").focus({ preventScroll: true });

/** In a list that the viewer is using, announce new rows instead of moving the others. */
function holdNewRows(current, target) {
  const list = current.querySelector("[data-hold]");
  if (!list || !(list.matches(":hover") || list.contains(document.activeElement))) return false;
  const known = new Set([...list.querySelectorAll("tr[data-key]")].map((row) => row.dataset.key));
  const rows = [...target.querySelectorAll("[data-hold] tr[data-key]")];
  const isNew = rows.filter((row) => !known.has(row.dataset.key));
  if (!known.size || !isNew.length) return false;
  for (const row of isNew) row.remove();
  for (const row of list.querySelectorAll("tr[data-key]")) {
    const fresh = rows.find((each) => each.dataset.key === row.dataset.key);
    if (fresh) morph(row, fresh);
  }
  let button = current.querySelector("[data-new-rows]");
  if (!button) {
    button = document.createElement("button");
    button.type = "button";
    button.className = "small";
    button.dataset.newRows = "";
    button.addEventListener("click", () => {
      button.remove();
      document.activeElement?.blur();
      shown = [];
      refresh();
    });
    (current.querySelector("header") ?? current).append(button);
  }
  button.textContent = `${isNew.length} new ▲`;
  announce(`${isNew.length} new rows`);
  return true;
}

function reportVersion(version) {
  if (!version || version === reportedVersion) return;
  reportedVersion = version;
  document.dispatchEvent(new CustomEvent("tenuto:toast", { detail: { text: "The service was updated.", link: location.href, label: "Load the page again" } }));
}

/** Development: replace changed style sheets, load the page again after any other change. */
function reloadChanges(headers) {
  if (headers.get("Tenuto-Code") !== root.dataset.code) location.reload();
  const version = headers.get("Tenuto-Version");
  for (const sheet of document.querySelectorAll("link[rel=stylesheet]")) sheet.href = sheet.href.replace(root.dataset.version, version);
  root.dataset.version = version;
}

// --- the login over the page -------------------------------------------------------------------------------------------

const loginDialog = document.querySelector("#login-dialog");

/** The session has ended: the viewer logs in over the page, which stays as it is and then continues. */
export function showLogin() {
  stop();
  if (!loginDialog.open) loginDialog.showModal();
}

async function logIn(event) {
  event.preventDefault();
  const form = event.target;
  const error = form.querySelector("[role=alert]");
  try {
    const response = await fetch(form.action, { method: "POST", body: new URLSearchParams(new FormData(form)), redirect: "manual" });
    if (response.type !== "opaqueredirect") {
      error.textContent = response.status === 401 ? "The link or key is not valid, or has been used." : `The server answered ${response.status}.`;
      return;
    }
    form.reset();
    error.textContent = "";
    loginDialog.close();
    if (!isPaused) mark(parts().map((part) => part.dataset.part));
    fetchStale();
    start();
    const { name, role } = await (await fetch(`${root.dataset.prefix}/api/v1/session`)).json();
    for (const each of document.querySelectorAll("[data-account]")) each.textContent = `${name} · ${role}`;
  } catch {
    error.textContent = "The server cannot be reached.";
  }
}

// --- the stream -------------------------------------------------------------------------------------------------------

const currentTopics = () => [...new Set(liveParts().flatMap((part) => part.dataset.live.split(" ")))].filter(Boolean).sort();

/** After an update the page may show other objects: subscribe to their topics. */
function updateTopics() {
  if (!source || currentTopics().join() === subscribed) return;
  stop();
  start();
}

function start() {
  const topics = currentTopics();
  if (!topics.length || source || isPaused || document.hidden) return;
  subscribed = topics.join();
  source = new EventSource(`${root.dataset.prefix}/api/v1/events?topics=${topics.map(encodeURIComponent).join(",")}${position ? `&since=${position}` : ""}`);
  source.onopen = () => {
    attempts = 0;
    if (offlineSince) refresh();
    else setOnline();
  };
  source.onerror = () => {
    const isClosed = source?.readyState === EventSource.CLOSED;
    setOffline(offlineText);
    if (isClosed) {
      stop();
      reconnectAt = Date.now() + RECONNECT_MS[Math.min(attempts++, RECONNECT_MS.length - 1)];
    }
    refreshAccess();
  };
  const listen = (name, react) => source.addEventListener(name, (event) => {
    position = event.lastEventId || position;
    react(event);
    schedule();
  });
  for (const topic of topics) listen(topic, () => markTopic(topic));
  listen("changed", (event) => markTopic(JSON.parse(event.data).topic));
  listen("reset", refresh);
}

/** A closed stream may mean that the session has ended: a request for a part shows whether it has. */
function refreshAccess() {
  mark(liveParts().slice(0, 1).map((part) => part.dataset.part));
  schedule();
}

function stop() {
  source?.close();
  source = null;
}

// --- the indicator ----------------------------------------------------------------------------------------------------

let indicatorText = "";

function setOnline() {
  if (!offlineSince && indicatorText) return;
  offlineSince = 0;
  offlineText = "";
  gap = MIN_GAP_MS;
  show("live", "live");
}

/** `text` is the reason, if it is known. A paused page does not follow changes: it only reports what was asked for. */
function setOffline(text = "") {
  if (isPaused) {
    document.dispatchEvent(new CustomEvent("tenuto:toast", { detail: { text: text || "The server cannot be reached.", isError: true } }));
    return;
  }
  offlineText = text;
  if (!offlineSince) offlineSince = Date.now();
  const seconds = Math.round((Date.now() - offlineSince) / 1000);
  show("offline", `${text || "offline"} for ${seconds} s`, text || "offline");
}

function show(state, text, announced = text) {
  const indicator = document.querySelector("[data-live-indicator]");
  if (!indicator) return;
  if (announced !== indicatorText) announce(`Live updates: ${announced}`);
  indicatorText = announced;
  indicator.dataset.state = state;
  indicator.setAttribute("aria-pressed", String(state === "paused"));
  indicator.title = state === "paused" ? "Continue live updates" : "Pause live updates";
  const shown = indicator.querySelector("[data-live-text]");
  if (shown.textContent !== text) shown.textContent = text;
  document.body.classList.toggle("is-stale", state !== "live");
}

let announcedAt = 0;
let announceTimer = 0;

/** Announce the last of several changes to screen readers, at most once in ten seconds. */
export function announce(text) {
  clearTimeout(announceTimer);
  announceTimer = setTimeout(() => {
    announcedAt = Date.now();
    const announcer = document.querySelector("#announcer");
    if (announcer) announcer.textContent = text;
  }, announcedAt + 10_000 - Date.now());
}

function togglePause() {
  isPaused = !isPaused;
  if (isPaused) {
    stop();
    clearTimeout(timer);
    timer = 0;
    show("paused", `paused, as of ${new Date(serverNow()).toLocaleTimeString("en-GB", { timeZone: zone() })}`, "paused");
  } else {
    indicatorText = "";
    setOnline();
    refresh();
    start();
  }
}

function zone() {
  try {
    const name = document.querySelector("#zone-field")?.defaultValue || "UTC";
    new Intl.DateTimeFormat("en", { timeZone: name });
    return name;
  } catch {
    return "UTC";
  }
}

function onVisibilityChange() {
  clearTimeout(hiddenTimer);
  if (document.hidden) hiddenTimer = setTimeout(stop, HIDDEN_MS);
  else if (!isPaused) {
    if (!source) refresh();
    schedule(); // what changed while the tab was hidden for a moment
    start();
  }
}

/** A link with `data-parts` changes the address and fetches only these parts. */
function onPartLink(event) {
  const link = event.target.closest?.("a[data-parts]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  visit(link.href.baseVal ?? link.href, link.dataset.parts.split(","));
}

/** Change the address and fetch only these parts; `isTyping` replaces the entry of the history. */
export function visit(url, names, isTyping = false) {
  history[isTyping ? "replaceState" : "pushState"](null, "", url);
  shown = [];
  isVisit = true;
  mark(names);
  for (const name of names) {
    document.querySelector(`[data-part="${CSS.escape(name)}"]`)?.setAttribute("aria-busy", "true");
  }
  if (isPaused) fetchStale();
  else schedule(0);
}

export function startLive() {
  document.addEventListener("click", onPartLink);
  window.addEventListener("popstate", () => {
    shown = [];
    refresh();
  });
  document.querySelector("[data-live-indicator]")?.addEventListener("click", togglePause);
  document.addEventListener("visibilitychange", onVisibilityChange);
  document.addEventListener("close", () => { if (document.activeElement === document.body) focusMain(); }, true);
  loginDialog.addEventListener("submit", logIn);
  loginDialog.addEventListener("cancel", (event) => event.preventDefault());
  window.addEventListener("pagehide", stop);
  window.addEventListener("pageshow", (event) => {
    if (event.persisted) onVisibilityChange();
  });
  setInterval(() => {
    if (!offlineSince || isPaused || loginDialog.open) return;
    setOffline(offlineText);
    if (!source && Date.now() >= reconnectAt) start();
    schedule();
  }, 1000);
  if (root.dataset.code) setInterval(() => markStale("title"), 1000);
  setOnline();
  start();
}
