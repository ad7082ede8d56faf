// One box that takes any id, tenant, page or command.
import { Command } from "cmdk";
import { useEffect, useRef, useState } from "react";
import { useLocation } from "wouter";
import { useEndpoints, useTenants } from "../api/queries";
import { address } from "../lib/format";
import { useHref } from "../lib/url";
import type { Page } from "../pages";
import { t } from "../strings";
import { Icon, icons } from "./ui";

interface Target {
  label: string;
  /** The text can be nothing else; a guess stands behind what matches by name. */
  exact: boolean;
  path: string;
}

/** What an id leads to, by its prefix. */
export function targets(text: string): Target[] {
  const id = text.trim();
  if (/^dlv_/.test(id)) return [{ exact: true, label: t.palette.delivery(id), path: `/deliveries/${id}` }];
  if (/^ep_/.test(id)) return [{ exact: true, label: t.palette.endpoint(id), path: `/endpoints/${id}` }];
  if (/^rpl_/.test(id)) return [{ exact: true, label: t.palette.replay(id), path: `/replays/${id}` }];
  if (/^evt_/.test(id))
    return [
      { exact: true, label: t.palette.event(id), path: `/events/${id}` },
      { exact: true, label: t.palette.eventsOf(id), path: `/deliveries?event=${id}&range=all` },
    ];
  if (/^[A-Za-z0-9_-][A-Za-z0-9_.:-]{0,127}$/.test(id) && id.length > 2)
    return [
      { exact: false, label: t.palette.event(id), path: `/events/${encodeURIComponent(id)}` },
      { exact: false, label: t.palette.tenant(id), path: `/tenants/${encodeURIComponent(id)}` },
    ];
  return [];
}

export function Palette({ pages, onClose, onHelp }: { pages: Page[]; onClose: () => void; onHelp: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [text, setText] = useState("");
  const [, navigate] = useLocation();
  const href = useHref();
  const tenants = useTenants();
  const endpoints = useEndpoints(undefined);
  useEffect(() => {
    if (!dialog.current?.open) dialog.current?.showModal();
    dialog.current?.querySelector("input")?.focus();
  }, []);
  const go = (path: string) => {
    dialog.current?.close();
    navigate(path);
  };
  const item = "flex cursor-pointer items-center gap-2.5 rounded-md px-2.5 py-2 text-sm data-[selected=true]:bg-accent-soft data-[selected=true]:text-accent";
  const group = "[&_[cmdk-group-heading]]:px-2.5 [&_[cmdk-group-heading]]:pt-2 [&_[cmdk-group-heading]]:pb-1 [&_[cmdk-group-heading]]:text-xs [&_[cmdk-group-heading]]:text-muted";
  const open = (exact: boolean) => {
    const found = text.trim().length > 2 ? targets(text).filter((target) => target.exact === exact) : [];
    if (found.length === 0) return null;
    return (
      <Command.Group heading={t.palette.open} className={group}>
        {found.map((target) => (
          <Command.Item key={target.path} value={exact ? `${text} ${target.label}` : target.label} onSelect={() => go(target.path)} className={item}>
            <Icon d={icons.right} />
            <span className="truncate">{target.label}</span>
          </Command.Item>
        ))}
      </Command.Group>
    );
  };
  return (
    <dialog ref={dialog} aria-label={t.palette.title} onClose={onClose} onClick={(event) => event.target === dialog.current && dialog.current.close()} className="mt-[12vh] w-[calc(100vw-24px)] max-w-xl rounded-xl border border-line bg-surface p-0 shadow-2xl">
      <Command label={t.palette.title} loop>
        <div className="flex items-center gap-2.5 border-b border-line px-4">
          <Icon d={icons.search} className="size-4 text-muted" />
          <Command.Input value={text} onValueChange={setText} placeholder={t.palette.placeholder} className="w-full bg-transparent py-3.5 outline-none" />
        </div>
        <Command.List className="max-h-[52vh] overflow-y-auto p-2">
          <Command.Empty className="p-6 text-center text-sm text-muted">{t.palette.empty}</Command.Empty>
          {open(true)}
          <Command.Group heading={t.palette.go} className={group}>
            {pages.map((page) => (
              <Command.Item key={page.path} value={page.label} onSelect={() => go(href(page.path))} className={item}>
                <Icon d={page.icon} />
                {page.label}
                <span className="ml-auto flex gap-1">
                  <kbd>g</kbd>
                  <kbd>{page.key}</kbd>
                </span>
              </Command.Item>
            ))}
          </Command.Group>
          <Command.Group heading={t.palette.commands} className={group}>
            <Command.Item value={`${t.endpoints.create}`} onSelect={() => go(href("/endpoints", { create: "1" }))} className={item}>
              <Icon d={icons.plus} />
              {t.endpoints.create}
            </Command.Item>
            <Command.Item value={`${t.replay.create}`} onSelect={() => go(href("/replays", { create: "1" }))} className={item}>
              <Icon d={icons.retry} />
              {t.replay.create}
            </Command.Item>
            <Command.Item
              value={t.nav.shortcuts}
              onSelect={() => {
                dialog.current?.close();
                onHelp();
              }}
              className={item}
            >
              <Icon d={icons.keyboard} />
              {t.nav.shortcuts}
            </Command.Item>
          </Command.Group>
          {text && (
            <Command.Group heading={t.palette.endpoints} className={group}>
              {(endpoints.data?.pages[0]?.data ?? []).map((endpoint) => (
                <Command.Item key={endpoint.id} value={`${endpoint.url} ${endpoint.description} ${endpoint.uid ?? ""} ${endpoint.id}`} onSelect={() => go(`/endpoints/${endpoint.id}`)} className={item}>
                  <span className="truncate">
                    {address(endpoint.url).host}
                    <span className="text-muted">{address(endpoint.url).path}</span>
                  </span>
                  <span className="ml-auto text-xs text-muted">{endpoint.tenant}</span>
                </Command.Item>
              ))}
            </Command.Group>
          )}
          {text && (
            <Command.Group heading={t.palette.tenants} className={group}>
              {(tenants.data?.pages[0]?.data ?? []).map((tenant) => (
                <Command.Item key={tenant.id} value={`${t.nav.tenant} ${tenant.id}`} onSelect={() => go(`/tenants/${encodeURIComponent(tenant.id)}`)} className={item}>
                  {tenant.id}
                </Command.Item>
              ))}
            </Command.Group>
          )}
          {open(false)}
        </Command.List>
      </Command>
    </dialog>
  );
}
