"""Task decompositions on images, learned or given (Krishnamurthy et al., table 1, figures 2, 3 and 4)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import nn

from benchmarks.papers.convolutions import Shape
from benchmarks.papers.gated_images import Architecture, Effort, ImageMixture, Settings, batches, measure, train
from benchmarks.papers.images import SOURCES, Images, read_images
from benchmarks.papers.plots import heatmaps
from benchmarks.papers.specialization import DIGITS, FASHION, MNIST, highest_count
from benchmarks.papers.tuning import FRESH_SEED, TUNING_SEED
from benchmarks.papers.verdicts import Verdict, is_lower
from pipelines.bench.tables import section
from pipelines.console import print_status
from pipelines.evaluation.paired import mean_and_error, paired_interval, plus_minus

SEEDS, TUNING_SEEDS = 10, 3
RAW = "a folder with " + "; ".join(f"{name}: {SOURCES[name]}" for name in (MNIST.folder, FASHION.folder))
EFFORT, QUICK = Effort(epochs=20, batch=64), Effort(epochs=1, batch=64)
RATES = (1e-3, 2e-3, 4e-3)
ROWS, VALIDATION_ROWS, TEST_ROWS = 10_000, 2_000, 2_000
CLOTHES, FIRST_DIGIT = ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal"), 4
"""Classes of the combined data set: 0 to 5 of Fashion-MNIST, and the digits 4 to 9."""
LEARNED, GIVEN = "learned with the experts", "given by pairs of classes"


@dataclass(frozen=True)
class Problem:
    """A data set, and a decomposition of its classes.

    Attributes:
        title: name in the results.
        architecture: sizes of the model (appendix B.1 and B.2).
        classes: name of each class.
        pairs: classes of each expert.
        paper: decomposition → test error and training loss of the paper.
    """

    title: str
    architecture: Architecture
    classes: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]
    paper: dict[str, str]


PROBLEMS = (
    Problem(
        "MNIST",
        MNIST.architecture,
        DIGITS,
        ((0, 7), (1, 9), (2, 4), (3, 8), (5, 6)),
        {LEARNED: "0.12; 0.19", GIVEN: "0.08; 0.05"},
    ),
    Problem(
        "Fashion-MNIST and MNIST",
        replace(MNIST.architecture, experts=6, gate=Shape(((1, 5),), (128,))),
        (*CLOTHES, *DIGITS[FIRST_DIGIT:]),
        ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11)),
        {LEARNED: "0.15; 0.28", GIVEN: "0.10; 0.13"},
    ),
)


def run(seeds: int, *, quick: bool, raw: Path | None) -> dict[str, Any]:
    """Find a gate by each decomposition, then train new experts with the fixed gate.

    Raises:
        LogError: a data set is missing or damaged.
    """
    effort = QUICK if quick else EFFORT
    mnist, fashion = (read_images(raw, data.folder) for data in (MNIST, FASHION))
    data = (mnist, {split: _combine(fashion[split], mnist[split]) for split in mnist})
    results: dict[str, Any] = {"effort": vars(effort), "problems": {}}
    for problem, images in zip(PROBLEMS, data, strict=True):
        splits = {
            "train": images["train"].rows(slice(ROWS)),
            "validation": images["train"].rows(slice(-VALIDATION_ROWS, None)),
            "test": images["test"].rows(slice(TEST_ROWS)),
        }
        decompositions: dict[str, Any] = {}
        for name in (LEARNED, GIVEN):
            trials = []
            tuning_seeds = range(TUNING_SEED, TUNING_SEED + (1 if quick else TUNING_SEEDS))
            for rate in RATES[: 1 if quick else None]:
                models = [_fit(problem, name, rate, splits, effort, seed)[0] for seed in tuning_seeds]
                errors = [measure(model, splits["validation"])["error"] for model in models]
                trials.append({"rate": rate, "validation_error": statistics.mean(errors)})
                print_status(f"{problem.title}, {name}: {trials[-1]}")
            rate = min(trials, key=lambda trial: trial["validation_error"])["rate"]
            fits = [_fit(problem, name, rate, splits, effort, FRESH_SEED + seed) for seed in range(seeds)]
            decompositions[name] = {
                "rate": rate,
                "trials": trials,
                "error": [measure(model, splits["test"])["error"] for model, _ in fits],
                "train_loss": [measure(model, splits["train"])["loss"] for model, _ in fits],
                "end_to_end_error": [before["error"] for _, before in fits],
                "information": [before["information"] for _, before in fits],
                "table": fits[0][1]["table"],
            }
        results["problems"][problem.title] = decompositions
    return results


def _combine(fashion: Images, digits: Images) -> Images:
    """Return the images of both data sets' chosen classes in a random order; the digits 4 to 9 become 6 to 11."""
    clothes = fashion.rows(fashion.classes < len(CLOTHES))
    high = digits.rows(digits.classes >= FIRST_DIGIT)
    parts = (clothes, high._replace(classes=high.classes - FIRST_DIGIT + len(CLOTHES)))
    both = Images(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))
    return both.rows(torch.randperm(len(both.classes), generator=torch.Generator().manual_seed(0)))


def _fit(
    problem: Problem, decomposition: str, rate: float, splits: dict[str, Images], effort: Effort, seed: int
) -> tuple[ImageMixture, dict[str, Any]]:
    """Train a gate, then new experts with the fixed gate (figure 4).

    Returns:
        The final model, and the test measures of the model that the gate was trained in.
    """
    torch.manual_seed(seed)
    classes, settings = 2 * len(problem.pairs), Settings(rate)
    model = ImageMixture(problem.architecture, "softmax", classes)
    if decomposition == GIVEN:
        _train_experts_on_pairs(model, problem.pairs, splits["train"], settings, effort)
        model.fix_experts()
    train(model, splits["train"], settings, effort)
    before = measure(model, splits["test"])
    final = ImageMixture(problem.architecture, "softmax", classes)
    final.trunk, final.gate = model.trunk, model.gate
    for part in (final.trunk, final.gate):
        assert part is not None
        part.requires_grad_(False)
    train(final, splits["train"], settings, effort)
    return final, before


def _train_experts_on_pairs(
    model: ImageMixture, pairs: Sequence[Sequence[int]], images: Images, settings: Settings, effort: Effort
) -> None:
    """Train each expert on the images of its classes only."""
    experts = {c: expert for expert, pair in enumerate(pairs) for c in pair}
    expert_of_class = torch.tensor([experts[c] for c in range(len(experts))])
    parameters = [*model.experts.parameters(), *model.outputs.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=settings.rate, fused=True)
    for batch in batches(images, effort):
        log_outputs = model.outputs(model.experts(batch.pixels)).log_softmax(-1)
        own = log_outputs[expert_of_class[batch.classes], torch.arange(len(batch.classes))]
        optimizer.zero_grad(set_to_none=True)
        nn.functional.nll_loss(own, batch.classes).backward()
        optimizer.step()


def format_tables(results: dict[str, Any]) -> str:
    """Format a table per data set."""
    return "\n".join(_table(problem, results["problems"][problem.title]) for problem in PROBLEMS)


def _table(problem: Problem, decompositions: dict[str, Any]) -> str:
    rows = [
        (
            name,
            plus_minus(*mean_and_error(values["error"]), 4),
            plus_minus(*mean_and_error(values["train_loss"]), 4),
            plus_minus(*mean_and_error(values["information"]), 2),
            plus_minus(*mean_and_error(values["end_to_end_error"]), 4),
            f"{values['rate']:g}",
            problem.paper[name],
        )
        for name, values in decompositions.items()
    ]
    error, loss = (
        plus_minus(*paired_interval(decompositions[GIVEN][key], decompositions[LEARNED][key]), 4)
        for key in ("error", "train_loss")
    )
    return section(
        problem.title,
        f"{len(decompositions[GIVEN]['error'])} seeds, {ROWS:,} training and {TEST_ROWS:,} test images; means with "
        "standard errors.",
        (
            "decomposition",
            "test error",
            "training loss",
            "I(E;Y)",
            "test error with the gate's own experts",
            "rate",
            "paper: test error; training loss",
        ),
        rows,
        f"Given − learned, paired, with 95 % intervals: {error} test error, {loss} training loss.",
    )


def plot(results: dict[str, Any]) -> Figure:
    """Plot the test images by class and expert, of the first seed (figures 2 and 3)."""
    panels = {
        f"{problem.title}: {name}": dict(zip(problem.classes, values["table"], strict=True))
        for problem in PROBLEMS
        for name, values in results["problems"][problem.title].items()
    }
    return heatmaps(panels, "class", "images", highest_count(panels), digits=0, columns=2)


def claims(results: dict[str, Any]) -> list[tuple[str, Verdict]]:
    """Return the claims of the paper, and whether they held."""
    return [
        (
            f"{title}: experts of given pairs of classes have a lower {label}",
            is_lower(decompositions[GIVEN][key], decompositions[LEARNED][key]),
        )
        for title, decompositions in results["problems"].items()
        for key, label in (("error", "test error"), ("train_loss", "training loss"))
    ]
