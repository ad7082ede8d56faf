// Fails unless two folders of built files say the same: node scripts/compare.mjs BUILT COMMITTED
import { existsSync, readFileSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { brotliDecompressSync, gunzipSync } from "node:zlib";

const list = (folder) => readdirSync(folder, { recursive: true }).filter((name) => statSync(join(folder, name)).isFile()).sort();
const content = (folder, name) => {
  const body = readFileSync(join(folder, name));
  return name.endsWith(".gz") ? gunzipSync(body) : name.endsWith(".br") ? brotliDecompressSync(body) : body;
};
const [built, committed] = process.argv.slice(2);
const wrong = [...new Set([...list(built), ...list(committed)])].filter(
  (name) => !existsSync(join(built, name)) || !existsSync(join(committed, name)) || !content(built, name).equals(content(committed, name)),
);
if (wrong.length > 0) {
  console.error(`differs: ${wrong.join(", ")}`);
  process.exit(1);
}
