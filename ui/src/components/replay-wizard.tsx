// Filter, count, rate, start, progress.
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";
import { type Schemas, api, isPortal, unwrap } from "../api/client";
import { useReplay } from "../api/queries";
import { number } from "../lib/format";
import { t } from "../strings";
import { Badge, Button, Dialog, Field, FormError, statusTone } from "./ui";

export interface Preset {
  ids?: string[];
  tenant?: string;
  endpoint?: string;
  status?: string[];
  types?: string;
}

const ended = ["dead", "cancelled", "delivered"] as const;

export function ReplayWizard({ preset, onClose }: { preset: Preset; onClose: () => void }) {
  const client = useQueryClient();
  const [tenant, setTenant] = useState(preset.tenant ?? "");
  const [endpoint, setEndpoint] = useState(preset.endpoint ?? "");
  const [types, setTypes] = useState(preset.types ?? "");
  const [status, setStatus] = useState<string[]>(preset.status ?? (preset.ids ? [] : ["dead"]));
  const [missing, setMissing] = useState(false);
  const [from, setFrom] = useState("");
  const [to, setTo] = useState("");
  const [reason, setReason] = useState("");
  const [rate, setRate] = useState("600");
  const [count, setCount] = useState<Schemas["DryRun"]>();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const [started, setStarted] = useState<string>();
  const replay = useReplay(started);

  const body = (dry: boolean): Schemas["NewReplay"] => ({
    ...(preset.ids
      ? { ids: preset.ids }
      : {
          tenant: tenant || null,
          endpoint: endpoint || null,
          event_types: types.split(/[\s,]+/).filter(Boolean),
          status: missing ? [] : (status as Schemas["EndedStatus"][]),
          missing,
          from: from ? new Date(from).toISOString() : null,
          to: to ? new Date(to).toISOString() : null,
        }),
    // A count is written down nowhere, and needs a reason all the same.
    reason: reason.trim() || (dry ? t.replay.count : ""),
    rate_per_minute: Number(rate) || null,
    dry_run: dry,
  });
  const act = async (call: () => Promise<void>) => {
    setBusy(true);
    setError(undefined);
    try {
      await call();
    } catch (cause) {
      setError(cause);
    }
    setBusy(false);
  };
  const countNow = () => act(async () => setCount((await unwrap(api.POST("/v1/replays", { body: body(true) }))) as Schemas["DryRun"]));
  const start = () =>
    act(async () => {
      const made = (await unwrap(api.POST("/v1/replays", { body: body(false) }))) as Schemas["Replay"];
      setStarted(made.id);
      await client.invalidateQueries({ queryKey: ["live"] });
    });
  const changed = <T,>(set: (value: T) => void) => (value: T) => {
    setCount(undefined);
    set(value);
  };
  const skipped = count ? count.skipped.erased + count.skipped.already_redelivered + count.skipped.unsubscribed : 0;

  if (started)
    return (
      <Dialog title={t.replay.title} onClose={onClose}>
        {replay.data ? <Progress replay={replay.data} /> : <div className="skeleton h-16" />}
        <div className="mt-5 flex items-center justify-end gap-2">
          <Link className="link mr-auto text-sm" href={`/replays/${started}`} onClick={onClose}>
            {t.replay.title}
          </Link>
          <Button kind="primary" onClick={onClose}>
            {t.common.close}
          </Button>
        </div>
      </Dialog>
    );
  return (
    <Dialog title={t.replay.create} onClose={onClose} wide>
      <div className="space-y-4">
        {preset.ids ? (
          <p className="font-medium">{t.replay.ids(preset.ids.length)}</p>
        ) : (
          <fieldset className="space-y-3">
            <legend className="mb-2 font-medium">{t.replay.what}</legend>
            <div className="grid grid-cols-1 gap-3 sm:grid-cols-2">
              {!isPortal && <Text label={t.deliveries.tenant} value={tenant} onChange={changed(setTenant)} />}
              <Text label={t.deliveries.endpoint} value={endpoint} onChange={changed(setEndpoint)} />
              <Text label={t.replay.types} value={types} onChange={changed(setTypes)} />
              <div role="group" aria-label={t.replay.statuses}>
                <p className="mb-1 text-xs font-medium text-muted">{t.replay.statuses}</p>
                <div className="flex flex-wrap gap-3 py-1.5 text-sm">
                  {ended.map((one) => (
                    <label key={one} className="inline-flex items-center gap-1.5">
                      <input type="checkbox" disabled={missing} checked={status.includes(one)} onChange={() => changed(setStatus)(status.includes(one) ? status.filter((other) => other !== one) : [...status, one])} />
                      {t.status[one]}
                    </label>
                  ))}
                </div>
              </div>
              <Text label={t.replay.from} type="datetime-local" value={from} onChange={changed(setFrom)} />
              <Text label={t.replay.to} type="datetime-local" value={to} onChange={changed(setTo)} />
            </div>
            <label className="inline-flex items-center gap-2 text-sm">
              <input type="checkbox" checked={missing} onChange={(event) => changed(setMissing)(event.target.checked)} />
              {t.replay.missing}
            </label>
          </fieldset>
        )}
        <div className="grid grid-cols-1 gap-3 sm:grid-cols-[1fr_9rem]">
          <Text label={t.replay.reason} required hint={t.replay.reasonHint} value={reason} onChange={setReason} />
          <Text label={t.replay.rate} type="number" value={rate} onChange={setRate} />
        </div>
        {count && (
          <div role="status" className="rounded-md bg-info-soft px-3 py-2 text-sm">
            <p className="num font-medium">{count.remaining === 0 ? t.replay.nothing : t.replay.matched(number(count.matched))}</p>
            {skipped > 0 && <p className="num text-muted">{t.replay.skipped(number(skipped))}</p>}
          </div>
        )}
      </div>
      <FormError error={error} />
      <div className="mt-5 flex justify-end gap-2">
        <Button onClick={countNow} busy={busy && !count}>
          {t.replay.count}
        </Button>
        <Button kind="primary" disabled={!count || count.remaining === 0 || !reason.trim()} busy={busy && Boolean(count)} onClick={start}>
          {t.replay.start(count ? number(count.remaining) : "")}
        </Button>
      </div>
    </Dialog>
  );
}

export function Text({ label, value, onChange, hint, type = "text", placeholder, required, autoFocus }: { label: string; value: string; onChange: (value: string) => void; hint?: string; type?: string; placeholder?: string; required?: boolean; autoFocus?: boolean }) {
  return (
    <Field label={label} hint={hint}>
      {(id, described) => <input id={id} type={type} aria-describedby={described} placeholder={placeholder} required={required} autoFocus={autoFocus} className="field" value={value} onChange={(event) => onChange(event.target.value)} />}
    </Field>
  );
}

export function Progress({ replay }: { replay: Schemas["Replay"] }) {
  const done = replay.matched - replay.remaining;
  const share = replay.matched === 0 ? 1 : Math.min(1, done / replay.matched);
  return (
    <div>
      <div className="mb-1.5 flex items-center gap-2 text-sm">
        <Badge tone={statusTone[replay.state] ?? "muted"}>{t.replay.state[replay.state] ?? replay.state}</Badge>
        <span className="num ml-auto text-muted">{t.replay.of(number(done), number(replay.matched))}</span>
      </div>
      <div role="progressbar" aria-label={t.replay.progress} aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(share * 100)} className="h-2 overflow-hidden rounded-full bg-raised">
        <div className="h-full rounded-full bg-accent-fill transition-[width]" style={{ width: `${share * 100}%` }} />
      </div>
    </div>
  );
}
