import { useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { useLocation } from "wouter";
import { mayDo } from "../lib/session";
import { type Endpoint, type Session, api, isPortal, unwrap } from "../api/client";
import { useEndpoints } from "../api/queries";
import { type Column, List, Pages } from "../components/list";
import { Text } from "../components/replay-wizard";
import { Badge, Button, Copy, Dialog, Field, FormError, Icon, PageHeader, Select, cx, icons, statusTone } from "../components/ui";
import { address, number } from "../lib/format";
import { useHref, useQuery } from "../lib/url";
import { t } from "../strings";
import { NewEndpoint } from "./new-endpoint";

export function Health({ endpoint }: { endpoint: Endpoint }) {
  const { score } = endpoint.health;
  const tone = score >= 90 ? "bg-ok-fill" : score >= 50 ? "bg-warn-fill" : "bg-bad-fill";
  return (
    <span className="inline-flex items-center gap-2" title={`${t.endpoints.health} ${score}`}>
      <span className="block h-1.5 w-14 overflow-hidden rounded-full bg-raised" aria-hidden="true">
        <span className={cx("block h-full", tone)} style={{ width: `${score}%` }} />
      </span>
      <span className="num text-xs text-muted">{score}</span>
    </span>
  );
}

export function EndpointsPage({ session }: { session: Session }) {
  const [params, change] = useQuery();
  const href = useHref();
  const query = useEndpoints(params.get("tenant") ?? undefined);
  const [text, setText] = useState("");
  const show = params.get("show") ?? "";
  const matches = (endpoint: Endpoint) => {
    if (show === "open" && endpoint.circuit.state === "closed") return false;
    if (["active", "paused", "disabled"].includes(show) && endpoint.status !== show) return false;
    return `${endpoint.url} ${endpoint.description} ${endpoint.tenant} ${endpoint.uid ?? ""} ${endpoint.id}`.toLowerCase().includes(text.toLowerCase());
  };
  const columns: Column<Endpoint>[] = [
    {
      head: t.endpoints.url,
      cell: (row) => (
        <>
          <span className="block truncate font-medium">
            {address(row.url).host}
            <span className="font-normal text-muted">{address(row.url).path}</span>
          </span>
          <span className="block truncate text-xs text-muted">{row.description || row.id}</span>
        </>
      ),
    },
    { head: t.status.label ?? "", cell: (row) => <Badge tone={statusTone[row.status] ?? "muted"}>{t.endpoints.status[row.status] ?? row.status}</Badge> },
    { head: t.endpoints.circuit, from: "sm", cell: (row) => (row.circuit.state === "closed" ? <span className="text-muted">{t.endpoints.circuitState.closed}</span> : <Badge tone={statusTone[row.circuit.state] ?? "muted"}>{t.endpoints.circuitState[row.circuit.state] ?? row.circuit.state}</Badge>) },
    { head: t.endpoints.health, from: "md", cell: (row) => <Health endpoint={row} /> },
    ...(isPortal ? [] : [{ head: t.deliveries.tenant, from: "lg", cell: (row: Endpoint) => row.tenant } as Column<Endpoint>]),
    { head: t.endpoints.types, from: "lg", cell: (row) => <span className="block max-w-44 truncate text-muted">{row.event_types.length ? row.event_types.join(", ") : t.endpoints.allTypes}</span> },
    { head: t.endpoints.rate, from: "xl", right: true, cell: (row) => <span className="num text-muted">{row.rate_limit && row.rate_limit !== "unlimited" ? t.endpoints.perMinute(number(row.rate_limit.max_per_minute)) : "–"}</span> },
    { head: t.endpoints.quiet, from: "xl", right: true, cell: (row) => <span className="text-muted">{row.delivery_schedule && row.delivery_schedule !== "always" && row.delivery_schedule.quiet_hours?.length ? t.common.yes : "–"}</span> },
  ];
  return (
    <>
      <PageHeader title={t.endpoints.title}>
        {mayDo(session, "manage") && (
          <Button kind="primary" onClick={() => change({ create: "1" })}>
            <Icon d={icons.plus} />
            {t.endpoints.create}
          </Button>
        )}
      </PageHeader>
      <div className="flex flex-wrap gap-2 px-4 pb-3 md:px-6">
        <input data-search aria-label={t.endpoints.filter} placeholder={isPortal ? t.endpoints.filterHintPortal : t.endpoints.filterHint} className="field w-full! py-1! sm:w-64!" value={text} onChange={(event) => setText(event.target.value)} />
        <Select label={t.status.label ?? ""} value={show} onChange={(value) => change({ show: value })} options={[["", `${t.status.label}: ${t.common.any}`], ["active", t.endpoints.status.active ?? ""], ["paused", t.endpoints.status.paused ?? ""], ["disabled", t.endpoints.status.disabled ?? ""], ["open", t.hold.circuit_open ?? ""]]} />
      </div>
      <div className="border-t border-line bg-surface">
        <Pages query={query} empty={{ title: t.endpoints.empty, hint: t.endpoints.emptyHint }}>
          {(rows) => <List label={t.endpoints.title} rows={rows.filter(matches)} columns={columns} id={(row) => row.id} name={(row) => row.url} href={(row) => href(`/endpoints/${row.id}`)} />}
        </Pages>
      </div>
      {params.get("create") && isPortal && <NewEndpoint session={session} onClose={() => change({ create: null })} />}
      {params.get("create") && !isPortal && <CreateEndpoint tenant={params.get("tenant") ?? session.tenant ?? ""} onClose={() => change({ create: null })} />}
    </>
  );
}

function CreateEndpoint({ tenant: preset, onClose }: { tenant: string; onClose: () => void }) {
  const client = useQueryClient();
  const [, navigate] = useLocation();
  const [url, setUrl] = useState("");
  const [tenant, setTenant] = useState(preset);
  const [types, setTypes] = useState("");
  const [description, setDescription] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const [made, setMade] = useState<Endpoint>();
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      setMade(await unwrap(api.POST("/v1/endpoints", { body: { url: url.trim(), tenant: tenant.trim() || null, description, event_types: types.split(/[\s,]+/).filter(Boolean) } as never })));
      void client.invalidateQueries({ queryKey: ["endpoints"] });
    } catch (cause) {
      setError(cause);
    }
    setBusy(false);
  };
  if (made)
    return (
      <Dialog title={t.endpoints.secretOnce} onClose={() => navigate(`/endpoints/${made.id}`)}>
        <p className="mb-3 text-sm text-muted">{t.endpoints.secretHint}</p>
        {made.secret && (
          <div className="flex items-center gap-2 rounded-md border border-line bg-bg p-3">
            <code className="min-w-0 flex-1 break-all">{made.secret}</code>
            <Copy text={made.secret} />
          </div>
        )}
        <div className="mt-5 flex justify-end">
          <Button kind="primary" onClick={() => navigate(`/endpoints/${made.id}`)}>
            {t.common.close}
          </Button>
        </div>
      </Dialog>
    );
  return (
    <Dialog title={t.endpoints.create} onClose={onClose}>
      <form onSubmit={submit} className="space-y-4">
        <Text label={t.endpoints.url} type="url" placeholder="https://example.com/webhooks" required autoFocus value={url} onChange={setUrl} />
        <Text label={t.deliveries.tenant} hint={t.endpoints.tenantHint} placeholder="default" value={tenant} onChange={setTenant} />
        <Field label={t.endpoints.types} hint={t.endpoints.typesHint}>
          {(id, described) => <textarea id={id} aria-describedby={described} rows={2} className="field mono" value={types} onChange={(event) => setTypes(event.target.value)} />}
        </Field>
        <Text label={t.endpoint.description} value={description} onChange={setDescription} />
        <FormError error={error} />
        <div className="flex justify-end gap-2">
          <Button onClick={onClose}>{t.common.cancel}</Button>
          <Button type="submit" kind="primary" busy={busy}>
            {t.common.create}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
