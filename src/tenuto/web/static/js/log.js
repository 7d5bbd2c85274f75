// <t-log>: a log with find, levels, wrapping and following. It follows only at the end and never moves the view of a
// reader. Lines are rendered by the server; found texts are highlighted without changing them.

const MAX_FOUND = 2000;

class Log extends HTMLElement {
  connectedCallback() {
    this.part = this.closest("[data-part]");
    this.found = [];
    this.at = -1;
    this.stop = new AbortController();
    const { signal } = this.stop;
    const tool = (name) => this.querySelector(`[data-log-${name}]`);
    this.tools = { find: tool("find"), found: tool("found"), level: tool("level"), wrap: tool("wrap"), follow: tool("follow") };
    this.box.addEventListener("scroll", () => this.onScroll(), { signal });
    this.tools.find.addEventListener("input", () => this.search(true), { signal });
    this.tools.find.addEventListener("keydown", (event) => this.onKey(event), { signal });
    for (const name of ["level", "wrap", "follow"]) this.tools[name].addEventListener("change", () => this.update(), { signal });
    tool("copy").addEventListener("click", () => navigator.clipboard.writeText(this.box.innerText), { signal });
    document.addEventListener("tenuto:updated", () => this.update(), { signal });
    this.onHash();
    this.update();
  }

  disconnectedCallback() {
    this.stop.abort();
    CSS.highlights?.delete("log-found");
    CSS.highlights?.delete("log-current");
  }

  get box() {
    return this.querySelector(".log");
  }

  onHash() {
    if (!/^#L\d+$/.test(location.hash)) return;
    this.tools.follow.checked = false;
    document.getElementById(location.hash.slice(1))?.scrollIntoView({ block: "center" });
  }

  /** The viewer scrolled: follow only at the end; load older lines at the beginning. */
  onScroll() {
    const { scrollHeight, scrollTop, clientHeight } = this.box;
    this.tools.follow.checked = scrollHeight - scrollTop - clientHeight < 24;
    const older = this.box.querySelector("[data-older]");
    if (older && scrollTop < 4 && scrollHeight > clientHeight && !this.isLoading) {
      this.isLoading = true;
      this.bottom = scrollHeight - scrollTop;
      older.click();
    }
  }

  /** Apply the choices of the viewer again after the server has rendered the lines. */
  update() {
    const { box } = this;
    box.dataset.level = this.tools.level.value;
    box.classList.toggle("nowrap-lines", !this.tools.wrap.checked);
    if (this.isLoading && this.bottom && box.scrollHeight > this.bottom) {
      box.scrollTop = box.scrollHeight - this.bottom;
      this.isLoading = false;
    }
    this.search(false);
    if (this.tools.follow.checked) box.scrollTop = box.scrollHeight;
  }

  search(isNew) {
    const text = this.tools.find.value.toLowerCase();
    this.found = [];
    if (text) {
      const walker = document.createTreeWalker(this.box, NodeFilter.SHOW_TEXT);
      for (let node = walker.nextNode(); node && this.found.length < MAX_FOUND; node = walker.nextNode()) {
        const content = node.data.toLowerCase();
        for (let at = content.indexOf(text); at >= 0 && this.found.length < MAX_FOUND; at = content.indexOf(text, at + text.length)) {
          if (!node.parentElement.checkVisibility()) break;
          const range = new Range();
          range.setStart(node, at);
          range.setEnd(node, at + text.length);
          this.found.push(range);
        }
      }
    }
    this.at = isNew ? this.found.length - 1 : Math.min(this.at, this.found.length - 1);
    CSS.highlights?.set("log-found", new Highlight(...this.found));
    this.show(isNew);
  }

  show(isMoved) {
    const current = this.found[this.at];
    CSS.highlights?.set("log-current", current ? new Highlight(current) : new Highlight());
    const count = this.found.length >= MAX_FOUND ? `${MAX_FOUND}+` : this.found.length;
    const text = this.tools.find.value ? (current ? `${this.at + 1} of ${count}` : "not found") : "";
    if (this.tools.found.textContent !== text) this.tools.found.textContent = text;
    if (!current || !isMoved) return;
    this.tools.follow.checked = false;
    current.startContainer.parentElement.scrollIntoView({ block: "nearest" });
  }

  onKey(event) {
    if (event.key === "Escape" && this.tools.find.value) {
      this.tools.find.value = "";
      this.search(true);
    } else if (event.key === "Enter" && this.found.length) {
      this.at = (this.at + (event.shiftKey ? 1 : -1) + this.found.length) % this.found.length;
      this.show(true);
    } else return;
    event.preventDefault();
  }
}

customElements.define("t-log", Log);
