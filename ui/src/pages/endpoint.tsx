// One endpoint: how it does, what can be done to it, and its settings in place.
import { useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useEffect, useState } from "react";
import { Link, useLocation, useSearch } from "wouter";
import { mayDo } from "../lib/session";
import { ApiError, type Endpoint, type Schemas, type Session, api, isPortal, unwrap } from "../api/client";
import { useEndpoint, useEndpointStats } from "../api/queries";
import { Text } from "../components/replay-wizard";
import { Badge, Button, Confirm, Copy, Dialog, Failure, Facts, Field, FormError, Id, PageHeader, Rows, Time, statusTone, useToast } from "../components/ui";
import { type QuietWindow, Week } from "../components/week";
import { address, number, span } from "../lib/format";
import { t } from "../strings";
import { TestResult, useEndpointAction } from "./endpoint-actions";
import { Health } from "./endpoints";
import { Charts } from "./overview";

export function EndpointPage({ id, session }: { id: string; session: Session }) {
  const query = useEndpoint(id);
  const stats = useEndpointStats(id, "24h");
  const { act, busy, tested, clear } = useEndpointAction(id);
  const [, navigate] = useLocation();
  const client = useQueryClient();
  const [asking, setAsking] = useState<"disable" | "rotate" | "remove">();
  const [secret, setSecret] = useState<string>();
  if (query.isPending) return <Rows />;
  if (query.isError) return <Failure error={query.error} retry={() => query.refetch()} />;
  const { endpoint, tag } = query.data;
  const to = address(endpoint.url);
  const mayManage = mayDo(session, "manage");
  const rotate = async () => {
    const rotated = await unwrap(api.POST("/v1/endpoints/{id}/rotate-secret", { params: { path: { id } } }));
    setSecret(rotated.secret ?? "");
    await query.refetch();
  };
  const remove = async () => {
    await unwrap(api.DELETE("/v1/endpoints/{id}", { params: { path: { id } } }));
    await client.invalidateQueries({ queryKey: ["endpoints"] });
    navigate("/endpoints");
  };
  const links: [string, string][] = [
    [t.endpoint.seeDeliveries, `/deliveries?endpoint=${id}`],
    [t.endpoint.seeWaiting, `/deliveries?endpoint=${id}&status=scheduled&range=all`],
    [t.endpoint.seeDead, `/dead-letters?endpoint=${id}`],
  ];
  return (
    <>
      <PageHeader
        title={
          <>
            {to.host}
            <span className="font-normal text-muted">{to.path}</span>
          </>
        }
        hint={endpoint.description || undefined}
        back={
          <Link href="/endpoints" className="text-xs text-muted hover:underline">
            {t.endpoints.title}
          </Link>
        }
      >
        {mayManage && (
          <>
            <Button busy={busy === "test"} onClick={() => act("test")}>
              {busy === "test" ? t.endpoint.testing : t.endpoint.test}
            </Button>
            {endpoint.status === "active" && (
              <Button busy={busy === "pause"} onClick={() => act("pause")}>
                {t.endpoint.pause}
              </Button>
            )}
            {endpoint.status === "paused" && (
              <Button kind="primary" busy={busy === "resume"} onClick={() => act("resume")}>
                {t.endpoint.resume}
              </Button>
            )}
            {endpoint.status === "disabled" ? (
              <Button kind="primary" busy={busy === "enable"} onClick={() => act("enable")}>
                {t.endpoint.enable}
              </Button>
            ) : (
              <Button kind="danger" onClick={() => setAsking("disable")}>
                {t.endpoint.disable}
              </Button>
            )}
          </>
        )}
      </PageHeader>
      <div className="space-y-4 px-4 pb-24 md:px-6">
        <div className="grid grid-cols-1 gap-4 lg:grid-cols-3">
          <section className="card p-4 lg:col-span-2" aria-label={t.common.details}>
            <div className="grid grid-cols-1 gap-x-8 gap-y-1.5 sm:grid-cols-2">
              <Facts
                items={[
                  [t.status.label ?? "", <Badge key="s" tone={statusTone[endpoint.status] ?? "muted"}>{t.endpoints.status[endpoint.status] ?? endpoint.status}</Badge>],
                  ...(endpoint.paused_until ? ([[t.endpoint.pausedUntil, <Time key="u" at={endpoint.paused_until} />]] as [string, ReactNode][]) : []),
                  [
                    t.endpoints.circuit,
                    <span key="c" className="inline-flex flex-wrap items-center gap-x-2">
                      <Badge tone={statusTone[endpoint.circuit.state] ?? "muted"}>{t.endpoints.circuitState[endpoint.circuit.state] ?? endpoint.circuit.state}</Badge>
                      {endpoint.circuit.next_probe_at && (
                        <span className="text-xs text-muted">
                          {`${t.endpoint.nextProbe} `}
                          <Time at={endpoint.circuit.next_probe_at} />
                        </span>
                      )}
                    </span>,
                  ],
                  [t.endpoints.health, <Health key="h" endpoint={endpoint} />],
                  [t.endpoint.timeout, <span key="t" className="num">{t.endpoint.timeoutNow(number(endpoint.timeout.timeout_ms), endpoint.timeout.method)}</span>],
                ]}
              />
              <Facts
                items={[
                  [t.delivery.endpoint, <Id key="i" id={endpoint.id} />],
                  ...(isPortal ? [] : ([[t.deliveries.tenant, <Link key="t" className="link" href={`/tenants/${encodeURIComponent(endpoint.tenant)}`}>{endpoint.tenant}</Link>]] as [string, ReactNode][])),
                  ...(endpoint.uid ? ([[t.endpoint.uid, <code key="u">{endpoint.uid}</code>]] as [string, ReactNode][]) : []),
                  [t.endpoint.signing, <code key="g">{endpoint.signing.scheme}</code>],
                  [t.deliveries.created, <Time key="m" at={endpoint.created_at} />],
                ]}
              />
            </div>
          </section>
          <nav className="card flex flex-col justify-center gap-1 p-3" aria-label={t.endpoint.seeDeliveries}>
            {links.map(([name, href]) => (
              <Link key={href} href={href} className="rounded-md px-2 py-1.5 text-sm hover:bg-hover">
                {name} →
              </Link>
            ))}
            {mayManage && (
              <div className="mt-1 flex flex-wrap gap-2 border-t border-line pt-2">
                <Button small onClick={() => setAsking("rotate")}>
                  {t.endpoint.rotate}
                </Button>
                <Button small kind="danger" onClick={() => setAsking("remove")}>
                  {t.endpoint.remove}
                </Button>
              </div>
            )}
          </nav>
        </div>
        <div className="grid grid-cols-1 gap-4 xl:grid-cols-2">
          <Charts stats={stats.data} range="24h" />
        </div>
        <Settings key={tag} endpoint={endpoint} tag={tag} readOnly={!mayManage} />
      </div>
      {tested && <TestResult attempt={tested} onClose={clear} />}
      {asking === "disable" && <Confirm title={t.endpoint.disable} text={t.endpoint.disableConfirm} action={t.endpoint.disable} danger onConfirm={() => act("disable")} onClose={() => setAsking(undefined)} />}
      {asking === "rotate" && <Confirm title={t.endpoint.rotate} text={t.endpoint.rotateConfirm} action={t.endpoint.rotate} onConfirm={rotate} onClose={() => setAsking(undefined)} />}
      {asking === "remove" && <Confirm title={t.endpoint.remove} text={t.endpoint.removeConfirm} action={t.common.delete} danger onConfirm={remove} onClose={() => setAsking(undefined)} />}
      {secret !== undefined && (
        <Dialog title={t.endpoints.secretOnce} onClose={() => setSecret(undefined)}>
          <div className="flex items-center gap-2 rounded-md border border-line bg-bg p-3">
            <code className="min-w-0 flex-1 break-all">{secret}</code>
            <Copy text={secret} />
          </div>
        </Dialog>
      )}
    </>
  );
}

/** What the form holds: text, until it is saved. */
interface Draft {
  url: string;
  description: string;
  event_types: string;
  disabled_event_types: string;
  filter: string;
  headers: string;
  payload_format: string;
  max_in_flight: string;
  rate: "inherit" | "unlimited" | "own";
  per_minute: string;
  burst: string;
  schedule: "inherit" | "always" | "own";
  timezone: string;
  windows: QuietWindow[];
  bypass: string;
  strategy: string;
  delays: string;
  max_attempts: string;
  timeout_mode: string;
  timeout_ms: string;
  threshold: string;
  probe: string;
}

function draftOf(endpoint: Endpoint): Draft {
  const inherits = (name: string) => endpoint.inherited.includes(name);
  const rate = endpoint.rate_limit && endpoint.rate_limit !== "unlimited" ? endpoint.rate_limit : undefined;
  const schedule = endpoint.delivery_schedule && endpoint.delivery_schedule !== "always" ? endpoint.delivery_schedule : undefined;
  const daily: QuietWindow[] = schedule?.quiet_start && schedule.quiet_end ? [{ start: schedule.quiet_start, end: schedule.quiet_end, days: null }] : [];
  return {
    url: endpoint.url,
    description: endpoint.description,
    event_types: endpoint.event_types.join("\n"),
    disabled_event_types: endpoint.disabled_event_types.join("\n"),
    filter: endpoint.filter ? JSON.stringify(endpoint.filter, null, 2) : "",
    headers: Object.entries(endpoint.headers as Record<string, string>).map(([name, value]) => `${name}: ${value}`).join("\n"),
    payload_format: endpoint.payload_format,
    max_in_flight: String(endpoint.max_in_flight),
    rate: inherits("rate_limit") ? "inherit" : rate ? "own" : "unlimited",
    per_minute: rate ? String(rate.max_per_minute) : "",
    burst: rate ? String(rate.burst_capacity) : "",
    schedule: inherits("delivery_schedule") ? "inherit" : schedule ? "own" : "always",
    timezone: schedule?.timezone ?? Intl.DateTimeFormat().resolvedOptions().timeZone ?? "UTC",
    windows: [...(schedule?.quiet_hours ?? []), ...daily],
    bypass: (schedule?.bypass_event_types ?? []).join("\n"),
    strategy: endpoint.retry.strategy ?? "schedule",
    delays: (endpoint.retry.delays_seconds ?? []).join(", "),
    max_attempts: String(endpoint.retry.max_attempts ?? ""),
    timeout_mode: endpoint.timeout.mode,
    timeout_ms: endpoint.timeout.mode === "manual" ? String(endpoint.timeout.timeout_ms) : "",
    threshold: String(endpoint.circuit.failure_threshold),
    probe: String(endpoint.circuit.probe_interval_seconds),
  };
}

const words = (text: string) => text.split(/[\s,]+/).filter(Boolean);

function whole(text: string, field: string): number {
  if (!/^\d+$/.test(text.trim())) throw new ApiError(422, "", t.endpoint.badNumber, [{ field, message: t.endpoint.badNumber }]);
  return Number(text);
}

/** Only what was changed is sent: everything else stays as it is, or inherited. */
function patchOf(endpoint: Endpoint, before: Draft, now: Draft): Schemas["EndpointSettings"] {
  const patch: Schemas["EndpointSettings"] = {};
  const differs = (...names: (keyof Draft)[]) => names.some((name) => JSON.stringify(before[name]) !== JSON.stringify(now[name]));
  if (differs("url")) patch.url = now.url.trim();
  if (differs("description")) patch.description = now.description;
  if (differs("event_types")) patch.event_types = words(now.event_types);
  if (differs("disabled_event_types")) patch.disabled_event_types = words(now.disabled_event_types);
  if (differs("filter")) {
    try {
      patch.filter = now.filter.trim() ? JSON.parse(now.filter) : null;
    } catch {
      throw new ApiError(422, "", t.endpoint.badJson, [{ field: "filter", message: t.endpoint.badJson }]);
    }
  }
  if (differs("headers")) {
    const pairs = now.headers.split("\n").filter((line) => line.trim()).map((line) => /^\s*([^:\s]+)\s*:\s*(.*?)\s*$/.exec(line));
    if (pairs.some((pair) => !pair)) throw new ApiError(422, "", t.endpoint.badHeader, [{ field: "headers", message: t.endpoint.badHeader }]);
    patch.headers = Object.fromEntries(pairs.map((pair) => [pair?.[1], pair?.[2]]));
  }
  if (differs("payload_format")) patch.payload_format = now.payload_format as Schemas["PayloadFormatName"];
  if (differs("max_in_flight")) patch.max_in_flight = whole(now.max_in_flight, "max_in_flight");
  if (differs("rate", "per_minute", "burst")) patch.rate_limit = now.rate === "inherit" ? null : now.rate === "unlimited" ? "unlimited" : { max_per_minute: whole(now.per_minute, "rate_limit.max_per_minute"), burst_capacity: whole(now.burst, "rate_limit.burst_capacity") };
  if (differs("schedule", "timezone", "windows", "bypass")) {
    const present = endpoint.delivery_schedule && endpoint.delivery_schedule !== "always" ? endpoint.delivery_schedule : undefined;
    patch.delivery_schedule = now.schedule === "inherit" ? null : now.schedule === "always" ? "always" : { timezone: now.timezone.trim(), quiet_hours: now.windows.map((one) => (one.days?.length ? one : { start: one.start, end: one.end })), maintenance: present?.maintenance ?? [], applies_to: present?.applies_to ?? [], bypass_event_types: words(now.bypass) };
  }
  if (differs("delays", "max_attempts")) {
    patch.retry = now.strategy === "schedule" ? { ...endpoint.retry, delays_seconds: words(now.delays).map((one) => whole(one, "retry.delays_seconds")), max_attempts: whole(now.max_attempts, "retry.max_attempts") } : { ...endpoint.retry, max_attempts: whole(now.max_attempts, "retry.max_attempts") };
  }
  if (differs("timeout_mode", "timeout_ms")) patch.timeout = now.timeout_mode === "manual" ? { mode: "manual", timeout_ms: whole(now.timeout_ms, "timeout.timeout_ms") } : { mode: "adaptive" };
  if (differs("threshold", "probe")) patch.circuit = { failure_threshold: whole(now.threshold, "circuit.failure_threshold"), probe_interval_seconds: whole(now.probe, "circuit.probe_interval_seconds") };
  return patch;
}

function Section({ id, title, hint, children }: { id: string; title: string; hint?: string; children: ReactNode }) {
  return (
    <section id={id} aria-label={title} className="card scroll-mt-16 p-4">
      <h2>{title}</h2>
      {hint && <p className="text-xs text-muted">{hint}</p>}
      <div className="mt-3">{children}</div>
    </section>
  );
}

function Settings({ endpoint, tag, readOnly }: { endpoint: Endpoint; tag: string; readOnly: boolean }) {
  const client = useQueryClient();
  const toast = useToast();
  const search = useSearch();
  const [before] = useState(() => draftOf(endpoint));
  const [draft, setDraft] = useState(before);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const set = <K extends keyof Draft>(name: K) => (value: Draft[K]) => setDraft((now) => ({ ...now, [name]: value }));
  const dirty = JSON.stringify(draft) !== JSON.stringify(before);
  const inherits = (name: string) => endpoint.inherited.includes(name);
  useEffect(() => {
    const section = new URLSearchParams(search).get("section");
    if (section) document.getElementById(section)?.scrollIntoView();
  }, [search]);
  const save = async () => {
    setBusy(true);
    setError(undefined);
    try {
      await unwrap(api.PATCH("/v1/endpoints/{id}", { params: { path: { id: endpoint.id }, header: { "If-Match": tag } }, body: patchOf(endpoint, before, draft) }));
      toast(t.common.saved);
      await client.invalidateQueries({ queryKey: ["endpoint", endpoint.id] });
      void client.invalidateQueries({ queryKey: ["endpoints"] });
    } catch (cause) {
      setError(cause instanceof ApiError && cause.status === 412 ? new Error(t.endpoint.stale) : cause);
    }
    setBusy(false);
  };
  const area = (label: string, name: "event_types" | "disabled_event_types" | "filter" | "headers" | "bypass", hint?: string, rows = 3) => (
    <Field label={label} hint={hint}>
      {(id, described) => <textarea id={id} aria-describedby={described} rows={rows} spellCheck={false} className="field mono" value={draft[name]} onChange={(event) => set(name)(event.target.value)} />}
    </Field>
  );
  const choice = (label: string, name: "rate" | "schedule" | "payload_format" | "timeout_mode", options: [string, string][], inherited?: boolean) => (
    <Field label={label} inherited={inherited}>
      {(id) => (
        <select id={id} className="field" value={draft[name]} onChange={(event) => set(name)(event.target.value as never)}>
          {options.map(([key, text]) => (
            <option key={key} value={key}>
              {text}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
  const delays = words(draft.delays).map(Number).filter(Number.isFinite);
  return (
    <fieldset disabled={readOnly} className="min-w-0">
      <legend className="sr-only">{t.endpoint.settings}</legend>
      <div className="grid grid-cols-1 items-start gap-4 xl:grid-cols-2">
        <div className="min-w-0 space-y-4">
          <Section id="basics" title={t.endpoint.basics}>
            <div className="space-y-3">
              <Text label={t.endpoints.url} type="url" value={draft.url} onChange={set("url")} />
              <Text label={t.endpoint.description} value={draft.description} onChange={set("description")} />
              <div className="grid grid-cols-1 gap-3 sm:grid-cols-2">
                {area(t.endpoint.eventTypes, "event_types", t.endpoints.typesHint)}
                {area(t.endpoint.disabledTypes, "disabled_event_types")}
              </div>
              {area(t.endpoint.filter, "filter", t.endpoint.filterHint)}
            </div>
          </Section>
          <Section id="sending" title={t.endpoint.sending}>
            <div className="grid grid-cols-1 gap-3 sm:grid-cols-3">
              {choice(t.endpoint.rateMode, "rate", Object.entries(t.endpoint.rateModes), inherits("rate_limit"))}
              {draft.rate === "own" && <Text label={t.endpoint.perMinute} type="number" value={draft.per_minute} onChange={set("per_minute")} />}
              {draft.rate === "own" && <Text label={t.endpoint.burst} type="number" value={draft.burst} onChange={set("burst")} />}
              <Text label={t.endpoint.maxInFlight} type="number" value={draft.max_in_flight} onChange={set("max_in_flight")} />
              {choice(t.endpoint.format, "payload_format", [["envelope", "envelope"], ["data", "data"], ["cloudevents", "cloudevents"]])}
            </div>
            <div className="mt-3">{area(t.endpoint.headers, "headers", t.endpoint.headersHint, 2)}</div>
          </Section>
        </div>
        <div className="min-w-0 space-y-4">
          <Section id="schedule" title={t.endpoint.schedule} hint={draft.schedule === "own" ? t.endpoint.scheduleHint : undefined}>
            <div className="mb-3 grid grid-cols-1 gap-3 sm:grid-cols-2">
              {choice(t.endpoint.scheduleMode, "schedule", Object.entries(t.endpoint.scheduleModes), inherits("delivery_schedule"))}
              {draft.schedule === "own" && <Text label={t.endpoint.timezone} value={draft.timezone} onChange={set("timezone")} />}
            </div>
            {draft.schedule === "own" && <Week windows={draft.windows} onChange={set("windows")} disabled={readOnly} />}
            {draft.schedule === "own" && <div className="mt-3">{area(t.endpoint.bypass, "bypass", undefined, 2)}</div>}
          </Section>
          <Section id="retry" title={t.endpoint.retry}>
            <div className="grid grid-cols-1 gap-3 sm:grid-cols-[1fr_9rem]">
              {draft.strategy === "schedule" ? <Text label={t.endpoint.delays} value={draft.delays} onChange={set("delays")} /> : <p className="text-sm text-muted">{t.endpoint.exponential}</p>}
              <Text label={t.endpoint.maxAttempts} type="number" value={draft.max_attempts} onChange={set("max_attempts")} />
            </div>
            {draft.strategy === "schedule" && delays.length > 0 && (
              <ol className="num mt-3 flex flex-wrap items-center gap-1 text-xs text-muted" aria-label={t.endpoint.retryHint}>
                {delays.slice(0, 20).map((delay, i) => (
                  <li key={i} className="flex items-center gap-1">
                    <span className="size-2 rounded-full bg-accent-fill" />
                    <span className="h-px w-2 bg-line-strong" />
                    {span(delay * 1000)}
                    <span className="h-px w-2 bg-line-strong" />
                  </li>
                ))}
                <li>
                  <span className="block size-2 rounded-full bg-accent-fill" />
                </li>
              </ol>
            )}
          </Section>
          <div className="grid grid-cols-1 gap-4 sm:grid-cols-2">
            <Section id="timeout" title={t.endpoint.timeout}>
              <div className="space-y-3">
                {choice(t.endpoint.timeoutMode, "timeout_mode", Object.entries(t.endpoint.timeoutModes), inherits("timeout"))}
                {draft.timeout_mode === "manual" ? (
                  <Text label={t.endpoint.timeoutMs} type="number" value={draft.timeout_ms} onChange={set("timeout_ms")} />
                ) : (
                  <p className="num text-xs text-muted">{`${t.endpoint.timeoutNow(number(endpoint.timeout.timeout_ms), endpoint.timeout.method)} · ${endpoint.timeout.p99_ms != null ? `p99 ${number(endpoint.timeout.p99_ms)} ms · ` : ""}${t.endpoint.samples(number(endpoint.timeout.sample_count))}`}</p>
                )}
              </div>
            </Section>
            <Section id="circuit" title={t.endpoint.circuit}>
              <div className="space-y-3">
                <Text label={t.endpoint.threshold} type="number" value={draft.threshold} onChange={set("threshold")} />
                <Text label={t.endpoint.probe} type="number" value={draft.probe} onChange={set("probe")} />
              </div>
            </Section>
          </div>
        </div>
      </div>
      {dirty && (
        <div role="region" aria-label={t.endpoint.unsaved} className="fixed inset-x-0 bottom-0 z-20 border-t border-line bg-surface px-4 py-3 shadow-lg md:left-[212px] md:px-6">
          <FormError error={error} />
          <div className="mt-1 flex items-center justify-end gap-2">
            <span className="mr-auto text-sm text-muted">{t.endpoint.unsaved}</span>
            <Button
              onClick={() => {
                setDraft(before);
                setError(undefined);
                void client.invalidateQueries({ queryKey: ["endpoint", endpoint.id] });
              }}
            >
              {t.common.discard}
            </Button>
            <Button kind="primary" busy={busy} onClick={save}>
              {t.common.save}
            </Button>
          </div>
        </div>
      )}
    </fieldset>
  );
}
