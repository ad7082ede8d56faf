// The public API, typed by its own document. Nothing here that another program could not call.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];
export type Delivery = Schemas["Delivery"];
export type Endpoint = Schemas["Endpoint"];
export type Attempt = Schemas["Attempt"];
export type EventView = Schemas["Event"];
export type Replay = Schemas["Replay"];
export type Session = Schemas["Session"];
export type Need = Schemas["Attention"];

/** What the server said when it did not do what was asked. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly title: string,
    message: string,
    readonly errors: { field: string; message: string }[] = [],
  ) {
    super(message);
  }
}

/** The portal is the same code at an address of its own, with a cookie of its own. */
export const isPortal = location.pathname === "/portal" || location.pathname.startsWith("/portal/");

export const api = createClient<paths>({ baseUrl: "/", headers: isPortal ? { "posthaste-session": "portal" } : {} });

interface Answer<T> {
  data?: T;
  error?: unknown;
  response: Response;
}

let onEnded: () => void = () => {};
/** Called when the session has ended. */
export const whenSessionEnds = (callback: () => void) => {
  onEnded = callback;
};

/** The answer's content, or an `ApiError`. */
export async function unwrap<T>(call: Promise<Answer<T>>): Promise<T> {
  return (await answered(call)).data;
}

export async function answered<T>(call: Promise<Answer<T>>): Promise<{ data: T; response: Response }> {
  let answer: Answer<T>;
  try {
    answer = await call;
  } catch (cause) {
    if (cause instanceof DOMException && cause.name === "AbortError") throw cause;
    throw new ApiError(0, "", "");
  }
  if (answer.response.ok) return { data: answer.data as T, response: answer.response };
  if (answer.response.status === 401) onEnded();
  const problem = (answer.error ?? {}) as Partial<Schemas["Problem"]>;
  throw new ApiError(answer.response.status, problem.title ?? "", problem.detail ?? answer.response.statusText, problem.errors ?? []);
}

export async function logIn(key: string): Promise<Session> {
  return unwrap(api.POST("/v1/sessions", { headers: { Authorization: `Bearer ${key}` } }));
}

export const messageOf = (error: unknown): string => (error instanceof Error && error.message ? error.message : "");

/** At most so many calls at once, each judged by itself. */
export async function forEach<T>(items: T[], call: (item: T) => Promise<unknown>): Promise<{ done: number; refused: number; error: string }> {
  const result = { done: 0, refused: 0, error: "" };
  const queue = [...items];
  const work = async () => {
    for (let item = queue.shift(); item !== undefined; item = queue.shift()) {
      try {
        await call(item);
        result.done += 1;
      } catch (error) {
        result.refused += 1;
        result.error = messageOf(error);
      }
    }
  };
  await Promise.all([work(), work(), work(), work()]);
  return result;
}
