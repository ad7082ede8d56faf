import { type FormEvent, useState } from "react";
import { ApiError, type Session, logIn } from "../api/client";
import { Button, Field, FormError } from "../components/ui";
import { t } from "../strings";

export function LoginPage({ onLogin, ended }: { onLogin: (session: Session) => void; ended: boolean }) {
  const [key, setKey] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      onLogin(await logIn(key.trim()));
    } catch (cause) {
      setError(cause instanceof ApiError && cause.status === 401 ? new Error(t.login.wrong) : cause);
      setBusy(false);
    }
  };
  return (
    <main className="grid min-h-dvh place-items-center p-4">
      <form onSubmit={submit} className="card w-full max-w-sm p-6 shadow-sm">
        <img src="/favicon.svg" alt="" className="mb-4 size-10" />
        <h1 className="mb-1">{t.login.title}</h1>
        <p className="mb-5 text-sm text-muted">{ended ? t.login.ended : t.login.hint}</p>
        <Field label={t.login.key}>
          {(id, described) => (
            <input id={id} aria-describedby={described} type="password" autoComplete="current-password" autoFocus required value={key} onChange={(event) => setKey(event.target.value)} className="field mono" aria-invalid={error ? true : undefined} />
          )}
        </Field>
        <FormError error={error} />
        <Button type="submit" kind="primary" busy={busy} className="mt-4 w-full">
          {t.login.submit}
        </Button>
        <p className="mt-4 text-center text-sm">
          <a className="link" href="/docs">
            {t.login.docs}
          </a>
        </p>
      </form>
    </main>
  );
}
