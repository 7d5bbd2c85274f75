// Keyboard shortcuts. Each one has a visible control. None acts while a field has the focus; single keys can be switched off.

const STORE = "tenuto-shortcuts-off";
let awaitsTarget = false;

const FIELDS = "input:not([type=checkbox]), textarea, select, [contenteditable]";
const isTyping = (element) => Boolean(element?.closest?.(FIELDS));
const rows = () => [...document.querySelectorAll("tr[data-href]")];

const currentRow = () => document.activeElement?.closest("tr[data-href]");

function moveRow(step) {
  const all = rows();
  if (!all.length) return;
  const at = all.indexOf(currentRow());
  const next = all[Math.min(Math.max(at + step, 0), all.length - 1)];
  next.querySelector("th a, a, button")?.focus();
}

function selectRow(range) {
  const row = currentRow();
  if (row) document.dispatchEvent(new CustomEvent("tenuto:select", { detail: { row, range } }));
}

function openMenu() {
  const button = (currentRow() ?? document.querySelector("main .head"))?.querySelector("[data-menu]");
  button?.click();
  document.getElementById(button?.getAttribute("popovertarget"))?.querySelector("button:not([disabled]), a")?.focus();
}

/** Move the focus inside an open menu. */
function onMenuKey(event) {
  const menu = event.target.closest?.(".row-menu");
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!menu || !step) return;
  const entries = [...menu.querySelectorAll("button:not([disabled]), a")];
  entries[(entries.indexOf(document.activeElement) + step + entries.length) % entries.length]?.focus();
  event.preventDefault();
}

function goTo(key) {
  document.querySelector(`[data-go="${CSS.escape(key)}"]`)?.click();
}

function openHelp() {
  const dialog = document.querySelector("#help-dialog");
  const entries = [
    ...[...document.querySelectorAll("[data-go]")].map((link) => [`g ${link.dataset.go}`, link.firstChild.textContent.trim()]),
    ["/", "Filter"], ["j  k", "Next, previous row"], ["Enter", "Open"], ["x  Shift x", "Select a row, a range"], [".", "Menu of the row"], ["r  c  p", "Retry, cancel, pause"],
    ["f", "Follow the log"], ["[  ]", "Previous, next item of the list"], ["Ctrl K", "Search or run a command"], ["?", "This help"], ["Esc", "Close"],
  ];
  const form = document.createElement("form");
  form.method = "dialog";
  const title = document.createElement("h2");
  title.id = "help-title";
  title.textContent = "Keyboard shortcuts";
  const list = document.createElement("dl");
  list.className = "definition";
  for (const [keys, text] of entries) {
    const term = document.createElement("dt");
    for (const key of keys.split(" ").filter(Boolean)) {
      const element = document.createElement("kbd");
      element.textContent = key;
      term.append(element, " ");
    }
    const description = document.createElement("dd");
    description.textContent = text;
    list.append(term, description);
  }
  const close = document.createElement("button");
  close.textContent = "Close";
  form.append(title, list, close);
  dialog.replaceChildren(form);
  dialog.showModal();
}

/** Remember the order of the list that the viewer leaves, for the keys [ and ], and the row for the way back. */
function rememberList(row) {
  history.replaceState({ ...history.state, row: row.dataset.href }, "");
  const addresses = rows().map((each) => each.dataset.href);
  if (addresses.length) sessionStorage.setItem("tenuto-list", JSON.stringify(addresses));
}

function openNeighbour(step) {
  const addresses = JSON.parse(sessionStorage.getItem("tenuto-list") || "[]");
  const at = addresses.findIndex((each) => each.split("?")[0] === location.pathname);
  if (at >= 0 && addresses[at + step]) location.assign(addresses[at + step]);
}

function onKey(event) {
  if (event.altKey || event.ctrlKey || event.metaKey || event.defaultPrevented || isTyping(event.target)) return;
  if (document.querySelector("dialog[open]") || localStorage.getItem(STORE)) return;
  const key = event.key;
  if (awaitsTarget) {
    awaitsTarget = false;
    goTo(key);
    return;
  }
  const acts = {
    g: () => { awaitsTarget = true; setTimeout(() => { awaitsTarget = false; }, 1500); },
    "?": openHelp,
    "/": () => document.querySelector("[data-filter-field]")?.focus(),
    j: () => moveRow(1),
    k: () => moveRow(-1),
    x: () => selectRow(false),
    X: () => selectRow(true),
    ".": openMenu,
    "[": () => openNeighbour(-1),
    "]": () => openNeighbour(1),
  };
  const act = acts[key] ?? (() => {
    const wanted = `[data-shortcut="${CSS.escape(key)}"]:not([disabled])`;
    const button = currentRow()?.querySelector(wanted) ?? document.querySelector(`${wanted}:not(tr *)`);
    button?.click();
    return Boolean(button);
  });
  if (act() !== false) event.preventDefault();
}

function onRowClick(event) {
  const row = event.target.closest?.("tr[data-href]");
  if (!row || event.target.closest("a, button, input, label, summary") || String(getSelection())) return;
  rememberList(row);
  if (event.ctrlKey || event.metaKey) window.open(row.dataset.href, "_blank");
  else location.assign(row.dataset.href);
}

export function startShortcuts() {
  document.addEventListener("keydown", onKey);
  document.addEventListener("keydown", onMenuKey);
  document.addEventListener("click", onRowClick);
  document.addEventListener("click", (event) => {
    const row = event.target.closest?.("tr[data-href] a")?.closest("tr");
    if (row) rememberList(row);
    if (event.target.closest?.("[data-help]")) openHelp();
  });
  const left = history.state?.row && rows().find((row) => row.dataset.href === history.state.row);
  if (left) left.querySelector("th a")?.focus({ preventScroll: true });
  const toggle = document.querySelector("[data-shortcuts-switch]");
  if (toggle) {
    toggle.checked = !localStorage.getItem(STORE);
    toggle.addEventListener("change", () => {
      if (toggle.checked) localStorage.removeItem(STORE);
      else localStorage.setItem(STORE, "1");
    });
  }
}
