// What pages ask for. Every list is a page at a time, and no call is unbounded.
import { type UseInfiniteQueryResult, useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { since } from "../lib/format";
import { member } from "../lib/raw-json";
import { type ApiError, type Attempt, type Delivery, type Endpoint, type EventView, type Need, type Replay, type Schemas, answered, api, unwrap } from "./client";

export interface Page<T> {
  data: T[];
  next_cursor?: string | null;
}
export type PageQuery<T> = UseInfiniteQueryResult<{ pages: Page<T>[]; pageParams: unknown[] }, Error>;

function usePages<T>(key: unknown[], load: (cursor: string | undefined) => Promise<Page<T>>, enabled = true): PageQuery<T> {
  return useInfiniteQuery({
    queryKey: key,
    queryFn: ({ pageParam }) => load(pageParam as string | undefined),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (last) => last.next_cursor ?? undefined,
    enabled,
  }) as PageQuery<T>;
}

export interface DeliveryFilters {
  tenant?: string;
  endpoint?: string;
  event?: string;
  type?: string;
  status?: string;
  hold_reason?: string;
  range: string;
}

// Keys that begin with "live" are asked for again when the stream tells of changes.
export const useDeliveries = (filters: DeliveryFilters, dead = false) =>
  usePages<Delivery>(["live", dead ? "dead-letters" : "deliveries", filters], (cursor) => {
    const { range, ...rest } = filters;
    const query = { ...rest, from: since(range), cursor, limit: 50 } as never;
    return unwrap(dead ? api.GET("/v1/dead-letters", { params: { query } }) : api.GET("/v1/deliveries", { params: { query } }));
  });

export const useDelivery = (id: string) => useQuery({ queryKey: ["live", "delivery", id], queryFn: () => unwrap(api.GET("/v1/deliveries/{id}", { params: { path: { id } } })) });

export const useAttempts = (id: string) =>
  useQuery({
    queryKey: ["live", "attempts", id],
    queryFn: async (): Promise<Attempt[]> => (await unwrap(api.GET("/v1/deliveries/{id}/attempts", { params: { path: { id }, query: { limit: 50 } } }))).data,
  });

export const useEvent = (id: string, tenant: string | undefined) =>
  useQuery({
    queryKey: ["event", id, tenant],
    queryFn: async (): Promise<{ event: EventView; data: string }> => {
      const text = (await unwrap(api.GET("/v1/events/{id}", { params: { path: { id }, query: { tenant } }, parseAs: "text" }))) as unknown as string;
      return { event: JSON.parse(text) as EventView, data: member(text, "data") ?? "" };
    },
    enabled: tenant !== undefined,
  });

export const useEvents = (filters: { tenant?: string; type?: string; range: string }) =>
  usePages<EventView>(["live", "events", filters], (cursor) => unwrap(api.GET("/v1/events", { params: { query: { tenant: filters.tenant, type: filters.type, from: since(filters.range), cursor, limit: 50 } } })));

export const useEndpoints = (tenant?: string) => usePages<Endpoint>(["endpoints", tenant], (cursor) => unwrap(api.GET("/v1/endpoints", { params: { query: { tenant, cursor, limit: 100 } } })));

export const useEndpoint = (id: string) =>
  useQuery({
    queryKey: ["endpoint", id],
    queryFn: async () => {
      const { data, response } = await answered<Endpoint>(api.GET("/v1/endpoints/{id}", { params: { path: { id } } }));
      return { endpoint: data, tag: response.headers.get("etag") ?? "" };
    },
    refetchInterval: 15_000,
  });

export const useStats = (tenant: string | undefined, range: string) =>
  useQuery({
    queryKey: ["live", "stats", tenant, range],
    queryFn: () => unwrap(api.GET("/v1/stats", { params: { query: { tenant, from: since(range) } } })),
    refetchInterval: 15_000,
    placeholderData: (before) => before,
  });

export const useAttention = (tenant: string | undefined) =>
  useQuery({
    queryKey: ["live", "attention", tenant],
    queryFn: async (): Promise<Need[]> => (await unwrap(api.GET("/v1/attention", { params: { query: { tenant } } }))).data,
    refetchInterval: 15_000,
    placeholderData: (before) => before,
  });

export const useEndpointStats = (id: string, range: string) =>
  useQuery({
    queryKey: ["live", "endpoint-stats", id, range],
    queryFn: () => unwrap(api.GET("/v1/endpoints/{id}/stats", { params: { path: { id }, query: { from: since(range) } } })),
    placeholderData: (before) => before,
  });

export const useReplays = (tenant?: string) => usePages<Replay>(["live", "replays", tenant], (cursor) => unwrap(api.GET("/v1/replays", { params: { query: { tenant, cursor, limit: 50 } } })));

export const useReplay = (id: string | undefined) =>
  useQuery({
    queryKey: ["replay", id],
    queryFn: (): Promise<Replay> => unwrap(api.GET("/v1/replays/{id}", { params: { path: { id: id ?? "" } } })),
    enabled: id !== undefined,
    refetchInterval: (query) => (query.state.data?.state === "running" ? 1_000 : false),
  });

export const useTenants = () => usePages<Schemas["Tenant"]>(["tenants"], (cursor) => unwrap(api.GET("/v1/tenants", { params: { query: { cursor, limit: 100 } } })));

export const useTenant = (id: string) => useQuery({ queryKey: ["tenant", id], queryFn: () => unwrap(api.GET("/v1/tenants/{id}", { params: { path: { id } } })) });

export const useEventTypes = () => usePages<Schemas["EventType"]>(["event-types"], (cursor) => unwrap(api.GET("/v1/event-types", { params: { query: { cursor, limit: 100 } } })));

export const useKeys = () => usePages<Schemas["Key"]>(["keys"], (cursor) => unwrap(api.GET("/v1/keys", { params: { query: { cursor, limit: 100 } } })));

export const useAudit = (tenant?: string) => usePages<Schemas["AuditEntry"]>(["audit", tenant], (cursor) => unwrap(api.GET("/v1/audit", { params: { query: { tenant, cursor, limit: 50 } } })));

export const useCluster = () => useQuery({ queryKey: ["cluster"], queryFn: () => unwrap(api.GET("/v1/cluster", {})), refetchInterval: 5_000 });

export const useSession = () =>
  useQuery<Schemas["Session"], ApiError>({ queryKey: ["session"], queryFn: () => unwrap(api.GET("/v1/sessions", {})), retry: false, staleTime: Number.POSITIVE_INFINITY });
