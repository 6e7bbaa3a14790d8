// View "Selection": which experts each task uses, and with which weight.

import { getJson, versionPath } from "./api.js";
import { h, replace } from "./dom.js";
import { short, weightedSum } from "./format.js";

let chosen = null;

function heatmap(name, detail) {
  const { experts_total: total, experts_used: used, tasks } = detail.selection;
  const unused = [...Array(total).keys()].filter((expert) => !used.includes(expert));
  const cell = (task, weights, expert) => {
    const weight = weights[expert];
    if (!weight) return h("td", { class: "soft", "aria-label": "0" }, "–");
    return h("td", { class: "weight", "--w": weight.toFixed(3), title: `${task}, expert ${expert}: ${weight}` }, weight.toFixed(2));
  };
  const head = used.map((expert) => h("th", { scope: "col" }, `expert ${expert}`));
  const rows = Object.entries(tasks).map(([task, weights]) =>
    h("tr", {}, h("th", { scope: "row" }, task), used.map((expert) => cell(task, weights, expert))));
  return [
    h("p", {}, `The gate (${detail.selection.gate}) uses ${used.length} of ${total} experts. `,
      detail.selection.per_example ? "The gate chooses experts for each candidate: the weights are means over examples." : "Each row adds up to 1."),
    h("div", { class: "scroll heat", tabindex: "0", role: "region", "aria-label": "Weights of the experts by task" },
      h("table", {}, h("caption", {}, `Weights of the experts by task, ${name}`),
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "task"), head)), h("tbody", {}, rows))),
    unused.length ? h("details", {}, h("summary", {}, unused.length === 1 ? "1 expert is not used" : `${unused.length} experts are not used`), h("p", {}, `They are not part of the served graph: ${unused.join(", ")}.`)) : null,
  ];
}

function facts(detail) {
  const entries = [["backend", detail.backend], ["experts per task", short(average(Object.values(detail.selection.tasks).map((weights) => Object.keys(weights).length)))],
    ["objective", weightedSum(detail.objective)],
    ["inputs", detail.inputs.map((input) => input.name).join(", ")],
    ...Object.entries(detail.provenance ?? {}).filter(([, value]) => typeof value !== "object")];
  return h("dl", { class: "facts" }, entries.filter(([, value]) => value).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, String(value)))));
}

const average = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : NaN);

/** Show the selection of a version that the user chooses; at first the current version of the default model. */
export async function showSelection(panel, { models }) {
  const options = models.flatMap((model) => model.versions.map((version) => ({ model, version, text: `${model.name} ${version.version}` })));
  if (!options.length) {
    replace(panel, h("h2", {}, "Selection"), h("p", {}, "There is no model yet."));
    return;
  }
  const first = options.find(({ model, version }) => model.default && version.roles.includes("current")) ?? options.find(({ version }) => version.roles.length) ?? options[0];
  const option = options.find(({ text }) => text === chosen) ?? first;
  const select = h("select", { id: "selection-version", "data-key": "selection-version", onchange: (event) => { chosen = event.target.value; showSelection(panel, { models }); } },
    options.map(({ text, version }) => h("option", { value: text, selected: text === option.text }, [text, ...version.roles].join(" · "))));
  const picker = h("div", { class: "picker" }, h("div", {}, h("label", { for: "selection-version" }, "Version"), select));
  let content;
  try {
    const detail = await getJson(versionPath(option.model.name, option.version.version));
    content = [...heatmap(option.text, detail), facts(detail)];
  } catch (error) {
    content = [h("p", { class: "error", role: "alert" }, error.message)];
  }
  if (chosen === null || chosen === option.text) replace(panel, picker, ...content);
}
