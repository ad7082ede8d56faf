// A real server with real traffic: receivers of several kinds, tenants, endpoints, and events from a fixed list.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { createServer as createTcp } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

export const ADMIN_KEY = "phk_the-admin-key-of-the-dashboard-tests";

const freePort = () =>
  new Promise((resolve) => {
    const probe = createTcp().listen(0, "127.0.0.1", () => {
      const { port } = probe.address();
      probe.close(() => resolve(port));
    });
  });

/** Waits for a condition, and says which one if it never comes true. */
export async function until(what, condition, ms = 30_000) {
  const end = Date.now() + ms;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (Date.now() > end) throw new Error(`waited too long: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** Receivers, by the first segment of their path. What one answers can be changed while it runs. */
export async function startReceiver() {
  let calls = 0;
  const answers = {
    ok: () => [200, '{"received":true}'],
    flaky: () => (calls % 3 === 0 ? [503, '{"error":"the database is restarting"}'] : [200, "ok"]),
    down: () => [500, '{"error":"internal server error","trace":"7f3a-91cc"}'],
    rejects: () => [422, '{"error":"unknown field \\"amount\\"","code":"validation_failed"}'],
    gone: () => [410, "gone"],
  };
  const server = createServer((request, response) => {
    request.resume();
    request.on("end", () => {
      calls += 1;
      const name = request.url.split("/")[1];
      const [status, body, headers = {}] = (answers[name] ?? answers.ok)(request);
      setTimeout(() => {
        response.writeHead(status, { "content-type": "application/json", ...headers });
        response.end(body);
      }, name === "slow" ? 180 : 2 + (calls % 17));
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { port: server.address().port, answers, url: (path) => `http://127.0.0.1:${server.address().port}/${path}`, stop: () => server.close() };
}

/** The real binary on a data directory of its own, removed at the end. */
export async function startPosthaste(binary, flags = []) {
  const port = Number(process.env.UI_SERVER_PORT) || (await freePort());
  const directory = mkdtempSync(join(tmpdir(), "posthaste-ui-"));
  const child = spawn(binary, ["serve", "--listen", `127.0.0.1:${port}`, "--data-dir", join(directory, "data"), "--allow-networks", "127.0.0.0/8", "--allow-http", ...flags], {
    env: { ...process.env, POSTHASTE_ADMIN_KEY: ADMIN_KEY },
    stdio: ["ignore", "ignore", process.env.UI_SERVER_LOG ? "inherit" : "ignore"],
  });
  const url = `http://127.0.0.1:${port}`;
  await until("the server is ready", () => fetch(`${url}/readyz`).then((answer) => answer.ok, () => child.exitCode !== null && Promise.reject(new Error("the server has ended"))));
  const call = async (method, path, body, key = ADMIN_KEY) => {
    const answer = await fetch(url + path, { method, headers: { authorization: `Bearer ${key}`, ...(body ? { "content-type": "application/json" } : {}) }, body: body && JSON.stringify(body) });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${text}`);
    return text ? JSON.parse(text) : null;
  };
  return {
    url,
    // Where the pages are: here, or at a development server in front of it.
    pages: process.env.UI_URL ?? url,
    call,
    stop: async () => {
      child.kill("SIGTERM");
      await new Promise((resolve) => (child.exitCode === null ? child.once("exit", resolve) : resolve()));
      rmSync(directory, { recursive: true, force: true });
    },
  };
}

/** A server that has been in use: what the screenshots show. */
export async function seed(server, receiver) {
  const { call } = server;
  for (const [name, description] of [
    ["invoice.paid", "An invoice was paid in full."],
    ["invoice.overdue", "An invoice was not paid in time."],
    ["order.created", "A customer placed an order."],
    ["order.shipped", "An order left the warehouse."],
    ["user.updated", "A user changed their profile."],
  ])
    await call("POST", "/v1/event-types", {
      name,
      description,
      versions: [{ version: "2026-04-08", schema: { type: "object", required: ["id"], properties: { id: { type: "string" }, amount: { type: "integer", minimum: 0 } } }, example: { id: "inv_4711", amount: 4999 } }],
    });
  const quick = { strategy: "schedule", delays_seconds: [1, 1], jitter_percent: 0, max_attempts: 3 };
  const later = { strategy: "schedule", delays_seconds: [30, 120, 600, 1800, 7200], jitter_percent: 20, max_attempts: 6 };
  const endpoint = (tenant, path, description, more = {}) => call("POST", "/v1/endpoints", { tenant, url: receiver.url(path), description, ...more });
  const made = {
    billing: await endpoint("acme", "ok/billing/webhooks", "Billing service", { event_types: ["invoice.*"], uid: "billing-prod" }),
    crm: await endpoint("acme", "flaky/crm/inbound", "CRM synchronisation", { retry: later }),
    warehouse: await endpoint("globex", "slow/warehouse/hooks", "Warehouse", { event_types: ["order.*"], rate_limit: { max_per_minute: 600, burst_capacity: 40 } }),
    erp: await endpoint("globex", "rejects/erp/events", "ERP import", { event_types: ["order.*", "invoice.*"], retry: quick }),
    analytics: await endpoint("initech", "down/analytics/collect", "Analytics", { retry: later, circuit: { failure_threshold: 5, probe_interval_seconds: 60 } }),
    night: await endpoint("initech", "ok/reports/nightly", "Nightly reports", { delivery_schedule: { timezone: "America/Chicago", quiet_hours: [{ start: "00:00", end: "23:45", days: ["mon", "tue", "wed", "thu", "fri"] }, { start: "08:00", end: "20:00", days: ["sat", "sun"] }], bypass_event_types: ["invoice.overdue"] } }),
    old: await endpoint("umbrella", "gone/v1/hooks", "Old integration", { retry: quick }),
    partner: await endpoint("umbrella", "ok/partner/stream", "Partner feed"),
  };
  const types = ["invoice.paid", "order.created", "order.shipped", "user.updated", "invoice.overdue"];
  const tenants = ["acme", "globex", "initech", "umbrella"];
  for (let round = 0; round < 6; round += 1) {
    const events = Array.from({ length: 60 }, (_, i) => {
      const n = round * 60 + i;
      return { type: types[n % types.length], tenant: tenants[n % tenants.length], labels: n % 4 === 0 ? ["production", "eu-west"] : [], ...(n % 9 === 0 ? { ordering_key: `customer-${n % 5}` } : {}), data: { id: `inv_${4711 + n}`, amount: 1000 + ((n * 137) % 9000), currency: "EUR", customer: { name: "Ada Lovelace", country: "GB" }, lines: [{ sku: "PH-1", quantity: 1 + (n % 3) }] } };
    });
    await call("POST", "/v1/events/batch", events);
    await new Promise((resolve) => setTimeout(resolve, 400));
  }
  await call("POST", "/v1/events", { type: "invoice.paid", tenant: "acme", deliver_at: new Date(Date.now() + 3_600_000).toISOString(), data: { id: "inv_later" } });
  await call("POST", `/v1/endpoints/${made.partner.id}/pause`, {});
  await call("POST", "/v1/keys", { name: "billing service", tenant: "acme", scopes: ["publish"] });
  await call("POST", "/v1/keys", { name: "on-call engineers", scopes: ["read", "replay"] });
  await call("POST", "/v1/keys", { name: "terraform", scopes: ["manage", "read"], expires_at: new Date(Date.now() + 90 * 86_400_000).toISOString() });
  await until("something is dead", async () => (await call("GET", "/v1/dead-letters?limit=50")).data.length > 10);
  await call("POST", "/v1/replays", { endpoint: made.erp.id, status: ["dead"], reason: "ERP fixed the validation of amounts", rate_per_minute: 30 });
  await call("POST", "/v1/replays", { tenant: "umbrella", status: ["dead"], reason: "Moved to the new partner feed", rate_per_minute: 600 }).catch(() => {});
  for (let n = 0; n < 40; n += 1) await call("POST", "/v1/events", { type: types[n % types.length], tenant: tenants[n % tenants.length], data: { id: `inv_${6000 + n}`, amount: 2500 + n } });
  await until("statistics are written", async () => (await call("GET", "/v1/stats")).total.attempts > 100);
  return made;
}
