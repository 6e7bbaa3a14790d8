"""A study on disk: Optuna's journal, the run folder of each trial, and locks that outlive no process.

    DIR/config.toml   the configuration that is tuned; another one is refused
    DIR/journal       Optuna's journal of the trials
    DIR/trials/N/     run folder of trial N; N.log beside it holds what its training said
    DIR/best.toml     the configuration with the best trial's settings

Several processes, started together or by hand, may work on one study. Optuna's journal tells nobody that a process
died, so each trial holds a file lock while it runs: the system frees it with the process, however that ends.
"""

from __future__ import annotations

import fcntl
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import optuna
from optuna.pruners import BasePruner, MedianPruner, NopPruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FixedTrial, FrozenTrial, Trial, TrialState

from pipelines.config.config import Config, load_config
from pipelines.config.diff import diff_configs
from pipelines.runs.run import RunFolder
from pipelines.tuning.search_space import Range, override, search_space
from ranking.artifacts.atomic_files import os_error_text, check_folder
from ranking.errors import ConfigError, OutputError

OUTCOME, REASON, TAKES_UP = "outcome", "reason", "takes_up"
"""What a trial's journal says of its end, and which lost trial it takes up."""

CONVERGED, UNCONVERGED, PRUNED, FAILED, LOST = "converged", "unconverged", "pruned", "failed", "lost"
STATES = {
    CONVERGED: TrialState.COMPLETE,
    UNCONVERGED: TrialState.PRUNED,
    PRUNED: TrialState.PRUNED,
    FAILED: TrialState.FAIL,
}
"""Only a converged trial counts for medians and for the best; the sampler takes the next two for worse than those."""

STEPS = {"training.epochs", "training.batch_size", "training.convergence.anneal_until"}
"""Settings that change what a step or the phase after it means; trials that differ in one are not pruned."""

SEEN_BEFORE_PRUNING = 5
"""Converged trials that a median needs."""


@dataclass(frozen=True)
class TrialLease:
    """A trial that this process runs.

    Attributes:
        trial: Optuna's.
        values: setting → what it tries.
        lock: held as long as it runs.
    """

    trial: Trial
    values: dict[str, Any]
    lock: IO[str]


class StudyFolder:
    """One study.

    Args:
        path: the folder, which ``create`` has made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.best_file = path / "best.toml"
        self.config = load_config(self.config_file)
        self.space: dict[str, Range] = search_space(self.config)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(path / "journal"))),
            study_name=self.config.name,
            pruner=self._pruner(),
            load_if_exists=True,
        )

    @classmethod
    def create(cls, path: Path, config: Config) -> StudyFolder:
        """Begins a study, or goes on with the one that is there.

        Raises:
            ConfigError: the study is of another configuration (names the first setting that differs), or it cannot be
                tuned.
            OutputError: the folder holds something else, or cannot be written.
        """
        if config.model.gate.kind == "single_task":
            raise ConfigError("single_task trains a model for each task: tune a configuration of one task instead")
        search_space(config)
        check_folder(path)
        file = path / "config.toml"
        try:
            (path / "trials").mkdir(parents=True, exist_ok=True)
            with _locked(path / "lock"):
                if not file.exists():
                    if (path / "journal").exists() or any((path / "trials").iterdir()):
                        raise OutputError(f"{path} holds trials but no config.toml: name another folder")
                    config.write(file)
        except OSError as error:
            raise OutputError(f"{path}: cannot be written ({os_error_text(error)})") from None
        for setting, before, now in diff_configs(load_config(file), config):
            raise ConfigError(
                f"{path} is a study of another configuration: {setting} was {before!r}, now it is {now!r}; "
                "name another folder"
            )
        return cls(path)

    def trials(self) -> list[FrozenTrial]:
        """All trials, those included that were lost with their process."""
        return self._optuna.get_trials(deepcopy=False)

    def counted(self) -> list[FrozenTrial]:
        """Trials that have ended, whichever way; lost ones do not count, because another takes them up."""
        return [t for t in self.trials() if t.state.is_finished() and outcome(t) != LOST]

    def ranked(self) -> list[FrozenTrial]:
        """The converged trials, lowest validation loss first."""
        done = [t for t in self.trials() if t.state == TrialState.COMPLETE]  # pruned ones have a value too
        return sorted(done, key=lambda t: (t.value, t.number))

    def run_of(self, number: int) -> Path:
        """Run folder of a trial."""
        return self.path / "trials" / str(number)

    def claim(self, total: int, worker: int) -> TrialLease | None:
        """The next trial for this process; None once ``total`` trials have ended or run."""
        with _locked(self.path / "lock"):
            self._recover()
            running = [t for t in self.trials() if t.state == TrialState.RUNNING]
            if len(self.counted()) + len(running) >= total:
                return None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                seed = np.random.SeedSequence((self.config.training.seed, len(self.trials()), worker))
                self._optuna.sampler = TPESampler(
                    seed=int(seed.generate_state(1)[0]), multivariate=True, constant_liar=True
                )
            trial = self._optuna.ask()
            lock = self._lock_of(trial.number).open("w")
            fcntl.flock(lock, fcntl.LOCK_EX)
            return TrialLease(trial, {path: values.draw(trial, path) for path, values in self.space.items()}, lock)

    def finish(self, claim: TrialLease, how: str, value: float | None = None, why: str = "") -> None:
        """Records how a trial ended, and keeps the weights of the best one only."""
        trial = claim.trial
        with _locked(self.path / "lock"):
            trial.set_user_attr(OUTCOME, how)
            trial.set_user_attr(REASON, why)
            self._optuna.tell(trial, value, state=STATES[how])
            self._lock_of(trial.number).unlink()
            claim.lock.close()
            ranked = self.ranked()
            for ended in self.counted():
                if ended not in ranked[:1]:
                    run = RunFolder(self.run_of(ended.number))
                    for weights in (run.checkpoints, run.encoder, run.side_encoder):
                        shutil.rmtree(weights, ignore_errors=True)
                    run.index.unlink(missing_ok=True)
            if ranked:
                self.settings(ranked[0]).write(self.best_file)

    def settings(self, trial: FrozenTrial) -> Config:
        """The configuration that a trial was trained with."""
        fixed = FixedTrial(trial.params)
        return override(self.config, {path: values.draw(fixed, path) for path, values in self.space.items()})

    def importances(self) -> dict[str, float]:
        """Setting → its share of what settings explain of the loss; empty if trials are too few to tell."""
        if len(self.ranked()) < SEEN_BEFORE_PRUNING:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            return optuna.importance.get_param_importances(self._optuna, evaluator=evaluator)

    def _recover(self) -> None:
        """Gives the settings of trials whose process died to new trials, once: what kills twice is let go."""
        for lost in self.trials():
            if lost.state != TrialState.RUNNING or _held(self._lock_of(lost.number)):
                continue
            self._optuna.tell(lost.number, state=TrialState.FAIL)
            self._lock_of(lost.number).unlink(missing_ok=True)
            shutil.rmtree(self.run_of(lost.number), ignore_errors=True)
            if TAKES_UP not in lost.user_attrs:
                self._optuna.enqueue_trial(lost.params, user_attrs={TAKES_UP: lost.number})

    def _lock_of(self, number: int) -> Path:
        return self.path / "trials" / f"{number}.lock"

    def _pruner(self) -> BasePruner:
        return NopPruner() if STEPS & set(self.space) else MedianPruner(SEEN_BEFORE_PRUNING)


def outcome(trial: FrozenTrial) -> str:
    """How a trial ended; ``lost`` if with its process, in which case another takes its settings up."""
    told = trial.user_attrs.get(OUTCOME)
    if told in STATES and trial.state == STATES[told]:  # else the process died after it said so
        return str(told)
    return FAILED if TAKES_UP in trial.user_attrs else LOST


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Waits for the lock; the system frees it when the block or the process ends."""
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _held(file: Path) -> bool:
    """Whether a living process holds the lock."""
    try:
        with file.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
