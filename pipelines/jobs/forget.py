"""``ranker forget``: removes the data of one user from the served log, feedback, joined logs and the feature store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.console import Progress
from pipelines.data.parquet import CSV_HINT, is_csv
from pipelines.feature_store.counter_store import CounterStore
from pipelines.feature_store.counter_values import counters_by_root
from pipelines.feature_store.forgotten_users import forget_user
from pipelines.jobs.row_removal import parquet_files, remove_feedback, remove_parquet_rows
from pipelines.loop.feedback_files import find_feedback_files
from ranking.artifacts import bundle, repository
from ranking.artifacts.atomic_files import remove_drafts
from ranking.artifacts.feature_store_keys import key_prefix
from ranking.artifacts.user_hash import UserHash
from ranking.errors import BundleError, LogError, UsageError, single_line
from ranking.regular_files import is_damage
from ranking.schema import Counter

USER, REQUEST = "user_id", "request_id"
"""Columns of the served log."""


def forget(
    user: str,
    *,
    served: Path | None = None,
    feedback: Path | None = None,
    logs: Sequence[Path] = (),
    user_column: str = USER,
    user_key: str | None = None,
) -> dict[str, Any]:
    """Remove the rows of one user from files.

    The user's feedback is found by the request ids in the served log. Therefore the rows of the served log are removed
    last, and an interrupted command can be repeated. Files that are being written are not read.

    Args:
        user: id of the user; the decimal text of an integer id.
        served: folder of the served log.
        feedback: folder of feedback.
        logs: logs, as files or folders, such as those of ``ranker join``.
        user_column: column of the user id in the logs.
        user_key: key with which the service hashes the user ids of the served log.

    Returns:
        The number of removed rows of each folder, and of removed lines of feedback; and messages about what is damaged
        and may hold more of them: ``unreadable``.

    Raises:
        LogError: a log has no such column or is not Parquet, or a folder does not exist. Nothing was removed.
        OutputError: a file cannot be replaced.
        UsageError: feedback is given without the served log.
    """
    if feedback is not None and served is None:
        raise UsageError(
            "--feedback needs --served: feedback names requests, and only the served log knows their users"
        )
    for folder in (served, feedback, *logs):
        if folder is not None and not folder.exists():
            raise LogError(f"{folder}: does not exist")
    for log in logs:
        for file in parquet_files(log):
            _check_log(file, user_column)
    names = {user} if user_key is None else {user, UserHash(user_key)(user)}
    selected = _is_any(names)
    removed: dict[str, Any] = {}
    unreadable: list[str] = []

    def remove_requests(file: Path) -> int:
        try:
            return remove_parquet_rows(file, USER, selected, unreadable)
        except LogError as error:
            unreadable.append(str(error))
            return 0

    if feedback is not None and served is not None:
        requests = _requests(served, selected)
        files = find_feedback_files(feedback)
        removed["feedback_lines"] = _total(
            "removing feedback", files, lambda file: remove_feedback(file, requests, unreadable)
        )
    for log in logs:
        removed.setdefault("log_rows", {})[str(log)] = _total(
            f"removing rows of {log}",
            parquet_files(log),
            lambda file: remove_parquet_rows(file, user_column, selected, unreadable),
        )
    if served is not None:
        removed["served_requests"] = _total("removing requests", parquet_files(served), remove_requests)
    return removed | {"unreadable": unreadable}


def found_any(removed: Mapping[str, Any]) -> bool:
    """Return whether anything was removed, or may have to be, see ``forget``."""
    return any(found_any(value) if isinstance(value, Mapping) else value for value in removed.values())


def forget_in_store(user: str, path: Path, url: str, model: str | None, prefix: str) -> int:
    """Remove the features and counters of one user from the feature store of the service, see ``forget_user``.

    Args:
        user: id of the user; the decimal text of an integer id.
        path: the repository.
        url: address of the store, see ``ranking.artifacts.store_address``.
        model: name of the model; default: all models of the repository.
        prefix: prefix of the keys.

    Returns:
        The number of removed keys.

    Raises:
        BundleError: a model cannot be read.
        OutputError: the store cannot be reached or rejects a command.
        UsageError: the address has an unsupported option, or there is no such model.
    """
    models = repository.list_models(path)
    if model is not None and model not in models:
        raise UsageError(f"{path} has no model '{model}': it has {', '.join(models) or 'none'}")
    removed = 0
    for name in models if model is None else [model]:
        store = CounterStore(url, prefix, name)
        with store.errors("repeat the command"):
            features = f"{key_prefix(prefix, name, 'user')}{user}"
            removed += forget_user(store, user, features, _user_counters(path, name))
    return removed


def _user_counters(path: Path, model: str) -> Sequence[Counter]:
    """Return the counters of the current version that are kept by user; none if it cannot be read."""
    try:
        version = repository.read_release(path, model).version
        schema = bundle.read_schema(repository.bundle_folder(path, model, version))
    except BundleError:
        return ()
    return counters_by_root(schema).get("user", ())


def read_user_key(file: Path) -> str:
    """Return the key in a file, without the line break at its end.

    Raises:
        UsageError: the file cannot be read or is empty.
    """
    try:
        key = file.read_text().rstrip("\r\n")
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: cannot be read ({single_line(error)})") from None
    if not key:
        raise UsageError(f"{file}: is empty, but it must hold the key that hashes user ids")
    return key


def _is_any(names: set[str]) -> Callable[[pa.Array], pa.Array]:
    """Return a function that tells which ids are one of these texts, or an integer with such a decimal text."""
    values = pa.array(sorted(names), pa.string())

    def selected(ids: pa.Array) -> pa.Array:
        return pc.is_in(ids.cast(pa.string()), values).fill_null(False)

    return selected


def _check_log(file: Path, column: str) -> None:
    """Check that rows of a user can be found in a file, before any file is changed; damaged Parquet files can stay.

    Raises:
        LogError: the file cannot be read, is not a Parquet file, or has no such column.
    """
    try:
        names = pq.read_schema(file).names
    except FileNotFoundError:
        return
    except (OSError, pa.ArrowException) as error:
        if is_csv(file.name):
            raise LogError(f"{file}: {CSV_HINT}; remove the user from the CSV file yourself") from None
        if not is_damage(error):
            raise LogError(f"{file}: cannot be read ({single_line(error)}); fix this first") from None
        return  # the removal of its rows reports it
    if column not in names:
        raise LogError(
            f"{file}: has no column '{column}' (found: {', '.join(names)}); name the column of the user id with "
            "--user-column"
        )


def _requests(served: Path, selected: Callable[[pa.Array], pa.Array]) -> set[str]:
    """Return the ids of a user's requests in the served log."""
    requests: set[str] = set()
    for file in parquet_files(served):
        try:
            table = pq.ParquetFile(file).read([USER, REQUEST])
        except FileNotFoundError:
            continue
        except (OSError, pa.ArrowException) as error:
            if not is_damage(error):
                raise LogError(f"{file}: cannot be read ({single_line(error)}); fix this first") from None
            continue  # the removal of its rows reports it
        if {USER, REQUEST} <= {*table.column_names}:
            requests.update(table.filter(selected(table[USER].combine_chunks()))[REQUEST].to_pylist())
    return requests


def _total(label: str, files: Sequence[Path], remove: Callable[[Path], int]) -> int:
    for folder in {file.parent for file in files}:
        remove_drafts(folder)
    progress, total = Progress(label, unit="files", total=len(files)), 0
    for file in files:
        total += remove(file)
        progress.advance(1)
    progress.close()
    return total
