import tailwindcss from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// `POSTHASTE_URL` is the server that the development server passes API calls on to.
const server = process.env.POSTHASTE_URL ?? "http://127.0.0.1:8080";

export default defineConfig({
  plugins: [react(), tailwindcss()],
  build: {
    outDir: process.env.UI_OUT_DIR ?? "dist",
    emptyOutDir: true,
    // A page without inline content: the server's content security policy allows files only.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    // The licences of the packages that are in the bundle ask to be passed on.
    license: { fileName: "licenses.md" },
    chunkSizeWarningLimit: 1000,
  },
  server: {
    port: Number(process.env.UI_PORT ?? 5173),
    // With the host that the browser knows: the server compares it with the origin of calls that change something.
    proxy: Object.fromEntries(["/v1", "/docs", "/openapi.json"].map((path) => [path, { target: server, changeOrigin: false }])),
  },
});
