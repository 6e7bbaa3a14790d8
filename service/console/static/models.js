// View "Models": models, their versions, roles, states, evaluations and reports.

import { getText, versionPath } from "./api.js";
import { h, replace, table } from "./dom.js";
import { number, percent, time } from "./format.js";

const COLUMNS = [{ label: "version" }, { label: "role" }, { label: "state" }, { label: "published" }, { label: "evaluation" }, { label: "report" }];
const STATES = { READY: "good", LOADING: "warn", UNLOADING: "warn", UNAVAILABLE: "soft" };

function role(version) {
  if (!version.roles.length) return h("span", { class: "soft" }, "not released");
  return version.roles.map((name) => h("span", { class: `tag ${name === "current" ? "current" : ""}` },
    name === "canary" && version.weight !== null && version.weight !== undefined ? `canary ${percent(version.weight)}` : name));
}

function state(version) {
  const rejected = version.state === "UNAVAILABLE" && version.reason && version.roles.length > 0;
  return [h("span", { class: `status nowrap ${rejected ? "bad" : STATES[version.state] ?? "soft"}` }, version.state.toLowerCase()),
    version.reason ? h("div", { class: "soft" }, version.reason) : null];
}

function evaluation(summary) {
  if (!summary) return h("span", { class: "soft" }, "none");
  return [h("div", { class: "quality" }, Object.entries(summary.tasks).map(([task, { metric, value, interval }]) => [
    h("span", {}, task), h("span", { class: "soft" }, metric), h("span", {}, number(value)),
    h("span", { class: "interval" }, interval ? `${number(interval[0])}–${number(interval[1])}` : "")]).flat()),
  ...summary.verdict.map((line) => h("p", { class: "verdict soft" }, line))];
}

/** Show the models. */
export function showModels(panel, { models }) {
  if (!models.length) {
    replace(panel, h("h2", {}, "No models yet"), h("p", {}, "The repository of this service has no published model. Publish a bundle with ", h("code", {}, "ranker publish BUNDLE REPOSITORY"), "; the page shows it when the service has loaded it."));
    return;
  }
  replace(panel, models.map((model) => {
    const versions = [...model.versions].sort((a, b) => b.version.localeCompare(a.version, "en", { numeric: true }));
    const rows = versions.map((version) => [
      h("span", { class: "mono" }, version.version), h("div", {}, role(version)), h("div", {}, state(version)),
      h("span", { class: "nowrap" }, time(version.published)), h("div", {}, evaluation(version.evaluation)),
      version.report
        ? h("button", { type: "button", class: "link", "data-key": `report ${model.name} ${version.version}`, onclick: (event) => openReport(event.currentTarget, model.name, version.version) }, "open", h("span", { class: "hidden-text" }, ` report of ${model.name} ${version.version}`))
        : h("span", { class: "soft" }, "none"),
    ]);
    return [h("h2", {}, model.name, " ", model.default ? h("span", { class: "tag" }, "default") : null, " ",
      h("span", { class: `status ${model.ready ? "good" : "bad"}` }, model.ready ? "ready" : "not ready")),
    table(`Versions of ${model.name}`, COLUMNS, rows, "no versions")];
  }).flat());
}

/** Show a report in a frame in which no script runs. */
async function openReport(button, model, version) {
  button.parentElement.querySelector(".error")?.remove();
  let text;
  try {
    text = await getText(`${versionPath(model, version)}/report`);
  } catch (error) {
    button.after(h("p", { class: "error", role: "alert" }, error.message));
    return;
  }
  const dialog = document.getElementById("report");
  document.getElementById("report-title").textContent = `${model} ${version}: report`;
  dialog.querySelector("iframe").replaceWith(h("iframe", { title: `Report of ${model} ${version}`, sandbox: "allow-same-origin", srcdoc: text }));
  dialog.showModal();
}

/** Let the dialog of reports close. */
export function startReports() {
  const dialog = document.getElementById("report");
  document.getElementById("report-close").addEventListener("click", () => dialog.close());
}
