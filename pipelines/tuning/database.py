"""A PostgreSQL database in which several machines record the trials of one study."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import optuna
import pg8000
import sqlalchemy
from optuna.pruners import BasePruner
from optuna.storages import RDBStorage, fail_stale_trials
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial
from pydantic import ValidationError
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from pipelines.config.config import Config
from pipelines.console import print_status
from pipelines.tuning.claimed_folder import describe_change
from pipelines.tuning.database_address import PASSWORD_VARIABLE, DatabaseAddress
from pipelines.tuning.storage import DATABASE, JOURNAL, RUN, StorageError
from ranking.artifacts.atomic_files import write_errors
from ranking.errors import ConfigError, OutputError, single_line

HEARTBEAT_SECONDS, GRACE_SECONDS = 30, 300
"""Interval of the heartbeats of a running trial, and the time without one after which it is lost. A connection that is
lost is tried again for as long as the latter."""
IDLE_LOCK_SECONDS, ANSWER_SECONDS = 30, 60
"""Time after which the server takes the lock from a machine that has died, and the time to wait for an answer, which
is longer, because a process may wait for the lock."""
LOCK_KEY = int.from_bytes(b"dselectr", signed=True)
"""Key of the advisory lock for all studies of a database."""
CONFIG, STUDY_ID = "config", "id"
"""User attributes of a study: its configuration, and a random id, so that a folder is used with one study only."""

REJECTED, WRONG_PASSWORD, NO_DATABASE, FORBIDDEN = "28000", "28P01", "3D000", "42501"
PASSING = {"53300", "57P01", "57P03"}
"""Codes of errors that pass: too many connections, and a server that stops or starts."""


class DatabaseStorage:
    """The trials of a study in a database, see ``FolderStorage``; a running trial sends heartbeats.

    Args:
        folder: folder of the study on this machine.
        address: address of the database.
        heartbeat_seconds: interval of the heartbeats.
        grace_seconds: time without a heartbeat after which a trial is lost.

    Raises:
        OutputError: the trials of the folder are in a journal.
        StorageError: the database cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        address: DatabaseAddress,
        heartbeat_seconds: int = HEARTBEAT_SECONDS,
        grace_seconds: int = GRACE_SECONDS,
    ) -> None:
        if (folder / JOURNAL).exists():
            raise OutputError(f"{folder} is a study without a database: name another folder, or leave out --storage")
        self._folder, self.address = folder, address
        self._heartbeat_seconds, self._grace_seconds = heartbeat_seconds, grace_seconds
        self.poll_seconds = heartbeat_seconds / 6
        self._stale: list[FrozenTrial] = []
        self._is_open = False
        logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)  # it prints a traceback for a lost connection
        with warnings.catch_warnings(), closing(self._connect()) as connection:
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # Two machines that create the tables at the same time would disturb each other.
            connection.cursor().execute("SELECT pg_advisory_lock(%s)", (LOCK_KEY,))
            self._storage = self._open(heartbeat_seconds, grace_seconds)
        self._is_open = True

    def open_study(self, config: Config, pruner: BasePruner) -> Study:
        """Create the study of a configuration, or open it."""
        return optuna.create_study(storage=self._storage, study_name=config.name, pruner=pruner, load_if_exists=True)

    def claim(self, study: Study, config: Config, is_unused: bool) -> Study:
        """Check that a study is one of a configuration, and return it; the caller holds the lock.

        Args:
            study: the study.
            config: the configuration.
            is_unused: no trial has ended or is running, so that the study may be replaced.

        Raises:
            ConfigError: the study is one of another configuration; names the first setting that differs.
            OutputError: the folder has trials of another study.
        """
        change = self._change(study, config)
        if change is not None and is_unused:  # every earlier command failed before its first training
            optuna.delete_study(study_name=config.name, storage=self._storage)
            study = self.open_study(config, study.pruner)
        elif change is not None:
            raise ConfigError(
                f"the study '{config.name}' in {self.address} has trainings of another configuration: {change}; "
                "give the configuration another name, or name another database"
            )
        if STUDY_ID not in study.user_attrs:
            study.set_user_attr(CONFIG, config.model_dump(mode="json", exclude_none=True))
            study.set_user_attr(STUDY_ID, uuid.uuid4().hex)
        with write_errors(self._folder):
            file, study_id = self._folder / DATABASE, study.user_attrs[STUDY_ID]
            if not file.exists():
                file.write_text(f"{self.address}\n{study_id}\n")
            recorded, used_id = file.read_text().splitlines()
        if used_id != study_id:
            raise OutputError(f"{self._folder} has trials of another study, in {recorded}: name another folder")
        return study

    def check(self, study: Study) -> None:
        """Check that the study is the one of the folder; the caller holds the lock.

        Raises:
            OutputError: the study was deleted, or replaced by that of another configuration.
        """
        try:
            study_id = study.user_attrs.get(STUDY_ID)
        except KeyError:
            study_id = None
        file = self._folder / DATABASE
        if study_id is None or not file.exists() or file.read_text().splitlines()[-1] != study_id:
            raise OutputError(
                f"the study '{study.study_name}' of {self._folder} in {self.address} was deleted, or replaced by that "
                "of another configuration: name another folder"
            )

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of the study.

        Raises:
            StorageError: the lock was lost, so that what was done under it must not be relied on.
        """
        with self._storage.engine.begin() as connection:
            connection.execute(
                sqlalchemy.text(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_LOCK_SECONDS}s'")
            )
            connection.execute(sqlalchemy.text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})
            yield

    def start(self, trial: Trial, run: Path) -> Callable[[], None]:
        """Send heartbeats of a trial until the returned function is called."""
        trial_id = trial._trial_id
        self._storage.record_heartbeat(trial_id)
        trial.set_user_attr(RUN, f"{socket.gethostname()}:{run.absolute()}")
        stop = threading.Event()

        def send() -> None:
            while not stop.wait(self._heartbeat_seconds):
                with suppress(StorageError):  # the next heartbeat connects again
                    self._storage.record_heartbeat(trial_id)
            self._storage.remove_session()

        threading.Thread(target=send, daemon=True).start()
        return stop.set

    def lost_trials(self, study: Study, unlocked: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """Return the running trials without heartbeats; the caller holds the lock."""
        self._stale.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            fail_stale_trials(study)
        stale = {trial.number for trial in self._stale}
        unstarted = [trial for trial in unlocked if RUN not in trial.user_attrs and trial.number not in stale]
        return [*self._stale, *unstarted]

    def _change(self, study: Study, config: Config) -> str | None:
        """Return the first setting that differs from the configuration of a study; None if there is none."""
        recorded = study.user_attrs.get(CONFIG)
        if recorded is None:
            return None
        try:
            return describe_change(type(config).model_validate(recorded), config)
        except ValidationError:
            return "it has settings that this version does not know"

    def _open(self, heartbeat_seconds: int, grace_seconds: int) -> RDBStorage:
        """Open the tables of the studies, or create them."""
        try:
            storage = RDBStorage(
                "postgresql+pg8000://",  # without a password, which would be in the messages of Optuna and Alembic
                {"creator": self._connect, "pool_pre_ping": True},
                heartbeat_interval=heartbeat_seconds,
                grace_period=grace_seconds,
                heartbeat_stale_trial_callback=lambda _, trial: self._stale.append(trial),
            )
        except RuntimeError as error:  # the tables are of another version of Optuna
            raise StorageError(f"{self.address}: {single_line(error)}") from None
        except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            raise StorageError(self._problem(_root(error))) from None
        sqlalchemy.event.listen(storage.engine, "handle_error", self._handle_error)
        return storage

    def _connect(self) -> Any:
        """Return a new connection; once the storage is open, wait for a server that is not available.

        Raises:
            StorageError: the server cannot be reached or rejects the connection.
        """
        address = self.address
        modes: dict[str, Any] = {"disable": False, "prefer": None, "require": True}
        until = time.monotonic() + (self._grace_seconds if self._is_open else 0)
        is_told = False
        while True:
            try:
                return pg8000.connect(
                    address.user,
                    address.host,
                    address.database,
                    address.port,
                    address.password or "",  # pg8000 fails without any
                    ssl_context=modes[address.ssl_mode] if address.ssl_mode in modes else ssl.create_default_context(),
                    timeout=ANSWER_SECONDS,
                    startup_params={"TimeZone": "UTC"},  # pg8000 would shift heartbeats by the offset of the server
                )
            except (pg8000.Error, OSError) as error:
                passes = _code(error) in PASSING or isinstance(error, OSError) or _is_network_error(error)
                if not passes or time.monotonic() >= until:
                    raise StorageError(self._problem(error)) from None
            if not is_told:
                print_status(f"{address}: cannot be reached; trying again for {self._grace_seconds} s")
                is_told = True
            time.sleep(1)

    def _handle_error(self, context: ExceptionContext) -> None:
        """Turn an error of a statement into one that Optuna expects, or into a message for the user."""
        error = context.original_exception
        code = _code(error)
        if code in PASSING or _is_network_error(error):
            context.is_disconnect = True
        if context.is_pre_ping:
            return
        if code.startswith("23"):  # pg8000 has no class of its own for it
            raise IntegrityError(context.statement, context.parameters, error)
        raise StorageError(self._problem(error))

    def _problem(self, error: BaseException) -> str:
        """Return the message for an error of the driver or the server."""
        address, code, reason = self.address, _code(error), _reason(error)
        if code == WRONG_PASSWORD or "no password was provided" in reason:
            text = f"wrong name or password of the user {address.user}: correct --storage or {PASSWORD_VARIABLE}"
        elif code == NO_DATABASE:
            text = f"there is no such database: createdb -h {address.host} -p {address.port} {address.database}"
        elif code == FORBIDDEN:
            text = f"{reason}; let the user create tables: GRANT CREATE ON SCHEMA public TO {address.user}"
        elif code == REJECTED:
            text = f"the server rejects the connection ({reason}): see its pg_hba.conf"
        elif code and code not in PASSING:
            text = reason
        elif self._is_open:
            text = f"the connection was lost ({reason}); repeat the command to continue"
        else:
            text = f"cannot be reached ({reason}); check the address, the network and that the server runs"
        return f"{address}: {text}"


def _root(error: BaseException) -> BaseException:
    """Return the error of the driver that caused another error."""
    while (cause := error.__cause__) is not None and not isinstance(error, pg8000.Error):
        error = cause
    return error


def _code(error: BaseException) -> str:
    """Return the code of an error of the server, or an empty string."""
    detail = error.args[0] if error.args else None
    return str(detail.get("C", "")) if isinstance(detail, dict) else ""


def _reason(error: BaseException) -> str:
    """Return the text of an error on one line."""
    detail = error.args[0] if error.args else None
    if isinstance(detail, dict):
        return " ".join(str(detail.get("M")).split())
    return single_line(error if error.__cause__ is None else error.__cause__)


def _is_network_error(error: BaseException) -> bool:
    """Return whether an error of the driver is one of the network."""
    return isinstance(error.__cause__, OSError) or "network error" in str(error) or "connection is closed" in str(error)
