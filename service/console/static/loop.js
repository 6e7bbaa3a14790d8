// View "Loop": the served log, feedback, the feature store and counters.

import { h, replace, table } from "./dom.js";
import { bytes, number, seconds, short, time } from "./format.js";

const numeric = (label) => ({ label, number: true });

function facts(entries) {
  return h("dl", { class: "facts" }, entries.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function rates(history, title, metric, label, empty) {
  const perSecond = history.rate(metric, [label]);
  return table(title, [{ label }, ...["per second", "since start"].map(numeric)],
    [...history.latest(metric, [label])].map(([group, { labels, value }]) => [labels[label] || "none", short(perSecond.get(group)?.value), number(value)]), empty);
}

const age = (history, metric) => {
  const stamp = history.total(metric);
  return stamp === null || !Number.isFinite(stamp) || stamp === 0 ? "–" : `${seconds(Math.max(0, Date.now() / 1000 - stamp))} ago`;
};

function served(history, log) {
  if (!log) return h("p", {}, "Off. Set ", h("code", {}, "served_log"), " to log what is answered.");
  return [facts([["target", log.target], ["share of users", short(log.share)],
    ["requests written", number(history.total("ranker_served_requests_total"))], ["per second", short(history.totalRate("ranker_served_requests_total"))],
    ["size", bytes(history.total("ranker_served_bytes_total"))], ["candidates waiting", number(history.total("ranker_served_queue_rows"))],
    ["last file", age(history, "ranker_served_finished_timestamp_seconds")]]),
  rates(history, "Requests that the served log lacks", "ranker_served_dropped_total", "reason", "none")];
}

function feedback(history, settings) {
  if (!settings) return h("p", {}, "Off. Set ", h("code", {}, "feedback_dir"), " to collect what users did.");
  const limit = history.total("ranker_feedback_folder_limit_bytes");
  return [facts([["target", settings.target], ["files", limit ? `${bytes(history.total("ranker_feedback_folder_bytes"))} of ${bytes(limit)}` : "–"],
    ["waiting", bytes(history.total("ranker_feedback_queue_bytes"))], ["failures", number(history.total("ranker_feedback_failures_total") ?? 0)]]),
  rates(history, "Feedback requests", "ranker_feedback_requests_total", "outcome", "none yet"),
  rates(history, "Feedback events", "ranker_feedback_events_total", "outcome", "none yet")];
}

function counters(history, entries) {
  const models = Object.entries(entries ?? {});
  const lag = (asOf) => { const stamp = Date.parse(asOf ?? ""); return Number.isNaN(stamp) ? "–" : seconds(Math.max(0, (Date.now() - stamp) / 1000)); };
  return [table("Counters and histories", [{ label: "model" }, { label: "as of" }, numeric("lag")],
    models.map(([model, { as_of: asOf }]) => [model, asOf ? time(asOf) : "no counters", lag(asOf)]), "no model has counters"),
  history.total("ranker_counters_followed_timestamp_seconds") === null ? null
    : facts([["followed to", age(history, "ranker_counters_followed_timestamp_seconds")], ["impressions added", number(history.total("ranker_counters_applied_total"))], ["failures", number(history.total("ranker_counters_failures_total"))]])];
}

/** Show the state of the loop. */
export function showLoop(panel, loop, history) {
  replace(panel, h("div", { class: "columns" },
    h("div", {}, h("h2", {}, "Served log"), served(history, loop.served_log)),
    h("div", {}, h("h2", {}, "Feedback"), feedback(history, loop.feedback)),
    h("div", {}, h("h2", {}, "Counters"), counters(history, loop.counters)),
    h("div", {}, h("h2", {}, "Feature store"),
      loop.feature_store
        ? [facts([["address", loop.feature_store.address]]), rates(history, "Requests without the store's features", "ranker_fallbacks_total", "reason", "none")]
        : h("p", {}, "Off: features are looked up in the bundle."),
      h("h2", {}, "Limits"), facts(Object.entries(loop.limits).map(([name, value]) => [name, value === null ? "none" : number(value)])))));
}
