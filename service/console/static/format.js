// Formats numbers, durations and times.

/** Format a number with about four significant digits; "–" if it is absent. */
export function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en-US").replace("-", "−");
  const size = Math.abs(value);
  const text = size >= 1000
    ? Math.round(value).toLocaleString("en-US")
    : size < 1e-4 ? value.toExponential(2) : value.toPrecision(digits);
  return text.replace("-", "−");
}

/** Format a rate or a share with three significant digits. */
export const short = (value) => number(value, 3);

/** Format a sum of weights by task, such as "1 × click − 20 × dislike". */
export const weightedSum = (weights) => Object.entries(weights).map(([task, weight], index) =>
  `${index ? (weight < 0 ? " − " : " + ") : weight < 0 ? "−" : ""}${short(Math.abs(weight))} × ${task}`).join("");

/** Format a duration in seconds. */
export function seconds(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return "∞";
  if (value === 0) return "0 s";
  if (value < 1e-3) return `${short(value * 1e6)} µs`;
  if (value < 1) return `${short(value * 1e3)} ms`;
  if (value < 120) return `${short(value)} s`;
  if (value < 7200) return `${short(Math.round(value / 60))} min`;
  return value < 172800 ? `${short(Math.round(value / 3600))} h` : `${short(Math.round(value / 86400))} days`;
}

/** Format a share as a percentage. */
export const percent = (value) =>
  value === null || value === undefined || Number.isNaN(value) ? "–" : `${short(value * 100)} %`;

/** Format a relative difference as a percentage with one decimal. */
export const change = (value) => (Number.isFinite(value) ? `${(value * 100).toFixed(1).replace(/^-0\.0$/, "0.0").replace("-", "−")} %` : "–");

/** Format a number of bytes. */
export function bytes(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const power = value < 1024 ? 0 : Math.min(4, Math.floor(Math.log2(value) / 10));
  return `${short(value / 1024 ** power)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

/** Format an ISO 8601 time in the zone of the browser; text that is not a time is returned as it is. */
export function time(text) {
  if (!text) return "–";
  const date = new Date(text);
  return Number.isNaN(date.getTime()) ? String(text) : date.toLocaleString("sv-SE", { timeStyle: "short", dateStyle: "short" });
}

/** Format a clock time. */
export const clock = (milliseconds) => new Date(milliseconds).toLocaleTimeString("sv-SE");
