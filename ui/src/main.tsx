import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode, Suspense, lazy } from "react";
import { createRoot } from "react-dom/client";
import { ApiError, isPortal } from "./api/client";
import { Clock, Toaster } from "./components/ui";
import "./styles.css";
import { applyTheme } from "./lib/theme";

// Each loads what it needs.
const Shown = lazy(() => (isPortal ? import("./portal").then((module) => ({ default: module.Portal })) : import("./app").then((module) => ({ default: module.App }))));
if (!isPortal) applyTheme();

const client = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 5_000,
      // What was refused is refused again; what failed may work in a moment.
      retry: (count, error) => count < 2 && (!(error instanceof ApiError) || error.status === 0 || error.status >= 500 || error.status === 429),
    },
  },
});

const root = document.getElementById("root");
if (root)
  createRoot(root).render(
    <StrictMode>
      <QueryClientProvider client={client}>
        <Toaster>
          <Clock>
            <Suspense>
              <Shown />
            </Suspense>
          </Clock>
        </Toaster>
      </QueryClientProvider>
    </StrictMode>,
  );
