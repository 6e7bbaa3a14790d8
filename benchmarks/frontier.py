"""Cost and quality: the serving cost that an experts budget saves, and its effect on AUC and RMSE.

Trains many configurations on KuaiRand, each with the same seeds and without counters. Compares each with the model
without a budget of the same seed on the same test rows. ``benchmarks.selection`` has logs whose tasks conflict. Writes
``frontier.json`` (every run, and means of paired differences with 95 % intervals over seeds), the same as a table in
``frontier.md``, and ``frontier.svg``. Finished runs are kept in the work folder, so that a later call continues an
interrupted one.

    python -m benchmarks.frontier --kuairand KUAIRAND --work WORK --out docs/results
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pipelines.evaluation.paired import paired_interval

os.environ["OMP_NUM_THREADS"] = "1"  # One process per core; more threads would wait for each other.

REFERENCE = "no budget"
WITHOUT_COUNTERS = ("counters=[]", "histories=[]")
"""Overrides that all models share: without counters and histories."""


@dataclass(frozen=True)
class Model:
    """One configuration.

    Attributes:
        label: name in the results.
        family: group in the plot.
        settings: overrides of the log's ranker.toml.
    """

    label: str
    family: str
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Study:
    """Configurations on one log.

    Attributes:
        name: name in the results.
        log: arguments of ``ranker logs``.
        models: configurations to train; one of them is the reference.
        auc_tasks: tasks whose mean AUC is compared.
        rmse_tasks: tasks whose mean RMSE is compared.
        equal_cost_pairs: (label with a budget, label of the same frozen cost) pairs to compare.
    """

    name: str
    log: tuple[str, ...]
    models: tuple[Model, ...]
    auc_tasks: tuple[str, ...]
    rmse_tasks: tuple[str, ...]
    equal_cost_pairs: tuple[tuple[str, str], ...] = ()


def experts(n: int, width: int, k: int, budget: int | None, family: str, label: str = "") -> Model:
    """Return a model with ``n`` experts of one layer."""
    bound = f"B = {budget}" if budget else "no budget"
    settings = (f"model.experts={n}", f"model.expert_layers=[{width}]", f"model.gate.k={k}")
    return Model(
        label or f"n = {n} × {width}, k = {k}, {bound}", family, (*settings, f"model.gate.experts_budget={budget or n}")
    )


def shared(width: int) -> Model:
    """Return a shared-bottom model with one layer."""
    settings = ("model.gate.kind=shared_bottom", f"model.expert_layers=[{width}]")
    return Model(f"shared bottom {width}", "shared bottom", settings)


def union(weight: float) -> Model:
    """Return a model with a penalty on the expected union instead of a budget."""
    return Model(
        f"n = 8, union penalty {weight}",
        "penalty",
        ("model.gate.experts_budget=8", f"model.gate.union_weight={weight}"),
    )


def other(kind: str) -> Model:
    """Return a model with another gate over the same experts."""
    return Model(kind, "other gates", (f"model.gate.kind={kind}",))


KUAIRAND = (
    experts(8, 128, 2, None, "no budget", REFERENCE),
    experts(8, 128, 1, None, "no budget"),
    *(experts(8, 128, min(2, b), b, "budget") for b in (1, 2, 3, 4)),
    experts(16, 64, 2, 2, "narrower, budget"),
    experts(16, 64, 2, 4, "narrower, budget"),
    experts(16, 64, 4, 4, "narrower, budget"),
    experts(32, 32, 4, 8, "narrower, budget"),
    experts(64, 16, 8, 16, "narrower, budget"),
    union(0.1),
    union(0.3),
    *(shared(width) for width in (128, 189, 310)),  # Same cost as B = 1, 2, 4.
    experts(2, 128, 2, None, "n = B from scratch"),
    experts(4, 128, 2, None, "n = B from scratch"),
    other("top_k"),
    other("softmax"),
)


def kuairand_study(kuairand: Path) -> Study:
    """Return the study of a folder with the original files."""
    pairs = tuple(
        (f"n = 8 × 128, k = 2, B = {b}", other)
        for b, wide in ((2, 189), (4, 310))
        for other in (f"shared bottom {wide}", f"n = {b} × 128, k = 2, no budget")
    )
    log = ("kuairand", "--raw", str(kuairand))
    auc_tasks = ("click", "long_view", "like", "profile_enter")
    return Study("KuaiRand", log, KUAIRAND, auc_tasks, ("watch_time",), equal_cost_pairs=pairs)


def write_log(study: Study, work: Path) -> Path:
    """Write the log of a study unless it exists; return its configuration file."""
    from pipelines.cli.main import main

    folder = work / "logs" / "-".join(part for part in study.log if "/" not in part).replace("--", "")
    if not folder.exists():
        with contextlib.redirect_stdout(io.StringIO()):
            code = main(["logs", *study.log, "--out", str(folder)])
        if code:
            raise SystemExit(code)
    return folder / "ranker.toml"


def run(config: Path, settings: Sequence[str], seed: int, file: Path) -> dict[str, Any]:
    """Train one configuration and write the values to compare."""
    if file.exists():
        finished: dict[str, Any] = json.loads(file.read_text())
        return finished
    import torch

    from benchmarks.product import measure
    from pipelines.config.config import load_config

    torch.set_num_threads(1)
    settings = [*WITHOUT_COUNTERS, *settings, f"training.seed={seed}"]
    outcome = measure(load_config(config, settings), file.with_suffix(".run"))
    assert outcome.evaluation is not None
    selection = outcome.selection
    result = {
        "seed": seed,
        "frozen_flops": selection["flops"]["frozen"],
        "dense_flops": selection["flops"]["dense"],
        "experts_used": len(selection["experts_used"]),
        "codes_changed": selection["codes_changed"],
        "snapped_codes": selection["snapped_codes"],
        "tasks": {task: m.get("auc", m.get("rmse")) for task, m in outcome.evaluation["tasks"].items()},
    }
    file.write_text(json.dumps(result))
    return result


def compare(study: Study, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Compare each configuration with the reference of the same seed, and the pairs of ``Study.equal_cost_pairs``."""
    dense = runs[REFERENCE][0]["dense_flops"]
    models = [
        {
            "label": model.label,
            "family": model.family,
            "settings": list(model.settings),
            "frozen_of_reference_dense": statistics.mean(r["frozen_flops"] for r in runs[model.label]) / dense,
            "experts_used": [r["experts_used"] for r in runs[model.label]],
            "auc": statistics.mean(_mean(r, study.auc_tasks) for r in runs[model.label]),
            "rmse": statistics.mean(_mean(r, study.rmse_tasks) for r in runs[model.label]),
            **_paired(study, runs[model.label], runs[REFERENCE]),
            "runs": runs[model.label],
        }
        for model in study.models
    ]
    pairs = [{"budget": a, "rival": b, **_paired(study, runs[a], runs[b])} for a, b in study.equal_cost_pairs]
    return {"models": models, "rivals": pairs}


def _paired(study: Study, runs: Sequence[dict[str, Any]], baseline: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the mean difference of the same seeds and the half-width of its 95 % interval."""
    (auc, auc_interval), (rmse, rmse_interval) = (
        paired_interval(*([_mean(result, tasks) for result in results] for results in (runs, baseline)))
        for tasks in (study.auc_tasks, study.rmse_tasks)
    )
    return {
        "auc_difference": auc,
        "auc_interval": auc_interval,
        "rmse_difference": rmse,
        "rmse_interval": rmse_interval,
    }


def _mean(result: dict[str, Any], tasks: Sequence[str]) -> float:
    return statistics.mean(result["tasks"][task] for task in tasks)


def plot(results: dict[str, dict[str, Any]], file: Path) -> None:
    """Plot the difference in mean AUC over frozen FLOPs, one panel per study; models are numbered by cost."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "frontier", "svg.fonttype": "none"}  # Makes the file reproducible.
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(results), 1, figsize=(11, 3.6 * len(results)), squeeze=False)
    families = list(dict.fromkeys(row["family"] for study in results.values() for row in study["models"]))
    style = {family: (plt.get_cmap("tab10")(i), "os^Dv<>P*X"[i]) for i, family in enumerate(families)}
    for axis, (name, study) in zip(axes.flat, results.items(), strict=True):
        rightmost = -1.0
        for number, row in enumerate(sorted(study["models"], key=lambda r: r["frozen_of_reference_dense"]), start=1):
            rightmost = max(100 * row["frozen_of_reference_dense"], rightmost + 1.2)  # Separates points of equal cost.
            color, marker = style[row["family"]]
            axis.errorbar(
                rightmost,
                row["auc_difference"],
                yerr=row["auc_interval"],
                fmt=marker,
                color=color,
                capsize=2,
                label=f"{number}  {row['label']}",
            )
            above = (rightmost, row["auc_difference"] + row["auc_interval"])
            axis.annotate(str(number), above, xytext=(0, 3), textcoords="offset points", fontsize=7, ha="center")
        axis.axhline(0, color="grey", linewidth=0.8)
        axis.margins(y=0.12)
        axis.set_title(name)
        axis.set_xlabel("frozen FLOPs, % of the unbudgeted dense model")
        axis.set_ylabel("mean AUC − no budget (paired, 95 %)")
        axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=7, frameon=False)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def table(study: dict[str, Any]) -> str:
    """Format the results of a study as Markdown tables."""
    lines = [
        "| model | frozen FLOPs | experts used | mean AUC | difference | RMSE difference |",
        "|---|---|---|---|---|---|",
    ]
    for row in sorted(study["models"], key=lambda r: r["frozen_of_reference_dense"]):
        used = sorted(set(row["experts_used"]))
        count = f"{used[0]}" if len(used) == 1 else f"{used[0]}–{used[-1]}"
        share = f"{row['frozen_of_reference_dense']:.0%}"
        lines.append(f"| {row['label']} | {share} | {count} | {row['auc']:.4f} | {_differences(row)} |")
    lines += ["", "| budget | of the same frozen cost | AUC difference | RMSE difference |", "|---|---|---|---|"]
    lines += [f"| {row['budget']} | {row['rival']} | {_differences(row)} |" for row in study["rivals"]]
    return "\n".join(lines)


def _differences(row: dict[str, Any]) -> str:
    return " | ".join(f"{row[f'{m}_difference']:+.4f} ± {row[f'{m}_interval']:.4f}" for m in ("auc", "rmse"))


def main() -> None:
    """Train the missing configurations, then write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--kuairand", type=Path, required=True, help="folder of the original KuaiRand files")
    parser.add_argument("--work", type=Path, required=True, help="folder of logs and finished runs")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--seeds", type=int, default=6, choices=range(2, 11), help="runs of each configuration")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="processes with one thread each (default: all cores)"
    )
    arguments = parser.parse_args()
    study = kuairand_study(arguments.kuairand)
    config = write_log(study, arguments.work)
    (arguments.work / "runs").mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        futures = {}
        for model in study.models:
            for seed in range(arguments.seeds):
                file = arguments.work / "runs" / f"{file_name(study.name)}.{file_name(model.label)}.{seed}.json"
                futures[pool.submit(run, config, model.settings, seed, file)] = model.label, seed
        done: dict[tuple[str, int], dict[str, Any]] = {}
        for future in as_completed(futures):
            done[futures[future]] = future.result()
            print(f"\r{len(done)} of {len(futures)} runs", end="", flush=True)
    print()
    seeds = range(arguments.seeds)
    results = {study.name: compare(study, {m.label: [done[m.label, seed] for seed in seeds] for m in study.models})}
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "frontier.json").write_text(json.dumps(results, indent=1) + "\n")
    plot(results, arguments.out / "frontier.svg")
    tables = [f"## {name}\n\n{table(study)}\n" for name, study in results.items()]
    (arguments.out / "frontier.md").write_text("\n".join(["# Cost against quality: every model measured\n", *tables]))


def file_name(text: str) -> str:
    """Return a text as the name of a file."""
    return "".join(c if c.isalnum() else "-" for c in text)


if __name__ == "__main__":
    main()
