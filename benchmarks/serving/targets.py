"""Performance targets of the reference model, and whether the results meet them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.serving.engine_only import http_to_engine_ratios
from benchmarks.serving.engines import LOOK_UP
from benchmarks.serving.interleave import ratios
from benchmarks.serving.overload import REJECTED, attack_slowdown
from benchmarks.serving.peer_comparison import PART as PEERS
from benchmarks.serving.peers.catalog import HAND_WRITTEN, LITSERVE
from benchmarks.serving.roofline import ROOFLINE
from benchmarks.serving.served_log import served_log_ratios
from pipelines.bench.tables import spread

Results = Mapping[str, Any]
"""Part → measured values."""
Metric = Callable[[Results], Sequence[float]]
"""Computes one value per turn; raises LookupError if a part was not measured."""

FROZEN = "frozen, onnxruntime"
STAGES_AROUND_FORWARD = ("parse", "look-up", "write")
"""Stages of a request other than the queue and the forward pass."""


@dataclass(frozen=True)
class Target:
    """A bound on the median of a metric.

    Attributes:
        label: name of the metric.
        metric: computes the metric.
        bound: value that the median must reach.
        is_upper: the bound is an upper bound instead of a lower one.
    """

    label: str
    metric: Metric
    bound: float
    is_upper: bool = False

    def row(self, results: Results) -> tuple[str, str, str, str]:
        """Return the label, the measured value with its spread, the bound, and whether it is met."""
        bound = f"{'≤' if self.is_upper else '≥'} {self.bound:g}"
        try:
            values = self.metric(results)
        except LookupError:
            return self.label, "–", bound, "not measured"
        median = statistics.median(values)
        met = median <= self.bound if self.is_upper else median >= self.bound
        spec = ".2f" if self.bound >= 0.1 else ".3f"
        return self.label, spread(values, spec), bound, "met" if met else "**missed**"


def rows(results: Results) -> list[tuple[str, str, str, str]]:
    """Return the rows of all targets, see ``Target.row``."""
    return [target.row(results) for target in TARGETS]


def _time_ratio(numerator: str, denominator: str, candidates: int) -> Metric:
    """Divide the times of two contenders in one process."""

    def metric(results: Results) -> Sequence[float]:
        seconds = results["engines"]["sizes"][str(candidates)]
        return ratios(seconds[numerator], seconds[denominator])

    return metric


def _http_to_engine(results: Results) -> Sequence[float]:
    return http_to_engine_ratios(results["bare"])


def _stages_to_forward(form: str) -> Metric:
    def metric(results: Results) -> Sequence[float]:
        stages = [turn[f"{form} 500 1"]["stages"] for turn in results["http"]["turns"]]
        return [sum(turn[stage] for stage in STAGES_AROUND_FORWARD) / turn["forward"] for turn in stages]

    return metric


def _batching(results: Results) -> Sequence[float]:
    turns = results["batching"]["turns"]
    return [turn["batches"]["per_second"] / turn["no batches"]["per_second"] for turn in turns]


def _to_peer(name: str, candidates: int, key: str, *, clients: int = 32) -> Metric:
    """Divide a value of the service by that of a peer."""

    def metric(results: Results) -> Sequence[float]:
        turns = {peer["name"]: peer["turns"] for peer in results[PEERS]["peers"]}[name]
        loads = [turn[f"{candidates} {clients}"] for turn in turns]
        return [load["ranker"][key] / load["peer"][key] for load in loads]

    return metric


def _peer_targets() -> Iterator[Target]:
    """Return the targets of the comparison with other ways to serve the bundle."""
    sizes = (10, 100, 500)
    for count in sizes:
        label = f"requests/s: ranker / hand-written app, {count} candidates, 32 clients"
        yield Target(label, _to_peer(HAND_WRITTEN, count, "per_second"), 1.05)
    for count in sizes:
        label = f"p99: ranker / hand-written app, {count} candidates, 32 clients"
        yield Target(label, _to_peer(HAND_WRITTEN, count, "p99"), 1, is_upper=True)
    label = "p50: ranker / hand-written app, 10 candidates, 1 client"
    yield Target(label, _to_peer(HAND_WRITTEN, 10, "p50", clients=1), 1.2, is_upper=True)
    for count, bound in ((10, 2.2), (100, 1.3)):
        label = f"requests/s: ranker / LitServe, {count} candidates, 32 clients"
        yield Target(label, _to_peer(LITSERVE, count, "per_second"), bound)
    for count in (10, 100):
        label = f"p99: ranker / LitServe, {count} candidates, 32 clients"
        yield Target(label, _to_peer(LITSERVE, count, "p99"), 0.75, is_upper=True)


def _tail(results: Results) -> Sequence[float]:
    return [turn["100 0.7"]["p99"] / turn["100 0.7"]["p50"] for turn in results["open"]["turns"]]


def _overload(key: str, *, phase: str = "crowd") -> Metric:
    """Divide a value during or after the overload by the same value before it."""

    def metric(results: Results) -> Sequence[float]:
        return [turn[phase][key] / turn["alone"][key] for turn in results["overload"]["turns"]]

    return metric


def _rejection_milliseconds(results: Results) -> Sequence[float]:
    return [turn["crowd"]["failed_p99"][REJECTED] for turn in results["overload"]["turns"]]


def _memory_growth(results: Results) -> Sequence[float]:
    return [turn["grown"] for turn in results["overload"]["turns"]]


def _worst_attack(results: Results) -> Sequence[float]:
    return [max(attack_slowdown(turn, attack) for attack in turn) for turn in results["attacks"]["turns"]]


def _served_log_rate(results: Results) -> Sequence[float]:
    return served_log_ratios(results["served"], "ids")


def _served_log_writer(results: Results) -> Sequence[float]:
    return [turn["ids"]["on"]["writer"] for turn in results["served"]["turns"]]


TARGETS = (
    Target("speedup: frozen over dense eager, 500 candidates", _time_ratio("dense, eager", FROZEN, 500), 4),
    Target(
        "speedup: frozen over dense in the same runtime, 500 candidates",
        _time_ratio("dense, onnxruntime", FROZEN, 500),
        1.6,
    ),
    Target("speedup: one task over all tasks, 500 candidates", _time_ratio(FROZEN, "one task, onnxruntime", 500), 1.5),
    Target("share of the roofline, 500 candidates", _time_ratio(ROOFLINE, FROZEN, 500), 0.6),
    Target("share of the roofline, 100 candidates", _time_ratio(ROOFLINE, FROZEN, 100), 0.55),
    Target("time: look-up of 500 ids / frozen", _time_ratio(LOOK_UP, FROZEN, 500), 0.03, is_upper=True),
    Target(
        "speedup: user/item split over no split, 500 candidates",
        _time_ratio("no split, onnxruntime", FROZEN, 500),
        1.08,
    ),
    Target("requests/s: HTTP / engine only, ids, 100 candidates, 64 clients", _http_to_engine, 0.75),
    Target("requests/s: batching / no batching, 10 candidates, 32 clients", _batching, 1.5),
    Target(
        "time: parse + look-up + write / forward, columns, 500 candidates",
        _stages_to_forward("columns"),
        0.25,
        is_upper=True,
    ),
    Target(
        "time: parse + look-up + write / forward, ids, 500 candidates", _stages_to_forward("ids"), 0.1, is_upper=True
    ),
    *_peer_targets(),
    Target("p99 / p50 at 70 % of peak, ids, 100 candidates", _tail, 4, is_upper=True),
    Target("responses/s: at 5× peak / at peak", _overload("per_second"), 0.8),
    Target("p99 of responses: at 5× peak / at peak", _overload("p99"), 3, is_upper=True),
    Target("p99 of rejections at 5× peak, milliseconds", _rejection_milliseconds, 50, is_upper=True),
    Target("memory: after / before overload", _memory_growth, 1.05, is_upper=True),
    Target("responses/s: after / before overload", _overload("per_second", phase="after"), 0.8),
    Target("p99: during / before the worst attack", _worst_attack, 2, is_upper=True),
    Target("requests/s: served log on / off, ids, 100 candidates, 32 clients", _served_log_rate, 0.95),
    Target("CPU time: thread of the served log / the service", _served_log_writer, 0.03, is_upper=True),
)
