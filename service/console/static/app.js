// Start of the page: signs in, polls the service, and shows the open view.

import { getJson, getMetrics, key } from "./api.js";
import { h, replace } from "./dom.js";
import { parse } from "./exposition.js";
import { clock } from "./format.js";
import { History } from "./history.js";
import { record, showLive, vitals } from "./live.js";
import { showLoop } from "./loop.js";
import { showModels, startReports } from "./models.js";
import { showSelection } from "./selection.js";
import { startTabs } from "./tabs.js";
import { startTheme } from "./theme.js";
import { TryView } from "./try.js";

const POLL_MS = 2000;
const MODELS_POLLS = 5; // The models are read with every fifth poll.

const element = (id) => document.getElementById(id);
const panels = Object.fromEntries(["models", "selection", "live", "try", "loop"].map((name) => [name, element(name)]));
const history = new History(), tryView = new TryView(panels.try);
let view = "models", models = null, shown = "", updated = null, polls = 0, signedOut = false;

const versionsOf = (role) => models.models.flatMap((model) => model.versions.filter((version) => version.roles.includes(role)).map((version) => ({ model, version })));

function showHealth(error = null) {
  document.body.classList.toggle("stale", error !== null);
  if (error !== null) {
    const since = updated ? ` The values are those of ${clock(updated)}.` : "";
    announce([h("span", { class: "status bad" }, `${error.message}${since}`)]);
    return;
  }
  if (!models) return;
  const live = versionsOf("current").map(({ model, version }) => h("span", { class: `status ${model.ready ? "good" : "bad"}` }, `${model.name} ${version.version}${model.ready ? "" : " (not ready)"}`));
  const others = ["canary", "shadow"].flatMap((role) => versionsOf(role).map(({ model, version }) => h("span", { class: `status ${version.state === "READY" ? "good" : "bad"}` }, `${role} ${model.name} ${version.version}`)));
  const waiting = models.models.filter((model) => !model.ready && !versionsOf("current").some((entry) => entry.model === model)).map((model) => h("span", { class: "status bad" }, `${model.name} (not ready)`));
  const content = [...live, ...others, ...waiting];
  announce(content.length ? content : [h("span", { class: "status warn" }, "no model is served")]);
}

/** Replace the status line; unchanged text is not announced again. */
function announce(content) {
  const describe = (parts) => [...parts].map((part) => part.className + part.textContent).join();
  if (describe(content) !== describe(element("health").children)) replace(element("health"), content);
}

function showVitals() {
  replace(element("vitals"), vitals(history).map(({ name, text, level }) => h("div", {}, h("dt", {}, name), h("dd", { class: level }, text))));
}

async function showView(force = false) {
  if (signedOut || !models) return;
  if (view === "live") showLive(panels.live, history, models);
  else if (view === "loop") showLoop(panels.loop, await getJson("loop"), history);
  else if (force || shown !== `${view} ${JSON.stringify(models)}`) {
    shown = `${view} ${JSON.stringify(models)}`;
    if (view === "models") showModels(panels.models, models);
    else if (view === "selection") await showSelection(panels.selection, models);
    else await tryView.show(models);
  }
}

function signIn(error) {
  signedOut = true;
  element("sign-in").hidden = false;
  panels[view].hidden = true;
  element("tabs").hidden = true;
  element("sign-out").hidden = true;
  element("key-error").textContent = key.read() ? error.message : "";
  replace(element("health"));
  element("key").focus();
}

function signedIn() {
  signedOut = false;
  element("sign-in").hidden = true;
  panels[view].hidden = false;
  element("tabs").hidden = false;
  element("sign-out").hidden = key.read() === null;
  element("service").textContent = `${models.service.name} ${models.service.version}`;
}

async function poll() {
  try {
    const [text, list] = await Promise.all([getMetrics(), polls % MODELS_POLLS && models ? models : getJson("models")]);
    polls += 1;
    updated = Date.now();
    history.add(updated, parse(text));
    record(history, updated);
    models = list;
    signedIn();
    showHealth();
    showVitals();
    await showView();
  } catch (error) {
    if (error.status === 401 || error.status === 403) signIn(error);
    else showHealth(error);
  }
}

async function pollForever() {
  if (!signedOut) await poll();
  setTimeout(pollForever, POLL_MS);
}

element("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  key.save(element("key").value.trim());
  element("key").value = "";
  polls = 0;
  shown = "";
  await poll();
  if (!signedOut) element("main").focus();
});
element("sign-out").addEventListener("click", () => {
  key.forget();
  location.reload();
});

startTheme(element("theme"));
startReports();
startTabs(element("tabs"), (name) => {
  view = name;
  for (const panel of Object.values(panels)) panel.classList.add("data");
  showView(true).catch(showHealth);
});
pollForever();
