// An endpoint in three steps, for people who do not know Posthaste: where, which events, and how to trust what arrives.
import { useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { useLocation } from "wouter";
import { type Endpoint, type Session, api, unwrap } from "../api/client";
import { useEventTypes } from "../api/queries";
import { Text } from "../components/replay-wizard";
import { Button, Copy, Dialog, FormError, Json, Rows, Select, cx } from "../components/ui";
import { snippets } from "../lib/verification";
import { t } from "../strings";

const LANGUAGE = "posthaste-language";

export function NewEndpoint({ session, onClose }: { session: Session; onClose: () => void }) {
  const client = useQueryClient();
  const [, navigate] = useLocation();
  const [step, setStep] = useState<1 | 2 | 3>(1);
  const [url, setUrl] = useState("");
  const [description, setDescription] = useState("");
  const [chosen, setChosen] = useState<string[]>([]);
  const [all, setAll] = useState(true);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const [made, setMade] = useState<Endpoint>();
  const next = async (event: FormEvent) => {
    event.preventDefault();
    if (step === 1) return setStep(2);
    setBusy(true);
    setError(undefined);
    try {
      setMade(await unwrap(api.POST("/v1/endpoints", { body: { url: url.trim(), description, event_types: all ? [] : chosen } as never })));
      setStep(3);
      void client.invalidateQueries({ queryKey: ["endpoints"] });
    } catch (cause) {
      setError(cause);
    }
    setBusy(false);
  };
  const close = () => (made ? navigate(`/endpoints/${made.id}`) : onClose());
  return (
    <Dialog title={t.newEndpoint.title} onClose={close} wide>
      <ol className="mb-5 flex flex-wrap gap-x-5 gap-y-1 text-sm" aria-label={t.newEndpoint.steps}>
        {[t.newEndpoint.where, t.newEndpoint.which, t.newEndpoint.verify].map((name, i) => (
          <li key={name} aria-current={step === i + 1 ? "step" : undefined} className={cx("flex items-center gap-2", step === i + 1 ? "font-semibold" : "text-muted")}>
            <span className={cx("grid size-6 place-items-center rounded-full text-xs", step >= i + 1 ? "bg-accent-fill text-on-accent" : "bg-raised")}>{i + 1}</span>
            {name}
          </li>
        ))}
      </ol>
      {step === 3 && made ? (
        <Verify endpoint={made} session={session} onDone={close} />
      ) : (
        <form onSubmit={next} className="space-y-4">
          {step === 1 ? (
            <>
              <Text label={t.endpoints.url} hint={t.newEndpoint.urlHint} type="url" placeholder="https://example.com/webhooks" required autoFocus value={url} onChange={setUrl} />
              <Text label={t.endpoint.description} hint={t.newEndpoint.descriptionHint} value={description} onChange={setDescription} />
            </>
          ) : (
            <Types all={all} onAll={setAll} chosen={chosen} onChange={setChosen} />
          )}
          <FormError error={error} />
          <div className="flex justify-end gap-2">
            {step === 2 ? <Button onClick={() => setStep(1)}>{t.common.back}</Button> : <Button onClick={onClose}>{t.common.cancel}</Button>}
            <Button type="submit" kind="primary" busy={busy} disabled={step === 2 && !all && chosen.length === 0}>
              {step === 1 ? t.newEndpoint.next : t.newEndpoint.create}
            </Button>
          </div>
        </form>
      )}
    </Dialog>
  );
}

function Types({ all, onAll, chosen, onChange }: { all: boolean; onAll: (all: boolean) => void; chosen: string[]; onChange: (chosen: string[]) => void }) {
  const query = useEventTypes();
  const types = (query.data?.pages.flatMap((page) => page.data) ?? []).filter((type) => !type.deprecated);
  return (
    <fieldset className="space-y-3">
      <legend className="mb-2 text-sm text-muted">{t.newEndpoint.whichHint}</legend>
      <label className="flex items-center gap-2 text-sm">
        <input type="radio" name="which" checked={all} onChange={() => onAll(true)} />
        {t.newEndpoint.all}
      </label>
      <label className="flex items-center gap-2 text-sm">
        <input type="radio" name="which" checked={!all} onChange={() => onAll(false)} />
        {t.newEndpoint.some}
      </label>
      {query.isPending && <Rows count={3} />}
      {query.isSuccess && types.length === 0 && <p className="text-sm text-muted">{t.newEndpoint.noTypes}</p>}
      <ul className={cx("divide-y divide-line rounded-md border border-line", types.length === 0 && "hidden")}>
        {types.map((type) => {
          const example = type.versions.find((version) => version.example !== undefined && version.example !== null)?.example;
          return (
            <li key={type.name} className="px-3 py-2">
              <label className="flex items-start gap-2.5 text-sm">
                <input
                  type="checkbox"
                  className="mt-1"
                  checked={!all && chosen.includes(type.name)}
                  onChange={(event) => {
                    onAll(false);
                    onChange(event.target.checked ? [...chosen.filter((one) => one !== type.name), type.name] : chosen.filter((one) => one !== type.name));
                  }}
                />
                <span className="min-w-0">
                  <span className="mono block break-all">{type.name}</span>
                  <span className="block text-xs text-muted">{type.description}</span>
                </span>
              </label>
              {example !== undefined && (
                <details className="mt-1 ml-6 text-xs">
                  <summary className="text-muted">{t.newEndpoint.example}</summary>
                  <div className="mt-1">
                    <Json label={`${t.newEndpoint.example} ${type.name}`} text={JSON.stringify(example)} />
                  </div>
                </details>
              )}
            </li>
          );
        })}
      </ul>
      {query.hasNextPage && <Button onClick={() => query.fetchNextPage()}>{t.common.more}</Button>}
    </fieldset>
  );
}

function Verify({ endpoint, session, onDone }: { endpoint: Endpoint; session: Session; onDone: () => void }) {
  const all = snippets(endpoint.secret);
  const [language, setLanguage] = useState(() => localStorage.getItem(LANGUAGE) ?? "node");
  const shown = all.find((one) => one.id === language) ?? all[0];
  const choose = (id: string) => {
    localStorage.setItem(LANGUAGE, id);
    setLanguage(id);
  };
  return (
    <div className="space-y-4">
      {endpoint.secret ? (
        <div>
          <p className="mb-1 text-xs font-medium text-muted">{t.newEndpoint.secret}</p>
          <div className="flex items-center gap-2 rounded-md border border-line bg-bg p-3">
            <code className="min-w-0 flex-1 break-all">{endpoint.secret}</code>
            <Copy text={endpoint.secret} label={t.newEndpoint.copySecret} />
          </div>
          <p className="mt-1 text-xs text-muted">{t.endpoints.secretHint}</p>
        </div>
      ) : (
        <p className="rounded-md bg-warn-soft px-3 py-2 text-sm text-warn">{session.permissions ? t.newEndpoint.noSecret : t.endpoints.secretHint}</p>
      )}
      <div>
        <div className="mb-1.5 flex flex-wrap items-center justify-between gap-2">
          <p className="text-sm">{t.newEndpoint.verifyHint}</p>
          <Select label={t.newEndpoint.language} usual={language} value={language} onChange={choose} options={all.map((one): [string, string] => [one.id, one.name])} />
        </div>
        {shown && (
          <div className="relative">
            <pre tabIndex={0} aria-label={`${t.newEndpoint.code} ${shown.name}`} className="max-h-80 overflow-auto rounded-md border border-line bg-bg p-3 pr-10 text-xs leading-relaxed">
              {shown.code}
            </pre>
            <Copy text={shown.code} label={t.newEndpoint.copyCode} className="absolute top-1.5 right-1.5 bg-bg" />
          </div>
        )}
      </div>
      <div className="flex justify-end">
        <Button kind="primary" onClick={onDone}>
          {t.newEndpoint.done}
        </Button>
      </div>
    </div>
  );
}
