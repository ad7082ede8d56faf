// The frame around every page: login, navigation, tenant, palette, shortcuts.
import { type QueryClient, useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useEffect, useState } from "react";
import { Link, Route, Switch, useLocation, useSearch } from "wouter";
import { type Session, api, unwrap, whenSessionEnds } from "./api/client";
import { useSession, useTenants } from "./api/queries";
import { Palette } from "./components/palette";
import { ShortcutHelp } from "./components/shortcuts";
import { Button, Empty, Icon, Select, cx, icons } from "./components/ui";
import { useLive } from "./lib/live";
import { mayDo } from "./lib/session";
import { useShortcuts } from "./lib/shortcuts";
import { type Theme, applyTheme, theme } from "./lib/theme";
import { useHref, withPatch } from "./lib/url";
import { pages } from "./pages";
import { AuditPage } from "./pages/audit";
import { ClusterPage } from "./pages/cluster";
import { DeliveriesPage } from "./pages/deliveries";
import { EndpointPage } from "./pages/endpoint";
import { EndpointsPage } from "./pages/endpoints";
import { EventPage, EventsPage } from "./pages/events";
import { EventTypesPage } from "./pages/event-types";
import { KeysPage } from "./pages/keys";
import { LoginPage } from "./pages/login";
import { OverviewPage } from "./pages/overview";
import { ReplaysPage } from "./pages/replays";
import { TenantPage, TenantsPage } from "./pages/tenants";
import { t } from "./strings";

export function App() {
  const session = useSession();
  const client = useQueryClient();
  const [ended, setEnded] = useState(false);
  useEffect(
    () =>
      whenSessionEnds(() => {
        if (!client.getQueryData(["session"])) return;
        setEnded(true);
        client.setQueryData(["session"], null);
      }),
    [client],
  );
  const logIn = (made: Session) => {
    setEnded(false);
    forget(client);
    client.setQueryData(["session"], made);
  };
  if (session.isPending) return null;
  if (!session.data) return <LoginPage onLogin={logIn} ended={ended} />;
  return <Frame session={session.data} />;
}

/** What was read for one session is not shown to another. */
const forget = (client: QueryClient) => client.removeQueries({ predicate: (query) => query.queryKey[0] !== "session" });

function Frame({ session }: { session: Session }) {
  const [path, navigate] = useLocation();
  const search = useSearch();
  const href = useHref();
  const [menu, setMenu] = useState(false);
  const [palette, setPalette] = useState(false);
  const [help, setHelp] = useState(false);
  const tenant = new URLSearchParams(search).get("tenant");
  const live = useLive(session.tenant ?? tenant);
  useShortcuts({
    go: (key) => {
      const page = shown.find((one) => one.key === key);
      if (page) navigate(href(page.path));
    },
    palette: () => setPalette(true),
    help: () => setHelp(true),
  });
  const shown = pages.filter((page) => (!page.scope || mayDo(session, page.scope)) && !(page.serverWide && session.tenant));
  const active = pages.find((page) => (page.path === "/" ? path === "/" : path.startsWith(page.path)));
  useEffect(() => {
    document.title = active ? `${active.label} · ${t.product}` : t.product;
  }, [active]);
  // biome-ignore lint: the menu closes when the page changes
  useEffect(() => setMenu(false), [path, search]);
  return (
    <div className="min-h-dvh md:grid md:grid-cols-[212px_minmax(0,1fr)]">
      <a href="#content" className="sr-only focus:not-sr-only focus:absolute focus:top-2 focus:left-2 focus:z-50 focus:rounded focus:bg-surface focus:p-2">
        {t.nav.skip}
      </a>
      <div className="sticky top-0 z-30 flex items-center gap-2 border-b border-line bg-surface px-3 py-2 md:hidden">
        <Button kind="ghost" small aria-label={t.nav.menu} aria-expanded={menu} onClick={() => setMenu(true)}>
          <Icon d={icons.menu} className="size-5" />
        </Button>
        <Brand />
        <span className="ml-auto" />
        <Button kind="ghost" small aria-label={t.nav.search} onClick={() => setPalette(true)}>
          <Icon d={icons.search} className="size-5" />
        </Button>
      </div>
      {menu && <button type="button" aria-label={t.nav.close} className="fixed inset-0 z-30 bg-black/40 md:hidden" onClick={() => setMenu(false)} />}
      <aside className={cx("fixed inset-y-0 left-0 z-40 flex w-60 flex-col gap-3 overflow-y-auto border-r border-line bg-surface p-3 md:sticky md:top-0 md:h-dvh md:w-auto", menu ? "flex" : "hidden md:flex")}>
        <div className="px-1.5 pt-1">
          <Brand />
        </div>
        <button type="button" onClick={() => setPalette(true)} className="flex items-center gap-2 rounded-md border border-line-strong bg-bg px-2.5 py-1.5 text-sm text-muted hover:bg-hover">
          <Icon d={icons.search} className="size-3.5" />
          <span className="truncate">{t.nav.search}</span>
          <kbd className="ml-auto">⌘K</kbd>
        </button>
        {session.tenant ? <p className="px-2 text-sm text-muted">{`${t.nav.tenant}: ${session.tenant}`}</p> : <TenantSwitch tenant={tenant} onChange={(next) => navigate((path.split("/").length > 2 ? `/${path.split("/")[1]}` : path) + withPatch(path.split("/").length > 2 ? "" : search, { tenant: next, endpoint: null }))} />}
        <nav aria-label={t.nav.label} className="flex flex-col gap-px">
          {shown.map((page) => (
            <Link
              key={page.path}
              href={href(page.path)}
              aria-current={active === page ? "page" : undefined}
              className={cx("flex items-center gap-2.5 rounded-md px-2 py-1.5 text-sm", active === page ? "bg-accent-soft font-semibold text-accent" : "text-muted hover:bg-hover hover:text-text")}
            >
              <Icon d={page.icon} />
              {page.label}
            </Link>
          ))}
        </nav>
        <div className="mt-auto flex flex-col gap-px border-t border-line pt-2 text-sm">
          <LiveState state={live} />
          <a href="/docs" className="flex items-center gap-2.5 rounded-md px-2 py-1.5 text-muted hover:bg-hover hover:text-text">
            <Icon d={icons.book} />
            {t.nav.docs}
          </a>
          <button type="button" onClick={() => setHelp(true)} className="flex items-center gap-2.5 rounded-md px-2 py-1.5 text-left text-muted hover:bg-hover hover:text-text">
            <Icon d={icons.keyboard} />
            {t.nav.shortcuts}
          </button>
          <ThemeSwitch />
          <LogOut />
        </div>
      </aside>
      <main id="content" tabIndex={-1} className="min-w-0 outline-none">
        <Routes session={session} />
      </main>
      {palette && <Palette pages={shown} onClose={() => setPalette(false)} onHelp={() => setHelp(true)} />}
      {help && <ShortcutHelp pages={shown} onClose={() => setHelp(false)} />}
    </div>
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
      <Route path="/events">
        <EventsPage />
      </Route>
      <Route path="/events/:id">{(params) => <EventPage id={decodeURIComponent(params.id)} session={session} />}</Route>
      <Route path="/event-types/:name?">{(params) => <EventTypesPage session={session} open={params.name} />}</Route>
      <Route path="/tenants">
        <TenantsPage session={session} />
      </Route>
      <Route path="/tenants/:id">{(params) => <TenantPage key={params.id} id={decodeURIComponent(params.id)} session={session} />}</Route>
      <Route path="/replays/:id?">{(params) => <ReplaysPage session={session} open={params.id} />}</Route>
      <Route path="/cluster">
        <ClusterPage />
      </Route>
      <Route path="/keys">
        <KeysPage />
      </Route>
      <Route path="/audit">
        <AuditPage />
      </Route>
      <Route>
        <Empty title={t.common.notFound} hint={t.common.notFoundHint} />
      </Route>
    </Switch>
  );
}

function Brand() {
  return (
    <span className="flex items-center gap-2 font-bold tracking-tight">
      <img src="/favicon.svg" alt="" className="size-6" />
      {t.product}
    </span>
  );
}

function TenantSwitch({ tenant, onChange }: { tenant: string | null; onChange: (tenant: string | null) => void }) {
  const tenants = useTenants();
  const known = tenants.data?.pages.flatMap((page) => page.data.map((one) => one.id)) ?? [];
  const ids = tenant && !known.includes(tenant) ? [tenant, ...known] : known;
  return <Select label={t.nav.tenant} className="w-full!" value={tenant ?? ""} onChange={(value) => onChange(value || null)} options={[["", t.nav.allTenants], ...ids.map((id): [string, string] => [id, id])]} />;
}

function LiveState({ state }: { state: ReturnType<typeof useLive> }) {
  const name = { live: t.nav.live, paused: t.nav.paused, reconnecting: t.nav.reconnecting }[state];
  return (
    <span className="flex items-center gap-2.5 px-2 py-1.5 text-muted" role="status">
      <span className="grid size-4 place-items-center">
        <span className={cx("size-2 rounded-full", state === "live" ? "bg-ok-fill" : "bg-warn-fill motion-safe:animate-pulse")} />
      </span>
      {name}
    </span>
  );
}

function ThemeSwitch() {
  const [chosen, setChosen] = useState<Theme>(theme());
  const next: Record<Theme, Theme> = { auto: "light", light: "dark", dark: "auto" };
  return (
    <button
      type="button"
      className="flex items-center gap-2.5 rounded-md px-2 py-1.5 text-left text-muted hover:bg-hover hover:text-text"
      onClick={() => {
        applyTheme(next[chosen]);
        setChosen(next[chosen]);
      }}
    >
      <Icon d={chosen === "dark" ? icons.moon : icons.sun} />
      {`${t.nav.theme}: ${t.nav.themes[chosen]}`}
    </button>
  );
}

function LogOut() {
  const client = useQueryClient();
  const logOut = async () => {
    await unwrap(api.DELETE("/v1/sessions", {}));
    client.setQueryData(["session"], null);
    forget(client);
  };
  return (
    <button type="button" onClick={logOut} className="flex items-center gap-2.5 rounded-md px-2 py-1.5 text-left text-muted hover:bg-hover hover:text-text">
      <Icon d={icons.out} />
      {t.nav.logOut}
    </button>
  );
}
