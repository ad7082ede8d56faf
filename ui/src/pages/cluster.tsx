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
          <ul className="card max-w-2xl divide-y divide-line" aria-label={t.cluster.nodes}>
            {query.data.nodes.map((node) => (
              <li key={node.id} className="flex items-center gap-2.5 px-4 py-2.5">
                <span className="size-2 rounded-full bg-ok-fill" aria-hidden="true" />
                <code className="truncate">{node.id}</code>
              </li>
            ))}
          </ul>
          <p className="text-xs text-muted">{t.cluster.hint}</p>
        </div>
      )}
    </>
  );
}
