// Small parts that every page uses.
import { type ButtonHTMLAttributes, type ReactNode, createContext, useContext, useEffect, useId, useRef, useState } from "react";
import { ApiError, messageOf } from "../api/client";
import { absolute, relative } from "../lib/format";
import { indent } from "../lib/raw-json";
import { t } from "../strings";

const cx = (...names: (string | false | undefined)[]) => names.filter(Boolean).join(" ");

export function Icon({ d, className = "size-4" }: { d: string; className?: string }) {
  return (
    <svg viewBox="0 0 24 24" className={cx("shrink-0", className)} fill="none" stroke="currentColor" strokeWidth="1.75" strokeLinecap="round" strokeLinejoin="round" aria-hidden="true">
      <path d={d} />
    </svg>
  );
}

export const icons = {
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM20 20l-4-4",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  check: "M5 12.5l4.5 4.5L19 7",
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  right: "M9 6l6 6-6 6",
  pause: "M8 5v14M16 5v14",
  out: "M10 5H5v14h5M14 8l4 4-4 4M18 12H9",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6L19 19M19 5l-1.4 1.4M6.4 17.6L5 19",
  moon: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z",
  keyboard: "M3 7h18v11H3zM7 11h.01M11 11h.01M15 11h.01M7 14.5h10",
  book: "M5 4h10a4 4 0 0 1 4 4v12H8a3 3 0 0 1-3-3zM5 17a3 3 0 0 1 3-3h11",
  retry: "M4 12a8 8 0 1 0 2.5-5.8M4 3v4h4",
  warn: "M12 4l9 16H3zM12 10v4M12 17h.01",
};

type Kind = "primary" | "plain" | "danger" | "ghost";
const kinds: Record<Kind, string> = {
  primary: "bg-accent-fill text-on-accent border-transparent hover:brightness-110",
  plain: "bg-surface border-line-strong hover:bg-hover",
  danger: "bg-surface border-line-strong text-bad hover:bg-bad-soft",
  ghost: "border-transparent text-muted hover:bg-hover hover:text-text",
};

export function Button({ kind = "plain", small, className, busy, children, ...rest }: ButtonHTMLAttributes<HTMLButtonElement> & { kind?: Kind; small?: boolean; busy?: boolean }) {
  return (
    <button
      type="button"
      {...rest}
      disabled={rest.disabled || busy}
      aria-busy={busy || undefined}
      className={cx(
        "inline-flex items-center justify-center gap-1.5 rounded-md border font-medium whitespace-nowrap disabled:opacity-55",
        small ? "min-h-6.5 px-2 py-0.5 text-xs" : "min-h-8 px-3 py-1 text-sm",
        kinds[kind],
        className,
      )}
    >
      {children}
    </button>
  );
}

export type Tone = "ok" | "warn" | "bad" | "info" | "hold" | "muted";
const tones: Record<Tone, string> = {
  ok: "bg-ok-soft text-ok",
  warn: "bg-warn-soft text-warn",
  bad: "bg-bad-soft text-bad",
  info: "bg-info-soft text-info",
  hold: "bg-hold-soft text-hold",
  muted: "bg-raised text-muted",
};

export function Badge({ tone, children, title }: { tone: Tone; children: ReactNode; title?: string }) {
  return (
    <span title={title} className={cx("inline-flex items-center gap-1.5 rounded-full px-2 py-px text-xs font-medium whitespace-nowrap", tones[tone])}>
      <span className="size-1.5 rounded-full bg-current" aria-hidden="true" />
      {children}
    </span>
  );
}

export const statusTone: Record<string, Tone> = {
  pending: "info",
  delivering: "info",
  scheduled: "hold",
  delivered: "ok",
  dead: "bad",
  cancelled: "muted",
  active: "ok",
  paused: "warn",
  disabled: "bad",
  closed: "ok",
  open: "bad",
  half_open: "warn",
  running: "info",
  done: "ok",
};

export function StatusBadge({ status, hold }: { status: string; hold?: string | null }) {
  return <Badge tone={statusTone[status] ?? "muted"}>{status === "scheduled" && hold ? (t.hold[hold] ?? hold) : (t.status[status] ?? status)}</Badge>;
}

const Now = createContext(Date.now());
/** One clock for all relative times of a page. */
export function Clock({ children }: { children: ReactNode }) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 5_000);
    return () => clearInterval(timer);
  }, []);
  return <Now.Provider value={now}>{children}</Now.Provider>;
}
export const useNow = () => useContext(Now);

export function Time({ at, className }: { at: string | null | undefined; className?: string }) {
  const now = useNow();
  if (!at) return <span className="text-muted">–</span>;
  const time = Date.parse(at);
  return (
    <time dateTime={at} title={absolute(time)} className={cx("num whitespace-nowrap", className)}>
      {relative(time, now)}
    </time>
  );
}

export function Copy({ text, label, className }: { text: string; label?: string; className?: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Without TLS browsers have no clipboard API; a selection can still be copied.
      const area = document.createElement("textarea");
      area.value = text;
      (document.querySelector("dialog[open]") ?? document.body).append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <button type="button" onClick={copy} className={cx("inline-flex items-center gap-1 rounded p-1 text-xs text-muted hover:bg-hover hover:text-text", className)} aria-label={label ?? t.common.copy} title={copied ? t.common.copied : t.common.copy}>
      <Icon d={copied ? icons.check : icons.copy} className="size-3.5" />
      <span role="status" className="sr-only">{copied ? t.common.copied : ""}</span>
    </button>
  );
}

export function Id({ id }: { id: string }) {
  return (
    <span className="inline-flex max-w-full items-center gap-0.5">
      <code className="truncate">{id}</code>
      <Copy text={id} />
    </span>
  );
}

export function Empty({ title, hint, children }: { title: string; hint?: string; children?: ReactNode }) {
  return (
    <div className="flex flex-col items-center gap-2 px-6 py-14 text-center">
      <p className="text-base font-semibold">{title}</p>
      {hint && <p className="max-w-md text-sm text-muted">{hint}</p>}
      {children}
    </div>
  );
}

export function Failure({ error, retry }: { error: unknown; retry?: () => void }) {
  const status = error instanceof ApiError ? error.status : -1;
  const title = status === 404 ? t.common.notFound : status === 403 ? t.common.forbidden : t.common.failed;
  const text = status === 0 ? t.common.offline : status === 404 ? t.common.notFoundHint : messageOf(error);
  return (
    <div role="alert" className="m-4 flex flex-col items-start gap-2 rounded-lg border border-line bg-bad-soft p-4 text-sm">
      <p className="font-semibold text-bad">{title}</p>
      {text && <p>{text}</p>}
      {retry && status !== 404 && status !== 403 && (
        <Button small onClick={retry}>
          {t.common.retry}
        </Button>
      )}
    </div>
  );
}

export function Rows({ count = 8 }: { count?: number }) {
  return (
    <div className="space-y-2.5 p-4" role="status" aria-label={t.common.loading}>
      {Array.from({ length: count }, (_, i) => (
        <div key={i} className="skeleton h-7" />
      ))}
    </div>
  );
}

/** A modal on the platform's own `dialog`: focus, Escape and the backdrop come from the browser. */
export function Dialog({ title, onClose, children, wide }: { title: string; onClose: () => void; children: ReactNode; wide?: boolean }) {
  const ref = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const dialog = ref.current;
    if (dialog && !dialog.open) dialog.showModal();
    // The browser would choose the button that closes it.
    const first = "input, textarea, select, button";
    dialog?.querySelector("[data-dialog-body]")?.querySelector<HTMLElement>(first)?.focus();
  }, []);
  return (
    <dialog
      ref={ref}
      aria-labelledby={id}
      onClose={onClose}
      onClick={(event) => event.target === ref.current && ref.current.close()}
      className={cx("max-h-[88dvh] w-[calc(100vw-24px)] overflow-auto rounded-xl border border-line bg-surface p-0 shadow-2xl", wide ? "max-w-2xl" : "max-w-lg")}
    >
      <div className="flex items-center justify-between gap-4 border-b border-line px-5 py-3">
        <h2 id={id} className="text-lg">{title}</h2>
        <Button kind="ghost" small aria-label={t.common.close} onClick={() => ref.current?.close()}>
          <Icon d={icons.close} />
        </Button>
      </div>
      <div className="p-5" data-dialog-body>{children}</div>
    </dialog>
  );
}

export function Confirm({ title, text, action, onConfirm, onClose, danger }: { title: string; text: string; action: string; onConfirm: () => Promise<unknown>; onClose: () => void; danger?: boolean }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const confirm = async () => {
    setBusy(true);
    try {
      await onConfirm();
      onClose();
    } catch (cause) {
      setError(cause);
      setBusy(false);
    }
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <p>{text}</p>
      <FormError error={error} />
      <div className="mt-5 flex justify-end gap-2">
        <Button onClick={onClose}>{t.common.cancel}</Button>
        <Button kind={danger ? "danger" : "primary"} busy={busy} onClick={confirm}>
          {action}
        </Button>
      </div>
    </Dialog>
  );
}

export function FormError({ error }: { error: unknown }) {
  if (!error) return null;
  const fields = error instanceof ApiError ? error.errors : [];
  const isOffline = error instanceof ApiError && error.status === 0;
  return (
    <div role="alert" className="mt-3 rounded-md bg-bad-soft px-3 py-2 text-sm text-bad">
      {fields.length > 0 ? fields.map((one) => <p key={one.field}>{one.field ? `${one.field}: ${one.message}` : one.message}</p>) : isOffline ? t.common.offline : messageOf(error)}
    </div>
  );
}

export function Field({ label, hint, error, children, inherited }: { label: string; hint?: string; error?: string; children: (id: string, describedBy: string | undefined) => ReactNode; inherited?: boolean }) {
  const id = useId();
  const described = hint || error ? `${id}-hint` : undefined;
  return (
    <div className="min-w-0">
      <label htmlFor={id} className="mb-1 flex items-center gap-2 text-xs font-medium text-muted">
        {label}
        {inherited && <span className="rounded bg-raised px-1.5 font-normal">{t.common.inherited}</span>}
      </label>
      {children(id, described)}
      {(hint || error) && (
        <p id={described} className={cx("mt-1 text-xs", error ? "text-bad" : "text-muted")}>
          {error ?? hint}
        </p>
      )}
    </div>
  );
}

export function Select({ label, value, onChange, options, className, usual = "" }: { label: string; value: string; usual?: string; onChange: (value: string) => void; options: [string, string][]; className?: string }) {
  return (
    <select aria-label={label} title={label} value={value} onChange={(event) => onChange(event.target.value)} className={cx("field w-auto! max-w-full py-1! pr-7", value !== usual && "border-accent!", className)}>
      {options.map(([key, name]) => (
        <option key={key} value={key}>
          {name}
        </option>
      ))}
    </select>
  );
}

/** JSON as coloured text. It is cut into text nodes: nothing in it is ever markup. */
export function Json({ text: given, raw, label }: { text: string; raw?: boolean; label: string }) {
  const text = raw ? given : indent(given);
  return (
    <div className="relative">
      <pre tabIndex={0} aria-label={label} className="max-h-96 overflow-auto rounded-md border border-line bg-bg p-3 pr-10 leading-relaxed whitespace-pre-wrap break-all">{raw || text.length > 50_000 ? text : tokens(text)}</pre>
      <Copy text={text} className="absolute top-1.5 right-1.5" />
    </div>
  );
}

function tokens(text: string): ReactNode[] {
  return text.split(/("(?:[^"\\]|\\.)*"(?:\s*:)?|\b(?:true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)/g).map((piece, i) => {
    if (i % 2 === 0) return piece;
    const tone = piece.startsWith('"') ? (piece.endsWith(":") ? "text-accent" : "text-ok") : "text-warn";
    return (
      <span key={i} className={tone}>
        {piece}
      </span>
    );
  });
}

export function PageHeader({ title, hint, children, back }: { title: ReactNode; hint?: string; children?: ReactNode; back?: ReactNode }) {
  return (
    <header className="flex flex-wrap items-center gap-x-4 gap-y-2 px-4 pt-4 pb-3 md:px-6">
      <div className="min-w-0 flex-1 basis-64 sm:basis-80">
        {back}
        <h1 className="truncate">{title}</h1>
        {hint && <p className="line-clamp-3 text-sm [overflow-wrap:anywhere] text-muted">{hint}</p>}
      </div>
      <div className="flex flex-wrap items-center gap-2">{children}</div>
    </header>
  );
}

export function Facts({ items }: { items: [string, ReactNode][] }) {
  return (
    <dl className="grid grid-cols-[max-content_1fr] gap-x-4 gap-y-1.5 text-sm">
      {items.map(([name, value]) => (
        <div key={name} className="contents">
          <dt className="text-muted">{name}</dt>
          <dd className="min-w-0 truncate">{value}</dd>
        </div>
      ))}
    </dl>
  );
}

// Short messages after something was done.
interface Toast {
  id: number;
  text: string;
  tone: Tone;
}
const Toasts = createContext<(text: string, tone?: Tone) => void>(() => {});
export const useToast = () => useContext(Toasts);

export function Toaster({ children }: { children: ReactNode }) {
  const [toasts, setToasts] = useState<Toast[]>([]);
  const next = useRef(0);
  const show = (text: string, tone: Tone = "ok") => {
    const id = next.current++;
    setToasts((all) => [...all.slice(-3), { id, text, tone }]);
    setTimeout(() => setToasts((all) => all.filter((one) => one.id !== id)), 6_000);
  };
  return (
    <Toasts.Provider value={show}>
      {children}
      <div role="status" aria-live="polite" className="pointer-events-none fixed right-4 bottom-4 z-50 flex flex-col items-end gap-2">
        {toasts.map((toast) => (
          <div key={toast.id} className={cx("pointer-events-auto max-w-sm rounded-lg border border-line px-4 py-2 text-sm font-medium shadow-lg", tones[toast.tone])}>
            {toast.text}
          </div>
        ))}
      </div>
    </Toasts.Provider>
  );
}

export { cx };
