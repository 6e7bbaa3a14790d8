"""What must hold for the reference model, and what was found."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.bench.engines import LOOK_UP
from pipelines.bench.roofline import ROOFLINE
from pipelines.bench.tables import spread
from pipelines.bench.turns import ratios

Parts = Mapping[str, Any]
"""Part → what it measured."""
Figure = Callable[[Parts], Sequence[float]]

FROZEN = "frozen, onnxruntime"
REFUSED = "429"
"""The status of a request that is not admitted."""
BESIDE = ("parse", "look-up", "write")
"""Stages of a request besides waiting and the forward."""


@dataclass(frozen=True)
class Aim:
    """One ratio.

    Attributes:
        what: is compared.
        figure: its value in each turn; raises LookupError if a part is not there.
        bound: that the median must reach.
        most: the bound is the largest value instead of the smallest.
    """

    what: str
    figure: Figure
    bound: float
    most: bool = False

    def line(self, parts: Parts) -> tuple[str, str, str, str]:
        """What, the figure with its spread, the bound, and whether it is reached."""
        bound = f"{'≤' if self.most else '≥'} {self.bound:g}"
        try:
            found = self.figure(parts)
        except LookupError:
            return self.what, "–", bound, "not measured"
        median = statistics.median(found)
        reached = median <= self.bound if self.most else median >= self.bound
        digits = ".2f" if self.bound >= 0.1 else ".3f"
        return self.what, spread(found, digits), bound, "reached" if reached else "**not reached**"


def lines(parts: Parts) -> list[tuple[str, str, str, str]]:
    """All aims, see ``Aim.line``."""
    return [aim.line(parts) for aim in AIMS]


def _engine(above: str, below: str, candidates: int) -> Figure:
    def figure(parts: Parts) -> Sequence[float]:
        spent = parts["engines"]["sizes"][str(candidates)]
        return ratios(spent[above], spent[below])

    return figure


def of_bare(parts: Parts) -> Sequence[float]:
    """Requests/s over HTTP of the bare engine's, turn by turn."""
    return [turn["service"]["per_second"] / turn["engine"] for turn in parts["bare"]["turns"]]


def _beside_forward(form: str) -> Figure:
    def figure(parts: Parts) -> Sequence[float]:
        stages = [turn[f"{form} 500 1"]["stages"] for turn in parts["http"]["turns"]]
        return [sum(spent[stage] for stage in BESIDE) / spent["forward"] for spent in stages]

    return figure


def _batching(parts: Parts) -> Sequence[float]:
    turns = parts["batching"]["turns"]
    return [turn["batches"]["per_second"] / turn["no batches"]["per_second"] for turn in turns]


def _rival(candidates: int, cores: int, value: str) -> Figure:
    def figure(parts: Parts) -> Sequence[float]:
        cases = {(case["candidates"], case["cores"]): case["turns"] for case in parts["rival"]["cases"]}
        return [turn["ranker"][value] / turn["litserve"][value] for turn in cases[candidates, cores]]

    return figure


def _tail(parts: Parts) -> Sequence[float]:
    return [turn["100 0.7"]["p99"] / turn["100 0.7"]["p50"] for turn in parts["open"]["turns"]]


def _crowd(value: str, *, of: str = "crowd") -> Figure:
    """A value of a crowd, or after it, of the same value before it."""

    def figure(parts: Parts) -> Sequence[float]:
        return [turn[of][value] / turn["alone"][value] for turn in parts["overload"]["turns"]]

    return figure


def _refusal(parts: Parts) -> Sequence[float]:
    """Milliseconds."""
    return [turn["crowd"]["failed_p99"][REFUSED] for turn in parts["overload"]["turns"]]


def _grown(parts: Parts) -> Sequence[float]:
    return [turn["grown"] for turn in parts["overload"]["turns"]]


def slowed(turn: Mapping[str, Any], attack: str) -> float:
    """The p99 of others during an attack, of the one before it."""
    ratio: float = turn[attack]["during"]["p99"] / turn[attack]["before"]["p99"]
    return ratio


def _attacks(parts: Parts) -> Sequence[float]:
    return [max(slowed(turn, attack) for attack in turn) for turn in parts["attacks"]["turns"]]


AIMS = (
    Aim("frozen / dense eager, 500 candidates", _engine("dense, eager", FROZEN, 500), 4),
    Aim("frozen / dense in the same runtime, 500", _engine("dense, onnxruntime", FROZEN, 500), 1.6),
    Aim("one task only / all tasks, 500", _engine(FROZEN, "one task, onnxruntime", 500), 1.5),
    Aim("of the roofline, 500", _engine(ROOFLINE, FROZEN, 500), 0.6),
    Aim("of the roofline, 100", _engine(ROOFLINE, FROZEN, 100), 0.55),
    Aim("look-up of 500 ids / frozen", _engine(LOOK_UP, FROZEN, 500), 0.03, most=True),
    Aim("user/item split / no split, 500", _engine("no split, onnxruntime", FROZEN, 500), 1.08),
    Aim("HTTP / bare engine, ids, 100 candidates, 64 clients", of_bare, 0.65),
    Aim("batching / no batching, 10 candidates, 32 clients", _batching, 1.5),
    Aim("parse + look-up + write / forward, columns, 500", _beside_forward("columns"), 0.25, most=True),
    Aim("parse + look-up + write / forward, ids, 500", _beside_forward("ids"), 0.1, most=True),
    Aim("requests/s of LitServe's, one core, 100 candidates, 32 clients", _rival(100, 1, "per_second"), 1.3),
    Aim("requests/s of LitServe's, one core, 10 candidates, 32 clients", _rival(10, 1, "per_second"), 2.2),
    Aim("p99 of LitServe's, two cores, 100 candidates, 32 clients", _rival(100, 2, "p99"), 0.75, most=True),
    Aim("p99 of LitServe's, two cores, 10 candidates, 32 clients", _rival(10, 2, "p99"), 0.75, most=True),
    Aim("p99 / p50 at 70 % of the most, ids, 100 candidates", _tail, 4, most=True),
    Aim("answers/s at five times the most, of the most", _crowd("per_second"), 0.8),
    Aim("p99 of those answers, of that at the most", _crowd("p99"), 3, most=True),
    Aim("p99 of a refusal there, milliseconds", _refusal, 50, most=True),
    Aim("memory after it, of that before", _grown, 1.05, most=True),
    Aim("answers/s after it, of those before", _crowd("per_second", of="after"), 0.8),
    Aim("p99 beside the worst of four attacks, of that before it", _attacks, 2, most=True),
)
