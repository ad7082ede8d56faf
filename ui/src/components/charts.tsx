// Charts as SVG: they follow the theme by themselves, and need no style that the content security policy would refuse.
import { useId, useLayoutEffect, useRef, useState } from "react";
import { clock, day, number } from "../lib/format";
import { cx } from "./ui";

export interface Series {
  name: string;
  /** A CSS variable of a colour. */
  color: string;
  values: (number | null)[];
}

interface Props {
  /** The beginning of each step, in milliseconds. */
  times: number[];
  stepMs: number;
  series: Series[];
  kind: "bars" | "lines";
  unit?: string;
  label: string;
  empty: string;
  height?: number;
}

function useWidth() {
  const ref = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(640);
  useLayoutEffect(() => {
    const element = ref.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    setWidth(element.clientWidth);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return [ref, width] as const;
}

/** The next round number, and steps up to it. */
function scale(max: number): number[] {
  if (max <= 0) return [0, 1];
  const rough = max / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= rough) ?? rough);
  const ticks = [0];
  while ((ticks.at(-1) ?? 0) < max) ticks.push((ticks.at(-1) ?? 0) + step);
  return ticks;
}

const short = (n: number) => (n >= 1_000_000 ? `${n / 1_000_000}M` : n >= 1000 ? `${n / 1000}k` : String(n));

export function Chart({ times, stepMs, series, kind, unit = "", label, empty, height = 176 }: Props) {
  const [ref, width] = useWidth();
  const [hovered, setHovered] = useState<number | null>(null);
  const id = useId();
  const left = 40;
  const bottom = 20;
  const top = 8;
  const plot = { width: Math.max(50, width - left - 6), height: height - bottom - top };
  const count = times.length;
  const sums = times.map((_, i) => (kind === "bars" ? series.reduce((sum, one) => sum + (one.values[i] ?? 0), 0) : Math.max(...series.map((one) => one.values[i] ?? 0))));
  const ticks = scale(Math.max(0, ...sums));
  const max = ticks.at(-1) ?? 1;
  const y = (value: number) => top + plot.height * (1 - value / max);
  const x = (i: number) => left + (plot.width * i) / Math.max(1, count);
  const slot = plot.width / Math.max(1, count);
  const isEmpty = sums.every((sum) => sum === 0);
  const marks = Math.max(2, Math.min(6, Math.floor(plot.width / 100)));
  const longRange = stepMs * count > 86_400_000 * 1.5;
  const hover = (clientX: number, box: DOMRect) => {
    const i = Math.floor((clientX - box.left - left) / slot);
    setHovered(i >= 0 && i < count ? i : null);
  };
  const totals = series.map((one) => `${one.name} ${number(one.values.reduce<number>((sum, value) => sum + (value ?? 0), 0))}${unit}`).join(", ");
  return (
    <div ref={ref} className="relative">
      <svg
        width={width}
        height={height}
        role="img"
        aria-labelledby={id}
        className="block"
        onPointerMove={(event) => hover(event.clientX, event.currentTarget.getBoundingClientRect())}
        onPointerLeave={() => setHovered(null)}
      >
        <title id={id}>{isEmpty ? `${label}: ${empty}` : kind === "bars" ? `${label}: ${totals}` : label}</title>
        {ticks.map((tick) => (
          <g key={tick}>
            <line x1={left} x2={width - 6} y1={y(tick)} y2={y(tick)} stroke="var(--line)" strokeDasharray={tick === 0 ? undefined : "2 4"} />
            <text x={left - 8} y={y(tick) + 4} textAnchor="end" fontSize="11" fill="var(--muted)">
              {short(tick)}
            </text>
          </g>
        ))}
        {Array.from({ length: marks }, (_, mark) => {
          const i = Math.round((mark * (count - 1)) / (marks - 1));
          const at = times[i];
          if (at === undefined) return null;
          const anchor = mark === 0 ? "start" : mark === marks - 1 ? "end" : "middle";
          return (
            <text key={mark} x={mark === marks - 1 ? width - 6 : x(i)} y={height - 5} textAnchor={anchor} fontSize="11" fill="var(--muted)">
              {longRange ? day(at) : clock(at, false)}
            </text>
          );
        })}
        {hovered !== null && <rect x={x(hovered)} y={top} width={Math.max(1, slot)} height={plot.height} fill="var(--hover)" />}
        {kind === "bars"
          ? times.map((at, i) => {
              let base = 0;
              return (
                <g key={at}>
                  {series.map((one) => {
                    const value = one.values[i] ?? 0;
                    if (value === 0) return null;
                    const from = base;
                    base += value;
                    const gap = slot > 4 ? 1 : 0;
                    return <rect key={one.name} x={x(i) + gap / 2} y={y(base)} width={Math.max(0.75, slot - gap)} height={Math.max(1, y(from) - y(base))} fill={`var(${one.color})`} rx={slot > 6 ? 1.5 : 0} />;
                  })}
                </g>
              );
            })
          : series.map((one) => (
              <g key={one.name}>
                <path d={line(one.values, (i) => x(i) + slot / 2, y)} fill="none" stroke={`var(${one.color})`} strokeWidth="1.75" strokeLinejoin="round" />
                {one.values.map((value, i) => (value !== null && one.values[i - 1] == null && one.values[i + 1] == null ? <circle key={times[i]} cx={x(i) + slot / 2} cy={y(value)} r="2.5" fill={`var(${one.color})`} /> : null))}
              </g>
            ))}
        {isEmpty && (
          <text x={left + plot.width / 2} y={top + plot.height / 2} textAnchor="middle" fontSize="13" fill="var(--muted)">
            {empty}
          </text>
        )}
      </svg>
      {hovered !== null && times[hovered] !== undefined && !isEmpty && (
        <div className={cx("pointer-events-none absolute top-1 z-10 rounded-md border border-line bg-surface px-2.5 py-1.5 text-xs shadow-md")} style={x(hovered) > width / 2 ? { right: width - x(hovered) + 8 } : { left: x(hovered) + slot + 8 }}>
          <p className="num mb-0.5 text-muted">
            {longRange && `${day(times[hovered])} `}
            {clock(times[hovered], false)}
          </p>
          {series.map((one) => (
            <p key={one.name} className="num flex items-center gap-1.5 whitespace-nowrap">
              <span className="size-2 rounded-sm" style={{ background: `var(${one.color})` }} />
              {one.name}
              <span className="ml-auto pl-3 font-medium">{one.values[hovered] === null ? "–" : `${number(one.values[hovered] ?? 0)}${unit}`}</span>
            </p>
          ))}
        </div>
      )}
    </div>
  );
}

/** Lines with gaps where nothing was measured. */
function line(values: (number | null)[], x: (i: number) => number, y: (value: number) => number): string {
  let path = "";
  values.forEach((value, i) => {
    if (value === null) return;
    const before = i > 0 && values[i - 1] !== null;
    if (!before) path += `M${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
    if (before) path += `L${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
  });
  return path;
}

export function Legend({ series }: { series: { name: string; color: string }[] }) {
  return (
    <div className="flex flex-wrap gap-x-3 gap-y-1 text-xs text-muted">
      {series.map((one) => (
        <span key={one.name} className="inline-flex items-center gap-1.5">
          <span className="size-2 rounded-sm" style={{ background: `var(${one.color})` }} aria-hidden="true" />
          {one.name}
        </span>
      ))}
    </div>
  );
}
