// The keyboard. Rows of a list are real links: moving to one focuses it, and Enter opens it as the browser does.
import { useEffect, useRef } from "react";

const isTyping = (target: EventTarget | null) => target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) && (target as HTMLInputElement).type !== "checkbox";

export interface Handlers {
  /** `g` and a letter. */
  go: (key: string) => void;
  palette: () => void;
  help: () => void;
}

export function useShortcuts(handlers: Handlers) {
  const latest = useRef(handlers);
  latest.current = handlers;
  useEffect(() => {
    let leader = Number.NEGATIVE_INFINITY;
    const press = (event: KeyboardEvent) => {
      if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        latest.current.palette();
        return;
      }
      if (event.metaKey || event.ctrlKey || event.altKey || isTyping(event.target) || document.querySelector("dialog[open]")) return;
      if (event.timeStamp - leader < 1_500) {
        leader = Number.NEGATIVE_INFINITY;
        event.preventDefault();
        latest.current.go(event.key);
        return;
      }
      const act: Record<string, () => void> = {
        g: () => {
          leader = event.timeStamp;
        },
        "?": () => latest.current.help(),
        "/": () => {
          const search = document.querySelector<HTMLElement>("[data-search]");
          if (search) search.focus();
          else latest.current.palette();
        },
        j: () => move(1),
        k: () => move(-1),
        x: () => row()?.querySelector<HTMLInputElement>('input[type="checkbox"]')?.click(),
        r: () => document.dispatchEvent(new CustomEvent("posthaste:retry", { detail: row()?.dataset.row })),
        Escape: () => document.querySelector<HTMLElement>("[data-close-panel]")?.click(),
      };
      const action = act[event.key];
      if (!action) return;
      if (event.key !== "Escape") event.preventDefault();
      action();
    };
    window.addEventListener("keydown", press);
    return () => window.removeEventListener("keydown", press);
  }, []);
}

const row = () => document.activeElement?.closest<HTMLElement>("[data-row]") ?? null;

function move(by: number) {
  const links = [...document.querySelectorAll<HTMLElement>("[data-row-link]")];
  const at = links.findIndex((link) => link.closest("[data-row]") === row());
  const next = links[at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.max(0, Math.min(links.length - 1, at + by))];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

/** `r` on a list: the row that has the focus, if any. */
export function useRetryKey(retry: (row: string | undefined) => void) {
  const latest = useRef(retry);
  latest.current = retry;
  useEffect(() => {
    const listen = (event: Event) => latest.current((event as CustomEvent<string | undefined>).detail);
    document.addEventListener("posthaste:retry", listen);
    return () => document.removeEventListener("posthaste:retry", listen);
  }, []);
}
