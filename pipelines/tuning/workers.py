"""Worker processes that run the trials of a study, and the summary of their results."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from pipelines.config.config import Config
from pipelines.console import print_status
from pipelines.tuning.storage import RUN, FolderStorage
from pipelines.tuning.study import LOSS, OpenStorage, StudyFolder, trial_outcome
from pipelines.tuning.trial import run_trial
from ranking.errors import RankerError

MAX_TABLE_TRIALS = 10
"""Maximum number of trials in the table of the summary."""


def tune(
    config: Config,
    folder: Path,
    trials: int,
    workers: int = 1,
    timeout: float | None = None,
    open_storage: OpenStorage = FolderStorage,
) -> StudyFolder:
    """Run trials until the study has the given number of them; a later call continues the study.

    Args:
        config: start of the search; its ``[tune]`` section replaces default ranges.
        folder: folder of the study.
        trials: total number of trials, including those of earlier and concurrent calls.
        workers: number of processes. Each uses its share of the CPU cores unless OMP_NUM_THREADS is set.
        timeout: seconds after which no trial is started; None for no limit.
        open_storage: opens the storage of the trials, in each process; picklable.

    Raises:
        ConfigError: the configuration cannot be tuned, or the folder is a study of a different configuration.
        OutputError: the folder cannot be written.
        StorageError: the database cannot be used.
        RankerError: a worker failed.
    """
    study = StudyFolder.create(folder, config, open_storage)
    deadline = None if timeout is None else time.time() + timeout
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // workers)))
    spawn = multiprocessing.get_context("spawn")  # a forked process hangs in the thread pools of PyTorch

    def start(worker: int) -> SpawnProcess:
        arguments = (folder, trials, worker, deadline, open_storage)
        process = spawn.Process(target=run_worker, args=arguments, daemon=True)
        process.start()
        return process

    processes = {worker: start(worker) for worker in range(workers)}
    failures, restarts_left = 0, trials
    while processes:
        for worker, process in list(processes.items()):
            process.join(timeout=0.2)
            if process.exitcode is None:
                continue
            del processes[worker]
            if process.exitcode < 0 and restarts_left:
                restarts_left -= 1
                print_status(f"worker {worker} was killed by signal {-process.exitcode}; its trial is retried")
                processes[worker] = start(worker)
            failures += process.exitcode != 0 and worker not in processes
    if failures:
        raise RankerError(
            f"{folder}: {failures} of {workers} workers failed (see above); repeat the command to continue"
        )
    if study.storage.poll_seconds:
        study.update_best()
    return study


def run_worker(
    folder: Path,
    trials: int,
    worker: int = 0,
    deadline: float | None = None,
    open_storage: OpenStorage = FolderStorage,
) -> None:
    """Run one trial after the other until the study has enough trials or the deadline has passed.

    While the last trials run on other machines, the worker waits, to repeat those that are lost.

    Args:
        folder: folder of the study.
        trials: total number of trials of the study.
        worker: number of the worker.
        deadline: Unix time in seconds after which no trial is started; None for no limit.
        open_storage: opens the storage of the trials.
    """
    waits_for: list[int] = []
    try:
        study = StudyFolder(folder, open_storage)
        while deadline is None or time.time() < deadline:
            lease = study.lease(trials, worker)
            if lease is not None:
                print_status(run_trial(study, lease))
                continue
            others = study.trials_elsewhere()
            if study.storage.poll_seconds is None or not others or len(study.ended_trials()) >= trials:
                return
            if waits_for != (waits_for := [trial.number for trial in others]):
                runs = ", ".join(trial.user_attrs.get(RUN, str(trial.number)) for trial in others)
                print_status(f"worker {worker}: waiting for the trials of other machines: {runs}")
            time.sleep(study.storage.poll_seconds)
    except RankerError as error:
        print_status(f"worker {worker}: {error}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(1)


def summarize(study: StudyFolder) -> dict[str, Any]:
    """Return the result of a study: trials by outcome, the best trials, and the importance of the settings."""
    ranked = study.ranked_trials()
    outcomes = [trial_outcome(trial) for trial in study.ended_trials()]
    return {
        "study": str(study.path),
        "trials": {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))},
        "best": _best_row(study, ranked[0]) if ranked else None,
        "start": _start_row(study),
        "comparison": study.describe_start(),
        "table": [_table_row(trial) for trial in ranked[:MAX_TABLE_TRIALS]],
        "importances": study.importances(),
    }


def format_summary(summary: dict[str, Any]) -> str:
    """Format the result of ``summarize`` as text."""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in summary["trials"].items()) or "none"
    lines = [f"trials: {counts}"]
    if not summary["table"]:
        return f"{lines[0]}\nno trial converged: see {summary['study']}/trials/*.log\n{summary['comparison']}"
    settings = list(dict.fromkeys(path for row in summary["table"] for path in row["settings"]))
    header = ["trial", "loss", *(path.split(".", 1)[1] for path in settings)]
    rows = [
        [str(row["trial"]), f"{row['loss']:.5f}", *(_format_value(row["settings"].get(path)) for path in settings)]
        for row in summary["table"]
    ]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in [header, *rows]]
    lines.append(f"best: trial {summary['best']['trial']}; {summary['comparison']}")
    if "run" in summary["best"]:
        lines.append(f"the run of the best trial is on another machine: {summary['best']['run']}")
    if summary["importances"]:
        shares = ", ".join(f"{path.split('.', 1)[1]} {share:.0%}" for path, share in summary["importances"].items())
        lines.append(f"importance of the settings: {shares}")
    return "\n".join(lines)


def _best_row(study: StudyFolder, best: FrozenTrial) -> dict[str, Any]:
    """Return the best trial, with host and path of its run folder if that is on another machine."""
    row = {**_table_row(best), "config": str(study.best_file)}
    is_here = study.run_folder(best.number).is_dir()
    return row if is_here or RUN not in best.user_attrs else {**row, "run": best.user_attrs[RUN]}


def _start_row(study: StudyFolder) -> dict[str, Any] | None:
    """Return trial number, outcome and loss of the starting configuration; None if it has not ended."""
    start = study.starting_trial()
    if start is None:
        return None
    return {"trial": start.number, "outcome": trial_outcome(start), "loss": start.user_attrs.get(LOSS)}


def _table_row(trial: FrozenTrial) -> dict[str, Any]:
    return {"trial": trial.number, "loss": trial.value, "settings": trial.params}


def _format_value(value: Any) -> str:
    if value is None:
        return "start"  # the starting value, which is outside of the searched range
    return f"{value:.2g}" if isinstance(value, float) else str(value)
