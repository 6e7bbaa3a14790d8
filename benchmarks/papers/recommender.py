"""A recommender system: gates, shared bottoms and conditional training (DSelect-k, tables 3 and C.3, figure 3)."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from matplotlib.figure import Figure

from benchmarks.papers.plots import heatmaps
from benchmarks.papers.tuning import FRESH_SEED, TUNING_SEED
from benchmarks.papers.verdicts import Verdict, all_of, is_lower, verdict
from benchmarks.product import format_overrides, measure, tune
from pipelines.bench.tables import section
from pipelines.config.config import load_config
from pipelines.console import print_status
from pipelines.datasets import kuairand, synthetic
from pipelines.evaluation.paired import mean_and_error, paired_interval, plus_minus
from ranking.errors import LogError
from ranking.selection import Shape

RAW = (
    "the folder of KuaiRand-Pure (https://kuairand.com) with log_standard_*.csv, user_features_pure.csv and "
    "video_features_basic_pure.csv, or the same as Parquet"
)
SEEDS = 6
TUNING_SEEDS, QUICK_TUNING_SEEDS = 2, 1
ROWS, QUICK_ROWS = 200_000, 3_000
"""Rows of the synthetic log."""
KUAIRAND, SYNTHETIC = "KuaiRand", "synthetic log"
EXPERTS, K, WIDTH, TOWER = 8, 2, 128, 64
"""Experts, selected experts per task, units of an expert, and units of a task's tower."""
SETTINGS = (
    "counters=[]",
    "histories=[]",
    "evaluation.bootstrap=0",
    "evaluation.baselines=[]",
    "training.batch_size=256",
    f"model.experts={EXPERTS}",
    f"model.tower_layers=[{TOWER}]",
)
"""Overrides of all methods."""
QUICK = ("training.checks_per_epoch=1", "training.batch_size=512")
"""Overrides of the quick form."""
DSELECT_K, TOP_K, SOFTMAX = "DSelect-k", "Top-k", "Softmax"
EQUAL_COMPUTE, EQUAL_PARAMETERS = "Shared bottom, equal compute", "Shared bottom, equal parameters"
RATE, GATE_RATE = "training.learning_rate.trunk", "training.learning_rate.gates"
GATED_TRIALS = tuple(
    (f"{RATE}={rate}", f"{GATE_RATE}={gate_rate}")
    for rate, gate_rate in itertools.product((5e-4, 1e-3, 2e-3), (5e-3, 2e-2))
)
SHARED_TRIALS = tuple((f"{RATE}={rate}",) for rate in (2.5e-4, 5e-4, 7e-4, 1e-3, 1.4e-3, 2e-3))
"""As many trials as for a method with a gate."""
GATES = {  # The paper's gate has no budget and starts at random.
    DSELECT_K: (f"model.gate.k={K}", f"model.gate.experts_budget={EXPERTS}", "model.gate.start=random"),
    TOP_K: ("model.gate.kind=top_k", f"model.gate.k={K}"),
    SOFTMAX: ("model.gate.kind=softmax",),
}
RIVALS = (TOP_K, SOFTMAX, EQUAL_COMPUTE, EQUAL_PARAMETERS)
METRICS = {"binary": "auc", "regression": "rmse"}
PAPER = {
    "E. Task 1": ("AUC", "0.8103 ± 0.0002", "0.7481 ± 0.0198"),
    "E. Task 2": ("AUC", "0.8161 ± 0.0002", "0.7624 ± 0.0169"),
    "E. Task 3": ("RMSE", "0.2874 ± 0.0002", "0.3406 ± 0.0180"),
    "E. Task 4": ("RMSE", "0.8781 ± 0.0014", "1.1213 ± 0.0842"),
    "E. Task 5": ("AUC", "0.7524 ± 0.0003", "0.5966 ± 0.0529"),
    "S. Task 1": ("AUC", "0.6133 ± 0.0066", "0.5080 ± 0.0047"),
    "S. Task 2": ("AUC", "0.8468 ± 0.0289", "0.5981 ± 0.0616"),
    "S. Task 3": ("AUC", "0.9259 ± 0.0008", "0.6665 ± 0.0091"),
}
"""Metric, DSelect-k and Top-k of the paper's table 3, on a log that is not public."""
PAPER_CONVERGENCE = {
    "MovieLens, α = 0.1": ("11.37 %", "1.5"),
    "MovieLens, α = 0.5": ("9.39 %", "1.2"),
    "MovieLens, α = 0.9": ("0.04 %", "0.6"),
    "Multi-MNIST": ("42.33 %", "0.8"),
    "Multi-Fashion": ("80.02 %", "1.2"),
}
"""Steps until binary, and FLOPs relative to Top-k, of the paper's table C.3."""


@dataclass(frozen=True)
class Bench:
    """A log, and how often each method is trained on it.

    Attributes:
        log: the ``ranker.toml`` of the log.
        folder: folder for runs.
        tuning_seeds: training seeds of the trials.
        seeds: training seeds of the comparison.
        trials: number of trials per method.
        settings: overrides of all methods.
    """

    log: Path
    folder: Path
    tuning_seeds: range
    seeds: range
    trials: int
    settings: tuple[str, ...]

    def run(self, name: str, settings: Sequence[str], trials: Sequence[Sequence[str]]) -> dict[str, Any]:
        """Tune a method on the validation split, then train it with each seed and read the test split."""
        settings = [*self.settings, *settings]
        tuned, records = tune(self.log, settings, trials[: self.trials], self.tuning_seeds, self.folder)
        runs = [self._measure([*settings, *tuned], seed) for seed in self.seeds]
        print_status(f"{name}: {format_overrides(tuned)}")
        return {"settings": settings, "tuned": tuned, "trials": records, "runs": runs}

    def _measure(self, settings: Sequence[str], seed: int) -> dict[str, Any]:
        outcome = measure(load_config(self.log, [*settings, f"training.seed={seed}"]), self.folder)
        assert outcome.evaluation is not None
        selection = outcome.selection
        return {
            "seed": seed,
            "tasks": {
                task: values.get("auc", values.get("rmse")) for task, values in outcome.evaluation["tasks"].items()
            },
            "validation_loss": outcome.validation_loss,
            "weights": selection["tasks"],
            "binary_at_step": selection["binary_at_step"],
            "steps": selection["steps"],
            "experts_of_top_k": selection["training_experts_of_top_k"],
            "flops": selection["flops"],
        }


def run(seeds: int, *, quick: bool, raw: Path | None = None) -> dict[str, Any]:
    """Tune and compare all methods on each log; the quick form needs the synthetic log only.

    Raises:
        LogError: the original files of KuaiRand are missing or damaged.
    """
    if raw is None and not quick:
        raise LogError("--raw DIR is missing")
    with TemporaryDirectory() as folder:
        work = Path(folder)
        if raw is not None:
            kuairand.convert(raw, work / KUAIRAND)
        synthetic.generate(work / SYNTHETIC, QUICK_ROWS if quick else ROWS)
        fresh = range(FRESH_SEED, FRESH_SEED + seeds)
        tuning = range(TUNING_SEED, TUNING_SEED + (QUICK_TUNING_SEEDS if quick else TUNING_SEEDS))
        logs = {}
        for name in (SYNTHETIC,) if raw is None else (KUAIRAND, SYNTHETIC):
            trials, settings = (1, (*SETTINGS, *QUICK)) if quick else (len(GATED_TRIALS), SETTINGS)
            logs[name] = _compare(Bench(work / name / "ranker.toml", work / "run", tuning, fresh, trials, settings))
    return {"logs": logs}


def _compare(bench: Bench) -> dict[str, Any]:
    """Compare all methods on one log."""
    tasks = load_config(bench.log, SETTINGS).tasks
    methods = {
        name: bench.run(name, [*settings, f"model.expert_layers=[{WIDTH}]"], GATED_TRIALS)
        for name, settings in GATES.items()
    }
    inputs = num_inputs(methods[SOFTMAX]["runs"][0]["flops"]["dense"], len(tasks))
    for name, width in shared_widths(inputs, len(tasks)).items():
        settings = ("model.gate.kind=shared_bottom", f"model.expert_layers=[{width}]")
        methods[name] = bench.run(name, settings, SHARED_TRIALS)
    return {
        "inputs": inputs,
        "tasks": {task.name: {"group": task.group, "metric": METRICS[task.kind]} for task in tasks},
        "methods": methods,
    }


def num_inputs(dense_flops: int, tasks: int) -> int:
    """Return the width of the experts' input, from the FLOPs of a row with all experts and a static gate."""
    shape = Shape(0, (WIDTH,), (TOWER,))
    return (dense_flops - tasks * (shape.mixing(EXPERTS) + shape.tower)) // (2 * EXPERTS * WIDTH)


def shared_widths(inputs: int, tasks: int) -> dict[str, int]:
    """Return the units of the shared bottoms.

    Equal compute: a row that is scored for one task costs as much as its k experts and its tower. Equal parameters:
    as many weights as all experts and all towers. A wider bottom also widens the first layer of the towers.

    Args:
        inputs: width of the experts' input.
        tasks: number of tasks.
    """
    compute = WIDTH * (K * (inputs + 1) + TOWER) / (inputs + TOWER)
    parameters = WIDTH * (EXPERTS * (inputs + 1) + tasks * TOWER) / (inputs + 1 + tasks * TOWER)
    return {EQUAL_COMPUTE: round(compute), EQUAL_PARAMETERS: round(parameters)}


def relative_flops(run: dict[str, Any]) -> float:
    """Return the FLOPs of a task's experts and tower in training relative to Top-k, mean over tasks and steps.

    Args:
        run: a run of DSelect-k. ``per_task`` contains the FLOPs of a task with its selected experts.
    """
    tower = Shape(0, (WIDTH,), (TOWER,)).tower
    task, experts = next(iter(run["weights"].items()))
    expert = (run["flops"]["per_task"][task] - tower) / len(experts)
    return (K * run["experts_of_top_k"] * expert + tower) / (K * expert + tower)


def format_tables(results: dict[str, Any]) -> str:
    """Format three tables per log, and those of the paper."""
    tables = []
    for name, log in results["logs"].items():
        tables += [_metrics_table(name, log), _differences_table(name, log), _settings_table(name, log)]
    tables.append(_convergence_table(results["logs"]))
    tables.append(
        section(
            "The paper's log",
            "Table 3 of the paper: means with standard errors of 5 repetitions. The log is not public, so that only "
            "the direction can be compared.",
            ("task", DSELECT_K, TOP_K),
            [(f"{task}, {metric}", ours, theirs) for task, (metric, ours, theirs) in PAPER.items()],
        )
    )
    return "\n".join(tables)


def _metrics_table(name: str, log: dict[str, Any]) -> str:
    methods, seeds = log["methods"], len(log["methods"][TOP_K]["runs"])
    rows = [
        (label, *(plus_minus(*mean_and_error(_values(methods[method], tasks)), 4) for method in methods))
        for label, tasks in _rows(log)
    ]
    return section(
        f"{name}: {len(log['tasks'])} tasks",
        f"Test split; means with standard errors over {seeds} training seeds. The intervals and errors do not contain "
        "the choice of the rows.",
        ("task", *methods),
        rows,
    )


def _differences_table(name: str, log: dict[str, Any]) -> str:
    rows = [
        (label, *(plus_minus(*_difference(log, rival, tasks), 4) for rival in RIVALS)) for label, tasks in _rows(log)
    ]
    return section(
        f"{name}: DSelect-k minus the other methods",
        "Paired by seed, with 95 % intervals. A higher AUC and a lower RMSE are better.",
        ("task", *RIVALS),
        rows,
    )


def _settings_table(name: str, log: dict[str, Any]) -> str:
    methods = log["methods"]
    rows = [
        (
            method,
            format_overrides(values["tuned"]),
            f"{min(trial['validation_loss'] for trial in values['trials']):.5f}",
            f"{max(trial['validation_loss'] for trial in values['trials']):.5f}",
            next(s for s in values["settings"] if s.startswith("model.expert_layers=")).partition("=")[2],
            f"{len(values['trials'])}",
        )
        for method, values in methods.items()
    ]
    return section(
        f"{name}: tuning",
        "Learning rates with the lowest validation loss; loss of the best and of the worst trial.",
        ("", "learning rates", "best", "worst", "units of an expert or of the bottom", "trials"),
        rows,
    )


def _convergence_table(logs: dict[str, Any]) -> str:
    rows = []
    for name, log in logs.items():
        runs = log["methods"][DSELECT_K]["runs"]
        rows.append(
            (
                name,
                plus_minus(*mean_and_error([_steps_until_binary(run) for run in runs]), 1) + " %",
                plus_minus(*mean_and_error([relative_flops(run) for run in runs]), 2),
                plus_minus(*mean_and_error([_mean_experts(run) for run in runs]), 2),
                plus_minus(*mean_and_error([run["flops"]["frozen"] / run["flops"]["dense"] for run in runs]), 2),
            )
        )
    rows += [(f"{name} (paper)", *values, "–", "–") for name, values in PAPER_CONVERGENCE.items()]
    return section(
        "Conditional training (table C.3)",
        "Steps until every code of DSelect-k is binary and stays so, in % of all steps; FLOPs of a task's experts and "
        "tower in training relative to Top-k; experts that a task selects; FLOPs of the frozen model for all tasks "
        "relative to all experts. Means with standard errors over seeds. Our schedule anneals the codes from 25 % to "
        "60 % of the steps.",
        ("", "steps until binary", "FLOPs / Top-k", "experts per task", "frozen FLOPs"),
        rows,
    )


def _rows(log: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Return the rows of a table: label and tasks; the last ones are means over tasks of one metric."""
    tasks = log["tasks"]
    rows = [(f"{_initial(task)}. {name}, {task['metric'].upper()}", [name]) for name, task in tasks.items()]
    for metric in dict.fromkeys(METRICS.values()):
        names = [name for name, task in tasks.items() if task["metric"] == metric]
        rows += [(f"mean {metric.upper()}", names)] if len(names) > 1 else []
    return rows


def _initial(task: dict[str, str]) -> str:
    """Return E for an engagement task and S for a satisfaction task, as in the paper."""
    return task["group"][0].upper()


def _values(method: dict[str, Any], tasks: Sequence[str]) -> list[float]:
    """Return the mean metric of the tasks in each run."""
    return [statistics.mean(run["tasks"][task] for task in tasks) for run in method["runs"]]


def _difference(log: dict[str, Any], rival: str, tasks: Sequence[str]) -> tuple[float, float]:
    """Return the mean difference DSelect-k − rival and the half-width of its interval."""
    return paired_interval(_values(log["methods"][DSELECT_K], tasks), _values(log["methods"][rival], tasks))


def _steps_until_binary(run: dict[str, Any]) -> float:
    """Return the percentage of the steps after which every code is binary."""
    return 100 * run["binary_at_step"] / run["steps"]


def _mean_experts(run: dict[str, Any]) -> float:
    """Return the mean number of experts that a task selected."""
    return statistics.mean(len(weights) for weights in run["weights"].values())


def plot(results: dict[str, Any]) -> Figure:
    """Plot the expert weights of the DSelect-k gates of the first seed, one panel per log (figure 3)."""
    panels = {}
    for name, log in results["logs"].items():
        weights = log["methods"][DSELECT_K]["runs"][0]["weights"]
        tasks = sorted(log["tasks"], key=lambda task: log["tasks"][task]["group"])
        panels[f"{name}, DSelect-k"] = {
            f"{_initial(log['tasks'][task])}. {task}": [
                weights[task].get(str(expert), 0.0) for expert in range(EXPERTS)
            ]
            for task in tasks
        }
    return heatmaps(panels)


def claims(results: dict[str, Any]) -> list[tuple[str, Verdict]]:
    """Return the claims of the paper, and whether they held on each log."""
    return [claim for name, log in results["logs"].items() for claim in _claims(name, log)]


def _claims(name: str, log: dict[str, Any]) -> list[tuple[str, Verdict]]:
    tasks = log["tasks"]
    ahead = [_is_better(log, task, DSELECT_K, TOP_K) for task in tasks]
    behind = [_is_better(log, task, TOP_K, DSELECT_K) for task in tasks]
    groups = {
        group: [task for task, values in tasks.items() if values["group"] == group and values["metric"] == "auc"]
        for group in ("engagement", "satisfaction")
    }
    satisfaction, engagement = (_gains(log, groups[group]) for group in ("satisfaction", "engagement"))
    runs = log["methods"][DSELECT_K]["runs"]
    engaged = [task for task, values in tasks.items() if values["group"] == "engagement"]
    satisfied = [task for task, values in tasks.items() if values["group"] == "satisfaction"]
    common = sum(bool(set.intersection(*(set(run["weights"][task]) for task in engaged))) for run in runs)
    pairs = sum(
        any(set(run["weights"][a]) & set(run["weights"][b]) for a, b in itertools.combinations(satisfied, 2))
        for run in runs
    )
    return [
        (
            f"{name}: DSelect-k is ahead of Top-k on all {len(tasks)} tasks (here beyond the interval: ahead on "
            f"{ahead.count('held')}, behind on {behind.count('held')})",
            all_of(ahead),
        ),
        (f"{name}: its gain in AUC is larger on satisfaction tasks", is_lower(engagement, satisfaction)),
        (
            f"{name}: all engagement tasks share an expert of DSelect-k (here in {common} of {len(runs)} trainings)",
            verdict(common == len(runs)),
        ),
        (
            f"{name}: two satisfaction tasks share an expert of DSelect-k (here in {pairs} of {len(runs)} trainings, "
            f"and in {random_sharing(len(satisfied)):.1%} of random choices)",
            verdict(pairs == len(runs)),
        ),
    ]


def random_sharing(tasks: int) -> float:
    """Return the probability that two of these tasks share an expert if each draws K experts at random."""
    distinct = (math.comb(max(EXPERTS - K * others, 0), K) / math.comb(EXPERTS, K) for others in range(tasks))
    return 1 - math.prod(distinct)


def _is_better(log: dict[str, Any], task: str, method: str, rival: str) -> Verdict:
    """Return the verdict on the claim that a method is better than another one on a task."""
    values, others = (_values(log["methods"][name], [task]) for name in (method, rival))
    return is_lower(others, values) if log["tasks"][task]["metric"] == "auc" else is_lower(values, others)


def _gains(log: dict[str, Any], tasks: Sequence[str]) -> list[float]:
    """Return the difference of the mean AUC from Top-k in each run."""
    ours, theirs = (_values(log["methods"][method], tasks) for method in (DSELECT_K, TOP_K))
    return [a - b for a, b in zip(ours, theirs, strict=True)]
