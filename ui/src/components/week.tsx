// Quiet hours as a picture of the week that can be dragged over. The list below it does the same by keyboard.
import { type PointerEvent, useRef, useState } from "react";
import { t } from "../strings";
import { Button, Icon, cx, icons } from "./ui";

export interface QuietWindow {
  start: string;
  end: string;
  days?: string[] | null;
}

const days = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
const DAY = 24 * 60;
const STEP = 15;

const minutes = (time: string) => Number(time.slice(0, 2)) * 60 + Number(time.slice(3, 5));
const time = (at: number) => `${String(Math.floor(at / 60) % 24).padStart(2, "0")}:${String(at % 60).padStart(2, "0")}`;

/** The parts of a window on each day; one over midnight goes on on the next. */
function pieces(window: QuietWindow): { day: number; from: number; to: number }[] {
  const from = minutes(window.start);
  const to = minutes(window.end);
  const on = window.days?.length ? window.days.map((one) => days.indexOf(one)) : days.map((_, i) => i);
  return on.flatMap((day) =>
    from < to
      ? [{ day, from, to }]
      : [
          { day, from, to: DAY },
          { day: (day + 1) % 7, from: 0, to },
        ],
  );
}

export function Week({ windows, onChange, disabled }: { windows: QuietWindow[]; onChange: (windows: QuietWindow[]) => void; disabled?: boolean }) {
  const grid = useRef<HTMLDivElement>(null);
  const [drag, setDrag] = useState<{ day: number; at: number; toDay: number; to: number }>();
  const place = (event: PointerEvent) => {
    const box = grid.current?.getBoundingClientRect();
    if (!box) return { day: 0, at: 0 };
    const share = (value: number) => Math.min(0.9999, Math.max(0, value));
    return {
      day: Math.floor(share((event.clientY - box.top) / box.height) * 7),
      at: Math.round((share((event.clientX - box.left) / box.width) * DAY) / STEP) * STEP,
    };
  };
  const finish = () => {
    if (drag) {
      const [first, last] = [Math.min(drag.day, drag.toDay), Math.max(drag.day, drag.toDay)];
      const [from, to] = [Math.min(drag.at, drag.to), Math.max(drag.at, drag.to)];
      if (to > from && !(from === 0 && to === DAY)) {
        const on = days.slice(first, last + 1);
        onChange([...windows, { start: time(from), end: time(to), days: on.length === 7 ? null : on }]);
      }
    }
    setDrag(undefined);
  };
  const set = (index: number, patch: Partial<QuietWindow>) => onChange(windows.map((one, i) => (i === index ? { ...one, ...patch } : one)));
  const now = drag && { from: Math.min(drag.at, drag.to), to: Math.max(drag.at, drag.to), first: Math.min(drag.day, drag.toDay), last: Math.max(drag.day, drag.toDay) };
  return (
    <div>
      <div className="flex text-xs text-muted select-none">
        <div className="w-9 shrink-0" aria-hidden="true">
          {days.map((day) => (
            <div key={day} className="flex h-6 items-center">
              {t.days[day]}
            </div>
          ))}
        </div>
        <div className="min-w-0 flex-1">
          <div
            ref={grid}
            data-week
            role="img"
            aria-label={windows.length ? windows.map((one) => `${t.endpoint.windowLabel(one.start, one.end)} ${(one.days?.length ? one.days : days).map((day) => t.days[day]).join(" ")}`).join("; ") : t.common.none}
            className={cx("relative h-42 touch-none overflow-hidden rounded-md border border-line-strong bg-bg", !disabled && "cursor-crosshair")}
            onPointerDown={(event) => {
              if (disabled) return;
              event.currentTarget.setPointerCapture(event.pointerId);
              const { day, at } = place(event);
              setDrag({ day, at, toDay: day, to: at });
            }}
            onPointerMove={(event) => {
              if (!drag) return;
              const { day, at } = place(event);
              setDrag({ ...drag, toDay: day, to: at });
            }}
            onPointerUp={finish}
            onPointerCancel={() => setDrag(undefined)}
          >
            {[3, 6, 9, 12, 15, 18, 21].map((hour) => (
              <span key={hour} className="absolute inset-y-0 w-px bg-line" style={{ left: `${(hour / 24) * 100}%` }} />
            ))}
            {days.slice(1).map((day, i) => (
              <span key={day} className="absolute inset-x-0 h-px bg-line" style={{ top: `${((i + 1) / 7) * 100}%` }} />
            ))}
            {windows.flatMap((window, w) =>
              pieces(window).map((piece) => (
                <span key={`${w} ${piece.day} ${piece.from}`} className="absolute rounded-sm bg-hold-fill/80" style={{ left: `${(piece.from / DAY) * 100}%`, width: `${((piece.to - piece.from) / DAY) * 100}%`, top: `calc(${(piece.day / 7) * 100}% + 2px)`, height: "calc(100% / 7 - 4px)" }} />
              )),
            )}
            {now && <span className="absolute rounded-sm bg-accent-fill/60" style={{ left: `${(now.from / DAY) * 100}%`, width: `${((now.to - now.from) / DAY) * 100}%`, top: `${(now.first / 7) * 100}%`, height: `${((now.last - now.first + 1) / 7) * 100}%` }} />}
          </div>
          <div className="num relative h-4" aria-hidden="true">
            {[0, 6, 12, 18, 24].map((hour) => (
              <span key={hour} className={cx("absolute", hour === 24 ? "-translate-x-full" : hour > 0 && "-translate-x-1/2")} style={{ left: `${(hour / 24) * 100}%` }}>
                {`${String(hour).padStart(2, "0")}:00`}
              </span>
            ))}
            {now && now.to > now.from && <span className="absolute right-0 bottom-full mb-1 rounded bg-surface px-1.5 text-text shadow">{t.endpoint.windowLabel(time(now.from), time(now.to))}</span>}
          </div>
        </div>
      </div>
      <ul className="mt-3 space-y-2">
        {windows.map((window, i) => (
          <li key={i} className="flex flex-wrap items-center gap-2 text-sm">
            <input type="time" aria-label={t.endpoint.start} disabled={disabled} className="field w-auto! py-1!" value={window.start} onChange={(event) => set(i, { start: event.target.value })} />
            <span className="text-muted">–</span>
            <input type="time" aria-label={t.endpoint.end} disabled={disabled} className="field w-auto! py-1!" value={window.end} onChange={(event) => set(i, { end: event.target.value })} />
            <span className="flex gap-1" role="group" aria-label={t.endpoint.days}>
              {days.map((day) => {
                const on = !window.days?.length || window.days.includes(day);
                const present = window.days?.length ? window.days : days;
                const next = on ? present.filter((one) => one !== day) : days.filter((one) => present.includes(one) || one === day);
                return (
                  <button key={day} type="button" disabled={disabled} aria-pressed={on} onClick={() => next.length > 0 && set(i, { days: next.length === 7 ? null : next })} className={cx("rounded px-1.5 py-1 text-xs", on ? "bg-hold-soft font-medium text-hold" : "bg-raised text-muted")}>
                    {t.days[day]}
                  </button>
                );
              })}
            </span>
            {!disabled && (
              <Button small kind="ghost" aria-label={t.endpoint.removeWindow} onClick={() => onChange(windows.filter((_, other) => other !== i))}>
                <Icon d={icons.close} className="size-3.5" />
              </Button>
            )}
          </li>
        ))}
      </ul>
      {!disabled && (
        <Button small className="mt-2" onClick={() => onChange([...windows, { start: "22:00", end: "06:00", days: null }])}>
          <Icon d={icons.plus} className="size-3.5" />
          {t.endpoint.addWindow}
        </Button>
      )}
    </div>
  );
}
