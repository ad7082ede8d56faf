// Debian's Chromium, driven by playwright-core.
import { chromium } from "playwright-core";

export async function startBrowser() {
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--font-render-hinting=none"],
  });
  return {
    browser,
    stop: async () => {
      await browser.close();
    },
  };
}

/** Logs in by the form, as a person does. */
export async function logIn(page, url, key) {
  await page.goto(url);
  await page.getByLabel("API key").fill(key);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.locator("#content").waitFor();
}
