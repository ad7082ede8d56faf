// Every page, light, dark and at phone width, from a seeded server: node e2e/screenshots.mjs BINARY FOLDER [PAGE…]
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { logIn, startBrowser } from "./browser.mjs";
import { ADMIN_KEY, seed, startPosthaste, startReceiver } from "./world.mjs";

const [binary, folder, ...only] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });
const receiver = await startReceiver();
const server = await startPosthaste(binary);
const { browser, stop } = await startBrowser();
try {
  const made = await seed(server, receiver);
  const url = server.pages;
  const first = async (path) => (await server.call("GET", path)).data[0];
  const dead = await first(`/v1/dead-letters?endpoint=${made.erp.id}`);
  const held = await first(`/v1/deliveries?endpoint=${made.night.id}&hold_reason=quiet_hours`);
  const event = await first("/v1/events?tenant=acme&type=invoice.paid");
  const replay = await first("/v1/replays");
  const pages = {
    overview: "/",
    deliveries: "/deliveries",
    "delivery-dead": `/deliveries/${dead.id}`,
    "delivery-held": `/deliveries/${held.id}`,
    endpoints: "/endpoints",
    endpoint: `/endpoints/${made.night.id}`,
    "endpoint-new": "/endpoints?create=1",
    "dead-letters": "/dead-letters",
    events: "/events",
    event: `/events/${event.id}?tenant=acme`,
    "event-types": "/event-types/invoice.paid",
    tenants: "/tenants",
    tenant: "/tenants/acme",
    replays: `/replays/${replay.id}`,
    "replay-new": "/replays?create=1",
    cluster: "/cluster",
    keys: "/keys",
    "key-new": "/keys?create=1",
    audit: "/audit",
  };
  for (const [kind, width, height, colorScheme] of [
    ["light", 1440, 900, "light"],
    ["dark", 1440, 900, "dark"],
    ["phone", 360, 760, "light"],
  ]) {
    const context = await browser.newContext({ viewport: { width, height }, colorScheme, reducedMotion: "reduce" });
    const page = await context.newPage();
    page.on("pageerror", (error) => console.error(`${kind}: ${error}`));
    page.on("console", (message) => message.type() === "error" && console.error(`${kind} ${page.url()}: ${message.text()}`));
    await page.goto(url);
    await page.getByLabel("API key").waitFor();
    if (only.length === 0 || only.includes("login")) await page.screenshot({ path: join(folder, `login-${kind}.png`) });
    await logIn(page, url, ADMIN_KEY);
    for (const [name, path] of Object.entries(pages)) {
      if (only.length > 0 && !only.includes(name)) continue;
      await page.goto(url + path);
      await page.getByRole("heading", { level: 1 }).first().waitFor();
      await page.waitForFunction(() => !document.querySelector(".skeleton"), undefined, { timeout: 10_000 }).catch(() => console.error(`${name}: still loading`));
      const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      if (overflow > 0) console.error(`${kind} ${name}: ${overflow} px wider than the screen`);
      await page.screenshot({ path: join(folder, `${name}-${kind}.png`) });
    }
    if (only.length === 0 || only.includes("palette")) {
      await page.goto(`${url}/deliveries`);
      await page.getByRole("heading", { level: 1 }).waitFor();
      await page.keyboard.press("Control+k");
      await page.getByPlaceholder("An id, a tenant, a page or a command").fill("del");
      await page.screenshot({ path: join(folder, `palette-${kind}.png`) });
    }
    await context.close();
  }
} finally {
  await stop();
  receiver.stop();
  await server.stop();
}
