// Ranked items: scores by task, contributions, experts and missing features.

import { h, svg, table } from "./dom.js";
import { number, short } from "./format.js";

const TOP_FEATURES = 8;
const NO_CONTRIBUTIONS = {
  per_example_gate: "No item has contributions: this model selects experts for each candidate, and its logits jump where the selection changes.",
  no_items: "No item has contributions: the request has no items.",
};

/** Show the ranked items as a table; `select` is called with the id of the item to explain. */
export function itemTable(items, tasks, selected, select) {
  const rows = items.map((item, index) => [
    h("span", {}, String(index + 1)),
    h("button", { type: "button", class: "link mono", "aria-pressed": String(item.position === selected), "data-key": `item ${item.position}`, onclick: () => select(item.position) }, String(item.id)),
    h("strong", {}, number(item.score)), ...tasks.map((task) => number(item.scores[task])),
    item.missing?.length ? h("span", { class: "soft missing" }, item.missing.join(", ")) : h("span", { class: "soft" }, "none"),
  ]);
  return table("Ranked items, best first", [{ label: "#" }, { label: "item" }, { label: "score", number: true }, ...tasks.map((task) => ({ label: task, number: true })), { label: "missing" }], rows, "no items");
}

function bar(value, largest) {
  const width = largest ? (Math.abs(value) / largest) * 49 : 0;
  return svg("svg", { viewBox: "0 0 100 12", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: value < 0 ? "minus" : "plus", x: value < 0 ? 50 - width : 50, y: 1, width, height: 10 }),
    svg("line", { class: "zero", x1: 50, x2: 50, y1: 0, y2: 12, "vector-effect": "non-scaling-stroke" }));
}

function bars(task, contributions, baseline, largest) {
  const entries = Object.entries(contributions).sort(([, a], [, b]) => Math.abs(b) - Math.abs(a));
  const top = entries.slice(0, TOP_FEATURES), rest = entries.slice(TOP_FEATURES);
  const sum = (part) => part.reduce((total, [, value]) => total + value, 0);
  const shown = rest.length ? [...top, [`${rest.length} others`, sum(rest)]] : top;
  const signed = (value) => (value > 0 ? `+${short(value)}` : short(value));
  return h("figure", { class: "bars" }, h("table", {},
    h("caption", {}, task, " ", h("span", { class: "soft" }, baseline === undefined ? "" : `${short(baseline)} (baseline) ${sum(entries) < 0 ? "−" : "+"} ${short(Math.abs(sum(entries)))} = ${short(baseline + sum(entries))}`)),
    h("tbody", {}, shown.map(([feature, value]) => h("tr", {}, h("th", { scope: "row" }, feature), h("td", { class: "bar-cell" }, bar(value, largest)), h("td", { class: "number" }, signed(value)))))));
}

/** Show why an item has its scores: contributions to the logit of each task, the largest first. */
export function explanation(item, explain, tasks) {
  if (!item?.contributions) {
    const best = `This item has no contributions: the service explains only the best ${explain?.method?.items}.`;
    return h("p", { class: "soft" }, NO_CONTRIBUTIONS[explain?.no_contributions] ?? best);
  }
  const largest = Math.max(...tasks.flatMap((task) => Object.values(item.contributions[task] ?? {}).map(Math.abs)), 0);
  return [h("h3", {}, "Contributions of features to item ", h("span", { class: "mono" }, String(item.id))),
    h("p", { class: "soft" }, "Added to the baseline, the contributions of a task give its logit (of a regression task, its score). Bars of all tasks have the same scale."),
    h("div", { class: "why" }, tasks.filter((task) => item.contributions[task]).map((task) => bars(task, item.contributions[task], explain?.baseline?.[task], largest)))];
}

/** Show which experts ran and their weights by task. */
export function experts(explain) {
  if (!explain) return null;
  const { experts_run: run, experts_total: total, tasks } = explain;
  return [h("p", {}, `Experts that ran: ${run.join(", ") || "none"} (${run.length} of ${total}).`),
    table("Weight of each expert by task", [{ label: "task" }, ...run.map((expert) => ({ label: `expert ${expert}`, number: true }))],
      Object.entries(tasks ?? {}).map(([task, weights]) => [task, ...run.map((expert) => (weights[expert] ? weights[expert].toFixed(2) : "–"))]))];
}
