// Deliveries and dead letters: a list with filters in the address, and one delivery next to it.
import { useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { useLocation, useSearch } from "wouter";
import { mayDo } from "../lib/session";
import { type Delivery, type Session, api, forEach, isPortal, unwrap } from "../api/client";
import { type DeliveryFilters, useDeliveries } from "../api/queries";
import { type Column, List, Pages } from "../components/list";
import { targets } from "../components/palette";
import { ReplayWizard } from "../components/replay-wizard";
import { Button, Confirm, Icon, PageHeader, Select, StatusBadge, Time, cx, icons, useToast } from "../components/ui";
import { address, compact } from "../lib/format";
import { useRetryKey } from "../lib/shortcuts";
import { useQuery, withPatch } from "../lib/url";
import { t } from "../strings";
import { DeliveryPanel } from "./delivery";

const statuses = ["pending", "delivering", "scheduled", "delivered", "dead", "cancelled"];
const holds = ["disabled", "paused", "deliver_at", "retry", "circuit_open", "quiet_hours", "ordering", "rate_limited", "concurrency"];

export const rangeOptions = (all = true): [string, string][] => [
  ["1h", t.range["1h"]],
  ["6h", t.range["6h"]],
  ["24h", t.range["24h"]],
  ["7d", t.range["7d"]],
  ...(all ? ([["all", t.range.all]] as [string, string][]) : []),
];

export function Answer({ delivery }: { delivery: Delivery }) {
  if (delivery.last_status_code) {
    const ok = delivery.last_status_code < 300;
    return <span className={cx("mono num", ok ? "text-ok" : "text-bad")}>{delivery.last_status_code}</span>;
  }
  if (delivery.last_error) return <span className="block max-w-48 truncate text-bad" title={delivery.last_error}>{delivery.last_error}</span>;
  return <span className="text-muted">–</span>;
}

function Main({ delivery }: { delivery: Delivery }) {
  const to = address(delivery.endpoint_url);
  return (
    <>
      <span className="flex min-w-0 items-center gap-2">
        <span className="truncate font-medium">{delivery.type}</span>
        <span className="sm:hidden">
          <StatusBadge status={delivery.status} hold={delivery.hold_reason} />
        </span>
      </span>
      <span className="block truncate text-xs text-muted">
        {to.host}
        {to.path}
      </span>
    </>
  );
}

export function DeliveriesPage({ session, open, dead = false }: { session: Session; open?: string; dead?: boolean }) {
  const [params, change] = useQuery();
  const search = useSearch();
  const [, navigate] = useLocation();
  const client = useQueryClient();
  const toast = useToast();
  const [selected, setSelected] = useState(new Set<string>());
  const [busy, setBusy] = useState(false);
  const [cancelling, setCancelling] = useState(false);
  const [replaying, setReplaying] = useState<"ids" | "filter" | null>(null);
  const range = params.get("range") ?? (dead ? "7d" : "24h");
  const get = (name: string) => params.get(name) ?? undefined;
  const filters: DeliveryFilters = { tenant: get("tenant"), endpoint: get("endpoint"), event: get("event"), type: get("type"), status: dead ? undefined : get("status"), hold_reason: dead ? undefined : get("hold"), range };
  const query = useDeliveries(filters, dead);
  const base = dead ? "/dead-letters" : "/deliveries";
  const mayReplay = mayDo(session, "replay");
  const mayManage = mayDo(session, "manage");

  const retry = async (ids: string[]) => {
    if (!mayReplay || ids.length === 0) return;
    setBusy(true);
    const result = await forEach(ids, (id) => unwrap(api.POST("/v1/deliveries/{id}/retry", { params: { path: { id } } })));
    setBusy(false);
    if (result.done) toast(`${t.deliveries.retry}: ${t.common.done(result.done)}`);
    if (result.refused) toast(`${t.common.refused(result.refused)}: ${result.error}`, "bad");
    setSelected(new Set());
    await client.invalidateQueries({ queryKey: ["live"] });
  };
  useRetryKey((row) => {
    const ids = selected.size > 0 ? [...selected] : row ? [row] : open ? [open] : [];
    void retry(ids);
  });
  const cancel = async () => {
    const result = await forEach([...selected], (id) => unwrap(api.POST("/v1/deliveries/{id}/cancel", { params: { path: { id } } })));
    if (result.done) toast(`${t.deliveries.cancel}: ${t.common.done(result.done)}`);
    if (result.refused) toast(`${t.common.refused(result.refused)}: ${result.error}`, "bad");
    setSelected(new Set());
    await client.invalidateQueries({ queryKey: ["live"] });
  };

  const narrow = open !== undefined;
  const columns: Column<Delivery>[] = [
    { head: t.deliveries.type, cell: (row) => <Main delivery={row} /> },
    dead
      ? { head: t.deadLetters.reason, from: "sm", cell: (row) => <span className="text-bad">{t.dead[row.dead_reason ?? ""] ?? row.dead_reason}</span> }
      : { head: t.status.label ?? "", from: "sm", cell: (row) => <StatusBadge status={row.status} hold={row.hold_reason} /> },
    ...(isPortal ? [] : [{ head: t.deliveries.tenant, from: "lg", wide: true, cell: (row: Delivery) => row.tenant } as Column<Delivery>]),
    { head: t.deliveries.answer, from: "md", wide: true, cell: (row) => <Answer delivery={row} /> },
    { head: t.deliveries.attempts, from: "lg", wide: true, right: true, cell: (row) => <span className="num text-muted">{`${row.attempt_count} / ${row.max_attempts}`}</span> },
    ...(dead ? [] : [{ head: t.deliveries.next, from: "xl", wide: true, right: true, cell: (row: Delivery) => (row.next_attempt_at ? <Time at={row.next_attempt_at} /> : <span className="text-muted">–</span>) } as Column<Delivery>]),
    { head: dead ? t.deadLetters.died : t.deliveries.created, right: true, cell: (row) => <Time at={dead ? row.dead_at : row.created_at} className="text-muted" /> },
  ];
  const filtered = ["endpoint", "event", "type", "status", "hold"].some((name) => params.get(name));
  const rows = query.data?.pages.flatMap((page) => page.data) ?? [];
  return (
    <div className={cx(narrow && "xl:grid xl:grid-cols-[minmax(0,5fr)_minmax(0,7fr)]")}>
      <div className={cx("min-w-0", narrow && "hidden xl:block xl:h-dvh xl:overflow-y-auto")}>
        <PageHeader title={dead ? t.deadLetters.title : t.deliveries.title} hint={dead && !narrow ? t.deadLetters.hint : undefined}>
          {dead && mayReplay && (
            <Button onClick={() => setReplaying("filter")}>
              <Icon d={icons.retry} />
              {t.deadLetters.replayAll}
            </Button>
          )}
          {!narrow && rows.length > 0 && (
            <Button kind="ghost" title={t.deliveries.csvHint} onClick={() => download(rows)}>
              {t.deliveries.csv}
            </Button>
          )}
        </PageHeader>
        <div className="flex flex-wrap items-center gap-2 px-4 pb-3 md:px-6">
          <IdSearch onFind={(id) => (targets(id)[0] ? navigate(id.startsWith("dlv_") ? `${base}/${id}` : `/deliveries?event=${encodeURIComponent(id)}&range=all`) : undefined)} />
          <Select label={t.range.label} usual={dead ? "7d" : "24h"} value={range} onChange={(value) => change({ range: value })} options={rangeOptions()} />
          {!dead && <Select label={t.status.label ?? ""} value={params.get("status") ?? ""} onChange={(value) => change({ status: value, hold: null })} options={[["", `${t.status.label}: ${t.common.any}`], ...statuses.map((one): [string, string] => [one, t.status[one] ?? one])]} />}
          {!dead && <Select label={t.hold.label ?? ""} value={params.get("hold") ?? ""} onChange={(value) => change({ hold: value, status: null })} options={[["", `${t.hold.label}: ${t.common.any}`], ...holds.map((one): [string, string] => [one, t.hold[one] ?? one])]} />}
          <TextFilter label={t.deliveries.type} value={params.get("type") ?? ""} onChange={(value) => change({ type: value })} />
          {["endpoint", "event"].map((name) =>
            params.get(name) ? (
              <span key={name} className="inline-flex max-w-full items-center gap-1 rounded-full bg-accent-soft py-0.5 pr-1 pl-2.5 text-xs text-accent">
                <span className="truncate">{`${name} ${params.get(name)}`}</span>
                <button type="button" aria-label={`${t.common.clear}: ${name}`} className="rounded-full p-1 hover:bg-surface" onClick={() => change({ [name]: null })}>
                  <Icon d={icons.close} className="size-3" />
                </button>
              </span>
            ) : null,
          )}
          {filtered && (
            <Button kind="ghost" small onClick={() => change({ endpoint: null, event: null, type: null, status: null, hold: null })}>
              {t.common.clear}
            </Button>
          )}
        </div>
        {dead && !narrow && rows.length > 0 && <Causes rows={rows} onPick={(endpoint) => change({ endpoint })} picked={params.get("endpoint")} />}
        {selected.size > 0 && (
          <div role="toolbar" aria-label={t.common.actions} className="sticky top-11 z-20 flex flex-wrap items-center gap-2 border-y border-line bg-accent-soft px-4 py-2 text-sm md:top-0 md:px-6">
            <span className="num font-medium" role="status">{t.common.selected(selected.size)}</span>
            {mayReplay && (
              <Button small kind="primary" busy={busy} onClick={() => retry([...selected])}>
                {t.deliveries.retrySelected(selected.size)}
              </Button>
            )}
            {mayReplay && (
              <Button small onClick={() => setReplaying("ids")}>
                {t.deliveries.replaySelected(selected.size)}
              </Button>
            )}
            {mayManage && !dead && (
              <Button small kind="danger" onClick={() => setCancelling(true)}>
                {t.deliveries.cancelSelected(selected.size)}
              </Button>
            )}
            <Button small kind="ghost" onClick={() => setSelected(new Set())}>
              {t.common.deselect}
            </Button>
          </div>
        )}
        <div className="border-t border-line bg-surface" data-hold-live>
          <Pages query={query} empty={dead ? { title: t.deadLetters.empty, hint: t.deadLetters.emptyHint } : { title: t.deliveries.empty, hint: t.deliveries.emptyHint }}>
            {(loaded) => (
              <List
                label={dead ? t.deadLetters.title : t.deliveries.title}
                rows={loaded}
                columns={columns}
                id={(row) => row.id}
                name={(row) => `${row.type} ${row.id}`}
                href={(row) => `${base}/${row.id}${search ? `?${search}` : ""}`}
                selection={mayReplay || mayManage ? { ids: selected, set: setSelected } : undefined}
                open={open}
                narrow={narrow}
              />
            )}
          </Pages>
        </div>
      </div>
      {open && (
        <div className="min-w-0 border-line bg-bg xl:h-dvh xl:overflow-y-auto xl:border-l">
          <DeliveryPanel id={open} session={session} back={base + withPatch(search, {})} />
        </div>
      )}
      {cancelling && <Confirm title={t.deliveries.cancel} text={t.deliveries.cancelConfirm(selected.size)} action={t.deliveries.cancelSelected(selected.size)} danger onConfirm={cancel} onClose={() => setCancelling(false)} />}
      {replaying && <ReplayWizard preset={replaying === "ids" ? { ids: [...selected] } : { status: ["dead"], tenant: filters.tenant, endpoint: filters.endpoint, types: filters.type }} onClose={() => setReplaying(null)} />}
    </div>
  );
}

/** The loaded dead letters by endpoint and reason. */
function Causes({ rows, onPick, picked }: { rows: Delivery[]; onPick: (endpoint: string | null) => void; picked: string | null }) {
  const groups = new Map<string, { endpoint: string; url: string; reason: string; code: number | null; count: number }>();
  for (const row of rows) {
    const key = `${row.endpoint} ${row.dead_reason} ${row.last_status_code}`;
    const group = groups.get(key) ?? { endpoint: row.endpoint, url: row.endpoint_url, reason: row.dead_reason ?? "", code: row.last_status_code ?? null, count: 0 };
    group.count += 1;
    groups.set(key, group);
  }
  const sorted = [...groups.values()].sort((a, b) => b.count - a.count).slice(0, 6);
  return (
    <section aria-label={t.deadLetters.byCause} className="px-4 pb-3 md:px-6">
      <p className="mb-1.5 text-xs text-muted">{`${t.deadLetters.byCause} · ${t.deadLetters.byCauseHint(rows.length)}`}</p>
      <div className="flex flex-wrap gap-2">
        {sorted.map((group) => (
          <button key={`${group.endpoint} ${group.reason} ${group.code}`} type="button" aria-pressed={picked === group.endpoint} onClick={() => onPick(picked === group.endpoint ? null : group.endpoint)} className={cx("card flex max-w-full items-center gap-2 px-2.5 py-1.5 text-left text-sm hover:bg-hover", picked === group.endpoint && "border-accent!")}>
            <span className="num rounded bg-bad-soft px-1.5 text-xs font-semibold text-bad">{compact(group.count)}</span>
            <span className="min-w-0">
              <span className="block truncate">{address(group.url).host}</span>
              <span className="block truncate text-xs text-muted">{`${t.dead[group.reason] ?? group.reason}${group.code ? ` · ${group.code}` : ""}`}</span>
            </span>
          </button>
        ))}
      </div>
    </section>
  );
}

function IdSearch({ onFind }: { onFind: (id: string) => void }) {
  const [text, setText] = useState("");
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (text.trim()) onFind(text.trim());
  };
  return (
    <form onSubmit={submit} role="search" className="relative w-full sm:w-56">
      <Icon d={icons.search} className="pointer-events-none absolute top-2 left-2.5 size-3.5 text-muted" />
      <input data-search aria-label={t.deliveries.id} placeholder={`${t.deliveries.id}: ${t.deliveries.idHint}`} value={text} onChange={(event) => setText(event.target.value)} className="field py-1! pl-8!" />
    </form>
  );
}

/** A filter by text: applied with Enter or when it is left. */
export function TextFilter({ label, value, onChange }: { label: string; value: string; onChange: (value: string) => void }) {
  return (
    <input
      key={value}
      aria-label={label}
      placeholder={label}
      defaultValue={value}
      className={cx("field w-36! py-1!", value && "border-accent!")}
      onKeyDown={(event) => event.key === "Enter" && onChange(event.currentTarget.value.trim())}
      onBlur={(event) => event.currentTarget.value.trim() !== value && onChange(event.currentTarget.value.trim())}
    />
  );
}

/** A field that begins like a formula would be run by a spreadsheet. */
const csvField = (value: unknown) => {
  const text = value === null || value === undefined ? "" : String(value);
  const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
};

function download(rows: Delivery[]) {
  const names = ["id", "event", "type", "tenant", "endpoint", "endpoint_url", "status", "hold_reason", "dead_reason", "attempt_count", "last_status_code", "last_error", "created_at", "delivered_at", "dead_at"] as const;
  const lines = [names.join(","), ...rows.map((row) => names.map((name) => csvField(row[name])).join(","))];
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([`${lines.join("\r\n")}\r\n`], { type: "text/csv" }));
  link.download = "deliveries.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

