// The dashboard as a person uses it: a real browser, the real server, real traffic.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import { logIn, startBrowser } from "./browser.mjs";
import { ADMIN_KEY, startPosthaste, startReceiver, until } from "./world.mjs";

const binary = process.env.UI_TEST_BINARY ?? "../target/debug/posthaste";
let receiver;
let server;
let chromium;

before(async () => {
  receiver = await startReceiver();
  server = await startPosthaste(binary);
  chromium = await startBrowser();
});

after(async () => {
  await chromium?.stop();
  receiver?.stop();
  await server?.stop();
});

/** A page that is logged in. Whatever the browser complains about fails the test. */
async function open(t, options = {}) {
  const context = await chromium.browser.newContext({ viewport: { width: 1280, height: 860 }, reducedMotion: "reduce", ...options });
  t.after(() => context.close());
  const page = await context.newPage();
  page.setDefaultTimeout(15_000);
  page.complaints = [];
  page.on("pageerror", (error) => page.complaints.push(String(error)));
  page.on("console", (message) => {
    // Before the login the browser notes that there is no session.
    if (message.type() === "error" && !/401 \(Unauthorized\)/.test(message.text())) page.complaints.push(message.text());
  });
  await logIn(page, server.pages, ADMIN_KEY);
  return page;
}

const publish = (event) => server.call("POST", "/v1/events", event);
const deliveriesOf = async (endpoint) => (await server.call("GET", `/v1/deliveries?endpoint=${endpoint}`)).data;

test("an operator logs in with a key, stays logged in, and logs out", async (t) => {
  const context = await chromium.browser.newContext();
  t.after(() => context.close());
  const page = await context.newPage();
  await page.goto(`${server.pages}/deliveries?range=1h`);
  await page.getByLabel("API key").fill("phk_this-is-not-a-key-of-the-server");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("alert").getByText("does not know this key").waitFor();
  await page.getByLabel("API key").fill(ADMIN_KEY);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("heading", { name: "Deliveries" }).waitFor();
  assert.match(page.url(), /\/deliveries\?range=1h$/, "the page that was asked for");
  await page.reload();
  await page.getByRole("heading", { name: "Deliveries" }).waitFor();
  const [cookie] = await context.cookies();
  assert.deepEqual([cookie.httpOnly, cookie.sameSite], [true, "Strict"]);
  assert.equal(await page.evaluate(() => `${document.cookie}${JSON.stringify(localStorage)}`), "{}", "no script can read it");
  await page.getByRole("button", { name: "Log out" }).click();
  await page.getByLabel("API key").waitFor();
  await page.reload();
  await page.getByLabel("API key").waitFor();
});

test("a session ends with its key, and goes on where it was after the next login", async (t) => {
  const key = await server.call("POST", "/v1/keys", { name: "a person", scopes: ["read"] });
  const context = await chromium.browser.newContext();
  t.after(() => context.close());
  const page = await context.newPage();
  await logIn(page, server.pages, key.key);
  await page.goto(`${server.pages}/endpoints`);
  await page.getByRole("heading", { name: "Endpoints" }).waitFor();
  assert.equal(await page.getByRole("link", { name: "Keys" }).count(), 0, "pages that the key may not see are not offered");
  assert.equal(await page.getByRole("button", { name: "New endpoint" }).count(), 0);
  await server.call("DELETE", `/v1/keys/${key.id}`);
  await page.getByRole("link", { name: "Events" }).click();
  await page.getByText("The session has ended").waitFor();
  await page.getByLabel("API key").fill(ADMIN_KEY);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("heading", { name: "Events" }).waitFor();
});

test("quiet hours are dragged, hold an event with its reason, and release it live", async (t) => {
  const page = await open(t);
  await page.goto(`${server.pages}/endpoints`);
  await page.getByRole("button", { name: "New endpoint" }).first().click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("URL").fill(receiver.url("ok/quiet"));
  await dialog.getByLabel("Tenant").fill("quiet-tenant");
  await dialog.getByRole("button", { name: "Create" }).click();
  await dialog.getByText(/^whsec_/).waitFor();
  await dialog.getByRole("button", { name: "Close" }).last().click();
  await page.waitForURL(/\/endpoints\/ep_/);
  const id = page.url().split("/").at(-1);

  await page.locator("#schedule select").selectOption("own");
  // A zone in which it is about noon now, so that the time of the test does not matter.
  const ahead = 12 - new Date().getUTCHours();
  await page.getByLabel("Time zone").fill(ahead === 0 ? "UTC" : `Etc/GMT${ahead > 0 ? "-" : "+"}${Math.abs(ahead)}`);
  const week = page.locator("[data-week]");
  await week.scrollIntoViewIfNeeded();
  const box = await week.boundingBox();
  await page.mouse.move(box.x + box.width * 0.25, box.y + 6);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.5, box.y + box.height / 2, { steps: 4 });
  await page.mouse.move(box.x + box.width * 0.875, box.y + box.height - 6, { steps: 4 });
  await page.mouse.up();
  await page.getByRole("button", { name: "Save changes" }).click();
  await page.getByText("Saved", { exact: true }).first().waitFor();
  const saved = await server.call("GET", `/v1/endpoints/${id}`);
  assert.deepEqual(saved.delivery_schedule.quiet_hours.map((one) => [one.start, one.end]), [["06:00", "21:00"]]);

  await page.goto(`${server.pages}/deliveries?endpoint=${id}`);
  await page.getByText("No delivery matches").waitFor();
  await publish({ type: "order.created", tenant: "quiet-tenant", data: { order: 1 } });
  const row = page.getByRole("row", { name: /order\.created/ });
  await row.getByText("Quiet hours").last().waitFor();
  await row.getByRole("link").first().click();
  await page.getByText("The endpoint has quiet hours now.").waitFor();
  await page.getByRole("link", { name: "See the quiet hours" }).click();
  await page.locator("#schedule select").selectOption("always");
  await page.getByRole("button", { name: "Save changes" }).click();
  await page.getByText("Saved", { exact: true }).first().waitFor();
  await page.goto(`${server.pages}/deliveries/${(await deliveriesOf(id))[0].id}`);
  await page.getByRole("article").getByText("Delivered", { exact: true }).first().waitFor();
  await page.getByRole("article").getByText("Attempt 1").waitFor();
  assert.deepEqual(page.complaints, []);
});

test("a delivery appears in the list and is shown as delivered without a reload", async (t) => {
  const page = await open(t);
  const endpoint = await server.call("POST", "/v1/endpoints", { tenant: "live-tenant", url: receiver.url("ok/live") });
  await page.goto(`${server.pages}/deliveries?endpoint=${endpoint.id}`);
  await page.getByText("No delivery matches").waitFor();
  await publish({ type: "live.event", tenant: "live-tenant", data: 1 });
  await page.getByRole("row", { name: /live\.event/ }).getByText("Delivered").last().waitFor();
});

test("a dead letter is found and retried by keyboard alone, and many are replayed with progress", async (t) => {
  const page = await open(t);
  receiver.answers.breaks = () => [404, '{"error":"no such hook"}'];
  const endpoint = await server.call("POST", "/v1/endpoints", { tenant: "dead-tenant", url: receiver.url("breaks/hooks") });
  for (let n = 0; n < 4; n += 1) await publish({ type: "bill.sent", tenant: "dead-tenant", data: { n } });
  await until("four are dead", async () => (await deliveriesOf(endpoint.id)).filter((one) => one.status === "dead").length === 4);

  await page.goto(`${server.pages}/?tenant=dead-tenant`);
  const needs = page.getByRole("region", { name: "Needs attention" });
  await needs.getByText(/Dead letters 4×/).waitFor();
  await needs.getByText("Permanent failure · 404").waitFor();

  receiver.answers.breaks = () => [200, "ok"];
  await page.locator("body").press("g");
  await page.keyboard.press("l");
  await page.getByRole("heading", { name: "Dead letters" }).waitFor();
  await page.getByRole("row", { name: /bill\.sent/ }).first().waitFor();
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.waitForURL(/\/dead-letters\/dlv_/);
  await page.getByText("Dead: Permanent failure").waitFor();
  await page.keyboard.press("Escape");
  await page.waitForURL(/\/dead-letters\?/);
  await page.keyboard.press("j");
  await page.keyboard.press("r");
  await page.getByText("Retry: 1 done").waitFor();
  await until("one was delivered", async () => (await deliveriesOf(endpoint.id)).some((one) => one.status === "delivered"));

  await page.getByRole("row", { name: /bill\.sent/ }).nth(2).waitFor();
  await until("the retried one is gone from the list", async () => (await page.getByRole("row", { name: /bill\.sent/ }).count()) === 3);
  await page.keyboard.press("j");
  await page.keyboard.press("x");
  await page.keyboard.press("j");
  await page.keyboard.press("x");
  await page.getByText("2 selected").waitFor();
  await page.getByRole("button", { name: "Replay 2" }).click();
  await page.getByLabel("Reason").fill("the receiver was fixed");
  await page.getByRole("button", { name: "Count" }).click();
  await page.getByText("2 deliveries match").waitFor();
  await page.getByRole("dialog").getByRole("button", { name: "Replay 2" }).click();
  await page.getByRole("progressbar").waitFor();
  await page.getByRole("dialog").getByText("Done", { exact: true }).waitFor();
  assert.equal(await page.getByRole("progressbar").getAttribute("aria-valuenow"), "100");
  await until("they were delivered", async () => (await deliveriesOf(endpoint.id)).filter((one) => one.status === "delivered").length === 3);
  assert.deepEqual(page.complaints, []);
});

test("an endpoint is paused, tested, and edited; a second editor is not overwritten", async (t) => {
  const page = await open(t);
  const endpoint = await server.call("POST", "/v1/endpoints", { tenant: "edit-tenant", url: receiver.url("ok/edit"), description: "before" });
  await page.goto(`${server.pages}/endpoints/${endpoint.id}`);
  await page.getByRole("button", { name: "Send a test" }).click();
  await page.getByRole("dialog").getByText("Success · 200").waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Pause" }).click();
  await page.getByRole("button", { name: "Resume" }).click();
  await page.getByRole("button", { name: "Pause" }).waitFor();
  await page.getByLabel("Description").fill("mine");
  await server.call("PATCH", `/v1/endpoints/${endpoint.id}`, { max_in_flight: 3 });
  await page.getByRole("button", { name: "Save changes" }).click();
  await page.getByText("was changed by someone else").waitFor();
  assert.equal((await server.call("GET", `/v1/endpoints/${endpoint.id}`)).description, "before");
  await page.getByRole("button", { name: "Discard" }).click();
  await until("the present settings are shown", async () => (await page.getByLabel("Requests in flight").inputValue()) === "3");
  await page.getByLabel("Description").fill("mine");
  await page.getByRole("button", { name: "Save changes" }).click();
  await page.getByText("Saved", { exact: true }).first().waitFor();
  const after = await server.call("GET", `/v1/endpoints/${endpoint.id}`);
  assert.deepEqual([after.description, after.max_in_flight], ["mine", 3]);
});

/** One of everything, with text that would run as script if any page took it for markup. */
async function hostile() {
  const attack = (place) => `"><img src=x onerror="window.attacked='${place}'"><script>window.attacked='${place}'</script>javascript:window.attacked='${place}'`;
  const tenant = "hostile-tenant";
  receiver.answers.hostile = () => [404, `<script>window.attacked='answer'</script>${attack("answer")}`, { "content-type": "text/html", "x-attack": "<b>" }];
  await server.call("PUT", `/v1/tenants/${tenant}`, { metadata: { note: attack("metadata") } });
  const endpoint = await server.call("POST", "/v1/endpoints", {
    tenant,
    url: `${receiver.url("hostile/")}%3Cscript%3E?q=%22onload=alert(1)`,
    description: attack("description"),
    headers: { "x-note": "<img src=x onerror=alert(1)>" },
    metadata: { note: attack("metadata") },
    filter: { "data.text": { $ne: attack("filter") } },
  });
  await server.call("POST", "/v1/event-types", { name: "hostile.type", description: attack("type"), versions: [{ version: "1", schema: { description: attack("schema") }, example: { text: attack("example") } }] });
  const event = await publish({ type: "hostile.type", version: "1", tenant, data: { text: attack("data"), [attack("name")]: 1 }, labels: ["<img src=x onerror=alert(1)>"], ordering_key: "<script>alert(1)</script>", idempotency_key: "<svg/onload=alert(1)>" });
  await server.call("POST", "/v1/keys", { name: attack("key").slice(0, 128), scopes: ["read"], tenant });
  await until("it is dead", async () => (await deliveriesOf(endpoint.id))[0]?.status === "dead");
  const replay = await server.call("POST", "/v1/replays", { endpoint: endpoint.id, status: ["dead"], reason: attack("reason").slice(0, 200) });
  await until("the replay has died, too", async () => (await deliveriesOf(endpoint.id)).filter((one) => one.status === "dead").length === 2);
  return { endpoint, event, replay, delivery: (await deliveriesOf(endpoint.id))[0], tenant };
}

function addresses(made) {
  return [
    "/",
    `/?tenant=${made.tenant}`,
    "/deliveries",
    `/deliveries/${made.delivery.id}`,
    "/endpoints",
    "/endpoints?create=1",
    `/endpoints/${made.endpoint.id}`,
    "/dead-letters",
    `/dead-letters/${made.delivery.id}`,
    "/events",
    `/events/${made.event.id}?tenant=${made.tenant}`,
    "/event-types/hostile.type",
    "/tenants",
    `/tenants/${made.tenant}`,
    `/replays/${made.replay.id}`,
    "/replays?create=1",
    "/cluster",
    "/keys",
    "/keys?create=1",
    "/audit",
  ];
}

async function settle(page, address) {
  await page.goto(server.pages + address);
  await page.getByRole("heading", { level: 1 }).first().waitFor();
  await page.waitForFunction(() => !document.querySelector(".skeleton"));
}

let hostileWorld;
const world = () => (hostileWorld ??= hostile());

test("nothing that a payload, a name or a receiver says is run in any page", async (t) => {
  const made = await world();
  const page = await open(t);
  for (const address of addresses(made)) {
    await settle(page, address);
    for (const details of await page.locator("details > summary").all()) await details.click();
    assert.equal(await page.evaluate(() => window.attacked), undefined, address);
    assert.equal(await page.locator("main img[src=x], main script").count(), 0, address);
  }
  await page.goto(`${server.pages}/deliveries/${made.delivery.id}`);
  await page.getByText("window.attacked='answer'").first().waitFor();
  assert.deepEqual(page.complaints, [], "and nothing has tried to break the content security policy");
});

test("every page fits a phone", async (t) => {
  const made = await world();
  const page = await open(t, { viewport: { width: 360, height: 740 } });
  for (const address of addresses(made)) {
    await settle(page, address);
    const wider = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    assert.ok(wider <= 0, `${address} is ${wider} px wider than the screen`);
  }
  await page.getByRole("button", { name: "Open menu" }).click();
  await page.getByRole("link", { name: "Endpoints" }).click();
  await page.getByRole("heading", { name: "Endpoints" }).waitFor();
});

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

for (const colorScheme of ["light", "dark"])
  test(`axe finds nothing serious on any page in the ${colorScheme} theme`, async (t) => {
    const made = await world();
    const page = await open(t, { colorScheme });
    const found = [];
    for (const address of addresses(made)) {
      await settle(page, address);
      await page.evaluate(axe);
      const result = await page.evaluate(() => window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"] }));
      for (const violation of result.violations.filter((one) => ["serious", "critical"].includes(one.impact))) found.push(`${address}: ${violation.id}: ${violation.nodes.map((node) => node.html.slice(0, 160)).slice(0, 3).join(" | ")}`);
    }
    assert.deepEqual(found, []);
  });

test("a payload is shown with its own digits", async (t) => {
  const page = await open(t);
  const data = '{"amount":12345678901234567890,"price":1.10,"text":"\\u00e4 {,}","list":[],"nested":{"a":[1,2]}}';
  const headers = { authorization: `Bearer ${ADMIN_KEY}`, "content-type": "application/json" };
  const answer = await fetch(`${server.url}/v1/events`, { method: "POST", headers, body: `{"type":"exact.digits","tenant":"digits","data":${data}}` });
  const { id } = await answer.json();
  await page.goto(`${server.pages}/events/${id}?tenant=digits`);
  const payload = page.getByLabel("Payload").locator("pre");
  await payload.waitFor();
  assert.equal(await payload.innerText(), ['{', '  "amount": 12345678901234567890,', '  "price": 1.10,', '  "text": "\\u00e4 {,}",', '  "list": [],', '  "nested": {', '    "a": [', '      1,', '      2', '    ]', '  }', '}'].join("\n"));
  await page.getByRole("button", { name: "Raw" }).click();
  assert.equal(await payload.innerText(), data);
});

test("the palette opens any id, and ? shows the shortcuts", async (t) => {
  const made = await world();
  const page = await open(t);
  await page.keyboard.press("Control+k");
  await page.keyboard.type(made.endpoint.id);
  await page.keyboard.press("Enter");
  await page.waitForURL(new RegExp(made.endpoint.id));
  await page.keyboard.press("Control+k");
  await page.keyboard.type("audit");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Audit log" }).waitFor();
  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keyboard shortcuts" }).waitFor();
});
