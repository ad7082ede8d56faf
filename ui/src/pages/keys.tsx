import { useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { type Schemas, api, unwrap } from "../api/client";
import { useKeys } from "../api/queries";
import { type Column, List, Pages } from "../components/list";
import { Text } from "../components/replay-wizard";
import { Badge, Button, Confirm, Copy, Dialog, FormError, Icon, PageHeader, Time, icons } from "../components/ui";
import { useQuery } from "../lib/url";
import { t } from "../strings";

type Key = Schemas["Key"];
const scopes = ["publish", "read", "manage", "replay", "admin"] as const;

const stateOf = (key: Key) => (key.revoked_at ? "revoked" : key.expires_at && Date.parse(key.expires_at) < Date.now() ? "expired" : "active");

export function KeysPage() {
  const query = useKeys();
  const client = useQueryClient();
  const [params, change] = useQuery();
  const [revoking, setRevoking] = useState<Key>();
  const columns: Column<Key>[] = [
    {
      head: t.keys.name,
      cell: (row) => (
        <>
          <span className="block truncate font-medium">{row.name}</span>
          <span className="mono block truncate text-xs text-muted">{row.id}</span>
        </>
      ),
    },
    { head: t.keys.scopes, from: "md", cell: (row) => <span className="text-muted">{row.scopes.join(", ")}</span> },
    { head: t.keys.tenant, from: "lg", cell: (row) => <span className="text-muted">{row.tenant ?? t.keys.allTenants}</span> },
    { head: t.keys.state, from: "sm", cell: (row) => <Badge tone={stateOf(row) === "active" ? "ok" : "muted"}>{t.keys[stateOf(row)]}</Badge> },
    { head: t.keys.lastUsed, from: "md", right: true, cell: (row) => (row.last_used_at ? <Time at={row.last_used_at} className="text-muted" /> : <span className="text-muted">{t.common.never}</span>) },
    { head: t.keys.expires, from: "xl", right: true, cell: (row) => (row.expires_at ? <Time at={row.expires_at} className="text-muted" /> : <span className="text-muted">{t.common.never}</span>) },
    {
      head: t.common.actions,
      right: true,
      cell: (row) =>
        stateOf(row) === "active" ? (
          <Button small kind="danger" onClick={() => setRevoking(row)} aria-label={`${t.keys.revoke}: ${row.name}`}>
            {t.keys.revoke}
          </Button>
        ) : (
          <span className="text-muted">–</span>
        ),
    },
  ];
  const revoke = async () => {
    await unwrap(api.DELETE("/v1/keys/{id}", { params: { path: { id: revoking?.id ?? "" } } }));
    await client.invalidateQueries({ queryKey: ["keys"] });
  };
  return (
    <>
      <PageHeader title={t.keys.title}>
        <Button kind="primary" onClick={() => change({ create: "1" })}>
          <Icon d={icons.plus} />
          {t.keys.create}
        </Button>
      </PageHeader>
      <div className="border-t border-line bg-surface">
        <Pages query={query} empty={{ title: t.keys.empty, hint: t.keys.emptyHint }}>
          {(rows) => <List label={t.keys.title} rows={rows} columns={columns} id={(row) => row.id} name={(row) => row.name} />}
        </Pages>
      </div>
      {revoking && <Confirm title={t.keys.revoke} text={t.keys.revokeConfirm} action={t.keys.revoke} danger onConfirm={revoke} onClose={() => setRevoking(undefined)} />}
      {params.get("create") && <CreateKey onClose={() => change({ create: null })} />}
    </>
  );
}

function CreateKey({ onClose }: { onClose: () => void }) {
  const client = useQueryClient();
  const [name, setName] = useState("");
  const [tenant, setTenant] = useState("");
  const [chosen, setChosen] = useState<string[]>(["read"]);
  const [expires, setExpires] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const [made, setMade] = useState<Key>();
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      setMade(await unwrap(api.POST("/v1/keys", { body: { name, tenant: tenant.trim() || null, scopes: chosen as Schemas["Scope"][], expires_at: expires ? new Date(expires).toISOString() : null } })));
      await client.invalidateQueries({ queryKey: ["keys"] });
    } catch (cause) {
      setError(cause);
    }
    setBusy(false);
  };
  if (made)
    return (
      <Dialog title={t.keys.once} onClose={onClose}>
        <div className="flex items-center gap-2 rounded-md border border-line bg-bg p-3">
          <code className="min-w-0 flex-1 break-all">{made.key}</code>
          <Copy text={made.key ?? ""} />
        </div>
      </Dialog>
    );
  return (
    <Dialog title={t.keys.create} onClose={onClose}>
      <form onSubmit={submit} className="space-y-4">
        <Text label={t.keys.name} required autoFocus value={name} onChange={setName} />
        <Text label={t.keys.tenant} placeholder={t.keys.allTenants} value={tenant} onChange={setTenant} />
        <fieldset>
          <legend className="mb-1 text-xs font-medium text-muted">{t.keys.scopes}</legend>
          <div className="space-y-1.5">
            {scopes.map((scope) => (
              <label key={scope} className="flex items-center gap-2 text-sm">
                <input type="checkbox" checked={chosen.includes(scope)} onChange={() => setChosen(chosen.includes(scope) ? chosen.filter((one) => one !== scope) : [...chosen, scope])} />
                <span className="font-medium">{scope}</span>
                <span className="text-muted">{t.keys.scopeAbout[scope]}</span>
              </label>
            ))}
          </div>
        </fieldset>
        <Text label={t.keys.expires} type="datetime-local" value={expires} onChange={setExpires} />
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
