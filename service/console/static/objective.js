// The objective: the weighted sum of task scores by which the service sorts candidates.

/** Weights that the service uses for tasks if a request has no objective. */
export function defaultWeights(objective, tasks) {
  const weights = Object.fromEntries(tasks.map((task) => [task, objective[task] ?? 0]));
  if (!Object.values(weights).some((weight) => weight)) weights[tasks[0]] = 1;
  return weights;
}

/** Add the objective to ranked items [{scores, position}] and sort them, best first; ties keep the order of the request. */
export function sortItems(items, weights) {
  const scored = items.map((item) => ({
    ...item,
    score: Object.entries(weights).reduce((sum, [task, weight]) => sum + weight * Math.fround(item.scores[task] ?? 0), 0),
  }));
  return scored.sort((a, b) => b.score - a.score || a.position - b.position);
}
