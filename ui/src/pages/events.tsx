import { useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { Link } from "wouter";
import { mayDo } from "../lib/session";
import { type Delivery, type EventView, type Session, api, isPortal, unwrap } from "../api/client";
import { useDeliveries, useEvent, useEvents } from "../api/queries";
import { type Column, List, Pages } from "../components/list";
import { Button, Confirm, Failure, Facts, Id, PageHeader, Rows, Select, StatusBadge, Time } from "../components/ui";
import { address } from "../lib/format";
import { useHref, useQuery } from "../lib/url";
import { t } from "../strings";
import { Answer, TextFilter, rangeOptions } from "./deliveries";
import { Payload } from "./delivery";

export function EventsPage() {
  const [params, change] = useQuery();
  const range = params.get("range") ?? "24h";
  const query = useEvents({ tenant: params.get("tenant") ?? undefined, type: params.get("type") ?? undefined, range });
  const columns: Column<EventView>[] = [
    {
      head: t.deliveries.type,
      cell: (row) => (
        <>
          <span className="block truncate font-medium">{row.type}</span>
          <span className="mono block truncate text-xs text-muted">{row.id}</span>
        </>
      ),
    },
    { head: t.deliveries.tenant, from: "sm", cell: (row) => row.tenant },
    { head: t.events.labels, from: "lg", cell: (row) => <span className="block max-w-52 truncate text-muted">{row.labels.join(", ") || "–"}</span> },
    { head: t.delivery.ordering, from: "xl", cell: (row) => <span className="mono text-muted">{row.ordering_key ?? "–"}</span> },
    { head: t.events.accepted, right: true, cell: (row) => <Time at={row.accepted_at} className="text-muted" /> },
  ];
  return (
    <>
      <PageHeader title={t.events.title} />
      <div className="flex flex-wrap gap-2 px-4 pb-3 md:px-6">
        <Select label={t.range.label} usual="24h" value={range} onChange={(value) => change({ range: value })} options={rangeOptions()} />
        <TextFilter label={t.deliveries.type} value={params.get("type") ?? ""} onChange={(value) => change({ type: value })} />
      </div>
      <div className="border-t border-line bg-surface" data-hold-live>
        <Pages query={query} empty={{ title: t.events.empty, hint: t.events.emptyHint }}>
          {(rows) => <List label={t.events.title} rows={rows} columns={columns} id={(row) => `${row.tenant} ${row.id}`} name={(row) => row.id} href={(row) => `/events/${encodeURIComponent(row.id)}?tenant=${encodeURIComponent(row.tenant)}`} />}
        </Pages>
      </div>
    </>
  );
}

export function EventPage({ id, session }: { id: string; session: Session }) {
  const [params] = useQuery();
  const href = useHref();
  const client = useQueryClient();
  const tenant = params.get("tenant") ?? session.tenant ?? "default";
  const query = useEvent(id, tenant);
  const deliveries = useDeliveries({ event: id, tenant, range: "all" });
  const [cancelling, setCancelling] = useState(false);
  const columns: Column<Delivery>[] = [
    {
      head: t.deliveries.endpoint,
      cell: (row) => (
        <span className="block truncate font-medium">
          {address(row.endpoint_url).host}
          <span className="font-normal text-muted">{address(row.endpoint_url).path}</span>
        </span>
      ),
    },
    { head: t.status.label ?? "", cell: (row) => <StatusBadge status={row.status} hold={row.hold_reason} /> },
    { head: t.deliveries.answer, from: "sm", cell: (row) => <Answer delivery={row} /> },
    { head: t.deliveries.attempts, from: "md", right: true, cell: (row) => <span className="num text-muted">{`${row.attempt_count} / ${row.max_attempts}`}</span> },
  ];
  const cancel = async () => {
    await unwrap(api.POST("/v1/events/{id}/cancel", { params: { path: { id }, query: { tenant } } }));
    await client.invalidateQueries({ queryKey: ["live"] });
  };
  if (query.isPending) return <Rows />;
  if (query.isError) return <Failure error={query.error} retry={() => query.refetch()} />;
  const { event } = query.data;
  const counts = event.deliveries;
  const open = counts ? counts.pending + counts.scheduled : 0;
  return (
    <>
      <PageHeader
        title={event.type}
        back={
          <Link href={href("/events")} className="text-xs text-muted hover:underline">
            {t.events.title}
          </Link>
        }
      >
        {open > 0 && mayDo(session, "publish") && (
          <Button kind="danger" onClick={() => setCancelling(true)}>
            {t.events.cancel}
          </Button>
        )}
      </PageHeader>
      <div className="grid grid-cols-1 items-start gap-4 px-4 pb-8 md:px-6 xl:grid-cols-2">
        <div className="min-w-0 space-y-4">
          <section className="card p-4" aria-label={t.common.details}>
            <Facts
              items={[
                [t.events.id, <Id key="i" id={event.id} />],
                ...(isPortal ? [] : ([[t.deliveries.tenant, <Link key="t" className="link" href={`/tenants/${encodeURIComponent(event.tenant)}`}>{event.tenant}</Link>]] as [string, ReactNode][])),
                [t.events.accepted, <Time key="a" at={event.accepted_at} />],
                ...(event.version ? ([[t.events.version, event.version]] as [string, ReactNode][]) : []),
                ...(event.labels.length ? ([[t.events.labels, event.labels.join(", ")]] as [string, ReactNode][]) : []),
                ...(event.ordering_key ? ([[t.delivery.ordering, <code key="o">{event.ordering_key}</code>]] as [string, ReactNode][]) : []),
                ...(event.idempotency_key ? ([[t.events.key, <code key="k">{event.idempotency_key}</code>]] as [string, ReactNode][]) : []),
                ...(event.expires_at ? ([[t.delivery.expires, <Time key="x" at={event.expires_at} />]] as [string, ReactNode][]) : []),
              ]}
            />
          </section>
          <section className="card overflow-hidden" aria-label={t.events.fanOut}>
            <h2 className="border-b border-line px-4 py-3">{t.events.fanOut}</h2>
            <Pages query={deliveries} empty={{ title: t.events.noFanOut }}>
              {(rows) => <List label={t.events.fanOut} rows={rows} columns={columns} id={(row) => row.id} name={(row) => row.endpoint_url} href={(row) => `/deliveries/${row.id}`} />}
            </Pages>
          </section>
        </div>
        <div className="card min-w-0 px-4 pb-4">
          <Payload id={id} tenant={tenant} />
        </div>
      </div>
      {cancelling && <Confirm title={t.events.cancel} text={t.events.cancelConfirm} action={t.events.cancel} danger onConfirm={cancel} onClose={() => setCancelling(false)} />}
    </>
  );
}
