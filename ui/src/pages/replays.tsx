import { useQueryClient } from "@tanstack/react-query";
import { Link } from "wouter";
import { mayDo } from "../lib/session";
import { type Replay, type Session, api, messageOf, unwrap } from "../api/client";
import { useReplay, useReplays } from "../api/queries";
import { type Column, List, Pages } from "../components/list";
import { Progress, ReplayWizard } from "../components/replay-wizard";
import { Badge, Button, Failure, Facts, Icon, Id, PageHeader, Rows, Time, icons, statusTone, useToast } from "../components/ui";
import { number } from "../lib/format";
import { useHref, useQuery } from "../lib/url";
import { t } from "../strings";

const filterOf = (row: Replay) =>
  [row.tenant, row.endpoint, row.event_types.join(" "), row.status.join(" "), row.missing ? t.replay.missing : "", row.ids.length ? t.replay.ids(row.ids.length) : ""].filter(Boolean).join(" · ") || t.replay.everything;

export function ReplaysPage({ session, open }: { session: Session; open?: string }) {
  const [params, change] = useQuery();
  const href = useHref();
  const query = useReplays(params.get("tenant") ?? undefined);
  const columns: Column<Replay>[] = [
    {
      head: t.replay.reason,
      cell: (row) => (
        <>
          <span className="block truncate font-medium">{row.reason}</span>
          <span className="block truncate text-xs text-muted">{filterOf(row)}</span>
        </>
      ),
    },
    { head: t.status.label ?? "", cell: (row) => <Badge tone={statusTone[row.state] ?? "muted"}>{t.replay.state[row.state] ?? row.state}</Badge> },
    { head: t.replay.progress, from: "sm", right: true, cell: (row) => <span className="num text-muted">{t.replay.of(number(row.matched - row.remaining), number(row.matched))}</span> },
    { head: t.replay.by, from: "lg", cell: (row) => <span className="text-muted">{row.requested_by}</span> },
    { head: t.replay.created, from: "sm", right: true, cell: (row) => <Time at={row.created_at} className="text-muted" /> },
  ];
  return (
    <>
      <PageHeader title={t.replay.title}>
        {mayDo(session, "replay") && (
          <Button kind="primary" onClick={() => change({ create: "1" })}>
            <Icon d={icons.plus} />
            {t.replay.create}
          </Button>
        )}
      </PageHeader>
      {open && <OneReplay id={open} session={session} />}
      <div className="border-t border-line bg-surface">
        <Pages query={query} empty={{ title: t.replay.empty, hint: t.replay.emptyHint }}>
          {(rows) => <List label={t.replay.title} rows={rows} columns={columns} id={(row) => row.id} name={(row) => row.reason} href={(row) => href(`/replays/${row.id}`)} open={open} />}
        </Pages>
      </div>
      {params.get("create") && <ReplayWizard preset={{ tenant: params.get("tenant") ?? undefined }} onClose={() => change({ create: null })} />}
    </>
  );
}

function OneReplay({ id, session }: { id: string; session: Session }) {
  const query = useReplay(id);
  const client = useQueryClient();
  const toast = useToast();
  if (query.isPending) return <Rows count={2} />;
  if (query.isError) return <Failure error={query.error} />;
  const replay = query.data;
  const stop = async () => {
    try {
      await unwrap(api.POST("/v1/replays/{id}/cancel", { params: { path: { id } } }));
    } catch (error) {
      toast(messageOf(error), "bad");
    }
    for (const key of ["replay", "live"]) void client.invalidateQueries({ queryKey: [key] });
  };
  return (
    <section aria-label={replay.reason} className="card mx-4 mb-4 grid grid-cols-1 gap-4 p-4 md:mx-6 lg:grid-cols-2">
      <Facts
        items={[
          [t.delivery.replay, <Id key="i" id={replay.id} />],
          [t.replay.reason, replay.reason],
          [t.replay.filter, filterOf(replay)],
          [t.replay.by, replay.requested_by],
          [t.replay.rate, <span key="r" className="num">{number(replay.rate_per_minute)}</span>],
        ]}
      />
      <div>
        <Progress replay={replay} />
        <div className="mt-3 flex items-center justify-end gap-3">
          <Link className="link mr-auto text-sm" href="/deliveries?range=1h">
            {t.nav.deliveries}
          </Link>
          {replay.state === "running" && mayDo(session, "replay") && (
            <Button small kind="danger" onClick={stop}>
              {t.replay.stop}
            </Button>
          )}
        </div>
      </div>
    </section>
  );
}
