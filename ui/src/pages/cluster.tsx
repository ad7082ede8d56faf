import { useCluster } from "../api/queries";
import { Failure, PageHeader, Rows } from "../components/ui";
import { number } from "../lib/format";
import { t } from "../strings";

export function ClusterPage() {
  const query = useCluster();
  return (
    <>
      <PageHeader title={t.cluster.title} />
      {query.isPending ? (
        <Rows count={3} />
      ) : query.isError ? (
        <Failure error={query.error} retry={() => query.refetch()} />
      ) : (
        <div className="space-y-4 px-4 pb-8 md:px-6">
          <div className="grid max-w-md grid-cols-2 gap-3">
            {[
              [t.cluster.nodes, query.data.nodes.length],
              [t.cluster.partitions, query.data.partitions],
            ].map(([name, value]) => (
              <div key={name} className="card px-4 py-3">
                <p className="text-xs text-muted">{name}</p>
                <p className="num text-xl font-semibold">{number(Number(value))}</p>
              </div>
            ))}
          </div>
          {query.data.unowned_partitions > 0 && <p className="text-sm text-bad">{t.cluster.unowned(query.data.unowned_partitions)}</p>}
          <ul className="card max-w-4xl divide-y divide-line" aria-label={t.cluster.nodes}>
            {query.data.nodes.map((node) => (
              <li key={node.id} className="space-y-1.5 px-4 py-3">
                <div className="flex flex-wrap items-center gap-x-2.5 gap-y-1">
                  <span className={`size-2 rounded-full ${node.is_leaving ? "bg-warn-fill" : "bg-ok-fill"}`} aria-hidden="true" />
                  <span className="font-medium">{node.host || node.id.slice(0, 8)}</span>
                  <span className="text-xs text-muted">{node.roles.join(", ")}</span>
                  {node.address && <code className="text-xs text-muted">{node.address}</code>}
                  {node.is_leaving && <span className="text-xs text-warn">{t.cluster.leaving}</span>}
                </div>
                <dl className="grid grid-cols-2 gap-x-6 gap-y-1 text-sm sm:grid-cols-4 lg:grid-cols-7">
                  {(
                    [
                      [t.cluster.owned, number(node.partitions.length)],
                      [t.cluster.lanes, number(node.lanes)],
                      [t.cluster.inFlight, number(node.in_flight)],
                      [t.cluster.lag, `${number(node.lag_ms)} ms`],
                      [t.cluster.lease, `${number(node.lease_left_ms)} ms`],
                      [t.cluster.skew, `${number(node.clock_skew_ms)} ms`],
                      [t.cluster.version, node.version],
                    ] as const
                  ).map(([name, value]) => (
                    <div key={name}>
                      <dt className="text-xs text-muted">{name}</dt>
                      <dd className="num">{value}</dd>
                    </div>
                  ))}
                </dl>
              </li>
            ))}
          </ul>
          <p className="text-xs text-muted">{t.cluster.hint}</p>
        </div>
      )}
    </>
  );
}
