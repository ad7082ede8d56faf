// Changes as they happen: the server's stream tells that something has changed, and what is shown is asked for again, at
// most every two seconds and only while the page is visible. However many deliveries there are, that is a fixed cost.
import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";

export type Live = "live" | "reconnecting" | "paused";
const REFRESH_MS = 2_000;
/** A list with more pages than this is being read, and is left alone: each page is a call. */
const PAGES_MAX = 2;
const pagesOf = (data: unknown) => (data as { pages?: unknown[] } | undefined)?.pages?.length ?? 0;

export function useLive(tenant: string | null): Live {
  const client = useQueryClient();
  const [state, setState] = useState<Live>("reconnecting");
  const [visible, setVisible] = useState(!document.hidden);
  useEffect(() => {
    const changed = () => setVisible(!document.hidden);
    document.addEventListener("visibilitychange", changed);
    return () => document.removeEventListener("visibilitychange", changed);
  }, []);
  useEffect(() => {
    if (!visible) {
      setState("paused");
      return;
    }
    let dirty = true;
    const source = new EventSource(`/v1/stream${tenant ? `?tenant=${encodeURIComponent(tenant)}` : ""}`);
    const changed = () => {
      dirty = true;
    };
    source.addEventListener("delivery", changed);
    source.addEventListener("missed", changed);
    source.onopen = () => setState("live");
    source.onerror = () => setState("reconnecting");
    const timer = setInterval(() => {
      // A page that is being read or selected from does not move under the hand.
      if (!dirty || document.querySelector("[data-hold-live]:hover")) return;
      dirty = false;
      void client.invalidateQueries({ queryKey: ["live"], predicate: (query) => pagesOf(query.state.data) <= PAGES_MAX });
    }, REFRESH_MS);
    return () => {
      clearInterval(timer);
      source.close();
    };
  }, [client, tenant, visible]);
  return state;
}
