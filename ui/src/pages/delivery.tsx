// One delivery: what it is, why it waits, and every attempt.
import { useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { Link } from "wouter";
import { mayDo } from "../lib/session";
import { type Attempt, type Delivery, type Session, api, isPortal, messageOf, unwrap } from "../api/client";
import { useAttempts, useDelivery, useEvent } from "../api/queries";
import { Button, Confirm, Failure, Facts, Icon, Id, Json, Rows, StatusBadge, Time, type Tone, cx, icons, useToast } from "../components/ui";
import { absolute, address, number } from "../lib/format";
import { t } from "../strings";

const anchors: Record<string, string> = { quiet_hours: "schedule", rate_limited: "sending", concurrency: "sending", retry: "retry", circuit_open: "circuit", blocked: "basics", disabled: "", paused: "" };

export function DeliveryPanel({ id, session, back }: { id: string; session: Session; back: string }) {
  const query = useDelivery(id);
  const attempts = useAttempts(id);
  const client = useQueryClient();
  const toast = useToast();
  const [busy, setBusy] = useState(false);
  const [cancelling, setCancelling] = useState(false);
  const delivery = query.data;
  const close = (
    <Link href={back} data-close-panel aria-label={t.common.close} className="rounded-md p-1.5 text-muted hover:bg-hover hover:text-text">
      <Icon d={icons.close} />
    </Link>
  );
  if (query.isError)
    return (
      <div>
        <div className="flex justify-end p-3">{close}</div>
        <Failure error={query.error} retry={() => query.refetch()} />
      </div>
    );
  if (!delivery) return <Rows />;
  const waits = ["pending", "scheduled"].includes(delivery.status);
  const retry = async () => {
    setBusy(true);
    try {
      const made = await unwrap(api.POST("/v1/deliveries/{id}/retry", { params: { path: { id } } }));
      toast(made.id === id ? t.deliveries.released : t.deliveries.retried);
    } catch (error) {
      toast(messageOf(error), "bad");
    }
    setBusy(false);
    await client.invalidateQueries({ queryKey: ["live"] });
  };
  const cancel = async () => {
    await unwrap(api.POST("/v1/deliveries/{id}/cancel", { params: { path: { id } } }));
    await client.invalidateQueries({ queryKey: ["live"] });
  };
  const to = address(delivery.endpoint_url);
  return (
    <article className="p-4 md:p-6" aria-label={t.delivery.title}>
      <header className="mb-5 flex items-start gap-3">
        <div className="min-w-0 flex-1">
          <div className="mb-1 flex flex-wrap items-center gap-2">
            <StatusBadge status={delivery.status} hold={delivery.hold_reason} />
            <span className="num text-xs text-muted">{t.delivery.attemptsOf(delivery.attempt_count, delivery.max_attempts)}</span>
          </div>
          <h1 className="truncate">{delivery.type}</h1>
          <p className="truncate text-sm text-muted">
            {to.host}
            {to.path}
          </p>
        </div>
        {mayDo(session, "replay") && (
          <Button kind="primary" busy={busy} onClick={retry} disabled={delivery.status === "delivering" || Boolean(delivery.replayed_as)}>
            <Icon d={icons.retry} />
            {t.deliveries.retry}
          </Button>
        )}
        {mayDo(session, "manage") && waits && (
          <Button kind="danger" onClick={() => setCancelling(true)}>
            {t.common.cancel}
          </Button>
        )}
        {close}
      </header>
      <div className="card mb-5 p-4">
        <Facts
          items={[
            [t.delivery.title, <Id key="i" id={delivery.id} />],
            [t.delivery.event, <Link key="e" className="link mono" href={`/events/${encodeURIComponent(delivery.event)}?tenant=${encodeURIComponent(delivery.tenant)}`}>{delivery.event}</Link>],
            [t.delivery.endpoint, <Link key="p" className="link mono" href={`/endpoints/${delivery.endpoint}`}>{delivery.endpoint}</Link>],
            ...(isPortal ? [] : ([[t.deliveries.tenant, <Link key="t" className="link" href={`/tenants/${encodeURIComponent(delivery.tenant)}`}>{delivery.tenant}</Link>]] as [string, ReactNode][])),
            ...(delivery.ordering_key ? ([[t.delivery.ordering, <code key="o">{delivery.ordering_key}</code>]] as [string, ReactNode][]) : []),
            ...(delivery.expires_at ? ([[t.delivery.expires, <Time key="x" at={delivery.expires_at} />]] as [string, ReactNode][]) : []),
            ...(delivery.replay_of ? ([[t.delivery.replayOf, <Link key="ro" className="link mono" href={`/deliveries/${delivery.replay_of}`}>{delivery.replay_of}</Link>]] as [string, ReactNode][]) : []),
            ...(delivery.replayed_as ? ([[t.delivery.replayedAs, <Link key="ra" className="link mono" href={`/deliveries/${delivery.replayed_as}`}>{delivery.replayed_as}</Link>]] as [string, ReactNode][]) : []),
            ...(delivery.replay ? ([[t.delivery.replay, <Link key="rp" className="link mono" href={`/replays/${delivery.replay}`}>{delivery.replay}</Link>]] as [string, ReactNode][]) : []),
          ]}
        />
      </div>
      <section aria-label={t.delivery.timeline}>
        <h2 className="mb-3">{t.delivery.timeline}</h2>
        <ol className="relative ml-2 border-l border-line-strong">
          <Step tone="info" title={t.delivery.published} at={delivery.created_at} />
          {[...(attempts.data ?? [])].reverse().map((attempt, i, all) => (
            <AttemptStep key={attempt.id} attempt={attempt} before={all[i - 1]} last={i === all.length - 1} />
          ))}
          <Outlook delivery={delivery} />
        </ol>
      </section>
      <Payload id={delivery.event} tenant={delivery.tenant} />
      {cancelling && <Confirm title={t.deliveries.cancel} text={t.deliveries.cancelConfirm(1)} action={t.deliveries.cancel} danger onConfirm={cancel} onClose={() => setCancelling(false)} />}
    </article>
  );
}

const dots: Record<Tone, string> = { ok: "bg-ok-fill", bad: "bg-bad-fill", warn: "bg-warn-fill", info: "bg-info-fill", hold: "bg-hold-fill", muted: "bg-line-strong" };

function Step({ tone, title, at, children, hollow }: { tone: Tone; title: ReactNode; at?: string | null; children?: ReactNode; hollow?: boolean }) {
  return (
    <li className="relative mb-4 pl-5 last:mb-0">
      <span className={cx("absolute top-1.5 -left-[5.5px] size-2.5 rounded-full ring-4 ring-bg", dots[tone], hollow && "opacity-60")} aria-hidden="true" />
      <div className="flex flex-wrap items-baseline gap-x-2">
        <span className="font-medium">{title}</span>
        {at && (
          <span className="num text-xs text-muted">
            {absolute(Date.parse(at))} · <Time at={at} />
          </span>
        )}
      </div>
      {children}
    </li>
  );
}

function AttemptStep({ attempt, before, last }: { attempt: Attempt; before?: Attempt; last: boolean }) {
  const ok = attempt.outcome === "success";
  const same = before && before.status_code === attempt.status_code && before.response_preview === attempt.response_preview && before.error === attempt.error;
  return (
    <Step
      tone={ok ? "ok" : "bad"}
      at={attempt.attempted_at}
      title={
        <span className="inline-flex flex-wrap items-center gap-x-2">
          {t.delivery.attempt(attempt.number)}
          <span className={cx("mono rounded px-1.5", ok ? "bg-ok-soft text-ok" : "bg-bad-soft text-bad")}>{attempt.status_code ?? t.outcome[attempt.outcome] ?? attempt.outcome}</span>
        </span>
      }
    >
      <Phases attempt={attempt} />
      {attempt.error && <p className="mt-1 text-sm break-words text-bad">{attempt.error}</p>}
      {same ? (
        <p className="mt-1 text-xs text-muted">{t.delivery.same}</p>
      ) : (
        attempt.response_preview && (
          <details className="mt-1.5 text-sm" open={last && !ok}>
            <summary className="w-max rounded text-xs text-muted hover:text-text">{t.delivery.answerBody}</summary>
            <pre tabIndex={0} aria-label={`${t.delivery.answerBody} ${attempt.number}`} className="mt-1 max-h-56 overflow-auto rounded-md border border-line bg-surface p-2.5 break-all whitespace-pre-wrap">
              {attempt.response_preview}
            </pre>
          </details>
        )
      )}
    </Step>
  );
}

/** Where the time of an attempt went. */
function Phases({ attempt }: { attempt: Attempt }) {
  const timings = attempt.timings;
  const parts = (
    [
      ["dns", timings.dns_ms, "bg-info-fill"],
      ["connect", timings.connect_ms, "bg-hold-fill"],
      ["tls", timings.tls_ms, "bg-warn-fill"],
      ["first_byte", timings.first_byte_ms, "bg-ok-fill"],
    ] as const
  ).filter(([, ms]) => ms !== null && ms !== undefined);
  const total = Math.max(1, parts.reduce((sum, [, ms]) => sum + (ms ?? 0), 0));
  return (
    <div className="mt-1 text-xs text-muted">
      <p className="num">{`${t.delivery.in(number(attempt.response_time_ms))} · ${t.delivery.timeoutOf(number(attempt.timeout_ms))}`}</p>
      {parts.length > 0 && (
        <div className="mt-1 flex max-w-md flex-wrap items-center gap-x-3 gap-y-1">
          <div className="flex h-1.5 w-40 overflow-hidden rounded-full bg-raised" aria-hidden="true">
            {parts.map(([name, ms, color]) => (
              <span key={name} className={color} style={{ width: `${(100 * (ms ?? 0)) / total}%` }} />
            ))}
          </div>
          {parts.map(([name, ms, color]) => (
            <span key={name} className="num inline-flex items-center gap-1">
              <span className={cx("size-1.5 rounded-full", color)} aria-hidden="true" />
              {`${t.delivery.phases[name]} ${ms} ms`}
            </span>
          ))}
        </div>
      )}
    </div>
  );
}

/** How it ended, or what comes next and why it waits. */
function Outlook({ delivery }: { delivery: Delivery }) {
  switch (delivery.status) {
    case "delivered":
      return <Step tone="ok" title={t.delivery.deliveredAt} at={delivery.delivered_at} />;
    case "dead":
      return (
        <Step tone="bad" title={`${t.delivery.deadAt}: ${t.dead[delivery.dead_reason ?? ""] ?? delivery.dead_reason}`} at={delivery.dead_at}>
          {delivery.last_error && <p className="text-sm text-muted">{delivery.last_error}</p>}
        </Step>
      );
    case "cancelled":
      return <Step tone="muted" title={t.cancelReason[delivery.cancel_reason ?? ""] ?? t.delivery.cancelledAt} at={delivery.cancelled_at} />;
    case "delivering":
      return <Step tone="info" title={t.delivery.inFlight} hollow />;
    default: {
      const hold = delivery.hold_reason ?? "";
      if (!hold) return <Step tone="info" title={t.delivery.due} hollow />;
      const anchor = anchors[hold];
      return (
        <Step tone="hold" title={`${t.delivery.waits}: ${t.hold[hold] ?? hold}`} hollow>
          <p className="mt-0.5 text-sm text-muted">
            {`${t.holdWhy[hold] ?? ""} `}
            {anchor !== undefined && (
              <Link className="link" href={`/endpoints/${delivery.endpoint}${anchor ? `?section=${anchor}` : ""}`}>
                {t.holdSetting[hold]}
              </Link>
            )}
          </p>
          <p className="num mt-0.5 text-sm">
            {delivery.next_attempt_at ? (
              <>
                {`${t.delivery.nextAttempt} `}
                <Time at={delivery.next_attempt_at} />
                <span className="text-muted">{` (${absolute(Date.parse(delivery.next_attempt_at))})`}</span>
              </>
            ) : (
              t.delivery.noNext
            )}
            {delivery.estimated_at && (
              <>
                {` · ${t.delivery.expected} `}
                <Time at={delivery.estimated_at} />
              </>
            )}
          </p>
          {hold === "blocked" && delivery.last_error && <p className="text-sm text-bad">{delivery.last_error}</p>}
        </Step>
      );
    }
  }
}

export function Payload({ id, tenant }: { id: string; tenant: string }) {
  const event = useEvent(id, tenant);
  const [raw, setRaw] = useState(false);
  return (
    <section className="mt-6" aria-label={t.delivery.payload}>
      <div className="mb-2 flex items-center justify-between">
        <h2>{t.delivery.payload}</h2>
        <div className="flex rounded-md border border-line-strong text-xs" role="group" aria-label={t.delivery.payload}>
          {[false, true].map((one) => (
            <button key={String(one)} type="button" aria-pressed={raw === one} onClick={() => setRaw(one)} className={cx("px-2.5 py-1 first:rounded-l-md last:rounded-r-md", raw === one ? "bg-accent-soft font-medium text-accent" : "text-muted hover:bg-hover")}>
              {one ? t.delivery.raw : t.delivery.pretty}
            </button>
          ))}
        </div>
      </div>
      {event.isPending ? <Rows count={3} /> : event.isError ? <Failure error={event.error} /> : event.data.event.erased_at ? <p className="text-sm text-muted">{t.delivery.erased}</p> : <Json text={event.data.data} raw={raw} label={t.delivery.payload} />}
    </section>
  );
}
