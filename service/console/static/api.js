// Requests to the service: its own origin only, with the API key of the session.

const BASE = new URL("api/", import.meta.url);
const KEY = "ranker-console-key";

const METRICS_URL = new URL("../metrics", import.meta.url);

/** An error of the service: a problem (RFC 9457), or status 0 if the service cannot be reached. */
export class ServiceError extends Error {
  constructor(status, detail, fields = []) {
    super(detail);
    this.status = status;
    this.fields = fields;
  }
}

export const key = {
  read: () => sessionStorage.getItem(KEY),
  save: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

export const rankUrl = (model) => new URL(`models/${encodeURIComponent(model)}/rank`, BASE).href;
export const versionPath = (model, version) =>
  `models/${encodeURIComponent(model)}/versions/${encodeURIComponent(version)}`;

async function send(url, options = {}) {
  const headers = { ...options.headers };
  if (key.read()) headers.Authorization = `Bearer ${key.read()}`;
  let response;
  try {
    response = await fetch(url, { ...options, headers, cache: "no-store", signal: AbortSignal.timeout(30000) });
  } catch {
    throw new ServiceError(0, "The service cannot be reached.");
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  throw new ServiceError(response.status, String(problem.detail ?? problem.title ?? `HTTP ${response.status}`), problem.errors ?? []);
}

/** Read JSON below /console/api/. */
export const getJson = async (path) => (await send(new URL(path, BASE))).json();
/** Read text below /console/api/. */
export const getText = async (path) => (await send(new URL(path, BASE))).text();
/** Read the exposition of the metrics. */
export const getMetrics = async () => (await send(METRICS_URL)).text();
/** Rank with the body as JSON text. */
export const rank = async (model, body) =>
  (await send(rankUrl(model), { method: "POST", body, headers: { "Content-Type": "application/json" } })).json();
