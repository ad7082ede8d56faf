// The verification code that the portal shows, run against the test vector of the guide. Languages that are not on this machine are
// only checked for the secret.
import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { transpileModule } from "./transpile.mjs";

const SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const vector = { id: "msg_p5jXN8AQM9LWM0D4loKWxJek", timestamp: "1614265330", body: '{"test": 2432232314}', signature: "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" };
const folder = mkdtempSync(join(tmpdir(), "posthaste-verification-"));
after(() => rmSync(folder, { recursive: true, force: true }));

const module = join(folder, "verification.mjs");
writeFileSync(module, transpileModule(readFileSync(new URL("../src/lib/verification.ts", import.meta.url), "utf8")));
const { snippets } = await import(module);
const code = Object.fromEntries(snippets(SECRET).map((one) => [one.id, one.code]));
const has = (program) => spawnSync("which", [program]).status === 0;

test("every language has the secret, and a secret that is none is left out", () => {
  for (const { name, code } of snippets(SECRET)) assert.ok(code.includes(`${SECRET}`), name);
  for (const { name, code } of snippets('whsec_"; attack();//')) assert.ok(!code.includes("attack"), name);
});

test("Node.js accepts the vector and refuses what was changed", async () => {
  const file = join(folder, "node.mjs");
  writeFileSync(file, code.node);
  const { verify } = await import(file);
  const headers = { "webhook-id": vector.id, "webhook-timestamp": vector.timestamp, "webhook-signature": `v1,AAAA ${vector.signature}` };
  const now = Number(vector.timestamp);
  assert.equal(verify(headers, Buffer.from(vector.body), now), vector.id);
  assert.throws(() => verify(headers, Buffer.from(`${vector.body} `), now));
  assert.throws(() => verify(headers, Buffer.from(vector.body), now + 301));
});

test("Python accepts the vector and refuses what was changed", { skip: !has("python3") }, () => {
  const script = `${code.python}
headers = {"webhook-id": "${vector.id}", "webhook-timestamp": "${vector.timestamp}", "webhook-signature": "v1,AAAA ${vector.signature}"}
assert verify(headers, b'${vector.body}', ${vector.timestamp}) == "${vector.id}"
for body, now in ((b'${vector.body} ', ${vector.timestamp}), (b'${vector.body}', ${vector.timestamp} + 301)):
    try:
        verify(headers, body, now)
        raise SystemExit("accepted")
    except ValueError:
        pass
`;
  execFileSync("python3", ["-c", script]);
});

test("Java accepts the vector and refuses what was changed", { skip: !has("java") }, () => {
  const file = join(folder, "Main.java");
  const call = (body, now) => `Webhooks.verify("${vector.id}", "${vector.timestamp}", "v1,AAAA ${vector.signature}", ${JSON.stringify(body)}.getBytes(StandardCharsets.UTF_8), ${now}L)`;
  const main = `
final class Main {
    public static void main(String[] arguments) throws Exception {
        if (!${call(vector.body, vector.timestamp)} || ${call(`${vector.body} `, vector.timestamp)} || ${call(vector.body, Number(vector.timestamp) + 301)}) System.exit(1);
    }
}
`;
  const [imports, rest] = [code.java.slice(0, code.java.indexOf("final class")), code.java.slice(code.java.indexOf("final class"))];
  writeFileSync(file, imports + main + rest);
  execFileSync("java", [file]);
});
