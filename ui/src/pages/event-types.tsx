import { useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { Link } from "wouter";
import { mayDo } from "../lib/session";
import { type Schemas, type Session, api, isPortal, unwrap } from "../api/client";
import { useEventTypes } from "../api/queries";
import { type Column, List, Pages } from "../components/list";
import { Text } from "../components/replay-wizard";
import { Badge, Button, Dialog, FormError, Icon, Json, PageHeader, icons } from "../components/ui";
import { useHref, useQuery } from "../lib/url";
import { t } from "../strings";

type EventType = Schemas["EventType"];

export function EventTypesPage({ session, open }: { session: Session; open?: string }) {
  const query = useEventTypes();
  const href = useHref();
  const [params, change] = useQuery();
  const types = query.data?.pages.flatMap((page) => page.data) ?? [];
  const shown = types.find((type) => type.name === open);
  const columns: Column<EventType>[] = [
    {
      head: t.eventTypes.name,
      cell: (row) => (
        <>
          <span className="block truncate font-medium">{row.name}</span>
          <span className="block truncate text-xs text-muted">{row.description}</span>
        </>
      ),
    },
    { head: t.eventTypes.versions, from: "sm", cell: (row) => <span className="text-muted">{row.versions.map((one) => one.version).join(", ") || "–"}</span> },
    { head: t.status.label ?? "", cell: (row) => (row.deprecated ? <Badge tone="warn">{t.eventTypes.deprecated}</Badge> : row.priority ? <Badge tone="info">{t.eventTypes.priority}</Badge> : <span className="text-muted">–</span>) },
  ];
  return (
    <>
      <PageHeader title={t.eventTypes.title}>
        {mayDo(session, "manage") && !session.tenant && (
          <Button kind="primary" onClick={() => change({ create: "1" })}>
            <Icon d={icons.plus} />
            {t.eventTypes.create}
          </Button>
        )}
      </PageHeader>
      <div className="border-t border-line bg-surface">
        <Pages query={query} empty={{ title: t.eventTypes.empty, hint: t.eventTypes.emptyHint }}>
          {(rows) => <List label={t.eventTypes.title} rows={rows} columns={columns} id={(row) => row.name} name={(row) => row.name} href={(row) => href(`/event-types/${encodeURIComponent(row.name)}`)} open={open} />}
        </Pages>
      </div>
      {shown && (
        <section className="space-y-4 p-4 md:p-6" aria-label={shown.name}>
          <div className="flex flex-wrap items-center gap-3">
            <h2 className="text-lg">{shown.name}</h2>
            {!isPortal && (
              <Link className="link text-sm" href={href("/events", { type: shown.name })}>
                {t.eventTypes.seeEvents}
              </Link>
            )}
          </div>
          {shown.versions.length === 0 && <p className="text-sm text-muted">{t.eventTypes.none}</p>}
          {shown.versions.map((version) => (
            <div key={version.version} className="card p-4">
              <h3 className="mb-2 font-medium">{version.version}</h3>
              <div className="grid grid-cols-1 gap-4 lg:grid-cols-2">
                {version.schema !== undefined && version.schema !== null && (
                  <div className="min-w-0">
                    <p className="mb-1 text-xs text-muted">{t.eventTypes.schema}</p>
                    <Json label={`${t.eventTypes.schema} ${version.version}`} text={JSON.stringify(version.schema)} />
                  </div>
                )}
                {version.example !== undefined && version.example !== null && (
                  <div className="min-w-0">
                    <p className="mb-1 text-xs text-muted">{t.eventTypes.example}</p>
                    <Json label={`${t.eventTypes.example} ${version.version}`} text={JSON.stringify(version.example)} />
                  </div>
                )}
              </div>
            </div>
          ))}
        </section>
      )}
      {params.get("create") && <CreateType onClose={() => change({ create: null })} />}
    </>
  );
}

function CreateType({ onClose }: { onClose: () => void }) {
  const client = useQueryClient();
  const [name, setName] = useState("");
  const [description, setDescription] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      await unwrap(api.POST("/v1/event-types", { body: { name: name.trim(), description } as never }));
      await client.invalidateQueries({ queryKey: ["event-types"] });
      onClose();
    } catch (cause) {
      setError(cause);
      setBusy(false);
    }
  };
  return (
    <Dialog title={t.eventTypes.create} onClose={onClose}>
      <form onSubmit={submit} className="space-y-4">
        <Text label={t.eventTypes.name} placeholder="invoice.paid" required autoFocus value={name} onChange={setName} />
        <Text label={t.eventTypes.description} value={description} onChange={setDescription} />
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
