// The operator's name, colour, font and theme, from the session or from the address. Nothing from either is markup or style text:
// colours are numbers by the time they reach a property, and fonts and themes come from lists.
import type { Schemas } from "../api/client";

export type Appearance = Schemas["Appearance"];

const fonts: Record<string, string> = {
  sans: "",
  serif: 'Georgia, "Times New Roman", serif',
  rounded: 'ui-rounded, "SF Pro Rounded", "Nunito", system-ui, sans-serif',
  monospace: "ui-monospace, Menlo, Consolas, monospace",
};

type Rgb = [number, number, number];

function parse(hex: string | null | undefined): Rgb | undefined {
  const match = /^#?([0-9a-f]{6})$/i.exec(hex ?? "");
  if (!match?.[1]) return undefined;
  const value = Number.parseInt(match[1], 16);
  return [(value >> 16) & 255, (value >> 8) & 255, value & 255];
}

const luminance = (rgb: Rgb) => {
  const [r, g, b] = rgb.map((one) => (one / 255 <= 0.03928 ? one / 255 / 12.92 : ((one / 255 + 0.055) / 1.055) ** 2.4)) as Rgb;
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
export const contrast = (a: Rgb, b: Rgb) => {
  const [light, dark] = [luminance(a), luminance(b)].sort((x, y) => y - x) as [number, number];
  return (light + 0.05) / (dark + 0.05);
};
const mix = (a: Rgb, b: Rgb, share: number): Rgb => a.map((one, i) => Math.round(one + ((b[i] ?? 0) - one) * share)) as Rgb;
const css = (rgb: Rgb) => `rgb(${rgb.join(" ")})`;
const WHITE: Rgb = [255, 255, 255];
const BLACK: Rgb = [0, 0, 0];

/** The colour, moved towards `goal` until it can be read on every surface. */
function readable(color: Rgb, surfaces: Rgb[], goal: Rgb): Rgb {
  for (let share = 0; share < 1; share += 0.05) {
    const moved = mix(color, goal, share);
    if (surfaces.every((surface) => contrast(moved, surface) >= 4.7)) return moved;
  }
  return goal;
}

export function applyAppearance(appearance: Appearance | null | undefined, query: URLSearchParams) {
  const root = document.documentElement;
  // Names of ours, then those that embeds of other products use.
  const theme = query.get("theme") ?? ({ true: "dark", false: "light" } as Record<string, string>)[query.get("darkMode") ?? ""] ?? appearance?.theme ?? "auto";
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  else delete root.dataset.theme;
  const color = parse(query.get("primary_color") ?? query.get("primaryColor")) ?? parse(appearance?.primary_color);
  if (color) {
    const light = readable(color, [WHITE, [246, 247, 249], mix(color, WHITE, 0.9)], BLACK);
    const dark = readable(color, [[20, 24, 33], [28, 33, 45], mix(color, [20, 24, 33], 0.8)], WHITE);
    root.style.setProperty("--accent", `light-dark(${css(light)}, ${css(dark)})`);
    root.style.setProperty("--accent-fill", css(color));
    root.style.setProperty("--accent-soft", `light-dark(${css(mix(color, WHITE, 0.9))}, ${css(mix(color, [20, 24, 33], 0.8))})`);
    root.style.setProperty("--on-accent", contrast(color, WHITE) >= contrast(color, [10, 12, 18]) ? "#ffffff" : "#0a0c12");
  }
  const font = fonts[query.get("font") ?? query.get("fontFamily")?.toLowerCase() ?? appearance?.font ?? ""];
  if (font) root.style.setProperty("--font-portal", font);
}
