// Builds the rank request from the form.

const LISTS = ["bag", "sequence"];

/** Convert the text of an input to the value of a feature; text that is not a number is sent as it is. */
export function toValue(kind, text) {
  if (LISTS.includes(kind)) return text.split(",").map((part) => part.trim()).filter((part) => part);
  if (kind === "categorical") return text.trim();
  return text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
}

/** Convert {name: text} to features; empty texts are left out, so that the service looks them up. */
export function toFeatures(inputs, texts) {
  const present = inputs.filter(({ name }) => (texts[name] ?? "").trim() !== "");
  return Object.fromEntries(present.map(({ name, kind }) => [name, toValue(kind, texts[name])]));
}

/** Build a request from the inputs of the model and the state of the form. */
export function buildRequest(inputs, state, objective) {
  const owned = (owner) => inputs.filter((input) => input.owner === owner);
  const withFeatures = (id, features) => ({ ...(id.trim() ? { id: id.trim() } : {}), ...(Object.keys(features).length ? { features } : {}) });
  const user = withFeatures(state.userId, toFeatures(owned("user"), state.user));
  const context = toFeatures(owned("context"), state.context);
  const items = state.items.filter((item) => item.id.trim() || Object.values(item.features).some((text) => text.trim()))
    .map((item) => withFeatures(item.id, toFeatures(owned("item"), item.features)));
  return {
    ...(Object.keys(user).length ? { user } : {}),
    ...(Object.keys(context).length ? { context } : {}),
    items, tasks: state.tasks, ...(objective ? { objective } : {}), explain: true,
  };
}

const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** The request as a shell command; the API key is read from RANKER_KEY. */
export function curlCommand(url, request, withKey) {
  const key = withKey ? ' \\\n  -H "Authorization: Bearer $RANKER_KEY"' : "";
  return `curl -s ${quote(url)} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d ${quote(JSON.stringify(request, null, 1))}`;
}
