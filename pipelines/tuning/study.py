"""A study on disk: the Optuna journal, the run folder of each trial, and file locks of running trials.

    DIR/config.toml   the configuration that is tuned
    DIR/journal       Optuna's journal of the trials, unless they are in a database (``DIR/database`` names it)
    DIR/trials/N/     run folder of trial N; N.log contains the output of its training
    DIR/best.toml     the configuration with the settings of the best trial

The first trial trains the starting configuration, so that the best trial can be compared with it.

Several processes can work on one study, whether started together or separately. Optuna does not record that a process
died. Each trial therefore holds a file lock while it runs; the operating system releases it with the process. Machines
that share a database each have a folder of their own, with the runs of their trials, and see that a trial of another
machine runs by its heartbeats.
"""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import optuna
from optuna.pruners import BasePruner, MedianPruner, NopPruner
from optuna.samplers import TPESampler
from optuna.trial import FixedTrial, FrozenTrial, Trial, TrialState

from pipelines.config.config import Config, load_config
from pipelines.runs.run import RunFolder
from pipelines.tuning.claimed_folder import claim_folder
from pipelines.tuning.search_space import override, search_space, starting_params, suggest
from pipelines.tuning.storage import FolderStorage
from ranking.artifacts.atomic_files import check_folder, write_errors
from ranking.errors import ConfigError
from ranking.file_locks import FileLock

if TYPE_CHECKING:
    from pipelines.tuning.database import DatabaseStorage

OUTCOME, REASON, RETRY_OF, START, LOSS = "outcome", "reason", "takes_up", "start", "loss"
"""User attributes of a trial: its outcome, the reason, the abandoned trial that it retries, whether it trains the
starting configuration, and its best validation loss, which unconverged trials have too."""

CONVERGED, UNCONVERGED, PRUNED, FAILED, ABANDONED = "converged", "unconverged", "pruned", "failed", "abandoned"
STATES = {
    CONVERGED: TrialState.COMPLETE,
    UNCONVERGED: TrialState.PRUNED,
    PRUNED: TrialState.PRUNED,
    FAILED: TrialState.FAIL,
}
"""Optuna state of each recorded outcome; only converged trials count for medians and for the best trial."""

STEP_SETTINGS = {"training.epochs", "training.batch_size", "training.convergence.anneal_until"}
"""Settings that change the meaning of a step; a study that searches one of them does not prune."""

MIN_CONVERGED_TRIALS = 5
"""Number of converged trials that pruning and importances require."""


@dataclass(frozen=True)
class TrialLease:
    """A trial that this process runs.

    Attributes:
        trial: the Optuna trial.
        values: value of each searched setting; empty for the starting configuration, whose settings are unchanged.
        lock: held while the trial runs.
        stop: function that ends the heartbeats.
    """

    trial: Trial
    values: dict[str, Any]
    lock: FileLock
    stop: Callable[[], None]

    def release(self) -> None:
        """Show other processes that this one no longer runs the trial."""
        self.stop()
        self.lock.close()


OpenStorage: TypeAlias = "Callable[[Path], FolderStorage | DatabaseStorage]"
"""Opens the storage of the study in a folder."""


class StudyFolder:
    """A study in a folder that ``create`` has prepared.

    Args:
        path: folder of the study.
        open_storage: opens the storage of the trials.
    """

    def __init__(self, path: Path, open_storage: OpenStorage = FolderStorage) -> None:
        self.path = path
        self.storage = open_storage(path)
        self.config_file = path / "config.toml"
        self.best_file = path / "best.toml"
        self.config = load_config(self.config_file)
        self.space = search_space(self.config)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = self.storage.open_study(self.config, self._pruner())

    @classmethod
    def create(cls, path: Path, config: Config, open_storage: OpenStorage = FolderStorage) -> StudyFolder:
        """Create a study, or open an existing study of the same configuration.

        Raises:
            ConfigError: the configuration cannot be tuned, or differs from that of the existing study; names the first
                setting that differs.
            OutputError: the folder has other content, or cannot be written.
            StorageError: the database cannot be used.
        """
        if config.model.gate.kind == "single_task":
            raise ConfigError("single_task trains a separate model for each task: tune a configuration with one task")
        search_space(config)
        check_folder(path)
        storage = open_storage(path)  # before the folder is created
        claim_folder(path, config)
        with write_errors(path):
            (path / "trials").mkdir(exist_ok=True)
        with storage.lock():  # opened before, another machine could replace it
            study = cls(path, lambda _: storage)
            if not isinstance(storage, FolderStorage):
                study._recover()
                is_unused = not study.ended_trials() and not study._running_trials()
                study._study = storage.claim(study._study, config, is_unused)
        return study

    def trials(self) -> list[FrozenTrial]:
        """Return all trials, including abandoned ones."""
        return self._study.get_trials(deepcopy=False)

    def ended_trials(self) -> list[FrozenTrial]:
        """Return the trials that have ended, except abandoned ones, which are retried as new trials."""
        return [t for t in self.trials() if t.state.is_finished() and trial_outcome(t) != ABANDONED]

    def ranked_trials(self) -> list[FrozenTrial]:
        """Return the converged trials in order of increasing validation loss."""
        converged = [t for t in self.trials() if t.state == TrialState.COMPLETE]  # pruned trials have a value too
        return sorted(converged, key=lambda t: (t.value, t.number))

    def run_folder(self, number: int) -> Path:
        """Return the path of a trial's run folder."""
        return self.path / "trials" / str(number)

    def prepared_run(self) -> RunFolder | None:
        """Return the first run that has prepared its training; others use it if their features are the same."""
        runs = (RunFolder(self.run_folder(trial.number)) for trial in self.trials())
        return next((run for run in runs if run.encoder.is_dir()), None)

    def lease(self, total: int, worker: int) -> TrialLease | None:
        """Lease the next trial to this process; None if ``total`` trials have ended or are running.

        Raises:
            OutputError: the study was deleted from the database, or replaced.
        """
        with self.storage.lock():
            self.storage.check(self._study)
            self._recover()
            if len(self.ended_trials()) + len(self._running_trials()) >= total:
                return None
            if not any(START in t.user_attrs for t in self.trials()):
                self._study.enqueue_trial(starting_params(self.config, self.space), user_attrs={START: True})
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                seed = np.random.SeedSequence((self.config.training.seed, len(self.trials()), worker))
                self._study.sampler = TPESampler(
                    # In groups, because the starting configuration may lack settings that other trials have.
                    seed=int(seed.generate_state(1)[0]),
                    multivariate=True,
                    group=True,
                    constant_liar=True,
                )
                warnings.filterwarnings("ignore", "Heartbeat of storage")  # ``start`` sends them
                trial = self._study.ask()
            lock = FileLock(self._lock_file(trial.number), create=True)
            if START in trial.user_attrs:  # its settings outside the search space are not those of any sample
                suggest(trial, {path: self.space[path] for path in starting_params(self.config, self.space)})
                values = {}
            else:
                values = suggest(trial, self.space)
            return TrialLease(trial, values, lock, self.storage.start(trial, self.run_folder(trial.number)))

    def trials_elsewhere(self) -> list[FrozenTrial]:
        """Return the trials that run on other machines, which this one repeats if they are lost."""
        return [t for t in self._running_trials() if not self._lock_file(t.number).exists()]

    def finish(self, lease: TrialLease, outcome: str, loss: float, reason: str = "") -> bool:
        """Record the outcome of a trial, and delete the weights of all trials except the best one.

        Args:
            lease: the trial.
            outcome: its outcome.
            loss: its best validation loss; not finite if it has none.
            reason: why it is not converged.

        Returns:
            Whether the trial counts; it does not if another machine has found no heartbeats and repeats it.

        Raises:
            OutputError: the study was deleted from the database, or replaced.
        """
        trial = lease.trial
        with self.storage.lock():
            lease.stop()
            self.storage.check(self._study)
            if all(running.number != trial.number for running in self._running_trials()):
                lease.release()
                self._discard(trial.number)
                return False
            trial.set_user_attr(OUTCOME, outcome)
            trial.set_user_attr(REASON, reason)
            if math.isfinite(loss):
                trial.set_user_attr(LOSS, loss)
            self._study.tell(trial, loss if outcome == CONVERGED else None, state=STATES[outcome])
            self._lock_file(trial.number).unlink()
            lease.release()
            self._keep_best()
            return True

    def update_best(self) -> None:
        """Write ``best.toml`` and delete the weights of other trials again, after trials on other machines."""
        with self.storage.lock():
            self._keep_best()

    def _keep_best(self) -> None:
        ranked = self.ranked_trials()
        for ended in self.ended_trials():
            if ended not in ranked[:1]:
                run = RunFolder(self.run_folder(ended.number))
                shutil.rmtree(run.checkpoints, ignore_errors=True)
        if ranked:
            header = f"Trial {ranked[0].number}, validation loss {ranked[0].value:.5f}; {self.describe_start()}"
            self.trial_config(ranked[0]).write(self.best_file, header)

    def starting_trial(self) -> FrozenTrial | None:
        """Return the trial of the starting configuration; None if it has not ended."""
        return next((t for t in self.ended_trials() if START in t.user_attrs), None)

    def describe_start(self) -> str:
        """Compare the best trial with the starting configuration, in words."""
        start, ranked = self.starting_trial(), self.ranked_trials()
        if start is None:
            return "the starting configuration has not been measured yet"
        loss, outcome = start.user_attrs.get(LOSS), trial_outcome(start)
        text = f"the starting configuration (trial {start.number}) "
        if ranked and ranked[0].number == start.number:
            return text + "is the best"
        if loss is None:
            return text + f"has no validation loss: {outcome}"
        lower = "the lower " if ranked and loss < ranked[0].value else ""
        return f"{text}has {lower}validation loss {loss:.5f}" + ("" if outcome == CONVERGED else f", but is {outcome}")

    def trial_config(self, trial: FrozenTrial) -> Config:
        """Return the configuration that a trial was trained with."""
        if START in trial.user_attrs:
            return override(self.config, {})
        space = {path: values for path, values in self.space.items() if path in trial.params}
        return override(self.config, suggest(FixedTrial(trial.params), space))

    def importances(self) -> dict[str, float]:
        """Return the importance of each setting for the loss, with sum 1; empty with too few converged trials."""
        if len(self.ranked_trials()) < MIN_CONVERGED_TRIALS:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            return optuna.importance.get_param_importances(self._study, evaluator=evaluator, params=list(self.space))

    def _recover(self) -> None:
        """Mark trials whose process died as abandoned, and enqueue their settings again.

        A trial that is itself a retry is not retried, so that settings that kill the process do not loop.
        """
        for trial in self._running_trials():
            file = self._lock_file(trial.number)
            if file.exists() and not _is_locked(file):
                self._abandon(trial)
        for trial in self.storage.lost_trials(self._study, self.trials_elsewhere()):
            self._abandon(trial)
        for trial in self.trials():  # that another machine has found to be lost while this one was down
            if trial.state == TrialState.FAIL and OUTCOME not in trial.user_attrs:
                self._discard(trial.number)

    def _abandon(self, trial: FrozenTrial) -> None:
        self._study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
        self._discard(trial.number)
        if RETRY_OF not in trial.user_attrs:
            start = {START: True} if START in trial.user_attrs else {}
            self._study.enqueue_trial(trial.params, user_attrs={RETRY_OF: trial.number, **start})

    def _running_trials(self) -> list[FrozenTrial]:
        return [t for t in self.trials() if t.state == TrialState.RUNNING]

    def _discard(self, number: int) -> None:
        """Delete the run folder of a trial unless a process of this machine still trains it."""
        if not _is_locked(self._lock_file(number)):
            self._lock_file(number).unlink(missing_ok=True)
            shutil.rmtree(self.run_folder(number), ignore_errors=True)

    def _lock_file(self, number: int) -> Path:
        return self.path / "trials" / f"{number}.lock"

    def _pruner(self) -> BasePruner:
        return NopPruner() if STEP_SETTINGS & set(self.space) else MedianPruner(MIN_CONVERGED_TRIALS)


def trial_outcome(trial: FrozenTrial) -> str:
    """Return the outcome of a trial; ``abandoned`` if its process died and its settings are retried."""
    recorded = trial.user_attrs.get(OUTCOME)
    if recorded in STATES and trial.state == STATES[recorded]:  # else the process died after recording the outcome
        return str(recorded)
    return FAILED if RETRY_OF in trial.user_attrs else ABANDONED


def _is_locked(file: Path) -> bool:
    """Return whether a running process holds the lock."""
    try:
        FileLock(file, wait=False).close()
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
