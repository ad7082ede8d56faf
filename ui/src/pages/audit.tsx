import { useAudit } from "../api/queries";
import { Pages } from "../components/list";
import { Icon, Json, PageHeader, Time, cx, icons } from "../components/ui";
import { useQuery } from "../lib/url";
import { t } from "../strings";

export function AuditPage() {
  const [params] = useQuery();
  const query = useAudit(params.get("tenant") ?? undefined);
  return (
    <>
      <PageHeader title={t.audit.title} />
      <div className="border-t border-line bg-surface">
        <Pages query={query} empty={{ title: t.audit.empty, hint: t.audit.emptyHint }}>
          {(rows) => (
            <ul className="divide-y divide-line">
              {rows.map((row, i) => {
                const hasChange = row.before != null || row.after != null;
                const line = (
                  <span className="flex flex-wrap items-baseline gap-x-3 gap-y-0.5 text-sm">
                    <Icon d={icons.right} className={cx("size-3.5 self-center text-muted group-open:rotate-90", !hasChange && "invisible")} />
                    <span className="mono font-medium">{row.action}</span>
                    <span className="mono min-w-0 truncate text-muted">{row.subject}</span>
                    {row.tenant && <span className="text-muted">{row.tenant}</span>}
                    <span className="ml-auto flex gap-3 text-xs text-muted">
                      <span className="mono">{row.actor}</span>
                      {row.address && <span className="mono hidden sm:inline">{row.address}</span>}
                      <Time at={row.at} />
                    </span>
                  </span>
                );
                return (
                  <li key={`${row.at} ${i}`} className="px-4 py-2 md:px-6">
                    {hasChange ? (
                      <details className="group">
                        <summary className="list-none rounded [&::-webkit-details-marker]:hidden">{line}</summary>
                        <div className="mt-2 grid gap-3 pb-2 lg:grid-cols-2">
                          {row.before != null && (
                            <div className="min-w-0">
                              <p className="mb-1 text-xs text-muted">{t.audit.before}</p>
                              <Json label={t.audit.before} text={JSON.stringify(row.before)} />
                            </div>
                          )}
                          {row.after != null && (
                            <div className="min-w-0">
                              <p className="mb-1 text-xs text-muted">{t.audit.after}</p>
                              <Json label={t.audit.after} text={JSON.stringify(row.after)} />
                            </div>
                          )}
                        </div>
                      </details>
                    ) : (
                      line
                    )}
                  </li>
                );
              })}
            </ul>
          )}
        </Pages>
      </div>
    </>
  );
}
