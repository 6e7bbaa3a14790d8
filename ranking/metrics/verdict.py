"""Whether a model beats its baselines, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

NAMES = {
    "constant": "the constant",
    "popularity": "popularity",
    "user_mean": "the user mean",
    "linear": "the linear model",
    "lightgbm": "LightGBM",
}
"""Name of each baseline in a sentence."""
DECIDING_METRICS = {"auc": "AUC", "rmse": "RMSE"}
"""Metrics that decide whether a model beats a baseline, with their names."""


def verdict(baselines: Mapping[str, Any] | None) -> list[str]:
    """Return one line per task whose baselines are not all beaten, or one line that says that all are.

    A baseline is beaten if the interval of the paired difference in AUC or RMSE excludes 0 in favor of the model. An
    undefined metric is not compared.

    Args:
        baselines: entry ``baselines`` of an evaluation; None in files of older versions.
    """
    if baselines is None:
        return []
    if "omitted" in baselines:
        return [f"no baselines: {baselines['omitted']}"]
    lines, compared = [], 0
    for task, entries in baselines["tasks"].items():
        results = list(_deciding(entries))
        compared += len(results)
        unbeaten = sorted((r for r in results if r[2]["better"] != "model"), key=_advantage)
        if unbeaten:
            name, metric, entry = unbeaten[0]
            others = [NAMES[other] for other, _, _ in unbeaten[1:]]
            nor = f"; nor {', '.join(others)}" if others else ""
            lines.append(f"{task}: the model does not beat {NAMES[name]}: {_describe(metric, entry)}{nor}")
    if lines:
        return lines
    if not compared:
        return ["no baselines: AUC and RMSE are undefined on these rows"]
    metrics = {metric for entries in baselines["tasks"].values() for _, metric, _ in _deciding(entries)}
    names = " and ".join(text for metric, text in DECIDING_METRICS.items() if metric in metrics)
    return [f"the model beats every baseline in {names} on all tasks"]


def _deciding(entries: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the name, deciding metric and its entry for each baseline of a task that is compared."""
    for name, metrics in entries.items():
        for metric in DECIDING_METRICS:
            if metric in metrics and metrics[metric]["difference"] is not None:
                yield name, metric, metrics[metric]


def _advantage(result: tuple[str, str, Mapping[str, Any]]) -> float:
    """Return by how much the model is better; negative if it is worse."""
    _, metric, entry = result
    difference: float = entry["difference"]
    return -difference if metric == "rmse" else difference


def _describe(metric: str, entry: Mapping[str, Any]) -> str:
    interval = entry["interval"]
    bounds = "without an interval" if interval is None else f"[{interval[0]:+z.4f}, {interval[1]:+z.4f}]"
    return (
        f"{DECIDING_METRICS[metric]} {entry['model']:.4f} against {entry['baseline']:.4f}, "
        f"difference {entry['difference']:+z.4f} {bounds}"
    )
