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
  await portal();

  async function portal() {
    const pages = {
      "portal-overview": "",
      "portal-endpoints": "/endpoints",
      "portal-endpoint": "own",
      "portal-deliveries": "/deliveries",
      "portal-dead-letters": "/dead-letters",
      "portal-event-types": "/event-types/invoice.paid",
    };
    for (const [kind, width, height] of [["light", 1180, 860], ["dark", 1180, 860], ["phone", 360, 760]]) {
      const link = await server.call("POST", "/v1/portal-links", { tenant: kind === "light" ? "globex" : "acme", permissions: ["view", "manage", "secrets", "replay"], appearance: { name: "Example Ltd", primary_color: "#0f766e", theme: kind === "dark" ? "dark" : "light" } });
      const context = await browser.newContext({ viewport: { width, height }, reducedMotion: "reduce" });
      const page = await context.newPage();
      page.on("pageerror", (error) => console.error(`portal ${kind}: ${error}`));
      const shoot = async (name) => {
        await page.waitForFunction(() => !document.querySelector(".skeleton"), undefined, { timeout: 10_000 }).catch(() => console.error(`${name}: still loading`));
        const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
        if (overflow > 0) console.error(`${kind} ${name}: ${overflow} px wider than the screen`);
        await page.screenshot({ path: join(folder, `${name}-${kind}.png`) });
      };
      await page.goto(link.url);
      for (const [name, path] of Object.entries(pages)) {
        if (only.length > 0 && !only.includes(name)) continue;
        if (path) await page.goto(`${url}/portal${path === "own" ? `/endpoints/${kind === "light" ? made.erp.id : made.crm.id}` : path}`);
        await page.getByRole("heading", { level: 1 }).first().waitFor();
        await shoot(name);
      }
      if (only.length === 0 || only.includes("portal-new-endpoint")) {
        await page.goto(`${url}/portal/endpoints?create=1`);
        const dialog = page.getByRole("dialog");
        await dialog.getByLabel("URL").fill(receiver.url("ok/new"));
        await shoot("portal-new-endpoint-1");
        await dialog.getByRole("button", { name: "Next" }).click();
        await dialog.getByRole("checkbox", { name: /invoice\.paid/ }).check();
        await dialog.getByText("Example", { exact: true }).first().click();
        await shoot("portal-new-endpoint-2");
        await dialog.getByRole("button", { name: "Create endpoint" }).click();
        await dialog.getByLabel("Language").waitFor();
        await shoot("portal-new-endpoint-3");
      }
      if (only.length === 0 || only.includes("portal-refused")) {
        const other = await browser.newContext({ viewport: { width, height } });
        const refused = await other.newPage();
        await refused.goto(link.url);
        await refused.getByRole("heading", { level: 1 }).waitFor();
        await refused.screenshot({ path: join(folder, `portal-refused-${kind}.png`) });
        await other.close();
      }
      await context.close();
    }
  }
} finally {
  await stop();
  receiver.stop();
  await server.stop();
}
