"""Recovery of the experts that generated the data (DSelect-k, appendix C.2.2; figures 2, C.8 and C.9)."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from matplotlib.figure import Figure
from scipy.stats import binomtest
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.papers.mixtures import Effort, Method, Problems, Split, evaluate, glorot, train
from benchmarks.papers.plots import expert_weights
from benchmarks.papers.tuning import FRESH_SEED, Grid, tune
from benchmarks.papers.verdicts import Verdict, is_lower, verdict
from pipelines.bench.tables import section
from pipelines.config.config import ConvergenceConfig
from pipelines.console import print_status
from pipelines.evaluation.paired import mean_and_error, paired_interval, plus_minus
from ranking.settings.gate import DSelectKConfig, TopKConfig

SEEDS = 60
FEATURES, UNITS = 10, 4
TRUE_EXPERTS, EXPERTS = 4, 16
ROWS = 10_000
"""Rows of the training split, and of the validation split."""
MIN_RATE = 0.2
"""Minimum rate of the rarer label: a label that is almost constant does not identify its experts."""
DSELECT_K, TOP_K = "DSelect-k", "Top-k"
GATE = DSelectKConfig(k=TRUE_EXPERTS, overlap_weight=0.1)
METHODS = (
    Method(DSELECT_K, GATE),
    Method("DSelect-k, α not held", GATE, convergence=ConvergenceConfig(hold_alpha_until=0.0)),
    Method(TOP_K, TopKConfig(kind="top_k", k=TRUE_EXPERTS)),
)
GRIDS = {
    "label": Grid(gate_rates=(1e-1, 3e-2, 1e-2, 2.5e-3, 1e-3, 3e-4), rates=(10.0, 3.0, 1.0, 3e-1, 1e-1)),
    "mixture": Grid(gate_rates=(1e-1, 3e-2, 1e-2, 2.5e-3, 1e-3, 3e-4), rates=(1e-1,)),  # Only the gate is trained.
}
EFFORT, TUNING_PROBLEMS = Effort(steps=2_000, batch=256), 20
QUICK, QUICK_ROWS = Effort(steps=40, batch=64), 500
RECORD_EVERY, EARLY_STEPS = 10, 300
PAPER = {DSELECT_K: "4", TOP_K: "1"}
"""Experts that the paper's tuned models recovered, on one problem."""

Target = Literal["label", "mixture"]
TARGETS: dict[Target, str] = {
    "label": "the label, with cross-entropy, as in the paper",
    "mixture": "the mixture of the experts itself, with squared error",
}


class Recovery(Problems):
    """Mixtures of frozen experts, 4 of which generated the data; the gate and a logistic unit are trained.

    An expert is a layer of 4 ReLU units. The generating model takes the mean of its 4 experts and feeds it into a
    logistic unit; the label is whether its output is positive. The 12 other experts are drawn from the same
    distribution. The positions of the 4 experts among the 16 are random.

    Args:
        seeds: seed of each problem.
        target: ``label`` trains with cross-entropy on the label; ``mixture`` with the squared error of the mixed
            experts, relative to the variance of the true mixture, and does not use the logistic unit.
        rows: rows of each split.
    """

    def __init__(self, seeds: range, target: Target = "label", rows: int = ROWS) -> None:
        super().__init__()
        self.num_tasks, self.num_experts = len(seeds), EXPERTS
        self.rows: dict[Split, int] = {"train": rows, "validation": rows}
        self.chunk = rows
        self._target = target
        draws = [_draw(seed, rows) for seed in seeds]
        self.true_experts = [experts for _, experts, _, _ in draws]
        self._outputs = torch.stack([outputs for outputs, _, _, _ in draws])  # [problems, all rows, experts, units]
        self._mixtures = torch.stack([mixture for _, _, mixture, _ in draws])
        self._labels = torch.stack([labels for _, _, _, labels in draws])
        self._variance = self._mixtures[:, :rows].var(1).mean(-1)
        self.unit = nn.Parameter(torch.stack([_logistic_unit(seed) for seed in seeds]))

    def losses(self, weights: Tensor, split: Split, rows: Tensor) -> Tensor:
        """Return the mean loss of each problem over some rows of a split [problems]."""
        index = rows if split == "train" else rows + self.rows["train"]
        mixed = torch.einsum("prnu,pn->pru", self._outputs[:, index], weights)
        if self._target == "mixture":
            return (mixed - self._mixtures[:, index]).square().mean((1, 2)) / self._variance
        logits = torch.einsum("pru,pu->pr", mixed, self.unit[:, :UNITS]) + self.unit[:, UNITS:]
        return F.binary_cross_entropy_with_logits(logits, self._labels[:, index], reduction="none").mean(1)


def _draw(seed: int, rows: int) -> tuple[Tensor, set[int], Tensor, Tensor]:
    """Draw a problem: outputs of all experts, the true experts, their mixture and the labels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2 * rows, FEATURES, generator=generator)
    while True:
        weights = glorot(FEATURES, UNITS, EXPERTS, generator)
        outputs = torch.relu(torch.einsum("rf,nfu->rnu", x, weights))
        experts = torch.randperm(EXPERTS, generator=generator)[:TRUE_EXPERTS]
        mixture = outputs[:, experts].mean(1)
        labels = (mixture @ glorot(UNITS, 1, 1, generator)[0, :, 0] > 0).float()
        if MIN_RATE <= labels.mean() <= 1 - MIN_RATE:
            return outputs, set(experts.tolist()), mixture, labels


def _logistic_unit(seed: int) -> Tensor:
    """Draw the initial parameters of a logistic unit: its weights, and a bias of 0 [units + 1]."""
    generator = torch.Generator().manual_seed(2**20 + seed)
    return torch.cat([glorot(UNITS, 1, 1, generator).flatten(), torch.zeros(1)])


def run(seeds: int, *, quick: bool) -> dict[str, Any]:
    """Tune each method, then count the experts that it recovers on fresh problems."""
    effort, rows = (QUICK, QUICK_ROWS) if quick else (EFFORT, ROWS)
    results: dict[str, Any] = {"effort": vars(effort), "targets": {}}
    for target in TARGETS:
        grid = GRIDS[target].smallest() if quick else GRIDS[target]
        make = partial(Recovery, target=target, rows=rows)
        methods: dict[str, dict[str, Any]] = {}
        for method in METHODS:
            tuned, trials = tune(method, grid, make, 2 if quick else TUNING_PROBLEMS, effort)
            problems = make(range(FRESH_SEED, FRESH_SEED + seeds))
            fit = train(problems, tuned, effort, FRESH_SEED, RECORD_EVERY)
            selected = [fit.experts(problem) for problem in range(seeds)]
            methods[method.name] = {
                "gate": method.gate.model_dump(),
                "convergence": method.convergence.model_dump(),
                "gate_rate": tuned.gate_rate,
                "rate": tuned.rate,
                "trials": trials,
                "recovered": [len(a & b) for a, b in zip(selected, problems.true_experts, strict=True)],
                "selected": [len(experts) for experts in selected],
                "validation_loss": evaluate(problems, fit, "validation").tolist(),
                "trajectory": fit.trajectory,
                "true_experts": sorted(problems.true_experts[0]),
            }
            recovered, _ = mean_and_error(methods[method.name]["recovered"])
            print_status(f"{method.name}, {target}: {recovered:.2f} of {TRUE_EXPERTS} experts recovered")
        results["targets"][target] = methods
    return results


def format_tables(results: dict[str, Any]) -> str:
    """Format a table per target."""
    return "\n".join(_table(target, results["targets"][target]) for target in TARGETS)


def _table(target: Target, methods: dict[str, Any]) -> str:
    rows = []
    for name, values in methods.items():
        rate = f", {values['rate']:g}" if target == "label" else ""
        rows.append(
            (
                name,
                plus_minus(*mean_and_error(values["recovered"]), 2),
                " · ".join(str(values["recovered"].count(count)) for count in range(TRUE_EXPERTS + 1)),
                plus_minus(*mean_and_error(values["selected"]), 2),
                plus_minus(*mean_and_error(values["validation_loss"]), 4),
                f"{values['gate_rate']:g}{rate}",
                PAPER.get(name, "–") if target == "label" else "–",
            )
        )
    ours, theirs = methods[DSELECT_K], methods[TOP_K]
    loss = plus_minus(*paired_interval(ours["validation_loss"], theirs["validation_loss"]), 4)
    recovered = plus_minus(*paired_interval(ours["recovered"], theirs["recovered"]), 2)
    only_ours, only_theirs, p = _all_four(ours, theirs)
    return section(
        f"Trained on {TARGETS[target]}",
        f"{len(ours['recovered'])} problems; means with standard errors.",
        (
            "",
            "of 4 experts recovered",
            "problems with 0 · 1 · 2 · 3 · 4",
            "selected",
            "validation loss",
            "rates: gate, logistic unit" if target == "label" else "rate of the gate",
            "paper, one problem",
        ),
        rows,
        f"DSelect-k − Top-k, paired, with 95 % intervals: {recovered} experts, {loss} validation loss. Only DSelect-k "
        f"recovers all four in {only_ours} problems, only Top-k in {only_theirs} (exact McNemar test: p = {p:.2g}).",
    )


def _all_four(ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[int, int, float]:
    """Count the problems in which one method alone recovers all experts; returns also the p-value of McNemar's test."""
    pairs = [
        (a == TRUE_EXPERTS, b == TRUE_EXPERTS) for a, b in zip(ours["recovered"], theirs["recovered"], strict=True)
    ]
    only_ours, only_theirs = pairs.count((True, False)), pairs.count((False, True))
    count = only_ours + only_theirs
    return only_ours, only_theirs, float(binomtest(only_ours, count).pvalue) if count else 1.0


def plot(results: dict[str, Any]) -> Figure:
    """Plot the expert weights of the first problem during the training (figures 2, C.8 and C.9)."""
    methods = results["targets"]["label"]
    top_k, ours = (methods[name]["trajectory"] for name in (TOP_K, DSELECT_K))
    early = [(step, weights) for step, weights in top_k if step <= EARLY_STEPS]
    panels = {TOP_K: top_k, f"{TOP_K}, first {EARLY_STEPS} steps": early, DSELECT_K: ours}
    return expert_weights(panels, {expert: f"true expert {expert}" for expert in methods[TOP_K]["true_experts"]})


def claims(results: dict[str, Any]) -> list[tuple[str, Verdict]]:
    """Return the claims of the paper, and whether they held."""
    methods = results["targets"]["label"]
    ours, theirs = methods[DSELECT_K], methods[TOP_K]
    problems, all_four = len(ours["recovered"]), ours["recovered"].count(TRUE_EXPERTS)
    return [
        ("DSelect-k recovers more of the true experts than Top-k", is_lower(theirs["recovered"], ours["recovered"])),
        (
            f"DSelect-k recovers all 4 experts (here in {all_four} of {problems} problems)",
            verdict(all_four == problems),
        ),
        (
            "DSelect-k has a lower validation loss than Top-k",
            is_lower(ours["validation_loss"], theirs["validation_loss"]),
        ),
    ]
