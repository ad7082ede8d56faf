// The portal as a tenant's people use it: a real browser, the real server, links made as an application makes them.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import { startBrowser } from "./browser.mjs";
import { startPosthaste, startReceiver, until } from "./world.mjs";

const binary = process.env.UI_TEST_BINARY ?? "../target/debug/posthaste";
let receiver;
let server;
let chromium;
/** The operator's application, whose page embeds the portal. */
let application;

before(async () => {
  receiver = await startReceiver();
  application = createServer((request, response) => {
    const link = new URL(request.url, "http://127.0.0.1").searchParams.get("link");
    response.writeHead(200, { "content-type": "text/html" });
    response.end(`<!doctype html><title>Application</title><script src="${server.url}/portal/embed.js"></script><posthaste-portal url="${(link ?? "").replaceAll('"', "")}"></posthaste-portal>`);
  });
  await new Promise((resolve) => application.listen(0, "127.0.0.1", resolve));
  application.url = `http://127.0.0.1:${application.address().port}`;
  server = await startPosthaste(binary, ["--portal-origins", application.url]);
  chromium = await startBrowser();
  await server.call("POST", "/v1/event-types", { name: "invoice.paid", description: "An invoice was paid.", versions: [{ version: "1", example: { id: "inv_1", amount: 4999 } }] });
  await server.call("POST", "/v1/event-types", { name: "order.created", description: "An order was placed.", versions: [] });
  await server.call("POST", "/v1/endpoints", { tenant: "globex", url: receiver.url("ok/globex"), description: "Not for acme's eyes" });
});

after(async () => {
  await chromium?.stop();
  receiver?.stop();
  application?.close();
  await server?.stop();
});

const link = (tenant, more = {}) => server.call("POST", "/v1/portal-links", { tenant, permissions: ["view", "manage", "secrets", "replay"], ...more });
const endpoint = (tenant, path, more = {}) => server.call("POST", "/v1/endpoints", { tenant, url: receiver.url(path), ...more });

/** A browser of its own. Whatever it complains about is noted. */
async function open(t, options = {}) {
  const context = await chromium.browser.newContext({ viewport: { width: 1180, height: 860 }, reducedMotion: "reduce", ...options });
  t.after(() => context.close());
  const page = await context.newPage();
  page.setDefaultTimeout(15_000);
  page.complaints = [];
  page.on("pageerror", (error) => page.complaints.push(String(error)));
  page.on("console", (message) => {
    if (message.type() === "error" && !/401 \(Unauthorized\)/.test(message.text())) page.complaints.push(message.text());
  });
  return page;
}

test("a link opens the portal once; again where its session lives, and nowhere else", async (t) => {
  await endpoint("once", "ok/once");
  const { url } = await link("once", { appearance: { name: "Example Ltd", primary_color: "#8a1538" } });
  const page = await open(t);
  await page.goto(url);
  await page.getByText("Example Ltd").waitFor();
  assert.equal(new URL(page.url()).hash, "", "the code is not left in the address");
  const cookies = await page.context().cookies();
  assert.deepEqual(cookies.map((cookie) => [cookie.name, cookie.httpOnly]), [["posthaste-portal", true]]);
  await page.reload();
  await page.getByText("Example Ltd").waitFor();
  // The same link in the same browser goes on.
  await page.goto("about:blank");
  await page.goto(url);
  await page.getByText("Example Ltd").waitFor();
  assert.deepEqual(page.complaints, []);
  // In another browser it is refused, and the page says what to do.
  const other = await open(t);
  await other.goto(url);
  await other.getByRole("heading", { name: "This link was used before or is too old" }).waitFor();
  assert.deepEqual(await other.context().cookies(), []);
  await other.goto(`${server.pages}/portal`);
  await other.getByRole("heading", { name: "You are not logged in" }).waitFor();
  // Ended by the operator, the page says so.
  const sessions = (await server.call("GET", "/v1/portal-sessions?tenant=once")).data;
  await server.call("DELETE", `/v1/portal-sessions/${sessions[0].id}`);
  await page.getByRole("link", { name: "Deliveries" }).click();
  await page.getByRole("heading", { name: "Your session has ended" }).waitFor();
});

test("the portal sees its tenant only, and does what its permissions allow", async (t) => {
  await endpoint("acme", "ok/acme", { description: "Mine" });
  await server.call("POST", "/v1/events", { type: "invoice.paid", tenant: "globex", data: { secret: "of globex" } });
  const { url } = await link("acme", { permissions: ["view"] });
  const page = await open(t);
  await page.goto(url);
  await page.getByRole("link", { name: "Endpoints", exact: true }).click();
  await page.getByText("Mine").waitFor();
  assert.equal(await page.getByText("Not for acme's eyes").count(), 0);
  assert.equal(await page.getByRole("button", { name: "New endpoint" }).count(), 0);
  for (const name of ["Tenants", "Keys", "Cluster", "Audit log"]) assert.equal(await page.getByRole("link", { name }).count(), 0, name);
  const foreign = (await server.call("GET", "/v1/endpoints?tenant=globex")).data[0];
  await page.goto(`${server.pages}/portal/endpoints/${foreign.id}`);
  await page.getByRole("alert").waitFor();
  const [delivery] = (await server.call("GET", `/v1/deliveries?endpoint=${foreign.id}`)).data;
  await page.goto(`${server.pages}/portal/deliveries/${delivery.id}`);
  await page.getByRole("alert").first().waitFor();
  assert.equal(await page.getByText("of globex").count(), 0);
});

test("an endpoint in three steps, with the code that verifies what it gets", async (t) => {
  await endpoint("steps", "ok/first");
  const { url } = await link("steps");
  const page = await open(t);
  await page.goto(url);
  await page.getByRole("link", { name: "Endpoints", exact: true }).click();
  await page.getByRole("button", { name: "New endpoint" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("URL").fill(receiver.url("ok/steps"));
  await dialog.getByRole("button", { name: "Next" }).click();
  await dialog.getByRole("checkbox", { name: /invoice\.paid/ }).check();
  await dialog.getByText("Example", { exact: true }).click();
  await dialog.getByText("inv_1").waitFor();
  await dialog.getByRole("button", { name: "Create endpoint" }).click();
  const secret = await dialog.locator("code").filter({ hasText: /^whsec_/ }).textContent();
  const languages = await dialog.getByLabel("Language").locator("option").allTextContents();
  assert.equal(languages.length, 8, String(languages));
  for (const name of languages) {
    await dialog.getByLabel("Language").selectOption({ label: name });
    assert.ok((await dialog.getByLabel(`Verification code: ${name}`).textContent()).includes(secret), name);
  }
  await dialog.getByRole("button", { name: "Done" }).click();
  await page.getByRole("heading", { level: 1 }).filter({ hasText: "ok/steps" }).waitFor();
  const made = (await server.call("GET", "/v1/endpoints?tenant=steps")).data.find((one) => one.url.endsWith("ok/steps"));
  assert.deepEqual(made.event_types, ["invoice.paid"]);
  await server.call("POST", "/v1/events", { type: "invoice.paid", tenant: "steps", data: { id: "inv_9" } });
  await page.getByRole("link", { name: "Deliveries", exact: true }).first().click();
  await page.getByRole("row", { name: /invoice\.paid/ }).first().waitFor();
  assert.deepEqual(page.complaints, []);
});

test("a dead letter is found, looked at, and sent again", async (t) => {
  const made = await endpoint("dead", "fails/dead", { retry: { strategy: "schedule", delays_seconds: [1], jitter_percent: 0, max_attempts: 1 } });
  receiver.answers.fails = () => [422, "no"];
  await server.call("POST", "/v1/events", { type: "invoice.paid", tenant: "dead", data: { id: "inv_2" } });
  await until("it is dead", async () => (await server.call("GET", `/v1/dead-letters?endpoint=${made.id}`)).data.length === 1);
  const { url } = await link("dead");
  const page = await open(t);
  await page.goto(url);
  await page.getByText(/Dead letters 1×/).waitFor();
  receiver.answers.fails = () => [200, "ok"];
  await page.getByRole("link", { name: "Dead letters", exact: true }).first().click();
  await page.getByRole("row", { name: /invoice\.paid/ }).getByRole("link").first().click();
  await page.getByRole("button", { name: /^Retry/ }).first().click();
  await until("it is delivered", async () => (await server.call("GET", `/v1/deliveries?endpoint=${made.id}&status=delivered`)).data.length === 1);
  assert.deepEqual(page.complaints, []);
});

test("the operator's page embeds the portal, and nobody else's does", async (t) => {
  await endpoint("embed", "ok/embed");
  const { url } = await link("embed");
  const page = await open(t);
  await page.goto(`${application.url}/?link=${encodeURIComponent(url)}`);
  const frame = page.frameLocator("posthaste-portal iframe");
  await frame.getByRole("link", { name: "Endpoints", exact: true }).click();
  await frame.getByText("ok/embed").first().waitFor();
  await page.waitForFunction(() => /\d{3,}px/.test(document.querySelector("posthaste-portal iframe").style.height));
  const stranger = createServer((_, response) => {
    response.writeHead(200, { "content-type": "text/html" });
    response.end(`<!doctype html><title>Stranger</title><iframe src="${server.url}/portal"></iframe>`);
  });
  await new Promise((resolve) => stranger.listen(0, "127.0.0.1", resolve));
  t.after(() => stranger.close());
  const other = await open(t);
  await other.goto(`http://127.0.0.1:${stranger.address().port}/`);
  await until("the browser refuses", async () => other.complaints.some((one) => one.includes("frame-ancestors")));
});

test("what a tenant, a payload or a receiver says is never run", async (t) => {
  const attack = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>';
  receiver.answers.evil = () => [422, attack];
  const made = await endpoint("evil", `evil/${encodeURIComponent("<svg onload=window.hit=1>")}`, { description: attack, metadata: { note: attack }, retry: { strategy: "schedule", delays_seconds: [1], jitter_percent: 0, max_attempts: 1 } });
  await server.call("POST", "/v1/events", { type: "invoice.paid", tenant: "evil", data: { note: attack, link: "javascript:window.hit=1" }, labels: [] });
  const [dead] = await until("it is dead", async () => {
    const { data } = await server.call("GET", `/v1/dead-letters?endpoint=${made.id}`);
    return data.length === 1 && data;
  });
  const { url } = await link("evil", { appearance: { name: attack.slice(0, 80) } });
  const page = await open(t);
  await page.goto(url.replace("#", `?icon=${encodeURIComponent("javascript:window.hit=1")}&primaryColor=${encodeURIComponent("#fff}body{display:none")}&fontFamily=${encodeURIComponent("x;}*{color:red")}#`));
  for (const path of ["", "/endpoints", `/endpoints/${made.id}`, "/deliveries", `/deliveries/${dead.id}`, "/dead-letters", `/events/${dead.event}`, "/event-types"]) {
    if (path) await page.goto(`${server.pages}/portal${path}`);
    await page.getByRole("heading", { level: 1 }).first().waitFor();
    await page.waitForFunction(() => !document.querySelector(".skeleton"));
    assert.equal(await page.evaluate(() => window.hit), undefined, path);
    assert.equal(await page.locator("#root script, #root img[onerror], #root svg[onload]").count(), 0, path);
  }
  assert.deepEqual(page.complaints, []);
});

test("axe finds nothing serious in either theme, also with an operator's colour", async (t) => {
  const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
  const made = await endpoint("axe", "ok/axe");
  await server.call("POST", "/v1/events", { type: "invoice.paid", tenant: "axe", data: { id: "inv_3" } });
  for (const [theme, color] of [["light", "#f2c94c"], ["dark", "#7a0c2e"]]) {
    const { url } = await link("axe", { appearance: { name: "Example Ltd", theme, primary_color: color } });
    // The policy keeps scripts out, also this one.
    const page = await open(t, { bypassCSP: true });
    await page.goto(url);
    for (const path of ["", "/endpoints", `/endpoints/${made.id}`, "/endpoints?create=1", "/deliveries", "/dead-letters", "/event-types/invoice.paid"]) {
      if (path) await page.goto(`${server.pages}/portal${path}`);
      await page.getByRole("heading", { level: 1 }).first().waitFor();
      await page.waitForFunction(() => !document.querySelector(".skeleton"));
      await page.evaluate(axe);
      const { violations } = await page.evaluate(() => globalThis.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa"] }));
      const serious = violations.filter((one) => ["serious", "critical"].includes(one.impact)).map((one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 160)).join(" | ")}`);
      assert.deepEqual(serious, [], `${theme} ${path}`);
      const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      assert.ok(overflow <= 0, `${path} is wider than the screen`);
    }
  }
});
