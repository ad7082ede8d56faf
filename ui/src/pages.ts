// The pages of the dashboard, in the order of the navigation. The server knows their first segments, too
// (`PAGES` in crates/api/src/dashboard.rs).
import { t } from "./strings";

export interface Page {
  path: string;
  label: string;
  /** After `g`. */
  key: string;
  icon: string;
  /** The scope that its calls need beside `read`. */
  scope?: "admin";
  /** Of no use to a key that is bound to one tenant. */
  serverWide?: boolean;
}

export const pages: Page[] = [
  { path: "/", label: t.nav.overview, key: "o", icon: "M3 12h4v8H3zM10 4h4v16h-4zM17 9h4v11h-4z" },
  { path: "/deliveries", label: t.nav.deliveries, key: "d", icon: "M3 11l18-8-8 18-2.5-7.5z" },
  { path: "/endpoints", label: t.nav.endpoints, key: "e", icon: "M4 6h16v5H4zM4 14h16v5H4zM7 8.5h1M7 16.5h1" },
  { path: "/dead-letters", label: t.nav.deadLetters, key: "l", icon: "M4 6h16v12H4zM4 7l8 6 8-6M9 15l6 0" },
  { path: "/events", label: t.nav.events, key: "v", icon: "M13 3L5 14h6l-1 7 8-11h-6z" },
  { path: "/event-types", label: t.nav.eventTypes, key: "y", icon: "M4 4h7l9 9-7 7-9-9zM8 8h.01" },
  { path: "/tenants", label: t.nav.tenants, key: "t", icon: "M4 21V8l8-5 8 5v13M9 21v-6h6v6M9 10h.01M15 10h.01" },
  { path: "/replays", label: t.nav.replays, key: "r", icon: "M4 12a8 8 0 1 0 2.5-5.8M4 3v4h4" },
  { path: "/cluster", label: t.nav.cluster, key: "c", icon: "M12 3v6M12 15v6M5 8l5 3M14 13l5 3M19 8l-5 3M10 13l-5 3M12 12h.01", serverWide: true },
  { path: "/keys", label: t.nav.keys, key: "k", icon: "M15 9a4 4 0 1 1-4-4 4 4 0 0 1 4 4zM10 12l-7 7v2h4v-3h3v-3", scope: "admin" },
  { path: "/audit", label: t.nav.audit, key: "a", icon: "M6 3h9l4 4v14H6zM9 12h7M9 16h7M9 8h3", scope: "admin" },
];
