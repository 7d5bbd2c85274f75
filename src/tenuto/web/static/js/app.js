// Start-up of every page: live updates, actions, shortcuts, preferences in cookies, durations that tick.

import { serverNow, startLive } from "./live.js";
import { startActions } from "./actions.js";
import { startShortcuts } from "./shortcuts.js";
import { startPalette } from "./palette.js";

const root = document.documentElement;

function setCookie(name, value) {
  const secure = location.protocol === "https:" ? "; Secure" : "";
  const age = value ? 31_536_000 : 0;
  document.cookie = `${name}=${encodeURIComponent(value)}; Path=${root.dataset.prefix || "/"}; Max-Age=${age}; SameSite=Lax${secure}`;
}

/** The same format as `format_ticking` on the server. */
export function formatDuration(seconds) {
  const whole = Math.max(Math.floor(seconds), 0);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86_400)} d ${Math.floor((whole % 86_400) / 3600)} h`;
}

/** The same format as `format_age` on the server. */
export function formatAge(seconds) {
  const distance = Math.abs(seconds);
  if (distance < 1) return "now";
  const [size, unit] = [[86_400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([each]) => distance >= each);
  const text = `${Math.floor(distance / size)} ${unit}`;
  return seconds > 0 ? `in ${text}` : `${text} ago`;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function tick() {
  if (document.hidden || document.body.classList.contains("is-stale")) return;
  const now = serverNow();
  for (const each of document.querySelectorAll("[data-since]")) setText(each, formatDuration((now - Date.parse(each.dataset.since)) / 1000));
  for (const each of document.querySelectorAll("[data-until]")) setText(each, formatDuration((Date.parse(each.dataset.until) - now) / 1000));
  for (const each of document.querySelectorAll("[data-pace]")) each.setAttribute("width", `${Math.min((now - each.dataset.from) / each.dataset.pace, 1) * 100}%`);
  for (const each of document.querySelectorAll("time[data-age]")) setText(each, formatAge((Date.parse(each.dateTime) - now) / 1000));
}

function startPreferences() {
  const button = document.querySelector("[data-theme-switch]");
  button?.addEventListener("click", () => {
    const next = { "": "dark", dark: "light", light: "" }[root.dataset.theme ?? ""];
    if (next) root.dataset.theme = next;
    else delete root.dataset.theme;
    button.setAttribute("aria-label", `Theme: ${next || "system"}`);
    setCookie("tenuto_theme", next);
  });
  document.querySelector("[data-density-switch]")?.addEventListener("change", (event) => {
    root.dataset.density = event.target.checked ? "comfortable" : "compact";
    setCookie("tenuto_density", root.dataset.density);
  });
  document.querySelector("#zone-menu")?.addEventListener("beforetoggle", () => {
    const list = document.querySelector("#zone-list");
    if (!list.childElementCount) for (const name of Intl.supportedValuesOf("timeZone")) list.append(new Option("", name));
  });
  document.querySelector("[data-zone-form]")?.addEventListener("submit", (event) => {
    event.preventDefault();
    setCookie("tenuto_zone", new FormData(event.target).get("zone"));
    location.reload();
  });
  document.querySelector(".menu")?.addEventListener("click", (event) => {
    const isOpen = document.querySelector("#sidebar").classList.toggle("is-open");
    event.currentTarget.setAttribute("aria-expanded", String(isOpen));
  });
}

/** On the first visit use the zone of the browser. */
function setZone() {
  if (root.dataset.zoneMissing === undefined || document.cookie.includes("tenuto_zone=")) return;
  setCookie("tenuto_zone", Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC");
  if (document.cookie.includes("tenuto_zone=")) location.reload();
}

if (root.dataset.prefix !== undefined) {
  startPreferences();
  startActions();
  startShortcuts();
  startPalette();
  startLive();
  document.querySelector("nav.sidebar [aria-current]")?.scrollIntoView({ block: "nearest" });
  setInterval(tick, 1000);
  setZone();
}
