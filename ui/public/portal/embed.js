// <script src="https://hooks.example.com/portal/embed.js" async></script>
// <posthaste-portal url="https://hooks.example.com/portal#code=…"></posthaste-portal>
//
// Shows the portal in a frame that is as high as its content. `url` is what POST /v1/portal-links answers. Optional attributes:
// theme (light, dark, auto), primary-color (#rrggbb), font (sans, serif, rounded, monospace). The element sends the event
// `posthaste-session-ended` when its session is over or its link was refused: set `url` to a new link then.
"use strict";

class PosthastePortal extends HTMLElement {
  static observedAttributes = ["url", "theme", "primary-color", "font"];
  #frame = null;
  #listen = (event) => this.#hear(event);

  connectedCallback() {
    addEventListener("message", this.#listen);
    this.#show();
  }

  disconnectedCallback() {
    removeEventListener("message", this.#listen);
    this.#frame?.remove();
    this.#frame = null;
  }

  attributeChangedCallback() {
    if (this.isConnected) this.#show();
  }

  #show() {
    const given = this.getAttribute("url");
    if (!given) return;
    const url = new URL(given, document.baseURI);
    if (url.protocol !== "https:" && url.protocol !== "http:") return;
    for (const name of ["theme", "primary-color", "font"]) {
      const value = this.getAttribute(name);
      if (value) url.searchParams.set(name.replace("-", "_"), value);
    }
    // A new frame for a new link: only its fragment differs, which would not load the page again.
    const frame = document.createElement("iframe");
    frame.src = url.href;
    frame.title = this.getAttribute("title") ?? "Webhooks";
    frame.allow = "clipboard-write";
    frame.style.cssText = "display:block;width:100%;border:0;min-height:480px";
    this.#frame?.remove();
    this.#frame = frame;
    this.append(frame);
  }

  #hear(event) {
    if (!this.#frame || event.source !== this.#frame.contentWindow || event.origin !== new URL(this.#frame.src).origin) return;
    const { type, payload } = event.data ?? {};
    if (type === "svix.iframe-resizer-height" && Number.isFinite(payload?.height)) {
      this.#frame.style.height = `${Math.min(Math.max(payload.height, 200), 20000)}px`;
    }
    if (type === "posthaste.session-ended") this.dispatchEvent(new CustomEvent("posthaste-session-ended", { bubbles: true }));
  }
}

if (!customElements.get("posthaste-portal")) customElements.define("posthaste-portal", PosthastePortal);
