// A table of rows from the API: pages by cursor, selection, and the keyboard.
import type { UseInfiniteQueryResult } from "@tanstack/react-query";
import { type ReactNode, useEffect, useRef } from "react";
import { Link, useLocation } from "wouter";
import { t } from "../strings";
import { Button, Empty, Failure, Rows, cx } from "./ui";

export interface Column<T> {
  head: string;
  cell: (row: T) => ReactNode;
  /** `sm`, `md`, `lg`, `xl`: shown from that width on. */
  from?: "sm" | "md" | "lg" | "xl";
  /** Left out while a panel is open next to the list. */
  wide?: boolean;
  right?: boolean;
}

const shownFrom = { sm: "hidden sm:table-cell", md: "hidden md:table-cell", lg: "hidden lg:table-cell", xl: "hidden xl:table-cell" };

export interface Selection {
  ids: Set<string>;
  set: (ids: Set<string>) => void;
}

interface Props<T> {
  rows: T[];
  columns: Column<T>[];
  id: (row: T) => string;
  name: (row: T) => string;
  href?: (row: T) => string;
  selection?: Selection;
  open?: string;
  narrow?: boolean;
  label: string;
}

export function List<T>({ rows, columns, id, name, href, selection, open, narrow, label }: Props<T>) {
  const [, navigate] = useLocation();
  const shown = columns.filter((column) => !(narrow && column.wide));
  const all = rows.length > 0 && rows.every((row) => selection?.ids.has(id(row)));
  const toggle = (key: string) => {
    if (!selection) return;
    const ids = new Set(selection.ids);
    if (!ids.delete(key)) ids.add(key);
    selection.set(ids);
  };
  return (
    <div className="overflow-x-auto">
      <table className="w-full border-collapse text-sm" aria-label={label}>
        <thead>
          <tr className="border-b border-line text-left text-xs text-muted">
            {selection && (
              <th scope="col" className="w-9 py-2 pr-1 pl-4 md:pl-6">
                <input type="checkbox" className="size-4 align-middle" checked={all} aria-label={t.common.selectAll} onChange={() => selection.set(all ? new Set() : new Set(rows.map(id)))} />
              </th>
            )}
            {shown.map((column, i) => (
              <th key={column.head} scope="col" className={cx("px-2 py-2 font-medium whitespace-nowrap first:pl-4 last:pr-4 md:first:pl-6 md:last:pr-6", !narrow && column.from && shownFrom[column.from], column.right && "text-right", i === 0 && "w-full sm:w-auto")}>
                {column.head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => {
            const key = id(row);
            const link = href?.(row);
            return (
              <tr
                key={key}
                data-row={key}
                aria-selected={selection?.ids.has(key) || undefined}
                onClick={(event) => {
                  if (!link || event.defaultPrevented || (event.target as HTMLElement).closest("a, button, input, label, summary") || window.getSelection()?.toString()) return;
                  if (event.metaKey || event.ctrlKey) window.open(link, "_blank", "noopener");
                  else navigate(link);
                }}
                className={cx(
                  "border-b border-line last:border-b-0 hover:bg-hover focus-within:bg-hover",
                  link && "cursor-pointer",
                  open === key && "bg-accent-soft!",
                  selection?.ids.has(key) && "bg-accent-soft",
                )}
              >
                {selection && (
                  <td className="py-2 pr-1 pl-4 md:pl-6">
                    <input type="checkbox" className="size-4 align-middle" checked={selection.ids.has(key)} aria-label={t.common.selectRow(name(row))} onChange={() => toggle(key)} />
                  </td>
                )}
                {shown.map((column, i) => (
                  <td key={column.head} className={cx("px-2 py-2 align-middle first:pl-4 last:pr-4 md:first:pl-6 md:last:pr-6", !narrow && column.from && shownFrom[column.from], column.right && "text-right", i === 0 && "max-w-0 sm:max-w-96", narrow && i === 0 && "max-w-64!")}>
                    {i === 0 && link ? (
                      <Link href={link} data-row-link={key} className="block min-w-0 rounded">
                        {column.cell(row)}
                      </Link>
                    ) : (
                      column.cell(row)
                    )}
                  </td>
                ))}
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

/** The states of a list: loading, failed, empty, rows, and more rows. */
export function Pages<T>({ query, empty, children }: { query: UseInfiniteQueryResult<{ pages: { data: T[]; next_cursor?: string | null }[] }>; empty: { title: string; hint?: string; action?: ReactNode }; children: (rows: T[]) => ReactNode }) {
  const rows = query.data?.pages.flatMap((page) => page.data) ?? [];
  // Filters on computed fields look through a part of the rows at a time: an empty page may have a next one.
  const searching = query.isSuccess && rows.length === 0 && query.hasNextPage;
  const pages = query.data?.pages.length ?? 0;
  const asked = useRef(0);
  useEffect(() => {
    if (searching && !query.isFetching && pages < 5 && asked.current !== pages) {
      asked.current = pages;
      void query.fetchNextPage();
    }
  });
  if (query.isPending) return <Rows />;
  if (query.isError && rows.length === 0) return <Failure error={query.error} retry={() => query.refetch()} />;
  if (rows.length === 0 && !query.hasNextPage)
    return (
      <Empty title={empty.title} hint={empty.hint}>
        {empty.action}
      </Empty>
    );
  return (
    <>
      {children(rows)}
      <div className="flex items-center justify-center gap-3 px-4 py-3 text-xs text-muted">
        {query.hasNextPage ? (
          <>
            {rows.length === 0 && <span>{t.common.partial}</span>}
            <Button small busy={query.isFetchingNextPage} onClick={() => query.fetchNextPage()}>
              {t.common.more}
            </Button>
          </>
        ) : (
          <span className="num">{t.common.shown(rows.length)}</span>
        )}
      </div>
    </>
  );
}
