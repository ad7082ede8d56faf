// What an operator looks at first: how it goes, what waits and why, and what needs a person.
import type { ReactNode } from "react";
import { Link } from "wouter";
import { mayDo } from "../lib/session";
import { type Need, type Session, isPortal } from "../api/client";
import { useAttention, useEndpoints, useStats } from "../api/queries";
import { Chart, Legend, type Series } from "../components/charts";
import { Badge, Failure, PageHeader, Rows, Select, Time, type Tone, cx } from "../components/ui";
import { type Range, address, compact, number, percent, ranges } from "../lib/format";
import { useHref, useQuery } from "../lib/url";
import { t } from "../strings";
import { rangeOptions } from "./deliveries";
import { EndpointAction } from "./endpoint-actions";

const holdColors: Record<string, string> = {
  retry: "bg-warn-fill",
  circuit_open: "bg-bad-fill",
  quiet_hours: "bg-hold-fill",
  rate_limited: "bg-info-fill",
  concurrency: "bg-info-fill",
  paused: "bg-warn-fill",
  disabled: "bg-bad-fill",
  deliver_at: "bg-hold-fill",
  ordering: "bg-ok-fill",
};

export function OverviewPage({ session }: { session: Session }) {
  const [params, change] = useQuery();
  const href = useHref();
  const range = (params.get("range") ?? "1h") as Range;
  const tenant = params.get("tenant") ?? undefined;
  const stats = useStats(tenant, range);
  const endpoints = useEndpoints(tenant);
  const attention = useAttention(tenant);
  const all = endpoints.data?.pages.flatMap((page) => page.data) ?? [];
  const open = all.filter((endpoint) => endpoint.circuit.state !== "closed");
  const total = stats.data?.total;
  const minutes = (ranges[range] ?? ranges["24h"]) / 60_000;
  if (endpoints.isSuccess && all.length === 0 && stats.isSuccess && total?.attempts === 0) return <Welcome session={session} />;
  return (
    <>
      <PageHeader title={t.overview.title}>
        <Select label={t.range.label} usual="1h" value={range} onChange={(value) => change({ range: value })} options={rangeOptions(false)} />
      </PageHeader>
      {stats.isError && <Failure error={stats.error} retry={() => stats.refetch()} />}
      <div className="space-y-4 px-4 pb-8 md:px-6">
        <div className="grid grid-cols-2 gap-3 md:grid-cols-3 xl:grid-cols-6">
          <Tile label={t.overview.delivered} value={total && compact(total.delivered)} note={total && `${compact(Math.round((total.delivered / minutes) * 10) / 10)} ${t.overview.perMinute}`} href={href("/deliveries", { status: "delivered", range })} />
          <Tile label={t.overview.successRate} value={total && percent(total.successes, total.attempts)} note={total && t.overview.attempts(compact(total.attempts))} href={href("/deliveries", { range })} tone={total && total.attempts > 0 && total.successes / total.attempts < 0.95 ? "warn" : undefined} />
          <Tile label={t.overview.latency} value={total && (total.p95_ms == null ? "–" : t.overview.ms(number(total.p95_ms)))} note={total && total.p50_ms != null ? `p50 ${number(total.p50_ms)} · p99 ${number(total.p99_ms ?? 0)}` : " "} href={href("/endpoints")} />
          <Tile label={t.overview.waiting} value={stats.data && compact(stats.data.backlog.waiting)} note={stats.data && t.overview.pendingNow(compact(stats.data.backlog.pending))} href={href("/deliveries", { status: "scheduled", range: "all" })} />
          <Tile label={t.overview.circuits} value={endpoints.isSuccess ? number(open.length) : undefined} note={endpoints.isSuccess ? t.overview.ofEndpoints(`${number(all.length)}${endpoints.hasNextPage ? "+" : ""}`) : undefined} href={href("/endpoints", { show: "open" })} tone={open.length > 0 ? "bad" : undefined} />
          <Tile label={t.overview.deadTile} value={total && compact(total.dead)} note={t.overview.inRange} href={href("/dead-letters", { range })} tone={total && total.dead > 0 ? "bad" : undefined} />
        </div>
        <div className="grid grid-cols-1 gap-4 xl:grid-cols-2">
          <Charts stats={stats.data} range={range} />
        </div>
        <div className="grid grid-cols-1 gap-4 xl:grid-cols-[2fr_3fr]">
          <section className="card p-4" aria-label={t.overview.backlog}>
            <h2 className="mb-3">{t.overview.backlog}</h2>
            {stats.data ? <Backlog backlog={stats.data.backlog} href={href} /> : <Rows count={4} />}
          </section>
          <section className="card" aria-label={t.overview.attention}>
            <div className="border-b border-line px-4 py-3">
              <h2>{t.overview.attention}</h2>
              <p className="text-xs text-muted">{t.overview.attentionHint}</p>
            </div>
            {attention.isSuccess ? <Attention needs={attention.data} session={session} /> : attention.isError ? <Failure error={attention.error} /> : <Rows count={4} />}
          </section>
        </div>
      </div>
    </>
  );
}

function Tile({ label, value, note, href, tone }: { label: string; value: string | undefined; note: string | undefined; href: string; tone?: Tone }) {
  return (
    <Link href={href} className="card block min-w-0 px-4 py-3 hover:border-line-strong hover:bg-hover">
      <span className="block truncate text-xs text-muted">{label}</span>
      {value === undefined ? <span className="skeleton my-1 block h-6 w-16" /> : <span className={cx("num block truncate text-xl font-semibold tracking-tight", tone === "bad" && "text-bad", tone === "warn" && "text-warn")}>{value}</span>}
      <span className="num block min-h-4.5 truncate text-xs text-muted">{note}</span>
    </Link>
  );
}

interface StatsData {
  from: string;
  to: string;
  step_seconds: number;
  steps: { from: string; attempts: number; successes: number; p50_ms?: number | null; p95_ms?: number | null; p99_ms?: number | null }[];
}

/** Steps in which nothing happened are not in the answer; a chart shows them as zero. */
export function seriesOf(stats: StatsData | undefined) {
  if (!stats) return { times: [], stepMs: 60_000, outcomes: [] as Series[], latency: [] as Series[] };
  const stepMs = stats.step_seconds * 1000;
  const byTime = new Map(stats.steps.map((step) => [Math.floor(Date.parse(step.from) / stepMs) * stepMs, step]));
  const times: number[] = [];
  for (let at = Math.floor(Date.parse(stats.from) / stepMs) * stepMs; at < Date.parse(stats.to); at += stepMs) times.push(at);
  const pick = (read: (step: StatsData["steps"][number]) => number | null | undefined, none: number | null) => times.map((at) => {
    const step = byTime.get(at);
    return step ? (read(step) ?? none) : none;
  });
  const outcomes: Series[] = [
    { name: t.overview.succeeded, color: "--ok-fill", values: pick((step) => step.successes, 0) },
    { name: t.overview.failed, color: "--bad-fill", values: pick((step) => step.attempts - step.successes, 0) },
  ];
  const latency: Series[] = [
    { name: "p99", color: "--hold-fill", values: pick((step) => step.p99_ms, null) },
    { name: "p95", color: "--info-fill", values: pick((step) => step.p95_ms, null) },
    { name: "p50", color: "--ok-fill", values: pick((step) => step.p50_ms, null) },
  ];
  return { times, stepMs, outcomes, latency };
}

export function Charts({ stats }: { stats: StatsData | undefined; range: string }) {
  const { times, stepMs, outcomes, latency } = seriesOf(stats);
  const frame = (title: string, hint: string, series: Series[], chart: ReactNode) => (
    <section className="card min-w-0 p-4" aria-label={title}>
      <div className="mb-2 flex flex-wrap items-baseline justify-between gap-x-4">
        <h2>
          {title} <span className="text-xs font-normal text-muted">{hint}</span>
        </h2>
        <Legend series={series} />
      </div>
      {stats ? chart : <div className="skeleton h-44" />}
    </section>
  );
  return (
    <>
      {frame(t.overview.outcomes, "", outcomes, <Chart kind="bars" times={times} stepMs={stepMs} series={outcomes} label={t.overview.outcomes} empty={t.overview.noTraffic} />)}
      {frame(t.overview.responseTimes, t.overview.responseTimesHint, latency, <Chart kind="lines" unit=" ms" times={times} stepMs={stepMs} series={latency} label={t.overview.responseTimes} empty={t.overview.noTraffic} />)}
    </>
  );
}

interface BacklogData {
  waiting: number;
  pending: number;
  delivering: number;
  is_complete: boolean;
  held: Record<string, number>;
}

function Backlog({ backlog, href }: { backlog: BacklogData; href: ReturnType<typeof useHref> }) {
  const rows: [string, number, string, string][] = [
    [t.overview.due, backlog.pending, "bg-info-fill", href("/deliveries", { status: "pending", range: "all" })],
    [t.overview.delivering, backlog.delivering, "bg-ok-fill", href("/deliveries", { status: "delivering", range: "all" })],
    ...Object.entries(backlog.held).map(([reason, count]): [string, number, string, string] => [t.hold[reason] ?? reason, count, holdColors[reason] ?? "bg-line-strong", href("/deliveries", { hold: reason, range: "all" })]),
  ];
  const shown = rows.filter(([, count]) => count > 0).sort((a, b) => b[1] - a[1]);
  const max = Math.max(1, ...shown.map(([, count]) => count));
  if (shown.length === 0) return <p className="py-6 text-center text-sm text-muted">{t.overview.backlogEmpty}</p>;
  return (
    <>
      <ul className="space-y-1">
        {shown.map(([name, count, color, to]) => (
          <li key={name}>
            <Link href={to} className="-mx-2 block rounded-md px-2 py-1.5 hover:bg-hover">
              <span className="flex justify-between gap-3 text-sm">
                <span className="truncate">{name}</span>
                <span className="num font-medium">{number(count)}</span>
              </span>
              <span className="mt-1 block h-1.5 rounded-full bg-raised" aria-hidden="true">
                <span className={cx("block h-full min-w-1.5 rounded-full", color)} style={{ width: `${(100 * count) / max}%` }} />
              </span>
            </Link>
          </li>
        ))}
      </ul>
      {!backlog.is_complete && <p className="mt-2 text-xs text-muted">{t.overview.backlogPartial}</p>}
    </>
  );
}

const serious = new Set<string>(["deliveries_stalled", "no_node", "circuit_open", "endpoint_disabled", "dead_letters", "dead_letters_growing"]);
const actions: Partial<Record<Need["kind"], "enable" | "test">> = { endpoint_disabled: "enable", circuit_open: "test", endpoint_failing: "test" };
const isDead = (need: Need) => need.kind === "dead_letters" || need.kind === "dead_letters_growing";
const SHOWN_MAX = 12;

function Attention({ needs, session }: { needs: Need[]; session: Session }) {
  const href = useHref();
  if (needs.length === 0) return <p className="px-4 py-10 text-center text-sm text-muted">{t.overview.attentionEmpty}</p>;
  const inspect = (need: Need) => {
    if (isDead(need)) return href("/dead-letters", { endpoint: need.endpoint, range: "24h" });
    return need.delivery ? href(`/deliveries/${need.delivery}`) : undefined;
  };
  const detail = (need: Need) => [need.kind === "dead_letters" ? (t.dead[need.reason ?? ""] ?? need.reason) : need.reason, need.status_code, need.count && !isDead(need) && t.attention.waiting(number(need.count))].filter(Boolean).join(" · ");
  return (
    <>
      <ul className="divide-y divide-line">
        {needs.slice(0, SHOWN_MAX).map((need) => {
          const action = actions[need.kind];
          const to = inspect(need);
          return (
            <li key={`${need.kind} ${need.endpoint} ${need.reason} ${need.status_code}`} className="flex flex-wrap items-center gap-x-3 gap-y-1.5 px-4 py-2.5">
              <div className="min-w-0 flex-1 basis-60">
                <div className="flex items-center gap-2">
                  <Badge tone={serious.has(need.kind) ? "bad" : "warn"}>{need.count && isDead(need) ? `${t.attention.kind[need.kind] ?? need.kind} ${t.attention.count(number(need.count))}` : (t.attention.kind[need.kind] ?? need.kind)}</Badge>
                  <span className="truncate text-xs text-muted">{detail(need)}</span>
                </div>
                {need.endpoint && (
                  <Link href={href(`/endpoints/${need.endpoint}`)} className="mt-0.5 block truncate text-sm hover:underline">
                    {address(need.endpoint_url ?? "").host}
                    <span className="text-muted">{`${address(need.endpoint_url ?? "").path}${isPortal ? "" : ` · ${need.tenant}`}`}</span>
                  </Link>
                )}
              </div>
              <span className="text-xs text-muted">
                {need.first_seen && (
                  <>
                    {`${t.attention.since} `}
                    <Time at={need.first_seen} />
                  </>
                )}
              </span>
              <span className="flex gap-1.5">
                {to && (
                  <Link href={to} className="rounded-md border border-line-strong px-2 py-0.5 text-xs font-medium hover:bg-hover">
                    {t.attention.inspect}
                  </Link>
                )}
                {need.endpoint && action && mayDo(session, "manage") && <EndpointAction id={need.endpoint} action={action} />}
              </span>
            </li>
          );
        })}
      </ul>
      {needs.length > SHOWN_MAX && <p className="border-t border-line px-4 py-2 text-xs text-muted">{t.attention.more(number(needs.length - SHOWN_MAX))}</p>}
    </>
  );
}

function Welcome({ session }: { session: Session }) {
  if (isPortal) return <PortalWelcome session={session} />;
  const curl = `curl ${location.origin}/v1/events \\
  -H "Authorization: Bearer $POSTHASTE_API_KEY" \\
  -H "Content-Type: application/json" \\
  -d '{"type": "invoice.paid", "tenant": "acme", "data": {"invoice": "inv_1"}}'`;
  const steps: [string, string, ReactNode][] = [
    [
      t.welcome.one,
      t.welcome.oneHint,
      <Link key="1" href="/endpoints?create=1" className="mt-2 inline-block rounded-md bg-accent-fill px-3 py-1.5 text-sm font-medium text-on-accent">
        {t.endpoints.create}
      </Link>,
    ],
    [t.welcome.two, t.welcome.twoHint, <pre key="2" tabIndex={0} aria-label={t.welcome.two} className="mt-2 overflow-x-auto rounded-md border border-line bg-bg p-3">{curl}</pre>],
    [t.welcome.three, t.welcome.threeHint, null],
  ];
  return (
    <div className="mx-auto max-w-2xl p-6 pt-12">
      <h1 className="mb-6">{t.welcome.title}</h1>
      <ol className="space-y-4">
        {steps.map(([title, hint, content], i) => (
          <li key={title} className="card flex gap-4 p-5">
            <span className="grid size-7 shrink-0 place-items-center rounded-full bg-accent-soft font-semibold text-accent">{i + 1}</span>
            <div className="min-w-0 flex-1">
              <h2>{title}</h2>
              <p className="text-sm text-muted">{hint}</p>
              {content}
            </div>
          </li>
        ))}
      </ol>
    </div>
  );
}

function PortalWelcome({ session }: { session: Session }) {
  const canCreate = mayDo(session, "manage");
  return (
    <div className="mx-auto max-w-xl p-6 pt-12 text-center">
      <h1 className="mb-2">{t.portal.welcome}</h1>
      <p className="mb-5 text-sm text-muted">{canCreate ? t.portal.welcomeHint : t.portal.welcomeReadOnly}</p>
      {canCreate && (
        <Link href="/endpoints?create=1" className="inline-block rounded-md bg-accent-fill px-3 py-1.5 text-sm font-medium text-on-accent">
          {t.endpoints.create}
        </Link>
      )}
    </div>
  );
}
