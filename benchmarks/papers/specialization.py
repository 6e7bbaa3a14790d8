"""Expert specialization on images (Krishnamurthy et al., tables 2 and 7, figures 6 and 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from benchmarks.papers.convolutions import Shape
from benchmarks.papers.gated_images import (
    Architecture,
    Effort,
    GateKind,
    ImageMixture,
    Penalty,
    Settings,
    measure,
    train,
)
from benchmarks.papers.images import CLASSES, SOURCES, Images, read_images, with_validation
from benchmarks.papers.plots import heatmaps
from benchmarks.papers.tuning import FRESH_SEED, TUNING_SEED
from benchmarks.papers.verdicts import Verdict, is_lower, is_not_higher
from pipelines.bench.tables import section
from pipelines.console import print_status
from pipelines.evaluation.paired import mean_and_error, paired_interval, plus_minus

SEEDS = 5
RAW = "a folder with " + "; ".join(f"{name}: {source}" for name, source in SOURCES.items())
EFFORT, QUICK = Effort(epochs=8, batch=256), Effort(epochs=1, batch=32)
DIGITS = tuple(map(str, range(CLASSES)))
MORE_EXPERTS, MORE_EXPERTS_SEEDS = (10, 15), 3
"""Numbers of experts of figures 7 and 6."""
MIN_SHARE = 0.01
"""Share of the images from which an expert counts as used."""
MEASURES = ("error", "information", "sparsity", "utilization")


@dataclass(frozen=True)
class Method:
    """A gate and a penalty."""

    gate: GateKind | None
    penalty: Penalty | None = None


@dataclass(frozen=True)
class DataSet:
    """A data set, and what the paper used and measured on it.

    Attributes:
        title: name in the results.
        folder: key of ``images.SOURCES``.
        architecture: sizes of the model (appendix B).
        beta_s: β_s of L_s; one of the paper's two values (table 6).
        paper: method → error, I(E;Y), H_s and H_u of the paper.
    """

    title: str
    folder: str
    architecture: Architecture
    beta_s: float
    paper: dict[str, str]


SINGLE, VANILLA, ATTENTIVE = "single model", "vanilla", "attentive"
IMPORTANCE, SIMILARITY = "L_importance", "L_s"
METHODS = {
    SINGLE: Method(None),
    VANILLA: Method("softmax"),
    f"{VANILLA}, {IMPORTANCE}": Method("softmax", "importance"),
    f"{VANILLA}, {SIMILARITY}": Method("softmax", "similarity"),
    ATTENTIVE: Method("attentive"),
    f"{ATTENTIVE}, {IMPORTANCE}": Method("attentive", "importance"),
    f"{ATTENTIVE}, {SIMILARITY}": Method("attentive", "similarity"),
}
DISTILLED = {f"distilled from {name}": name for name in (f"{ATTENTIVE}, {IMPORTANCE}", f"{ATTENTIVE}, {SIMILARITY}")}
ROWS = (*METHODS, *DISTILLED)
TRIALS: dict[Penalty | None, tuple[Settings, ...]] = {
    None: tuple(Settings(rate) for rate in (2e-3, 4e-3, 8e-3, 16e-3)),
    "importance": tuple(Settings(rate, weight) for rate in (4e-3, 8e-3) for weight in (0.2, 1.0)),
    "similarity": tuple(Settings(rate, weight) for rate in (4e-3, 8e-3) for weight in (1e-1, 1e-2)),
}
"""Penalty → settings to try. The weights are the ends of the paper's range, and the two largest of its β_d."""


def _paper(*rows: str) -> dict[str, str]:
    return dict(zip(ROWS, rows, strict=True))


MNIST = DataSet(
    "MNIST",
    "mnist",
    Architecture(5, (1, 28, 28), Shape(((1, 3),), (5, 32)), Shape(((1, 3),), (128,))),
    1e-5,
    _paper(
        ".096 ± .071",
        ".038 ± .009; 2.02; .092; 2.17",
        ".032 ± .008; 2.26; .061; 2.32",
        ".029 ± .009; 2.24; .051; 2.25",
        ".033 ± .006; 1.80; .071; 2.06",
        ".035 ± .005; 2.26; .055; 2.27",
        ".032 ± .006; 2.28; .039; 2.32",
        ".030 ± .007; 2.30; .036; 2.32",
        ".028 ± .007; 2.19; .056; 2.32",
    ),
)
FASHION = DataSet(
    "Fashion-MNIST",
    "fashion-mnist",
    Architecture(5, (1, 28, 28), Shape(((1, 3),), (64, 32)), Shape(((8, 3),), (512,))),
    1e-6,
    _paper(
        ".132 ± .011",
        ".104 ± .006; 2.03; .081; 2.05",
        ".103 ± .006; 2.30; .172; 2.32",
        ".095 ± .007; 2.20; .110; 2.23",
        ".098 ± .013; 2.07; .114; 2.25",
        ".098 ± .006; 2.23; .101; 2.32",
        ".096 ± .008; 2.30; .109; 2.32",
        ".087 ± .007; 2.23; .101; 2.32",
        ".089 ± .008; 2.30; .076; 2.32",
    ),
)
CIFAR = DataSet(
    "CIFAR-10",
    "cifar-10-batches-bin",
    Architecture(
        5,
        (3, 32, 32),
        Shape(((16, 3), (32, 3), (64, 3), (128, 3)), (1024, 256), padded=True),
        Shape(((16, 3), (32, 3), (64, 3), (128, 3)), (1024,), padded=True),
    ),
    1e-4,
    {},
)
"""Not in the paper, which has CIFAR-100; measured if its folder exists."""


def run(seeds: int, *, quick: bool, raw: Path | None) -> dict[str, Any]:
    """Tune each method, then train it with fresh seeds on each data set.

    Raises:
        LogError: a data set is missing or damaged.
    """
    effort = QUICK if quick else EFFORT
    chosen = [MNIST, FASHION, *([CIFAR] if raw and (raw / CIFAR.folder).is_dir() else [])]
    read = [read_images(raw, data.folder) for data in chosen]  # All are checked before the first is used.
    results: dict[str, Any] = {"effort": vars(effort), "data": {}}
    for data, images in zip(chosen, read, strict=True):
        results["data"][data.title] = _run_data_set(data, with_validation(images), seeds, effort, quick)
    return results


def _run_data_set(data: DataSet, splits: dict[str, Images], seeds: int, effort: Effort, quick: bool) -> dict[str, Any]:
    methods: dict[str, Any] = {}
    fresh = range(FRESH_SEED, FRESH_SEED + seeds)
    for name, method in METHODS.items():
        trials = []
        for settings in TRIALS[method.penalty][: 1 if quick else None]:
            model = _fit(data, method, settings, splits, effort, TUNING_SEED)
            error = measure(model, splits["validation"])["error"]
            print_status(f"{data.title}, {name}: {settings}: validation error {error:.4f}")
            trials.append({**vars(settings), "validation_error": error})
        best = min(trials, key=lambda trial: trial["validation_error"])
        tuned = Settings(best["rate"], best["weight"])
        models = [_fit(data, method, tuned, splits, effort, seed) for seed in fresh]
        methods[name] = {**vars(tuned), "trials": trials, "runs": [measure(model, splits["test"]) for model in models]}
        for distilled in (key for key, source in DISTILLED.items() if source == name):
            for model, seed in zip(models, fresh, strict=True):
                _distill(model, tuned, splits, effort, seed)
            methods[distilled] = {**vars(tuned), "runs": [measure(model, splits["test"]) for model in models]}
    values: dict[str, Any] = {"methods": {name: methods[name] for name in ROWS}}
    if data is MNIST:
        values["more_experts"] = _with_more_experts(methods, splits, min(seeds, MORE_EXPERTS_SEEDS), effort)
    return values


def _fit(
    data: DataSet, method: Method, settings: Settings, splits: dict[str, Images], effort: Effort, seed: int
) -> ImageMixture:
    torch.manual_seed(seed)
    model = ImageMixture(data.architecture, method.gate)
    train(model, splits["train"], settings, effort, method.penalty, data.beta_s)
    return model


def _distill(model: ImageMixture, settings: Settings, splits: dict[str, Images], effort: Effort, seed: int) -> None:
    """Train the serving gate of an attentive gate with fixed experts, without a penalty."""
    torch.manual_seed(seed)
    model.distill()
    train(model, splits["train"], settings, effort)


def _with_more_experts(
    methods: dict[str, Any], splits: dict[str, Images], seeds: int, effort: Effort
) -> dict[str, Any]:
    """Train the vanilla gate with each penalty and more experts; returns the tables of images by class and expert."""
    tables: dict[str, Any] = {}
    for experts in MORE_EXPERTS:
        architecture = replace(MNIST.architecture, experts=experts)
        data = replace(MNIST, architecture=architecture)
        for penalty in (SIMILARITY, IMPORTANCE):
            name = f"{VANILLA}, {penalty}"
            settings = Settings(methods[name]["rate"], methods[name]["weight"])
            models = (_fit(data, METHODS[name], settings, splits, effort, FRESH_SEED + seed) for seed in range(seeds))
            tables.setdefault(str(experts), {})[penalty] = [measure(model, splits["test"]) for model in models]
            print_status(f"{experts} experts, {penalty}")
    return tables


def experts_used(table: Sequence[Sequence[int]]) -> int:
    """Return how many experts have the largest weight for at least 1 % of the images.

    Args:
        table: images by class and expert [classes, experts].
    """
    loads = [sum(column) for column in zip(*table, strict=True)]
    return sum(load >= MIN_SHARE * sum(loads) for load in loads)


def highest_count(panels: Mapping[str, Mapping[str, Sequence[int]]]) -> int:
    """Return the highest count of all tables by class and expert."""
    return max(count for table in panels.values() for counts in table.values() for count in counts)


def format_tables(results: dict[str, Any]) -> str:
    """Format a table per data set, and one of the experts used."""
    tables = [_table(title, values["methods"]) for title, values in results["data"].items()]
    return "\n".join([*tables, _experts_table(results["data"][MNIST.title]["more_experts"])])


def _values(methods: dict[str, Any], name: str, measure_name: str) -> list[float]:
    return [run[measure_name] for run in methods[name]["runs"]]


def _table(title: str, methods: dict[str, Any]) -> str:
    paper = next(data.paper for data in (MNIST, FASHION, CIFAR) if data.title == title)
    rows = []
    for name, values in methods.items():
        error = _values(methods, name, "error")
        difference = paired_interval(error, _values(methods, VANILLA, "error"))
        tuned = f"{values['rate']:g}" + (f", {values['weight']:g}" if values["weight"] else "")
        rows.append(
            (
                name,
                plus_minus(*mean_and_error(error), 4),
                "–" if name == VANILLA else plus_minus(*difference, 4),
                *(
                    "–" if name == SINGLE else plus_minus(*mean_and_error(_values(methods, name, key)), 3)
                    for key in MEASURES[1:]
                ),
                tuned,
                paper.get(name, "–"),
            )
        )
    return section(
        title,
        f"Test split, {len(methods[VANILLA]['runs'])} seeds; means with standard errors. Difference: of the errors, "
        "paired by seed, with 95 % intervals. Entropies in bits. Paper: the model with the lowest training error, ± "
        "the standard deviation of the error over its runs.",
        ("", "error", "− vanilla", "I(E;Y)", "H_s", "H_u", "rate, weight", "paper: error; I(E;Y); H_s; H_u"),
        rows,
    )


def _experts_table(more_experts: dict[str, Any]) -> str:
    rows = []
    seeds = len(next(iter(more_experts.values()))[SIMILARITY])
    for experts, penalties in more_experts.items():
        for penalty, runs in penalties.items():
            used = [experts_used(run["table"]) for run in runs]
            error = mean_and_error([run["error"] for run in runs])
            rows.append((experts, penalty, plus_minus(*mean_and_error(used), 1), plus_minus(*error, 4)))
    return section(
        "More experts than pairs of digits: MNIST, vanilla gate",
        f"{seeds} seeds; means with standard errors. An expert is used if it has the largest weight for at least "
        f"{MIN_SHARE:.0%} of the test images. The settings are those tuned with 5 experts.",
        ("experts", "penalty", "used", "error"),
        rows,
    )


def plot(results: dict[str, Any]) -> Figure:
    """Plot the images by class and expert, of the first seed (figures 6 and 7)."""
    more_experts = results["data"][MNIST.title]["more_experts"]
    panels = {
        f"{penalty}, {experts} experts": dict(zip(DIGITS, runs[0]["table"], strict=True))
        for experts, penalties in more_experts.items()
        for penalty, runs in penalties.items()
    }
    return heatmaps(panels, "digit", "images", highest_count(panels), digits=0, columns=2)


def claims(results: dict[str, Any]) -> list[tuple[str, Verdict]]:
    """Return the claims of the paper, and whether they held."""
    result: list[tuple[str, Verdict]] = []
    for title, values in results["data"].items():
        methods = values["methods"]
        errors = {name: _values(methods, name, "error") for name in methods}
        sparsities = {name: _values(methods, name, "sparsity") for name in (VANILLA, ATTENTIVE)}
        result += [
            (f"{title}: a mixture has a lower error than a single model", is_lower(errors[VANILLA], errors[SINGLE])),
            (
                f"{title}: the attentive gate has a lower error than the vanilla gate",
                is_lower(errors[ATTENTIVE], errors[VANILLA]),
            ),
            (
                f"{title}: the attentive gate is sparser (H_s) than the vanilla gate",
                is_lower(sparsities[ATTENTIVE], sparsities[VANILLA]),
            ),
            *(
                (
                    f"{title}: L_s has a lower error than L_importance with the {gate} gate",
                    is_lower(errors[f"{gate}, {SIMILARITY}"], errors[f"{gate}, {IMPORTANCE}"]),
                )
                for gate in (VANILLA, ATTENTIVE)
            ),
            *(
                (f"{title}: {name} has no higher error than its source", is_not_higher(errors[name], errors[source]))
                for name, source in DISTILLED.items()
            ),
        ]
    for experts, penalties in results["data"][MNIST.title]["more_experts"].items():
        used = {name: [experts_used(run["table"]) for run in runs] for name, runs in penalties.items()}
        result.append(
            (f"of {experts} experts, L_s uses fewer than L_importance", is_lower(used[SIMILARITY], used[IMPORTANCE]))
        )
    return result
