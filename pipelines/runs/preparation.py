"""The preparation of a training: files of a run folder that depend on the log and its columns, not on the model.

A run that was prepared, or trained, can share these files with other runs of the same log.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.config.config import Config, LogsConfig
from pipelines.config.diff import diff_configs
from pipelines.config.uri import Uri
from pipelines.data.parquet import find_files
from pipelines.data.reader import LogReader
from pipelines.runs.run import RunFolder
from ranking.artifacts.atomic_files import atomic_directory, write_errors, write_json
from ranking.errors import LogError, RankerError
from ranking.schema.value_text import value_text

FORMAT = 1
"""Number that changes when a new version would prepare the same log differently."""

Inputs = dict[str, Any]
"""Digests of the files of a log by name (``path``), and of the tables of ``users`` and ``items``; None without a table.

The digest of a file of the log is that of its footer: positions, sizes and statistics of all columns. That of a table
is of its whole content.
"""

OWN_SETTINGS = re.compile(
    r"name|logs\.(path|users|items|max_bad_rows|allow_missing_days)|(training|tune|evaluation|serving)(\..+)?"
    r"|model(?!\.side_tower$|\.side_tower\.features$).*"
    r"|features\..+\.(dim|pooling)|tasks\..+\.(weight|keep_negatives|group|calibration)"
)
"""Settings that do not change a preparation. The log and the tables are compared by their digests."""
AGAIN = "prepare the log again with 'ranker prepare'"


def log_inputs(reader: LogReader, logs: LogsConfig) -> Inputs:
    """Return the digests of a log and its tables, after checking the columns of all files of the log.

    Raises:
        LogError: a file cannot be read, or a column is missing or has the wrong type.
    """
    return {"path": reader.check_files(), "users": _table_digest(logs.users), "items": _table_digest(logs.items)}


def _table_digest(where: Uri | None) -> str | None:
    if where is None:
        return None
    digest = hashlib.blake2b(digest_size=16)
    for file in find_files(where):
        with file.filesystem.open_input_stream(file.path) as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def write_inputs(run: RunFolder, inputs: Inputs, earlier: RunFolder | None) -> None:
    """Record what a preparation was made of: the log, and the run whose ids it continues.

    Raises:
        OutputError: the run cannot be written.
    """
    write_json({"format": FORMAT, "from": None if earlier is None else str(earlier.path), **inputs}, run.inputs)


def require_preparation(run: RunFolder, config: Config, inputs: Inputs) -> None:
    """Check that a training can use the preparation of a run.

    Args:
        run: the run.
        config: configuration of the training.
        inputs: ``log_inputs`` of its log.

    Raises:
        LogError: it cannot; names the setting or the file that differs.
    """
    reason = _difference(run, config, inputs)
    if reason is not None:
        raise LogError(f"{run.path} is not prepared for this training: {reason}")


def has_preparation(run: RunFolder, config: Config, inputs: Inputs) -> bool:
    """Return whether a training can use the preparation of a run."""
    try:
        require_preparation(run, config, inputs)
    except RankerError:
        return False
    return True


def _difference(run: RunFolder, config: Config, inputs: Inputs) -> str | None:
    """Return why a training cannot use the preparation of a run, and what to do; None if it can."""
    if not run.config.is_file():
        return "it is not a run folder; create one with 'ranker prepare'"
    if (run.path / "tasks").is_dir():
        return f"it has a run for each task, which are prepared separately; {AGAIN}"
    if not run.encoder.is_dir():
        return f"it is not complete; continue with 'ranker prepare … --run {run.path} --resume'"
    try:
        prepared: dict[str, Any] = json.loads(run.inputs.read_text())
        survey: dict[str, Any] = json.loads(run.survey.read_text())
    except (OSError, ValueError):
        return f"it was written by an earlier version, or is damaged; {AGAIN}"
    if not isinstance(prepared, dict) or prepared.get("format") != FORMAT:
        return f"it was written by another version; {AGAIN}"
    if prepared["from"] is not None:
        return f"it continues {prepared['from']}, whose ids it has; use a run that was prepared from scratch"
    return _changed_setting(run.load_config(), config, survey) or _changed_input(prepared, inputs)


def _changed_setting(there: Config, here: Config, survey: Mapping[str, Any]) -> str | None:
    for name, before, now in diff_configs(there, here):
        if OWN_SETTINGS.fullmatch(name):
            continue
        if isinstance(before, list) or isinstance(now, list):
            return f"{name} differ there, or are in another order; {AGAIN}"
        before, now = ("missing" if value is None else value_text(value) for value in (before, now))
        return f"{name} is {before} there and {now} here; {AGAIN}"
    if here.training.oov_dropout == "measured" and "unknown_ids" not in survey:
        reason = "it has no shares of unknown ids, because its training.oov_dropout is not 'measured'"
        return f"{reason}; {AGAIN}"
    bad, good = sum(survey["bad"].values()), sum(survey["rows"].values())
    if bad > (limit := here.logs.max_bad_rows) * (bad + good):
        return (
            f"{bad:,} of {bad + good:,} rows are bad, more than logs.max_bad_rows = {limit:g} allows; raise the limit"
        )
    if there.logs.allow_missing_days and not here.logs.allow_missing_days:
        return "its logs.allow_missing_days is true; set it here, too, if days may be missing"
    return None


def _changed_input(before: Mapping[str, Any], now: Inputs) -> str | None:
    for table in ("users", "items"):
        if before[table] != now[table]:
            return f"logs.{table} changed since; {AGAIN}"
    files, digests = before["path"], now["path"]
    changed = sorted(file for file in {*digests, *files} if digests.get(file) != files.get(file))
    if not changed:
        return None
    what = "changed" if changed[0] in digests and changed[0] in files else "was added or removed"
    others = f", like {len(changed) - 1:,} others" if len(changed) > 1 else ""
    return f"file '{changed[0]}' of the log {what} since{others}; {AGAIN}"


def share_preparation(run: RunFolder, other: RunFolder) -> None:
    """Add the preparation of a run to another run; the encoder is added last and marks it as complete.

    Raises:
        OutputError: the other run cannot be written.
    """
    for source, target in ((run.features, other.features), (run.counters, other.counters)):
        if source.is_dir():
            share_folder(source, target)
    with write_errors(other.path):
        for file in (run.index, run.survey, run.quarantine, run.inputs):
            if file.exists() or file != run.quarantine:
                target = other.path / file.name
                target.unlink(missing_ok=True)
                _link_or_copy(file, target)
    if run.position_encoder.is_dir():
        share_folder(run.position_encoder, other.position_encoder)
    share_folder(run.encoder, other.encoder)


def share_folder(source: Path, target: Path) -> None:
    """Replace a folder by one with links to the files of another folder, or with copies on another filesystem.

    Raises:
        OutputError: it cannot be written.
    """
    shutil.rmtree(target, ignore_errors=True)  # left by an attempt that was interrupted
    with atomic_directory(target) as draft, write_errors(target):
        for path in sorted(source.rglob("*")):
            copy = draft / path.relative_to(source)
            if path.is_dir():
                copy.mkdir()
            else:
                _link_or_copy(path, copy)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another filesystem, or one without links
        shutil.copyfile(source, target)
