import type { Page } from "../pages";
import { t } from "../strings";
import { Dialog } from "./ui";

export function ShortcutHelp({ pages, onClose }: { pages: Page[]; onClose: () => void }) {
  const groups: [string, [string[], string][]][] = [
    [
      t.shortcuts.general,
      [
        [["⌘", "K"], t.shortcuts.palette],
        [["/"], t.shortcuts.search],
        [["Esc"], t.shortcuts.close],
        [["?"], t.shortcuts.help],
      ],
    ],
    [
      t.shortcuts.lists,
      [
        [["j"], t.shortcuts.down],
        [["k"], t.shortcuts.up],
        [["Enter"], t.shortcuts.open],
        [["x"], t.shortcuts.select],
        [["r"], t.shortcuts.retry],
      ],
    ],
    [t.shortcuts.pages, pages.map((page) => [["g", page.key], page.label])],
  ];
  return (
    <Dialog title={t.shortcuts.title} onClose={onClose} wide>
      <div className="grid gap-6 sm:grid-cols-2">
        {groups.map(([name, keys], i) => (
          <section key={name} className={i === 2 ? "sm:col-start-2 sm:row-span-2 sm:row-start-1" : undefined}>
            <h3 className="mb-2 text-xs font-medium text-muted">{name}</h3>
            <dl className="space-y-1.5 text-sm">
              {keys.map(([combination, about]) => (
                <div key={about} className="flex items-center justify-between gap-4">
                  <dt>{about}</dt>
                  <dd className="flex gap-1">
                    {combination.map((key) => (
                      <kbd key={key}>{key}</kbd>
                    ))}
                  </dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
      </div>
    </Dialog>
  );
}
