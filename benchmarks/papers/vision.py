"""Two overlapping images, one task each: Multi-MNIST and Multi-Fashion (DSelect-k, section 4.2; tables 2 and C.3)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from benchmarks.papers import plots as figures
from benchmarks.papers.convolutions import ConvolutionalExperts, Dense, Shape
from benchmarks.papers.images import CLASSES, SOURCES, Images, read_images, with_validation
from benchmarks.papers.mixtures import Effort, Fit, Method, Problems, Split, evaluate, train
from benchmarks.papers.tuning import FRESH_SEED, Grid, tune
from benchmarks.papers.verdicts import Verdict, is_lower, is_not_higher
from pipelines.bench.tables import section
from pipelines.config.config import ConvergenceConfig
from pipelines.console import print_status
from pipelines.evaluation.paired import mean_and_error, paired_interval, plus_minus
from ranking.settings.gate import DSelectKConfig, GumbelSoftmaxConfig, SharedBottomConfig, SoftmaxConfig, TopKConfig

SEEDS = 2
DATA = {"Multi-MNIST": "mnist", "Multi-Fashion": "fashion-mnist"}
RAW = "a folder with " + "; ".join(f"{name}: {SOURCES[name]}" for name in DATA.values())
TASKS, EXPERTS, SIZE, SHIFT = 2, 8, 36, 8
"""Images of 28 × 28 are placed at the top left and the bottom right of 36 × 36, 8 pixels apart."""
SHAPE = Shape(((10, 5), (20, 5)), (50,))
TOWER = (50, 50, 50, CLASSES)
ROWS: dict[Split, int] = {"train": 100_000, "validation": 20_000, "test": 20_000}
QUICK_ROWS: dict[Split, int] = {"train": 32, "validation": 8, "test": 8}
EFFORT, QUICK = Effort(steps=1_950, batch=256), Effort(steps=2, batch=8)
GRID = Grid(gate_rates=(1e-2,), rates=(1e-3, 3e-3))
SCHEDULE = ConvergenceConfig(anneal_from=0.2, anneal_until=0.6, hold_alpha_until=0.3)
DSELECT_K, TOP_K, GUMBEL, SHARED = "DSelect-k", "Top-k", "Gumbel softmax", "Shared bottom"
DSELECT_K_PER_EXAMPLE = f"{DSELECT_K}, per example"
METHODS = (
    Method(DSELECT_K, DSelectKConfig(k=2), convergence=SCHEDULE),
    Method(TOP_K, TopKConfig(kind="top_k", k=2), convergence=SCHEDULE),
    Method(GUMBEL, GumbelSoftmaxConfig(kind="gumbel_softmax"), convergence=SCHEDULE),
    Method(DSELECT_K_PER_EXAMPLE, DSelectKConfig(k=2, per_example=True), convergence=SCHEDULE),
    Method(f"{TOP_K}, per example", TopKConfig(kind="top_k", k=2, per_example=True), convergence=SCHEDULE),
    Method("Softmax", SoftmaxConfig(kind="softmax"), convergence=SCHEDULE),
    Method(SHARED, SharedBottomConfig(kind="shared_bottom"), convergence=SCHEDULE),
)
PAPER = {
    "Multi-MNIST": (
        "92.56, 90.98; 1.7",
        "91.93, 90.03; 4",
        "92.30, 90.63; 1.8",
        "92.42, 90.70; 1.5",
        "92.27, 90.45; 4",
        "92.61, 91.00; 8",
        "91.30, 89.47; –",
    ),
    "Multi-Fashion": (
        "83.78, 83.34; 1.8",
        "83.44, 82.66; 4",
        "83.66, 83.28; 1.5",
        "83.69, 83.13; 1.5",
        "83.66, 83.15; 4",
        "83.48, 82.81; 8",
        "82.05, 81.37; –",
    ),
}
"""Accuracy of both tasks and experts per task in the paper, in the order of ``METHODS``."""
PAPER_CONVERGENCE = {"Multi-MNIST": "42 %; 0.8", "Multi-Fashion": "80 %; 1.2"}
"""Steps until DSelect-k's selection was binary, and training FLOPs relative to Top-k (table C.3)."""


class Vision(Problems):
    """Images of two overlapping items; a task is the class of one of them.

    Args:
        seeds: one seed, of the initial parameters.
        data: images of each split.
        experts: number of experts.
    """

    def __init__(self, seeds: range, data: dict[Split, tuple[Tensor, Tensor]], experts: int = EXPERTS) -> None:
        super().__init__()
        torch.manual_seed(2**20 + seeds[0])
        self.num_tasks, self.num_experts, self.example_width = TASKS, experts, SIZE * SIZE
        self.rows: dict[Split, int] = {split: len(classes) for split, (_, classes) in data.items()}
        self.chunk = 500
        self.experts = ConvolutionalExperts(experts, (1, SIZE, SIZE), SHAPE)
        self.towers = Dense(TASKS, TOWER)
        self.evaluated = 0  # Experts × rows in training.
        self._data = data

    def losses(self, weights: Tensor, split: Split, rows: Tensor) -> Tensor:
        """Return the mean cross-entropy of each task [2]."""
        return self._mean(partial(F.cross_entropy, reduction="none"), weights, split, rows)

    def accuracies(self, weights: Tensor, split: Split, rows: Tensor) -> Tensor:
        """Return the accuracy of each task [2]."""
        return self._mean(lambda logits, classes: (logits.argmax(-1) == classes).float(), weights, split, rows)

    def examples(self, split: Split, rows: Tensor) -> Tensor:
        """Return the pixels [rows, width]."""
        return self._pixels(split, rows).flatten(1)

    def _pixels(self, split: Split, rows: Tensor) -> Tensor:
        return self._data[split][0][rows].unsqueeze(1) / 255

    def _mean(self, measure: Callable[[Tensor, Tensor], Tensor], weights: Tensor, split: Split, rows: Tensor) -> Tensor:
        """Return the mean of a measure of logits [rows, classes] and classes [rows], by task."""
        chosen = weights.detach().flatten(0, -2).any(0).nonzero().flatten().tolist()
        if split == "train":
            self.evaluated += len(chosen) * len(rows)
        hidden = self.experts(self._pixels(split, rows), chosen)
        mixed = torch.einsum("bte,ebu->tbu" if weights.dim() == 3 else "te,ebu->tbu", weights[..., chosen], hidden)
        classes = self._data[split][1][rows]
        logits = self.towers(mixed)
        return torch.stack([measure(logits[task], classes[:, task]).mean() for task in range(TASKS)])


def overlay(images: Images, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw pairs of images and overlay them; brightnesses are added, up to that of white.

    Args:
        images: images of 28 × 28.
        count: number of results.
        seed: seed of the pairs.

    Returns:
        Pixels [count, 36, 36], uint8, and the classes of the item at the top left and at the bottom right [count, 2].
    """
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.randint(len(images.classes), (count, TASKS), generator=generator)
    pixels = torch.zeros(count, SIZE, SIZE)
    pixels[:, :-SHIFT, :-SHIFT] += images.pixels[pairs[:, 0], 0]
    pixels[:, SHIFT:, SHIFT:] += images.pixels[pairs[:, 1], 0]
    return (255 * pixels.clamp_(max=1)).round_().to(torch.uint8), images.classes[pairs]


def run(seeds: int, *, quick: bool, raw: Path | None) -> dict[str, Any]:
    """Tune each method, then train it with fresh seeds on both data sets; on a GPU if there is one.

    Raises:
        LogError: a data set is missing or damaged.
    """
    effort, rows, grid = (QUICK, QUICK_ROWS, GRID.smallest()) if quick else (EFFORT, ROWS, GRID)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    read = [read_images(raw, folder) for folder in DATA.values()]  # Both are checked before the first is used.
    results: dict[str, Any] = {
        "effort": vars(effort),
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "data": {},
    }
    for title, images in zip(DATA, read, strict=True):
        sources = with_validation(images)
        data: dict[Split, tuple[Tensor, Tensor]] = {}
        for seed, (split, count) in enumerate(rows.items()):
            pixels, classes = overlay(sources[split], count, seed)
            data[split] = pixels.to(device), classes.to(device)
        results["data"][title] = {
            method.name: _measure(f"{title}, {method.name}", method, grid, data, seeds, effort) for method in METHODS
        }
    return results


def _measure(
    title: str, method: Method, grid: Grid, data: dict[Split, tuple[Tensor, Tensor]], seeds: int, effort: Effort
) -> dict[str, Any]:
    """Tune a method, then train it with fresh seeds."""
    device = data["train"][0].device
    experts = 1 if method.name == SHARED else EXPERTS

    def make(seed: range) -> Vision:
        return Vision(seed, data, experts).to(device)

    tuned, trials = tune(method, grid, make, 1, effort)
    runs = []
    for seed in range(FRESH_SEED, FRESH_SEED + seeds):
        problems = make(range(seed, seed + 1))
        fit = train(problems, tuned, effort, seed)
        runs.append(
            {
                "accuracy": evaluate(problems, fit, "test", problems.accuracies).tolist(),
                "experts": _experts_per_task(problems, fit),
                "flops": _training_flops(problems, effort),
                "binary_at": fit.binary_at,
            }
        )
        print_status(f"{title}: {runs[-1]}")
    return {"gate_rate": tuned.gate_rate, "rate": tuned.rate, "trials": trials, "runs": runs}


def _experts_per_task(problems: Vision, fit: Fit) -> float:
    """Return the mean number of experts with a positive weight, over the tasks and images of the test split."""

    def count(weights: Tensor, _split: Split, _rows: Tensor) -> Tensor:
        used = (weights > 0).float().sum(-1)
        return used.mean(0) if used.dim() == 2 else used

    return float(evaluate(problems, fit, "test", count).mean())


def _training_flops(problems: Vision, effort: Effort) -> float:
    """Return the floating-point operations of all forward passes of the training, for experts and towers."""
    return problems.evaluated * problems.experts.flops + effort.steps * effort.batch * TASKS * problems.towers.flops


def _accuracy(values: dict[str, Any], task: int) -> list[float]:
    return [100 * run["accuracy"][task] for run in values["runs"]]


def _mean_accuracy(values: dict[str, Any]) -> list[float]:
    return [100 * sum(run["accuracy"]) / TASKS for run in values["runs"]]


def format_tables(results: dict[str, Any]) -> str:
    """Format a table per data set."""
    return "\n".join(_table(title, methods) for title, methods in results["data"].items())


def _table(title: str, methods: dict[str, Any]) -> str:
    top_k = methods[TOP_K]
    flops = sum(run["flops"] for run in top_k["runs"])
    rows = []
    for (name, values), paper in zip(methods.items(), PAPER[title], strict=True):
        difference = paired_interval(_mean_accuracy(values), _mean_accuracy(top_k))
        rows.append(
            (
                name,
                *(plus_minus(*mean_and_error(_accuracy(values, task)), 2) for task in range(TASKS)),
                "–" if name == TOP_K else plus_minus(*difference, 2),
                plus_minus(*mean_and_error([run["experts"] for run in values["runs"]]), 2),
                f"{sum(run['flops'] for run in values['runs']) / flops:.2f}",
                _binary_at(values),
                f"{values['gate_rate']:g}, {values['rate']:g}",
                paper,
            )
        )
    return section(
        title,
        f"Test split, {len(top_k['runs'])} seeds; means with standard errors. Difference: mean accuracy of both tasks, "
        "paired by seed, with 95 % intervals. FLOPs: of the forward passes in training, relative to Top-k. Paper: "
        f"accuracies; experts. The paper's DSelect-k: binary after {PAPER_CONVERGENCE[title].replace(';', ', FLOPs')}.",
        (
            "",
            "accuracy 1, %",
            "accuracy 2, %",
            "− Top-k",
            "experts",
            "FLOPs",
            "binary after",
            "rates: gate, rest",
            "paper",
        ),
        rows,
    )


def _binary_at(values: dict[str, Any]) -> str:
    points = [run["binary_at"] for run in values["runs"]]
    return "–" if None in points or not any(points) else f"{sum(points) / len(points):.0%} of the steps"


def plot(results: dict[str, Any]) -> Figure:
    """Plot the accuracy of both tasks by method."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    for axis, (title, methods) in zip(figure.subplots(1, len(DATA)), results["data"].items(), strict=True):
        for task in range(TASKS):
            measured = [mean_and_error(_accuracy(values, task)) for values in methods.values()]
            axis.errorbar(
                [mean for mean, _ in measured],
                [position + (task - 0.5) / 5 for position in range(len(methods))],
                xerr=[error for _, error in measured],
                fmt=figures.MARKERS[task],
                color=figures.COLORS[task],
                capsize=2,
                label=("item at the top left", "item at the bottom right")[task],
            )
        axis.set_yticks(range(len(methods)), list(methods))
        axis.invert_yaxis()
        axis.set_title(title)
        axis.set_xlabel("test accuracy, %")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def claims(results: dict[str, Any]) -> list[tuple[str, Verdict]]:
    """Return the claims of the paper, and whether they held."""
    result: list[tuple[str, Verdict]] = []
    for title, methods in results["data"].items():
        accuracies = {name: _mean_accuracy(values) for name, values in methods.items()}
        ours = accuracies[DSELECT_K]
        result += [
            *(
                (f"{title}: DSelect-k is more accurate than {label}", is_lower(accuracies[rival], ours))
                for label, rival in ((TOP_K, TOP_K), (GUMBEL, GUMBEL), ("a shared bottom", SHARED))
            ),
            (
                f"{title}: per-example DSelect-k is not more accurate than static",
                is_not_higher(accuracies[DSELECT_K_PER_EXAMPLE], ours),
            ),
        ]
    return result
