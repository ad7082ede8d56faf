// Numbers and times, as people read them.
import { t } from "../strings";

const numbers = new Intl.NumberFormat("en");
export const number = (value: number) => numbers.format(value);

export function compact(value: number): string {
  if (value < 10_000) return number(value);
  return new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);
}

export function percent(part: number, whole: number): string {
  if (whole === 0) return "–";
  const value = (100 * part) / whole;
  // 99.96 % is not 100 %.
  return value === 100 ? "100 %" : `${(Math.floor(value * 100) / 100).toFixed(value >= 99 ? 2 : 1)} %`;
}

/** A span, in its largest unit. */
export function span(ms: number): string {
  const s = Math.round(ms / 1000);
  if (s < 60) return `${s} s`;
  const m = Math.round(s / 60);
  if (m < 60) return `${m} min`;
  const h = Math.floor(m / 60);
  if (h < 24) return m % 60 ? `${h} h ${m % 60} min` : `${h} h`;
  const d = Math.floor(h / 24);
  return d < 7 && h % 24 ? `${d} d ${h % 24} h` : `${d} d`;
}

export function relative(at: number, now: number): string {
  const difference = at - now;
  if (Math.abs(difference) < 2_000) return t.time.now;
  const ms = Math.abs(difference);
  const text = ms < 3_600_000 * 24 ? span(ms < 3_600_000 ? ms : Math.round(ms / 3_600_000) * 3_600_000) : span(Math.floor(ms / 86_400_000) * 86_400_000);
  return difference < 0 ? t.time.ago(text) : t.time.in(text);
}

export const absolute = (at: number) =>
  new Date(at).toLocaleString("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit" });

export const clock = (at: number, withSeconds = true) =>
  new Date(at).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(withSeconds ? { second: "2-digit" } : {}) });

export const day = (at: number) => new Date(at).toLocaleDateString("en-GB", { day: "numeric", month: "short" });

/** The last characters of an id are those that differ. */
export const shortId = (id: string) => (id.length > 16 ? `${id.slice(0, 4)}…${id.slice(-8)}` : id);

/** Host and path, without the scheme. */
export function address(url: string): { host: string; path: string } {
  const match = /^https?:\/\/([^/?#]*)(.*)$/.exec(url);
  return match ? { host: match[1] ?? "", path: match[2] === "/" ? "" : (match[2] ?? "") } : { host: url, path: "" };
}

export const ranges = { "1h": 3_600_000, "6h": 21_600_000, "24h": 86_400_000, "7d": 604_800_000 } as const;
export type Range = keyof typeof ranges;

/** The beginning of a range, to the minute: the same for all calls of a page. */
export function since(range: string): string | undefined {
  const ms = ranges[range as Range];
  if (!ms) return undefined;
  return new Date(Math.floor((Date.now() - ms) / 60_000) * 60_000).toISOString();
}
