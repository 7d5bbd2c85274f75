// <t-log>: follows the end of a log while the viewer is at the end, and never moves the view of a reader.

class Log extends HTMLElement {
  connectedCallback() {
    this.box = this.querySelector(".log");
    this.follow = () => this.closest("[data-part]")?.querySelector("[data-follow]");
    this.box?.addEventListener("scroll", () => {
      const box = this.follow();
      if (box) box.checked = this.isAtEnd();
    });
    this.observer = new MutationObserver(() => this.update());
    this.observer.observe(this, { childList: true, subtree: true, characterData: true });
    this.onUpdate = () => this.update();
    this.closest("[data-part]")?.querySelector("[data-follow]")?.addEventListener("change", this.onUpdate);
    if (location.hash.startsWith("#L")) document.getElementById(location.hash.slice(1))?.scrollIntoView({ block: "center" });
    else this.update();
  }

  disconnectedCallback() {
    this.observer?.disconnect();
  }

  isAtEnd() {
    return this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 24;
  }

  update() {
    this.box = this.querySelector(".log");
    if (this.box && this.follow()?.checked) this.box.scrollTop = this.box.scrollHeight;
  }
}

customElements.define("t-log", Log);
