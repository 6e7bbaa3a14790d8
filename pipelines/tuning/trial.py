"""One trial: train with the sampled settings, prune, and record the outcome."""

from __future__ import annotations

import contextlib
import math
import traceback
from typing import Any

from optuna.exceptions import UpdateFinishedTrialError

from pipelines.console import print_status
from pipelines.jobs.train import train
from pipelines.tuning.search_space import override
from pipelines.tuning.storage import StorageError
from pipelines.tuning.study import ABANDONED, CONVERGED, FAILED, PRUNED, START, UNCONVERGED, StudyFolder, TrialLease
from ranking.errors import LogError, RankerError


class PrunedError(Exception):
    """The validation loss is above the median of other trials at the same step."""


class _CheckCallback:
    """Record the best validation loss of a training, and prune it.

    Only checks after the final selection are compared, each with the checks of other trials at the same step. Before
    the selection is final, a wider fractional region of the gate changes the loss by itself. The starting configuration
    is never pruned, because the result is compared with it.
    """

    def __init__(self, lease: TrialLease) -> None:
        self._trial = lease.trial
        self._prunable = START not in lease.trial.user_attrs
        self.best = math.inf
        self.started = False

    def __call__(self, record: dict[str, Any]) -> None:
        self.started = True
        if record["best"]:
            self.best = record["validation_total"]
        if record["phase"] == "selected":
            self._trial.report(record["validation_total"], record["step"])
            if self._prunable and self._trial.should_prune():
                raise PrunedError


def run_trial(study: StudyFolder, lease: TrialLease) -> str:
    """Train with the settings of a trial, record its outcome, and return a summary line.

    A trial is unconverged if its gates did not converge to an exact selection, or if selectors were snapped to one.
    Unconverged trials are disregarded, as in section 3.2 of the DSelect-k paper.

    Raises:
        LogError: the log cannot be used; the trial is retried after the log is fixed.
        StorageError: the database cannot be used; the trial is retried when it can.
    """
    number = lease.trial.number
    callback = _CheckCallback(lease)
    with study.run_folder(number).with_suffix(".log").open("w") as log_file, contextlib.redirect_stderr(log_file):
        try:
            outcome, reason = _train(study, lease, callback)
        except BaseException:
            lease.release()
            raise
        if reason:
            print_status(reason)
    if not study.finish(lease, outcome, callback.best, reason):
        return f"trial {number}: {ABANDONED}, because its heartbeats stopped; it is repeated"
    loss = f"validation loss {callback.best:.5f}" if math.isfinite(callback.best) else "no validation loss"
    return f"trial {number}: {outcome}, {loss}" + (f" ({reason})" if reason else "")


def _train(study: StudyFolder, lease: TrialLease, callback: _CheckCallback) -> tuple[str, str]:
    """Return the outcome of the training, and the reason if it is not converged."""
    try:
        config, folder = override(study.config, lease.values), study.run_folder(lease.trial.number)
        run = train(config, folder, on_check=callback, prepared=study.prepared_run())
        selection = run.load_selection()
    except PrunedError:
        return PRUNED, ""
    except UpdateFinishedTrialError:  # another machine has found no heartbeats
        return ABANDONED, ""
    except StorageError:
        raise
    except RankerError as error:
        if isinstance(error, LogError) and not callback.started:
            raise
        return FAILED, str(error)
    except Exception as error:  # a failure of one trial must not stop the study
        traceback.print_exc()
        return FAILED, repr(error)
    if not math.isfinite(callback.best):
        return FAILED, "the validation loss is not finite"
    if not selection["converged"]:
        return UNCONVERGED, "the gates did not converge to an exact selection"
    if selection["snapped_codes"]:
        return UNCONVERGED, f"{selection['snapped_codes']} selectors were snapped"
    return CONVERGED, ""
