// View "Try it": a form that ranks candidates, and its response.

import { getJson, key, rank, rankUrl, versionPath } from "./api.js";
import { h, replace } from "./dom.js";
import { weightedSum } from "./format.js";
import { defaultWeights, sortItems } from "./objective.js";
import { buildRequest, curlCommand } from "./request.js";
import { experts, explanation, itemTable } from "./results.js";

const EMPTY_ITEMS = 3;
const OPEN_FEATURES = 6;
const emptyItem = () => ({ id: "", features: {} });

/** The view: one form for the chosen model. The form keeps its values while other views are open. */
export class TryView {
  #panel; #models = []; #detail = null; #state = null; #weights = {}; #moved = false; #response = null; #selected = null; #parts = {};

  constructor(panel) {
    this.#panel = panel;
  }

  /** Show the form of the default model, unless a form is open whose version is still current. */
  async show({ models }) {
    this.#models = models.filter((model) => model.versions.some((version) => version.roles.includes("current")));
    if (!this.#models.length) {
      this.#detail = null;
      replace(this.#panel, h("h2", {}, "Try it"), h("p", {}, "There is no model that can rank yet."));
      return;
    }
    const model = this.#models.find(({ name }) => name === this.#detail?.name) ?? this.#models.find((entry) => entry.default) ?? this.#models[0];
    if (this.#detail?.version !== currentVersion(model) || this.#detail?.name !== model.name) await this.#open(model);
  }

  async #open(model) {
    try {
      this.#detail = await getJson(versionPath(model.name, currentVersion(model)));
    } catch (error) {
      replace(this.#panel, h("h2", {}, "Try it"), h("p", { class: "error", role: "alert" }, error.message));
      return;
    }
    const tasks = this.#detail.tasks.map(({ name }) => name);
    this.#state = { userId: "", user: {}, context: {}, items: Array.from({ length: EMPTY_ITEMS }, emptyItem), tasks };
    this.#response = null;
    this.#resetWeights();
    this.#build(model);
  }

  #resetWeights() {
    this.#moved = false;
    this.#weights = this.#state.tasks.length ? defaultWeights(this.#detail.objective, this.#state.tasks) : {};
  }

  #build(model) {
    const owned = (owner) => this.#detail.inputs.filter((input) => input.owner === owner && !input.counter);
    const select = h("select", { id: "try-model", onchange: (event) => this.#open(this.#models.find(({ name }) => name === event.target.value)) },
      this.#models.map(({ name }) => h("option", { value: name, selected: name === model.name }, name)));
    const tasks = h("fieldset", {}, h("legend", {}, "Tasks"), h("div", { class: "form-actions" }, this.#detail.tasks.map(({ name, kind }) =>
      h("label", { class: "inline" }, h("input", { type: "checkbox", checked: true, value: name, name: "task", onchange: () => this.#chooseTasks() }), `${name} `, h("span", { class: "soft" }, kind)))));
    this.#parts = { items: h("fieldset", {}), error: h("p", { class: "error", role: "alert" }), sliders: h("div"), curl: h("pre", { tabindex: "0", id: "curl", "aria-label": "curl command" }), results: h("div", { class: "data", id: "results" }) };
    const form = h("form", { id: "try-form", novalidate: true, onsubmit: (event) => { event.preventDefault(); this.#rank(); }, oninput: () => this.#showCurl() },
      h("fieldset", {}, h("legend", {}, "User"), this.#fields("user", [{ name: "", kind: "id" }, ...owned("user")])),
      owned("context").length ? h("fieldset", {}, h("legend", {}, "Context"), this.#fields("context", owned("context"))) : null,
      this.#parts.items, tasks,
      h("div", { class: "form-actions" }, h("button", { type: "submit", class: "primary" }, "Rank"), h("span", { class: "soft" }, "A try-out is neither logged as an impression nor kept for feedback.")),
      this.#parts.error);
    replace(this.#panel, h("div", { class: "picker" }, h("div", {}, h("label", { for: "try-model" }, "Model"), select), h("span", { class: "soft" }, `version ${this.#detail.version}`)),
      form, this.#parts.sliders, this.#parts.results,
      h("details", {}, h("summary", {}, "Request as a curl command"), key.read() ? h("p", { class: "soft" }, "Set RANKER_KEY to the API key.") : null, this.#parts.curl));
    this.#buildItems();
    this.#buildSliders();
    this.#showCurl();
    this.#showResults();
  }

  /** Inputs of a user or the context; features that can be looked up are folded if there are many. */
  #fields(owner, inputs) {
    const make = ({ name, kind }) => {
      const field = owner === "user" ? (name ? `user.features.${name}` : "user.id") : `context.${name}`;
      const write = (event) => { if (name) this.#state[owner][name] = event.target.value; else this.#state.userId = event.target.value; };
      return h("div", {}, h("label", { for: `field ${field}` }, name || "user id"), this.#input(field, kind, write));
    };
    if (inputs.length <= OPEN_FEATURES + 1) return h("div", { class: "fields" }, inputs.map(make));
    return [h("div", { class: "fields" }, inputs.slice(0, OPEN_FEATURES).map(make)),
      h("details", {}, h("summary", {}, `${inputs.length - OPEN_FEATURES} more features`), h("div", { class: "fields" }, inputs.slice(OPEN_FEATURES).map(make)))];
  }

  #input(field, kind, write, value = "", label = null) {
    const hint = { bag: "a, b, c", sequence: "a, b, c", numeric: "number", buckets: "number", id: "id" }[kind] ?? "text";
    return h("input", { id: `field ${field}`, "data-field": field, placeholder: hint, value, "aria-label": label, autocomplete: "off", spellcheck: "false", oninput: write });
  }

  #buildItems() {
    const inputs = this.#detail.inputs.filter(({ owner, counter }) => owner === "item" && !counter), { items } = this.#state;
    if (!items.length) items.push(emptyItem());
    const rows = items.map((item, row) => h("tr", {},
      h("td", {}, h("span", { class: "hidden-text" }, `Item ${row + 1}`), this.#itemId(item, row)),
      inputs.map(({ name, kind }) => h("td", {}, this.#input(`items[${row}].features.${name}`, kind, (event) => { item.features[name] = event.target.value; }, item.features[name] ?? "", `${name} of item ${row + 1}`))),
      h("td", {}, h("button", { type: "button", class: "quiet", "aria-label": `Remove item ${row + 1}`, onclick: () => { items.splice(row, 1); this.#buildItems(); this.#showCurl(); } }, "×"))));
    replace(this.#parts.items, h("legend", {}, "Items"),
      h("p", { class: "soft" }, "Features that are left empty are looked up by id, and counters are computed. Paste several ids, one per line, into an id to add items."),
      h("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": "Items" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "id"), inputs.map(({ name }) => h("th", { scope: "col" }, name)), h("td"))), h("tbody", {}, rows))),
      h("button", { type: "button", id: "add-item", "data-key": "add-item", onclick: () => { items.push(emptyItem()); this.#buildItems(); } }, "Add item"));
  }

  #itemId(item, row) {
    const input = this.#input(`items[${row}].id`, "id", (event) => { item.id = event.target.value; }, item.id, `id of item ${row + 1}`);
    input.addEventListener("paste", (event) => {
      const ids = event.clipboardData.getData("text").split(/[\n,]/).map((id) => id.trim()).filter((id) => id);
      if (ids.length < 2) return;
      event.preventDefault();
      item.id = ids[0];
      this.#state.items.splice(row + 1, 0, ...ids.slice(1).map((id) => ({ id, features: {} })));
      this.#buildItems();
      this.#showCurl();
    });
    return input;
  }

  #chooseTasks() {
    this.#state.tasks = [...this.#panel.querySelectorAll("input[name=task]:checked")].map(({ value }) => value);
    this.#resetWeights();
    this.#buildSliders();
  }

  #buildSliders() {
    const limit = Math.max(1, 2 * Math.max(...Object.values(this.#weights).map(Math.abs), 0));
    const slider = (task) => {
      const range = h("input", { type: "range", id: `weight ${task}`, min: -limit, max: limit, step: "any", value: this.#weights[task], "data-task": task });
      const exact = h("input", { type: "number", step: "any", value: this.#weights[task], "aria-label": `Exact weight of ${task}`, "data-field": `objective.${task}` });
      const change = (source, other) => source.addEventListener("input", () => {
        const weight = source.valueAsNumber;
        if (!Number.isFinite(weight)) return;
        this.#weights[task] = weight === range.valueAsNumber ? Number(weight.toPrecision(4)) : weight;
        this.#moved = true;
        other.value = this.#weights[task];
        this.#showCurl();
        this.#showResults();
      });
      change(range, exact);
      change(exact, range);
      return h("div", { class: "slider" }, h("label", { for: `weight ${task}` }, task), range, exact);
    };
    replace(this.#parts.sliders, h("fieldset", { id: "objective" }, h("legend", {}, "Objective"),
      h("p", { class: "soft" }, "score = sum of weight × score over the tasks. Moving a weight sorts the items again, without a request."),
      h("div", { class: "sliders" }, this.#state.tasks.map(slider)),
      h("button", { type: "button", "data-key": "reset-weights", onclick: () => { this.#resetWeights(); this.#buildSliders(); this.#showCurl(); this.#showResults(); } }, "Reset to the version's objective")));
  }

  #request() {
    return buildRequest(this.#detail.inputs, this.#state, this.#moved ? this.#weights : null);
  }

  #showCurl() {
    this.#parts.curl.textContent = curlCommand(rankUrl(this.#detail.name), this.#request(), key.read() !== null);
  }

  async #rank() {
    this.#clearErrors();
    this.#state.items = this.#state.items.filter((item) => item.id.trim() || Object.values(item.features).some((text) => text.trim()));
    this.#buildItems();
    const request = this.#request();
    if (!request.items.length) {
      this.#response = null;
      this.#showResults();
      this.#parts.error.textContent = "Enter at least one item.";
      this.#panel.querySelector('[data-field="items[0].id"]').focus();
      return;
    }
    try {
      const response = await rank(this.#detail.name, JSON.stringify(request));
      const positions = new Map(request.items.map(({ id }, index) => [String(id), index]));
      this.#response = { ...response, tasks: request.tasks, items: response.items.map((item, index) => ({ ...item, position: positions.get(String(item.id)) ?? index })) };
      this.#selected = this.#response.items[0]?.position ?? null;
    } catch (error) {
      this.#response = null;
      this.#showError(error);
    }
    this.#showResults();
  }

  #clearErrors() {
    this.#parts.error.textContent = "";
    for (const message of this.#panel.querySelectorAll(".field-error")) message.remove();
    for (const input of this.#panel.querySelectorAll("[aria-invalid]")) { input.removeAttribute("aria-invalid"); input.removeAttribute("aria-describedby"); }
  }

  /** Show each error beside its field, and the others in one line. */
  #showError(error) {
    const inputs = new Map([...this.#panel.querySelectorAll("[data-field]")].map((input) => [input.dataset.field, input]));
    const rest = error.fields.filter(({ field }) => !inputs.has(field));
    error.fields.filter(({ field }) => inputs.has(field)).forEach(({ field, reason }, index) => {
      const input = inputs.get(field), id = `field-error-${index}`;
      input.setAttribute("aria-invalid", "true");
      input.setAttribute("aria-describedby", id);
      input.after(h("p", { class: "error field-error", id }, reason));
      input.closest("details")?.setAttribute("open", "");
      if (index === 0) input.focus();
    });
    this.#parts.error.textContent = error.fields.length && !rest.length ? "The request was rejected: see the marked field."
      : rest.map(({ field, reason }) => `${field}: ${reason}`).join("; ") || error.message;
  }

  #showResults() {
    if (!this.#response) { replace(this.#parts.results); return; }
    const { tasks, explain, model, version, degraded } = this.#response;
    const weights = Object.fromEntries(tasks.map((task) => [task, this.#weights[task] ?? 0]));
    const items = sortItems(this.#response.items, weights);
    const item = items.find(({ position }) => position === this.#selected);
    replace(this.#parts.results,
      h("p", { role: "status" }, `${items.length} items ranked by ${model} ${version}${degraded ? ", degraded" : ""}: score = ${weightedSum(weights)}`),
      itemTable(items, tasks, this.#selected, (position) => { this.#selected = position; this.#showResults(); }),
      explanation(item, explain, tasks), experts(explain));
  }
}

const currentVersion = (model) => model.versions.find((version) => version.roles.includes("current")).version;
