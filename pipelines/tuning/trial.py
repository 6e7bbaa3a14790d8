"""One trial: a training with the settings that it tries, pruned, judged, recorded."""

from __future__ import annotations

import contextlib
import math
import traceback
from typing import Any

from pipelines.console import print_status
from pipelines.jobs.train import train
from pipelines.tuning.search_space import override
from pipelines.tuning.study import CONVERGED, FAILED, PRUNED, UNCONVERGED, StudyFolder, TrialLease
from ranking.errors import LogError, RankerError


class PrunedError(Exception):
    """The validation loss is worse than the median at this step."""


class _Watch:
    """Follows the checks of a training.

    Only checks after the choice is final are compared, each with other trials' checks at the same step: before it, a
    wider fractional region alone makes a loss lower or higher.
    """

    def __init__(self, claim: TrialLease) -> None:
        self._trial = claim.trial
        self.best = math.inf
        self.begun = False

    def __call__(self, record: dict[str, Any]) -> None:
        self.begun = True
        if record["best"]:
            self.best = record["validation_total"]
        if record["phase"] == "selected":
            self._trial.report(record["validation_total"], record["step"])
            if self._trial.should_prune():
                raise PrunedError


def run(study: StudyFolder, claim: TrialLease) -> str:
    """Trains and records how it ended; the line that says so.

    A trial has not converged, and is disregarded as in section 3.2 of the DSelect-k paper, if the gates ended without
    an exact choice or if selectors had to be snapped to one.

    Raises:
        LogError: the log cannot be used, whatever the settings; the trial can be taken up once it is mended.
    """
    folder = study.run_of(claim.trial.number)
    watch = _Watch(claim)
    with folder.with_suffix(".log").open("w") as log_file, contextlib.redirect_stderr(log_file):
        how, why = _train(study, claim, watch)
        if why:
            print_status(why)
    study.finish(claim, how, watch.best if how == CONVERGED else None, why)
    loss = f"validation loss {watch.best:.5f}" if math.isfinite(watch.best) else "no validation loss"
    return f"trial {claim.trial.number}: {how}, {loss}" + (f" ({why})" if why else "")


def _train(study: StudyFolder, claim: TrialLease, watch: _Watch) -> tuple[str, str]:
    """How the training ended, and why if it did not converge."""
    try:
        done = train(override(study.config, claim.values), study.run_of(claim.trial.number), on_check=watch)
        selection = done.load_selection()
    except PrunedError:
        return PRUNED, ""
    except RankerError as error:
        if isinstance(error, LogError) and not watch.begun:
            raise
        return FAILED, str(error)
    except Exception as error:  # whatever one trial stumbles over must not stop the study
        traceback.print_exc()
        return FAILED, repr(error)
    if not math.isfinite(watch.best):
        return FAILED, "the validation loss is not finite"
    if not selection["converged"]:
        return UNCONVERGED, "the gates made no exact choice"
    if selection["snapped_codes"]:
        return UNCONVERGED, f"{selection['snapped_codes']} selectors had to be snapped"
    return CONVERGED, ""
