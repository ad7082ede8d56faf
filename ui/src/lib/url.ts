// What a page shows is in its address: filters, panels, tenant.
import { useCallback, useMemo } from "react";
import { useLocation, useSearch } from "wouter";

export type Patch = Record<string, string | null | undefined>;

export function withPatch(search: string, patch: Patch): string {
  const params = new URLSearchParams(search);
  for (const [name, value] of Object.entries(patch)) {
    if (value) params.set(name, value);
    else params.delete(name);
  }
  const text = params.toString();
  return text ? `?${text}` : "";
}

/** The query of this page, and a way to change it. */
export function useQuery(): [URLSearchParams, (patch: Patch) => void] {
  const search = useSearch();
  const [path, navigate] = useLocation();
  const params = useMemo(() => new URLSearchParams(search), [search]);
  const change = useCallback((patch: Patch) => navigate(path + withPatch(search, patch), { replace: true }), [path, search, navigate]);
  return [params, change];
}

/** An address that keeps the tenant that was chosen. */
export function useHref(): (path: string, patch?: Patch) => string {
  const tenant = new URLSearchParams(useSearch()).get("tenant");
  return useCallback((path, patch = {}) => path + withPatch("", { tenant, ...patch }), [tenant]);
}
