"""A worker that leases a trial and never ends it, until it is killed; it imports no training."""

from __future__ import annotations

import time
from pathlib import Path

from pipelines.tuning.storage import FolderStorage
from pipelines.tuning.study import OpenStorage, StudyFolder

LEASED = "leased"
"""Name of the file in the folder of the study that tells that a trial is leased."""


def lease_and_wait(
    folder: Path, trials: int, worker: int, deadline: float | None, open_storage: OpenStorage = FolderStorage
) -> None:
    lease = StudyFolder(folder, open_storage).lease(trials, worker)
    (folder / LEASED).touch()
    while lease is not None:
        time.sleep(1)
