// Keeps the scrapes of the last minute, and computes rates and quantiles from them as PromQL does.

/** Seconds over which rates and quantiles are computed. */
export const WINDOW_SECONDS = 60;

const matches = (labels, filter) => Object.entries(filter).every(([label, value]) => labels[label] === value);
const groupOf = (labels, by) => by.map((label) => labels[label] ?? "").join("\u0000");

export class History {
  #scrapes = [];

  /** Add a scrape: its time in milliseconds and its metrics from `parse`. */
  add(time, metrics) {
    this.#scrapes.push({ time, metrics });
    while (this.#scrapes.length > 2 && this.#scrapes[0].time < time - WINDOW_SECONDS * 1000) this.#scrapes.shift();
  }

  /** Seconds between the first and the last scrape of the window. */
  get span() {
    return this.#scrapes.length < 2 ? 0 : (this.#scrapes.at(-1).time - this.#scrapes[0].time) / 1000;
  }

  /** Last values of a metric, summed by labels: a map from the joined labels to {labels, value}. */
  latest(name, by = [], filter = {}) {
    return this.#sum(name, by, filter, (series, text) => series.get(text)?.value ?? 0);
  }

  /** Sum of the last values of a metric; null if it has no series. */
  total(name, filter = {}) {
    const sums = [...this.latest(name, [], filter).values()];
    return sums.length ? sums[0].value : null;
  }

  /**
   * Increase of a counter in the window, summed by labels.
   *
   * A value below the previous one is a reset: the counter has restarted at 0. A series that an earlier scrape lacks
   * was 0, so that the first error is visible.
   */
  increase(name, by = [], filter = {}) {
    const windows = this.#scrapes.map((scrape) => scrape.metrics.get(name));
    return this.#sum(name, by, filter, (_, text) => {
      let increase = 0, previous = windows[0]?.get(text)?.value ?? 0;
      for (const series of windows.slice(1)) {
        const value = series?.get(text)?.value ?? 0;
        increase += value >= previous ? value - previous : value;
        previous = value;
      }
      return increase;
    });
  }

  /** Increase per second, as `increase`. NaN until there are two scrapes. */
  rate(name, by = [], filter = {}) {
    const rates = this.increase(name, by, filter);
    for (const entry of rates.values()) entry.value = this.span ? entry.value / this.span : NaN;
    return rates;
  }

  /** Sum of the rates of a counter; 0 if it has no series. */
  totalRate(name, filter = {}) {
    if (!this.span) return NaN;
    return [...this.rate(name, [], filter).values()][0]?.value ?? 0;
  }

  /** Quantile of the observations of a histogram in the window; NaN if there are none. */
  quantile(q, name, filter = {}) {
    const buckets = [...this.increase(`${name}_bucket`, ["le"], filter).values()]
      .map(({ labels, value }) => [labels.le === "+Inf" ? Infinity : Number(labels.le), value])
      .sort((a, b) => a[0] - b[0]);
    return histogramQuantile(q, buckets);
  }

  #sum(name, by, filter, valueOf) {
    const series = this.#scrapes.at(-1)?.metrics.get(name) ?? new Map();
    const sums = new Map();
    for (const [text, { labels }] of series) {
      if (!matches(labels, filter)) continue;
      const group = groupOf(labels, by);
      const entry = sums.get(group) ?? { labels: Object.fromEntries(by.map((label) => [label, labels[label] ?? ""])), value: 0 };
      entry.value += valueOf(series, text);
      sums.set(group, entry);
    }
    return sums;
  }
}

/** Quantile of cumulative buckets [[upper bound, count], …] by linear interpolation, as PromQL's histogram_quantile. */
export function histogramQuantile(q, buckets) {
  const total = buckets.at(-1)?.[1] ?? 0;
  if (!total || buckets.length < 2) return NaN;
  const rank = q * total;
  const index = buckets.findIndex(([, count]) => count >= rank);
  if (index === buckets.length - 1) return buckets[index - 1][0];
  const [upper, count] = buckets[index];
  if (index === 0 && upper <= 0) return upper;
  const [lower, below] = index ? buckets[index - 1] : [0, 0];
  return lower + (upper - lower) * ((rank - below) / (count - below || 1));
}
