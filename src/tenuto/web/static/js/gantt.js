// <t-gantt>: keeps the now line and the bars of running attempts current between two updates of the step table.
// The server draws everything else. Bars are SVG attributes in percent of the scale.

import { markStale, serverNow } from "./live.js";

class Gantt extends HTMLElement {
  connectedCallback() {
    this.timer = setInterval(() => this.tick(), 1000);
  }

  disconnectedCallback() {
    clearInterval(this.timer);
  }

  tick() {
    if (document.hidden || !this.dataset.running || document.body.classList.contains("is-stale")) return;
    const share = ((serverNow() - Number(this.dataset.start)) / Number(this.dataset.span)) * 100;
    if (share > 100) {
      markStale(this.dataset.part ?? this.closest("[data-part]").dataset.part);
      return;
    }
    for (const line of this.querySelectorAll("line.now")) {
      line.setAttribute("x1", `${share}%`);
      line.setAttribute("x2", `${share}%`);
    }
    for (const bar of this.querySelectorAll("rect[data-from]")) {
      bar.setAttribute("width", `${Math.max(share - Number(bar.dataset.from), 0)}%`);
    }
  }
}

/** Give the inspector more of the width. */
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-widen]");
  if (button) button.setAttribute("aria-pressed", String(document.querySelector(".cols").classList.toggle("is-wide")));
});

customElements.define("t-gantt", Gantt);
