"""The workers of a study, each a process that takes one trial after the other, and what they found."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

from pipelines.config.config import Config
from pipelines.console import print_status
from pipelines.tuning import trial
from pipelines.tuning.study import StudyFolder, outcome
from ranking.errors import RankerError

SHOWN = 10
"""Trials in the table."""


def tune(config: Config, folder: Path, trials: int, workers: int = 1, timeout: float | None = None) -> StudyFolder:
    """Tunes until the study has so many trials; called again, with more trials or after a stop, it goes on.

    Args:
        config: where the search starts; its ``[tune]`` overrides default ranges.
        folder: of the study.
        trials: in total, those of earlier and of other calls included.
        workers: processes; each computes with its share of the cores unless OMP_NUM_THREADS says otherwise.
        timeout: seconds after which no trial begins.

    Raises:
        ConfigError: the configuration cannot be tuned, or the folder is a study of another one.
        OutputError: the folder cannot be written.
        RankerError: a worker failed.
    """
    study = StudyFolder.create(folder, config)
    until = None if timeout is None else time.time() + timeout
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // workers)))
    spawn = multiprocessing.get_context("spawn")  # forked threads of torch would hang

    def started(worker: int) -> Any:
        process = spawn.Process(target=work, args=(folder, trials, worker, until), daemon=True)
        process.start()
        return process

    alive = {worker: started(worker) for worker in range(workers)}
    failed, restarts = 0, trials
    while alive:
        for worker, process in list(alive.items()):
            process.join(timeout=0.2)
            if process.exitcode is None:
                continue
            del alive[worker]
            if process.exitcode < 0 and restarts:  # killed: what it left is taken up
                restarts -= 1
                print_status(f"worker {worker} was killed by signal {-process.exitcode}; another takes its trial up")
                alive[worker] = started(worker)
            failed += process.exitcode != 0 and worker not in alive
    if failed:
        raise RankerError(f"{folder}: {failed} of {workers} workers failed, see above; the same command goes on")
    return study


def work(folder: Path, trials: int, worker: int = 0, until: float | None = None) -> None:
    """Takes one trial after the other until the study has enough or the time (in seconds since 1970) has come."""
    study = StudyFolder(folder)
    try:
        while until is None or time.time() < until:
            claim = study.claim(trials, worker)
            if claim is None:
                return
            print_status(trial.run(study, claim))
    except RankerError as error:
        print_status(f"worker {worker}: {error}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(1)


def summary(study: StudyFolder) -> dict[str, Any]:
    """The study for programs: how trials ended, the best one, the best few, importances."""
    ended = study.counted()
    ranked = study.ranked()
    outcomes = [outcome(t) for t in ended]
    return {
        "study": str(study.path),
        "trials": {how: outcomes.count(how) for how in sorted(set(outcomes))},
        "best": {**_row(ranked[0]), "config": str(study.best_file)} if ranked else None,
        "table": [_row(t) for t in ranked[:SHOWN]],
        "importances": study.importances(),
    }


def table(found: dict[str, Any]) -> str:
    """The summary for people."""
    counts = ", ".join(f"{count} {how}" for how, count in found["trials"].items()) or "none"
    lines = [f"trials: {counts}"]
    if not found["table"]:
        return f"{lines[0]}\nno trial converged: see {found['study']}/trials/*.log"
    settings = list(found["table"][0]["settings"])
    header = ["trial", "loss", *(path.split(".", 1)[1] for path in settings)]
    rows = [
        [str(row["trial"]), f"{row['loss']:.5f}", *(_short(row["settings"][path]) for path in settings)]
        for row in found["table"]
    ]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in [header, *rows]]
    if found["importances"]:
        shares = ", ".join(f"{path.split('.', 1)[1]} {share:.0%}" for path, share in found["importances"].items())
        lines.append(f"what the loss depended on: {shares}")
    return "\n".join(lines)


def _row(ended: Any) -> dict[str, Any]:
    return {"trial": ended.number, "loss": ended.value, "settings": ended.params}


def _short(value: Any) -> str:
    return f"{value:.2g}" if isinstance(value, float) else str(value)
