// Parses the Prometheus text format.

const LABEL = /([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)",?/g;
const LINE = /^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?$/;
const ESCAPES = { n: "\n", "\\": "\\", '"': '"' };

function toNumber(text) {
  if (text === "+Inf") return Infinity;
  return text === "-Inf" ? -Infinity : Number(text);
}

/**
 * Parse an exposition.
 *
 * Returns a map from metric name to a map from the text of the labels to {labels, value}.
 */
export function parse(text) {
  const metrics = new Map();
  for (const line of text.split("\n")) {
    if (!line || line.startsWith("#")) continue;
    const match = LINE.exec(line);
    if (!match) continue;
    const [, name, labelText = "", value] = match;
    const labels = {};
    for (const [, label, escaped] of labelText.matchAll(LABEL)) {
      labels[label] = escaped.replace(/\\(.)/g, (_, character) => ESCAPES[character] ?? character);
    }
    if (!metrics.has(name)) metrics.set(name, new Map());
    metrics.get(name).set(labelText, { labels, value: toNumber(value) });
  }
  return metrics;
}
