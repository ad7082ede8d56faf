// Writes a gzip and a brotli form next to each built text file, for the server to embed.
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";

const folder = process.env.UI_OUT_DIR ?? "dist";
for (const name of readdirSync(folder, { recursive: true })) {
  if (!/\.(html|js|css|svg|md)$/.test(name)) continue;
  const file = join(folder, name);
  const body = readFileSync(file);
  const params = { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: body.length };
  for (const [ending, compressed] of [
    ["gz", gzipSync(body, { level: 9 })],
    ["br", brotliCompressSync(body, { params })],
  ]) {
    if (compressed.length < body.length) writeFileSync(`${file}.${ending}`, compressed);
  }
}
