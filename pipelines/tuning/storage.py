"""Record of the trials of a study: by default a journal in the folder of the study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import optuna
from optuna.pruners import BasePruner
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial

from pipelines.config.config import Config
from pipelines.tuning.claimed_folder import exclusive_lock
from ranking.errors import OutputError, RankerError
from ranking.file_locks import FileLock

JOURNAL = "journal"
"""File in the folder of a study without a database: the journal of the trials."""
DATABASE = "database"
"""File in the folder of a study with a database: the address of the database, and the id of the study."""
RUN = "run"
"""User attribute of a trial in a database: host and path of its run folder."""


class StorageError(RankerError):
    """The database of a study cannot be used; a trial that notices it has not failed, but is retried."""


class FolderStorage:
    """Optuna's journal in the folder of a study.

    ``DatabaseStorage`` has the same methods, and ``claim``. With both, the processes of a machine hold a file
    lock for each trial that they run; the storage tells which trials without such a lock are lost.

    Attributes:
        poll_seconds: time between two looks at the trials of other machines; None if there are no other machines.

    Raises:
        OutputError: the trials of the folder are in a database.
    """

    poll_seconds: float | None = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        file = folder / DATABASE
        if file.exists():
            address = file.read_text().partition("\n")[0]
            raise OutputError(f"{folder} is a study in {address}: add --storage, or name another folder")

    def open_study(self, config: Config, pruner: BasePruner) -> Study:
        """Create the study of a configuration, or open it."""
        storage = JournalStorage(JournalFileBackend(str(self._folder / JOURNAL)))
        return optuna.create_study(storage=storage, study_name=config.name, pruner=pruner, load_if_exists=True)

    def check(self, study: Study) -> None:
        """Do nothing: the journal of a folder is that of its study."""

    def lock(self) -> FileLock:
        """Hold the lock of the study; it is released if the process dies."""
        return exclusive_lock(self._folder)

    def start(self, trial: Trial, run: Path) -> Callable[[], None]:  # noqa: ARG002
        """Show other machines that a trial runs, until the returned function is called."""
        return lambda: None

    def lost_trials(self, study: Study, unlocked: Sequence[FrozenTrial]) -> list[FrozenTrial]:  # noqa: ARG002
        """Return the running trials whose process died.

        Args:
            study: the study.
            unlocked: the running trials that have no file lock on this machine.
        """
        return list(unlocked)
