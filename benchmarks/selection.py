"""Selection against rivals of equal cost, on generated logs whose groups of tasks conflict.

Every contender costs about as much for a row with all tasks once it is frozen: experts, mixing and towers. The
generated configuration is taken as it is. Every other contender tries the same number of learning rates on a log that
the comparison does not use, without its test split. All are then trained on fresh logs with fresh seeds. Differences
are paired by seed. Writes ``selection.json``, ``.md`` and ``.svg``.
Finished runs are kept in the work folder, so that a later call continues an interrupted one.

    python -m benchmarks.selection --work WORK --out docs/results
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.frontier import file_name
from pipelines.bench.tables import section
from pipelines.evaluation.paired import mean_and_error, paired_interval, plus_minus

os.environ["OMP_NUM_THREADS"] = "1"  # One process per core; more threads would wait for each other.

DEGREES = (1.0, 0.5, 0.0)
TUNING_SEED, FRESH_SEED = 1_000, 10_000
"""Seeds of the log and of the training; the comparison has those from ``FRESH_SEED``."""
ROWS, QUICK_ROWS = 100_000, 2_000
GATED_RATES = tuple((1e-2, gates) for gates in (1e-2, 3e-2, 1e-1))
UNGATED_RATES = tuple((trunk, 1e-1) for trunk in (5e-3, 1e-2, 2e-2))
"""Learning rates to try, of the trunk and of the gates. A shared bottom has no gate."""
SIMILAR_RATES = tuple((trunk, 1e-2) for trunk, _ in UNGATED_RATES)
"""The same number for a gate that starts from similar tasks, whose own rate hardly matters."""

Rates = tuple[float, float] | None
"""Learning rates of trunk and gates; None for the generated ones."""
OURS = "DSelect-k, side by side"
SEPARATE = "separate bottoms"
SHARED = "shared bottom"


@dataclass(frozen=True)
class Contender:
    """A configuration.

    Attributes:
        name: name in the results.
        gate: the gate as a value of TOML; None for the generated configuration.
        settings: further overrides of the generated configuration.
        groups: whether each group of tasks has a model of its own.
    """

    name: str
    gate: str | None
    settings: tuple[str, ...]
    groups: bool = False

    @property
    def rates(self) -> Sequence[Rates]:
        """Learning rates to try."""
        if self.gate is None:
            return (None,)
        if "similar_tasks" in self.gate:
            return SIMILAR_RATES
        return UNGATED_RATES if "shared_bottom" in self.gate else GATED_RATES

    def overrides(self, rates: Rates) -> list[str]:
        """Return all overrides of the generated configuration."""
        gate = [] if self.gate is None else [f"model.gate={self.gate}"]
        parts = zip(("trunk", "gates"), rates or (), strict=False)
        return [*gate, *self.settings, *(f"training.learning_rate.{part}={rate}" for part, rate in parts)]


def contender(
    name: str,
    gate: str | None,
    experts: int,
    width: int,
    tower: int,
    reading: str = "sum",
    *,
    layers: int = 1,
    groups: bool = False,
) -> Contender:
    """Return a contender with expert layers of one width and towers of one layer."""
    shape = (f"model.experts={experts}", f"model.expert_layers={[width] * layers}", f"model.tower_layers=[{tower}]")
    return Contender(name, gate, (*shape, f"model.reading={reading}"), groups)


def dselect_k(k: int, budget: int, start: str = "similar_tasks") -> str:
    """Return the gate as a value of TOML."""
    return f'{{kind="dselect_k",k={k},experts_budget={budget},start="{start}"}}'


ONE, ALL = '{kind="shared_bottom"}', '{kind="softmax"}'
CONTENDERS = (
    Contender(OURS, None, ()),
    contender("DSelect-k, random start", dselect_k(2, 16, "random"), 24, 34, 8, "side_by_side"),
    contender("DSelect-k, two layers", dselect_k(2, 16), 24, 25, 8, "side_by_side", layers=2),
    contender("DSelect-k, scaled", dselect_k(4, 12), 32, 36, 16, "scaled"),
    contender("DSelect-k, sum", dselect_k(4, 12), 32, 36, 16),
    contender("Top-k, sum, k = 4", '{kind="top_k",k=4}', 12, 36, 16),
    contender("Top-k, sum, narrow towers", '{kind="top_k",k=4}', 18, 36, 8),
    contender("Top-k, side by side", '{kind="top_k",k=2}', 14, 36, 8, "side_by_side"),
    contender("MMoE, 8 experts", ALL, 8, 50, 8),
    contender("MMoE, 12 experts", ALL, 12, 36, 8),
    contender(f"{SHARED}, towers 8", ONE, 1, 130, 8),
    contender(f"{SHARED}, towers 16", ONE, 1, 73, 16),
    contender(f"{SHARED}, towers 32", ONE, 1, 39, 32),
    contender(f"{SHARED}, two layers", ONE, 1, 95, 8, layers=2),
    contender(SEPARATE, ONE, 1, 68, 8, groups=True),
)


def log_folder(work: Path, degree: float, seed: int, rows: int) -> Path:
    """Return the folder of a generated log, which is written if it does not exist."""
    from pipelines.datasets.conflict import generate

    folder = work / "logs" / f"{degree}-{seed}-{rows}"
    if not folder.exists():
        generate(folder, degree, rows, seed)
    return folder


def run(job: tuple[Path, str, float, int, int, Rates, bool]) -> dict[str, Any]:
    """Train a contender once, unless its result is kept.

    Args:
        job: work folder, name of the contender, conflict, seed, rows, learning rates, whether to read the test split.

    Returns:
        ``loss``: validation loss; ``auc``: mean of the tasks on the test split, else None; ``flops``: frozen, for a row
        with all tasks; ``one_task``: the mean for a row with one task.
    """
    import torch

    from benchmarks.product import measure
    from pipelines.config.config import load_config

    work, name, degree, seed, rows, rates, tested = job
    file = work / "runs" / f"{file_name(f'{name} {degree} {seed} {rows} {rates} {tested}')}.json"
    if file.exists():
        kept: dict[str, Any] = json.loads(file.read_text())
        return kept
    torch.set_num_threads(1)
    chosen = next(contender for contender in CONTENDERS if contender.name == name)
    fixed = [f"training.seed={seed}", "evaluation.baselines=[]", "evaluation.bootstrap=0"]
    path = log_folder(work, degree, seed, rows) / "ranker.toml"
    whole = load_config(path, [*chosen.overrides(rates), *fixed])
    names = sorted({task.group for task in whole.tasks}, key=str) if chosen.groups else [None]
    outcomes = []
    for group in names:
        tasks = tuple(task for task in whole.tasks if group in (None, task.group))
        config = whole.model_copy(update={"tasks": tasks})
        outcomes.append(measure(config if tested else config.without_test_split(), file.with_suffix(".run")))
    evaluations = [outcome.evaluation for outcome in outcomes if tested and outcome.evaluation is not None]
    aucs = [measured["auc"] for evaluation in evaluations for measured in evaluation["tasks"].values()]
    costs = [outcome.selection["flops"] for outcome in outcomes]
    result = {
        "loss": sum(outcome.validation_loss for outcome in outcomes),
        "auc": statistics.mean(aucs) if aucs else None,
        "flops": sum(cost["frozen"] for cost in costs),
        "one_task": statistics.mean(flops for cost in costs for flops in cost["per_task"].values()),
    }
    file.write_text(json.dumps(result))
    return result


def measure_all(work: Path, seeds: int, rows: int, jobs: int | None, *, quick: bool) -> dict[str, Any]:
    """Tune every contender for each degree of conflict, then train it with fresh seeds."""
    (work / "runs").mkdir(parents=True, exist_ok=True)
    fresh = range(FRESH_SEED, FRESH_SEED + seeds)
    for degree, seed in product(DEGREES, (TUNING_SEED, *fresh)):  # Before the processes, which share the logs.
        log_folder(work, degree, seed, rows)
    pairs = list(product(DEGREES, CONTENDERS))
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        tuning = [
            [(work, c.name, degree, TUNING_SEED, rows, rates, False) for rates in c.rates[: 1 if quick else None]]
            for degree, c in pairs
        ]
        losses = iter(pool.map(run, [job for trials in tuning for job in trials]))
        best = [min(((next(losses)["loss"], job) for job in trials), key=lambda pair: pair[0])[1] for trials in tuning]
        chosen = [(*job[:3], seed, rows, job[5], True) for job in best for seed in fresh]
        results = iter(pool.map(run, chosen))
        measured = [[next(results) for _ in fresh] for _ in pairs]
    degrees: dict[str, Any] = {str(degree): {} for degree in DEGREES}
    for (degree, c), job, runs in zip(pairs, best, measured, strict=True):
        degrees[str(degree)][c.name] = {"rates": job[5], "runs": runs}
    return {"rows": rows, "seeds": seeds, "degrees": degrees}


def aucs(contenders: dict[str, Any], name: str) -> list[float]:
    """Return the mean AUC of each seed."""
    return [result["auc"] for result in contenders[name]["runs"]]


def best_of(contenders: dict[str, Any], prefix: str) -> str:
    """Return the contender with the highest mean AUC among those whose name has a prefix."""
    return max(
        (name for name in contenders if name.startswith(prefix)), key=lambda n: statistics.mean(aucs(contenders, n))
    )


def difference(contenders: dict[str, Any], name: str, rival: str) -> str:
    """Format the paired difference in mean AUC with its 95 % interval."""
    if name == rival:
        return "–"
    return plus_minus(*paired_interval(aucs(contenders, name), aucs(contenders, rival)), 4)


def format_document(results: dict[str, Any]) -> str:
    """Format the results as Markdown, the best contender first."""
    parts = [
        "# Selection against rivals of equal cost\n",
        f"`{results['command']}`: generated logs of {results['rows']:,} rows with 24 tasks in 8 groups "
        f"(`ranker logs synthetic --conflict`), {results['seeds']} fresh logs and seeds. AUC: mean of the tasks on the "
        "test split, with standard errors. Differences are paired, with 95 % intervals. FLOPs: of the frozen graph per "
        "row, for all tasks and for one task alone.\n",
    ]
    for degree, contenders in results["degrees"].items():
        shared = best_of(contenders, SHARED)
        rows = [
            (
                name,
                f"{statistics.mean(r['flops'] for r in values['runs']):,.0f}",
                f"{statistics.mean(r['one_task'] for r in values['runs']):,.0f}",
                plus_minus(*mean_and_error(aucs(contenders, name)), 4),
                difference(contenders, name, shared),
                difference(contenders, name, OURS),
                "generated" if values["rates"] is None else "{:g}, {:g}".format(*values["rates"]),
            )
            for name, values in sorted(contenders.items(), key=lambda item: -statistics.mean(aucs(contenders, item[0])))
        ]
        header = ("contender", "FLOPs", "one task", "AUC", f"− {shared}", f"− {OURS}", "rates: trunk, gates")
        parts.append(section(f"Conflict {degree}", "The best contender comes first.", header, rows))
    return "\n".join(parts)


def plot(results: dict[str, Any], file: Path) -> None:
    """Plot the difference in mean AUC from the best shared bottom, a panel per degree of conflict."""
    from matplotlib.figure import Figure

    from benchmarks.papers.plots import COLORS, MARKERS

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    names = [contender.name for contender in CONTENDERS]
    for axis, (degree, contenders) in zip(
        figure.subplots(1, len(DEGREES), sharey=True, squeeze=False)[0], results["degrees"].items(), strict=True
    ):
        shared = best_of(contenders, SHARED)
        for position, name in enumerate(names):
            if name == shared:
                middle, half = 0.0, 0.0
            else:
                middle, half = paired_interval(aucs(contenders, name), aucs(contenders, shared))
            style = 0 if name.startswith("DSelect-k") else 1
            axis.errorbar(middle, position, xerr=half, fmt=MARKERS[style], capsize=2, color=COLORS[style])
        axis.axvline(0, color="grey", linewidth=0.8)
        axis.set_yticks(range(len(names)), names)
        axis.set_title(f"conflict {degree}")
    figure.supxlabel("mean AUC − that of the best shared bottom (paired, 95 %)", fontsize="medium")
    figure.axes[0].invert_yaxis()
    figure.savefig(file, metadata={"Date": None})


def main(argv: Iterable[str] | None = None) -> None:
    """Train the missing configurations, then write the results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.selection", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument("--work", type=Path, required=True, help="folder of logs and finished runs")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--seeds", type=int, default=5, choices=range(2, 21), help="fresh seeds (default: 5)")
    parser.add_argument("--jobs", type=int, help="processes with one thread each (default: all cores)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to test the benchmark itself")
    arguments = parser.parse_args(None if argv is None else list(argv))
    rows = QUICK_ROWS if arguments.quick else ROWS
    results = measure_all(arguments.work, arguments.seeds, rows, arguments.jobs, quick=arguments.quick)
    options = ["--work", "WORK", *(["--quick"] if arguments.quick else [])]
    results = {"command": " ".join(["python -m benchmarks.selection", *options, "--out", "OUT"]), **results}
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "selection.json").write_text(json.dumps(results, separators=(",", ":")) + "\n")
    plot(results, arguments.out / "selection.svg")
    (arguments.out / "selection.md").write_text(format_document(results))


if __name__ == "__main__":
    main()
