// Line charts of the last minutes, as SVG.

import { h, svg } from "./dom.js";
import { clock } from "./format.js";

/** Seconds of history that charts show. */
export const CHART_SECONDS = 300;

/** Number of patterns of dashes. */
export const DASHES = 4;

const WIDTH = 360, HEIGHT = 132, LEFT = 54, RIGHT = 6, TOP = 8, BOTTOM = 18, COLORS = 6;

/** Values of one chart over time: one line for each name. */
export class Lines {
  #points = [];

  /** Add the values of one time: a map from the name of a line to its value. */
  add(time, values) {
    this.#points.push({ time, values });
    while (this.#points[0].time < time - CHART_SECONDS * 1000) this.#points.shift();
  }

  get names() {
    return [...new Set(this.#points.flatMap(({ values }) => [...values.keys()]))];
  }

  get end() {
    return this.#points.at(-1)?.time ?? 0;
  }

  /** Points [[time, value], …] of one line that have a value. */
  line(name) {
    return this.#points.map(({ time, values }) => [time, values.get(name)]).filter(([, value]) => Number.isFinite(value));
  }
}

function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999999);
}

/** Draw a chart; `format` formats values, `unit` is part of the caption, `styles` has the classes of each line. */
export function chart(title, unit, lines, format, names = lines.names, styles = names.map((_, index) => `c${index % COLORS} d${Math.floor(index / COLORS) % DASHES}`)) {
  const drawn = names.map((name) => lines.line(name));
  const top = roundUp(Math.max(0, ...drawn.flat().map(([, value]) => value)) || 1);
  const start = lines.end - CHART_SECONDS * 1000;
  const x = (time) => LEFT + ((WIDTH - LEFT - RIGHT) * (time - start)) / (CHART_SECONDS * 1000);
  const y = (value) => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value / top);
  const path = (points) => points.map(([time, value], i) => `${i ? "L" : "M"}${x(time).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const last = names.map((name, index) => `${name} ${drawn[index].length ? format(drawn[index].at(-1)[1]) : "–"}`);
  return h("figure", {},
    h("figcaption", {}, title, " ", h("span", { class: "soft" }, unit)),
    svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}, ${unit}: ${last.join(", ") || "no values yet"}` },
      [0, 0.5, 1].map((share) => [
        svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(top * share), y2: y(top * share) }),
        svg("text", { x: LEFT - 6, y: y(top * share) + 4, "text-anchor": "end" }, drawn.some((points) => points.length) || !share ? format(top * share) : ""),
      ]).flat(),
      svg("text", { x: LEFT, y: HEIGHT - 3 }, clock(start)),
      svg("text", { x: WIDTH - RIGHT, y: HEIGHT - 3, "text-anchor": "end" }, clock(lines.end)),
      drawn.map((points, index) => points.length > 1 && svg("path", { class: styles[index], d: path(points) }))),
    h("ul", { class: "legend" }, last.map((text, index) =>
      h("li", {}, svg("svg", { viewBox: "0 0 16 8", "aria-hidden": "true" }, svg("line", { class: styles[index], x1: 0, x2: 16, y1: 4, y2: 4, "stroke-width": 2 })), text))));
}
