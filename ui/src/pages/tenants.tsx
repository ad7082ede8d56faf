import { useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { Link, useLocation } from "wouter";
import { mayDo } from "../lib/session";
import { type Schemas, type Session, api, unwrap } from "../api/client";
import { useStats, useTenant, useTenants } from "../api/queries";
import { type Column, List, Pages } from "../components/list";
import { Text } from "../components/replay-wizard";
import { Button, Dialog, Failure, FormError, Icon, Json, PageHeader, Rows, Time, icons, useToast } from "../components/ui";
import { number } from "../lib/format";
import { useQuery } from "../lib/url";
import { t } from "../strings";
import { Charts } from "./overview";

type Tenant = Schemas["Tenant"];

export function TenantsPage({ session }: { session: Session }) {
  const query = useTenants();
  const [params, change] = useQuery();
  const columns: Column<Tenant>[] = [
    { head: t.tenants.id, cell: (row) => <span className="block truncate font-medium">{row.id}</span> },
    { head: t.tenants.weight, from: "sm", right: true, cell: (row) => <span className="num">{row.weight}</span> },
    { head: t.tenants.maxInFlight, from: "sm", right: true, cell: (row) => <span className="num">{number(row.max_in_flight)}</span> },
    { head: t.tenants.rate, from: "md", right: true, cell: (row) => <span className="num text-muted">{row.rate_limit ? t.endpoints.perMinute(number(row.rate_limit.max_per_minute)) : "–"}</span> },
    { head: t.tenants.retention, from: "md", right: true, cell: (row) => <span className="num text-muted">{t.tenants.daysOf(row.retention_days)}</span> },
    { head: t.tenants.created, right: true, cell: (row) => <Time at={row.created_at} className="text-muted" /> },
  ];
  return (
    <>
      <PageHeader title={t.tenants.title}>
        {mayDo(session, "admin") && !session.tenant && (
          <Button kind="primary" onClick={() => change({ create: "1" })}>
            <Icon d={icons.plus} />
            {t.tenants.create}
          </Button>
        )}
      </PageHeader>
      <div className="border-t border-line bg-surface">
        <Pages query={query} empty={{ title: t.tenants.empty, hint: t.tenants.emptyHint }}>
          {(rows) => <List label={t.tenants.title} rows={rows} columns={columns} id={(row) => row.id} name={(row) => row.id} href={(row) => `/tenants/${encodeURIComponent(row.id)}`} />}
        </Pages>
      </div>
      {params.get("create") && <CreateTenant onClose={() => change({ create: null })} />}
    </>
  );
}

function CreateTenant({ onClose }: { onClose: () => void }) {
  const client = useQueryClient();
  const [, navigate] = useLocation();
  const [id, setId] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      await unwrap(api.PUT("/v1/tenants/{id}", { params: { path: { id: id.trim() } }, body: {} }));
      await client.invalidateQueries({ queryKey: ["tenants"] });
      navigate(`/tenants/${encodeURIComponent(id.trim())}`);
    } catch (cause) {
      setError(cause);
      setBusy(false);
    }
  };
  return (
    <Dialog title={t.tenants.create} onClose={onClose}>
      <form onSubmit={submit} className="space-y-4">
        <Text label={t.tenants.id} placeholder="acme" required autoFocus value={id} onChange={setId} />
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

export function TenantPage({ id, session }: { id: string; session: Session }) {
  const query = useTenant(id);
  const stats = useStats(id, "24h");
  if (query.isPending) return <Rows />;
  if (query.isError) return <Failure error={query.error} retry={() => query.refetch()} />;
  const tenant = query.data;
  const defaults = Object.entries(tenant.defaults).filter(([, value]) => value !== null && value !== undefined);
  const encoded = encodeURIComponent(id);
  return (
    <>
      <PageHeader
        title={tenant.id}
        back={
          <Link href="/tenants" className="text-xs text-muted hover:underline">
            {t.tenants.title}
          </Link>
        }
      >
        {[
          [t.tenants.open, `/?tenant=${encoded}`],
          [t.tenants.seeEndpoints, `/endpoints?tenant=${encoded}`],
          [t.tenants.seeDeliveries, `/deliveries?tenant=${encoded}`],
        ].map(([name, href]) => (
          <Link key={href} href={href ?? ""} className="rounded-md border border-line-strong bg-surface px-3 py-1 text-sm font-medium hover:bg-hover">
            {name}
          </Link>
        ))}
      </PageHeader>
      <div className="space-y-4 px-4 pb-8 md:px-6">
        <div className="grid grid-cols-1 gap-4 xl:grid-cols-2">
          <Charts stats={stats.data} range="24h" />
        </div>
        <div className="grid grid-cols-1 items-start gap-4 xl:grid-cols-2">
          <TenantForm key={JSON.stringify(tenant)} tenant={tenant} readOnly={!mayDo(session, "admin") || Boolean(session.tenant)} />
          <section className="card min-w-0 p-4" aria-label={t.tenants.defaults}>
            <h2 className="mb-2">{t.tenants.defaults}</h2>
            {defaults.length === 0 ? <p className="text-sm text-muted">{t.tenants.noDefaults}</p> : <Json label={t.tenants.defaults} text={JSON.stringify(Object.fromEntries(defaults))} />}
          </section>
        </div>
      </div>
    </>
  );
}

function TenantForm({ tenant, readOnly }: { tenant: Tenant; readOnly: boolean }) {
  const client = useQueryClient();
  const toast = useToast();
  const [weight, setWeight] = useState(String(tenant.weight));
  const [inFlight, setInFlight] = useState(String(tenant.max_in_flight));
  const [retention, setRetention] = useState(String(tenant.retention_days));
  const [endpoints, setEndpoints] = useState(tenant.limits.max_endpoints ? String(tenant.limits.max_endpoints) : "");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const save = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setError(undefined);
    try {
      await unwrap(api.PATCH("/v1/tenants/{id}", { params: { path: { id: tenant.id } }, body: { weight: Number(weight), max_in_flight: Number(inFlight), retention_days: Number(retention), limits: { max_endpoints: endpoints ? Number(endpoints) : null } } }));
      toast(t.common.saved);
      await client.invalidateQueries({ queryKey: ["tenant", tenant.id] });
      void client.invalidateQueries({ queryKey: ["tenants"] });
    } catch (cause) {
      setError(cause);
    }
    setBusy(false);
  };
  return (
    <form onSubmit={save} className="card p-4">
      <h2 className="mb-3">{t.endpoint.settings}</h2>
      <fieldset disabled={readOnly} className="grid grid-cols-1 gap-3 sm:grid-cols-2">
        <Text label={t.tenants.weight} hint={t.tenants.weightHint} type="number" value={weight} onChange={setWeight} />
        <Text label={t.tenants.maxInFlight} type="number" value={inFlight} onChange={setInFlight} />
        <Text label={t.tenants.retentionDays} type="number" value={retention} onChange={setRetention} />
        <Text label={t.tenants.endpointsMax} placeholder={t.tenants.serverMax} type="number" value={endpoints} onChange={setEndpoints} />
      </fieldset>
      <FormError error={error} />
      {!readOnly && (
        <div className="mt-4 flex justify-end">
          <Button type="submit" kind="primary" busy={busy}>
            {t.common.save}
          </Button>
        </div>
      )}
    </form>
  );
}
