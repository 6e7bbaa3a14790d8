// View "Live": traffic, latency, queue, missing features and scores, from the metrics of the service.

import { chart, DASHES, Lines } from "./charts.js";
import { h, replace, table } from "./dom.js";
import { change, number, percent, seconds, short } from "./format.js";
import { WINDOW_SECONDS } from "./history.js";

const STAGES = ["parse", "store", "queue", "look-up", "forward", "write"];
const STATUS_COLORS = { 2: "c2", 4: "c1", 5: "c3" };
const lines = { status: new Lines(), latency: new Lines(), stages: new Lines(), queue: new Lines(), missing: new Lines(), rejections: new Lines() };

const byLabel = (entries, label) => new Map([...entries.values()].map(({ labels, value }) => [labels[label], value]));
const ratio = (a, b) => (b ? a / b : NaN);

/** Values that the header shows, as {name, text, level}. */
export function vitals(history) {
  const requests = history.totalRate("ranker_requests_total");
  const errors = [...history.rate("ranker_requests_total", ["status"]).values()]
    .filter(({ labels }) => labels.status.startsWith("5") && labels.status !== "504").reduce((sum, { value }) => sum + value, 0);
  const rejected = [...history.rate("ranker_rejections_total", ["reason"], {}).values()]
    .filter(({ labels }) => ["queue_full", "deadline", "body_memory", "explain"].includes(labels.reason)).reduce((sum, { value }) => sum + value, 0);
  const p99 = history.quantile(0.99, "ranker_request_seconds");
  const missing = ratio(history.totalRate("ranker_missing_features_total"), history.totalRate("ranker_rows_scored_total"));
  return [
    { name: "requests/s", text: short(requests) },
    { name: "p99 latency", text: seconds(p99), level: p99 > 0.25 ? "warn" : null },
    { name: "server errors", text: percent(requests ? errors / requests : requests), level: errors / requests > 0.01 ? "bad" : null },
    { name: "overload", text: percent(requests ? rejected / requests : requests), level: rejected / requests > 0.01 ? "bad" : null },
    { name: "queue", text: number(history.total("ranker_queue_rows") ?? 0) },
    { name: "missing per candidate", text: short(missing) },
  ];
}

/** Add the values of the last scrape to the charts. */
export function record(history, time) {
  lines.status.add(time, byLabel(history.rate("ranker_requests_total", ["status"]), "status"));
  lines.latency.add(time, new Map([0.5, 0.99].map((q) => [`p${q * 100}`, history.quantile(q, "ranker_request_seconds")])));
  const stages = stageNames(history).map((stage) => [stage, history.quantile(0.99, "ranker_stage_seconds", { stage })]);
  lines.stages.add(time, new Map(stages));
  lines.queue.add(time, new Map([["candidates waiting or scored", history.total("ranker_queue_rows") ?? 0], ["requests in flight", history.total("ranker_requests_in_flight") ?? 0]]));
  const rows = byLabel(history.rate("ranker_rows_scored_total", ["model"]), "model");
  const missing = byLabel(history.rate("ranker_missing_features_total", ["model"]), "model");
  lines.missing.add(time, new Map([...rows].map(([model, rate]) => [model, ratio(missing.get(model) ?? 0, rate)])));
  lines.rejections.add(time, byLabel(history.rate("ranker_rejections_total", ["reason"]), "reason"));
}

/** Style of each status: the color of its class, such as 4xx, and dashes that tell the statuses of a class apart. */
function statusStyles(statuses) {
  return statuses.map((status) => {
    const kind = statuses.filter((other) => other[0] === status[0]);
    return `${STATUS_COLORS[status[0]] ?? "c5"} d${kind.indexOf(status) % DASHES}`;
  });
}

function stageNames(history) {
  const names = [...byLabel(history.latest("ranker_stage_seconds_count", ["stage"]), "stage").keys()];
  return [...STAGES.filter((stage) => names.includes(stage)), ...names.filter((stage) => !STAGES.includes(stage))];
}

function statusTable(history) {
  const totals = byLabel(history.latest("ranker_requests_total", ["status"]), "status");
  const rates = byLabel(history.rate("ranker_requests_total", ["status"]), "status");
  return table("Responses by status", [{ label: "status" }, ...["per second", "since start"].map(numeric)],
    [...totals].sort().map(([status, total]) => [status, short(rates.get(status)), number(total)]), "no requests yet");
}

function latencyTable(history) {
  const row = (name, metric, filter) => [name, seconds(history.quantile(0.5, metric, filter)), seconds(history.quantile(0.99, metric, filter)),
    number(history.total(`${metric}_count`, filter))];
  return table("Latency by stage", [{ label: "stage" }, ...["p50", "p99", "count since start"].map(numeric)],
    [row("request", "ranker_request_seconds", {}), ...stageNames(history).map((stage) => row(stage, "ranker_stage_seconds", { stage }))]);
}

/** Name of something of a model; without the model if there is only one. */
const ofModel = (history, name, model) => (history.latest("ranker_rows_scored_total", ["model"]).size > 1 ? `${name} (${model})` : name);

function missingTable(history) {
  const name = "ranker_missing_features_total";
  const hasNames = [...history.latest(name, ["feature"]).keys()].some((feature) => feature);
  const by = hasNames ? ["model", "feature"] : ["model"];
  const rows = byLabel(history.increase("ranker_rows_scored_total", ["model"]), "model");
  const increases = history.increase(name, by);
  const entries = [...history.latest(name, by)].sort(([a], [b]) => increases.get(b).value - increases.get(a).value);
  return table("Missing features", [{ label: hasNames ? "feature" : "model" }, ...["per candidate", "since start"].map(numeric)],
    entries.map(([group, { labels, value }]) => [hasNames ? ofModel(history, labels.feature, labels.model) : labels.model,
      short(ratio(increases.get(group).value, rows.get(labels.model))), number(value)]), "no feature was missing");
}

function unseenTable(history) {
  const rows = byLabel(history.increase("ranker_rows_scored_total", ["model"]), "model");
  const increases = history.increase("ranker_unseen_ids_total", ["model", "entity"]);
  return table("Candidates with an unseen id", [{ label: "id" }, ...["share", "since start"].map(numeric)],
    [...history.latest("ranker_unseen_ids_total", ["model", "entity"])].map(([group, { labels, value }]) =>
      [ofModel(history, labels.entity, labels.model), percent(ratio(increases.get(group).value, rows.get(labels.model))), number(value)]), "no id was unseen");
}

/** Mean score of a task in the evaluation of the current version; absent without an evaluation and for regressions. */
function evaluatedMean({ models }, model, task) {
  const versions = models.find(({ name }) => name === model)?.versions ?? [];
  return versions.find(({ roles }) => roles.includes("current"))?.evaluation?.tasks[task]?.mean_score;
}

function driftTable(history, models) {
  const by = ["model", "task"], mean = (part) => {
    const sums = history[part]("ranker_score_sum", by), counts = history[part]("ranker_score_count", by);
    return new Map([...sums].map(([group, { labels, value }]) => [group, { labels, value: ratio(value, counts.get(group)?.value) }]));
  };
  const now = mean("increase"), always = mean("latest");
  return table("Mean score by task", [{ label: "task" }, ...["now", "expected", "difference"].map(numeric)],
    [...always].map(([group, { labels, value }]) => {
      const evaluated = evaluatedMean(models, labels.model, labels.task), expected = evaluated ?? value, current = now.get(group)?.value;
      const difference = (current - expected) / Math.max(Math.abs(expected), 0.001);
      return [ofModel(history, labels.task, labels.model), short(current), h("div", {}, short(expected), h("div", { class: "interval" }, expected === evaluated ? "test split" : "since start")),
        h("span", { class: Math.abs(difference) > 0.3 ? "warn" : "" }, change(difference))];
    }), "no scores yet");
}

function rejectionTable(history) {
  const rates = byLabel(history.rate("ranker_rejections_total", ["reason"]), "reason");
  return table("Overload and rejections", [{ label: "reason" }, ...["per second", "since start"].map(numeric)],
    [...byLabel(history.latest("ranker_rejections_total", ["reason"]), "reason")].map(([reason, value]) => [reason, short(rates.get(reason)), number(value)]), "nothing was rejected");
}

const numeric = (label) => ({ label, number: true });

/** Show the charts and tables. */
export function showLive(panel, history, models) {
  const statuses = lines.status.names.sort();
  const window = history.span ? `of the last ${Math.round(history.span)} s` : "after the second reading";
  replace(panel,
    h("h2", {}, "Live"),
    h("p", { class: "soft" }, `From /metrics, read every 2 s. Rates, means and quantiles are those ${window} (at most ${WINDOW_SECONDS} s); charts show the last 5 minutes since this page was opened.`),
    h("div", { class: "charts" },
      chart("Responses", "per second, by status", lines.status, short, statuses, statusStyles(statuses)),
      chart("Latency", "of requests", lines.latency, seconds),
      chart("Latency by stage", "p99", lines.stages, seconds),
      chart("Queue", "now", lines.queue, short),
      chart("Missing features", "per candidate", lines.missing, short),
      chart("Overload and rejections", "per second", lines.rejections, short)),
    h("div", { class: "columns" }, statusTable(history), latencyTable(history), missingTable(history), unseenTable(history), driftTable(history, models), rejectionTable(history)));
}
