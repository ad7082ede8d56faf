// The portal: the same pages for one tenant's people, without what only operators need. A link's code is exchanged once for a
// session in a cookie; the code is taken out of the address before anything else happens.
import { useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useEffect, useState } from "react";
import { Link, Route, Router, Switch, useLocation } from "wouter";
import { ApiError, type Session, api, unwrap, whenSessionEnds } from "./api/client";
import { useSession } from "./api/queries";
import { Button, Empty, Icon, cx, icons } from "./components/ui";
import { type Appearance, applyAppearance } from "./lib/appearance";
import { useHref } from "./lib/url";
import { pages } from "./pages";
import { DeliveriesPage } from "./pages/deliveries";
import { EndpointPage } from "./pages/endpoint";
import { EndpointsPage } from "./pages/endpoints";
import { EventPage } from "./pages/events";
import { EventTypesPage } from "./pages/event-types";
import { OverviewPage } from "./pages/overview";
import { ReplaysPage } from "./pages/replays";
import { t } from "./strings";

/** What the address asks for, read before pages change it. */
const asked = new URLSearchParams(location.search);
const code = new URLSearchParams(location.hash.slice(1)).get("code");
if (code) history.replaceState(null, "", location.pathname + location.search);
applyAppearance(null, asked);

const shown = pages.filter((page) => ["/", "/endpoints", "/deliveries", "/dead-letters", "/event-types"].includes(page.path));
const REFRESH_MS = 5_000;

const exchange = (code: string) => unwrap(api.POST("/v1/portal-sessions", { body: { code, cookie: true } }));
// Once, however often the page is drawn.
const exchanged: Promise<unknown> | undefined = code ? exchange(code) : undefined;

export function Portal() {
  const [state, setState] = useState<"opening" | "open" | "refused" | "failed">(exchanged ? "opening" : "open");
  useEffect(() => {
    exchanged?.then(
      () => setState("open"),
      (error) => setState(error instanceof ApiError && error.status === 401 ? "refused" : "failed"),
    );
  }, []);
  useHeight();
  if (state === "opening") return null;
  if (state === "refused") return <Notice title={t.portal.refused} hint={t.portal.refusedHint} ended />;
  if (state === "failed") return <Notice title={t.portal.failed} hint={t.portal.failedHint} />;
  return (
    <Router base="/portal">
      <Opened />
    </Router>
  );
}

function Opened() {
  const session = useSession();
  const client = useQueryClient();
  const [ended, setEnded] = useState(false);
  useEffect(() => whenSessionEnds(() => client.getQueryData(["session"]) && setEnded(true)), [client]);
  useEffect(() => {
    if (session.data) applyAppearance(session.data.appearance, asked);
  }, [session.data]);
  // The stream needs no header of ours, and so would be the dashboard's; what is shown is asked for again now and then instead.
  useEffect(() => {
    const timer = setInterval(() => {
      if (!document.hidden && !document.querySelector("[data-hold-live]:hover")) void client.invalidateQueries({ queryKey: ["live"] });
    }, REFRESH_MS);
    return () => clearInterval(timer);
  }, [client]);
  if (session.isPending) return null;
  if (session.error && session.error.status !== 401) return <Notice title={t.portal.failed} hint={t.portal.failedHint} />;
  if (!session.data || ended) return <Notice title={ended ? t.portal.ended : t.portal.none} hint={t.portal.endedHint} ended />;
  return <Frame session={session.data} />;
}

/** Says what to do, and tells a page that embeds this one. */
function Notice({ title, hint, ended }: { title: string; hint: string; ended?: boolean }) {
  useEffect(() => {
    if (ended && parent !== window) parent.postMessage({ type: "posthaste.session-ended" }, "*");
  }, [ended]);
  return (
    <main className="grid min-h-80 place-items-center p-4">
      <div className="card w-full max-w-md p-6 text-center shadow-sm">
        <h1 className="mb-2 text-balance">{title}</h1>
        <p className="text-sm text-muted">{hint}</p>
      </div>
    </main>
  );
}

/** A page that frames this one learns how high it is. That is all it learns, whoever it is. */
function useHeight() {
  useEffect(() => {
    if (parent === window) return;
    let last = 0;
    const tell = () => {
      const height = Math.ceil(document.getElementById("root")?.getBoundingClientRect().height ?? 0);
      if (height === last) return;
      last = height;
      parent.postMessage({ type: "svix.iframe-resizer-height", payload: { height } }, "*");
    };
    const observer = new ResizeObserver(tell);
    observer.observe(document.body);
    const root = document.getElementById("root");
    if (root) observer.observe(root);
    return () => observer.disconnect();
  }, []);
}

function Frame({ session }: { session: Session }) {
  const [path] = useLocation();
  const href = useHref();
  const look: Appearance = session.appearance ?? {};
  const isFramed = parent !== window;
  const active = shown.find((page) => (page.path === "/" ? path === "/" : path.startsWith(page.path)));
  useEffect(() => {
    document.title = [active?.label, look.name ?? t.portal.title].filter(Boolean).join(" · ");
  }, [active, look.name]);
  return (
    <div className={cx("mx-auto max-w-7xl", !isFramed && "min-h-dvh")}>
      <a href="#content" className="sr-only focus:not-sr-only focus:absolute focus:top-2 focus:left-2 focus:z-50 focus:rounded focus:bg-surface focus:p-2">
        {t.nav.skip}
      </a>
      <header className="border-b border-line bg-surface">
        <div className="flex flex-wrap items-center gap-x-3 gap-y-1 px-4 pt-3 md:px-6">
          <Logo look={look} />
          <span className="min-w-0 truncate font-bold tracking-tight">{look.name ?? t.portal.title}</span>
          <span className="min-w-0 truncate text-sm text-muted">{session.tenant}</span>
          <span className="ml-auto" />
          <LogOut />
        </div>
        <nav aria-label={t.nav.label} className="flex gap-1 overflow-x-auto px-2 pt-1 md:px-4">
          {shown.map((page) => (
            <Link
              key={page.path}
              href={href(page.path)}
              aria-current={active === page ? "page" : undefined}
              className={cx("border-b-2 px-2 py-2 text-sm whitespace-nowrap", active === page ? "border-accent font-semibold text-accent" : "border-transparent text-muted hover:text-text")}
            >
              {page.label}
            </Link>
          ))}
        </nav>
      </header>
      <main id="content" tabIndex={-1} className="min-w-0 outline-none">
        <Routes session={session} />
      </main>
    </div>
  );
}

/** The operator's image, from an origin that the server's policy names; anything else the browser does not load. */
function Logo({ look }: { look: Appearance }) {
  const [failed, setFailed] = useState(false);
  const source = asked.get("icon") ?? look.logo_url;
  if (source && /^https?:\/\//.test(source) && !failed) return <img src={source} alt="" className="max-h-7 max-w-32" onError={() => setFailed(true)} />;
  return look.name ? null : <img src="/favicon.svg" alt="" className="size-6" />;
}

function LogOut() {
  const client = useQueryClient();
  const logOut = async () => {
    await unwrap(api.DELETE("/v1/sessions", {}));
    client.clear();
  };
  return (
    <Button kind="ghost" small onClick={logOut}>
      <Icon d={icons.out} />
      {t.nav.logOut}
    </Button>
  );
}

function Routes({ session }: { session: Session }): ReactNode {
  return (
    <Switch>
      <Route path="/">
        <OverviewPage session={session} />
      </Route>
      <Route path="/deliveries/:id?">{(params) => <DeliveriesPage session={session} open={params.id} key="deliveries" />}</Route>
      <Route path="/dead-letters/:id?">{(params) => <DeliveriesPage session={session} open={params.id} dead key="dead" />}</Route>
      <Route path="/endpoints">
        <EndpointsPage session={session} />
      </Route>
      <Route path="/endpoints/:id">{(params) => <EndpointPage key={params.id} id={params.id} session={session} />}</Route>
      <Route path="/events/:id">{(params) => <EventPage id={decodeURIComponent(params.id)} session={session} />}</Route>
      <Route path="/event-types/:name?">{(params) => <EventTypesPage session={session} open={params.name} />}</Route>
      <Route path="/replays/:id?">{(params) => <ReplaysPage session={session} open={params.id} />}</Route>
      <Route>
        <Empty title={t.common.notFound} hint={t.common.notFoundHint} />
      </Route>
    </Switch>
  );
}
