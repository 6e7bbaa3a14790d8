"""``ranker init``: writes a first ranker.toml for a log."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from pipelines.config.config import Config
from pipelines.config.uri import Uri
from pipelines.console import print_status
from pipelines.init.conversions import write_copy
from pipelines.init.document import Locations, doubts, leaks, to_toml
from pipelines.init.names import model_name
from pipelines.init.plan import make_plan
from pipelines.init.roles import Overrides
from pipelines.init.source import open_source
from ranking.artifacts.atomic_files import check_writable, os_error_text
from ranking.errors import LogError, OutputError
from ranking.schema import Owner
from ranking.schema.validation_errors import format_validation_error

SHOWN_DOUBTS = 8
"""Maximum number of uncertain guesses that are printed."""


@dataclass(frozen=True)
class Written:
    """Result of ``ranker init``.

    Attributes:
        config: the configuration.
        copies: converted copies in Parquet.
        doubts: the least certain guesses.
    """

    config: Path
    copies: list[Path]
    doubts: list[str]

    def to_text(self) -> str:
        """Return what was written, the least certain guesses, and the next command."""
        lines = [f"{self.config}"]
        lines += [f"{copy} (converted copy)" for copy in self.copies]
        if self.doubts:
            lines.append("least certain guesses:")
            lines += [f"  {doubt}" for doubt in self.doubts[:SHOWN_DOUBTS]]
        if len(self.doubts) > SHOWN_DOUBTS:
            lines.append(f"  {len(self.doubts) - SHOWN_DOUBTS} more, marked 'unsure' in {self.config}")
        lines.append(f"next: ranker check {shlex.quote(str(self.config))}")
        return "\n".join(lines)


def init(
    log: Uri,
    out: Path,
    *,
    users: Uri | None = None,
    items: Uri | None = None,
    name: str | None = None,
    overrides: Overrides | None = None,
    command: Sequence[str] = (),
) -> Written:
    """Write a configuration for a log, and copies in Parquet of tables that training cannot read as they are.

    Args:
        log: Parquet file, folder of Parquet files, or CSV file; or a folder that an adapter of ``ranker logs`` wrote.
        out: the configuration; copies are written next to it.
        users: table of user features.
        items: table of item features.
        name: name of the model; None for the name of the log.
        overrides: columns that are not guessed.
        command: the command line, for the header of the configuration.

    Raises:
        LogError: no configuration can be trained on this log; says why, and which option helps.
        OutputError: an output exists, or cannot be written.
    """
    check_writable(out)
    log, users, items = _parts(log, users, items)
    copy_names = {key: out.with_name(f"{out.stem}-{key}.parquet") for key in ("log", "users", "items")}
    _require_absent([out])
    locations: dict[Owner, Uri] = {}
    if users is not None:
        locations["user"] = users
    if items is not None:
        locations["item"] = items
    source = open_source(log)
    plan = make_plan(
        source, {owner: open_source(where) for owner, where in locations.items()}, overrides or Overrides()
    )
    copied = [copy_names["log"]] if plan.copied else []
    copied += [copy_names[f"{side.owner}s"] for side in plan.roles.sides if side.copied]
    _require_absent(copied)
    tables: dict[Owner, str] = {
        side.owner: copy_names[f"{side.owner}s"].name if side.copied else _reference(locations[side.owner], out)
        for side in plan.roles.sides
    }
    path = copy_names["log"].name if plan.copied else _reference(log, out)
    text = to_toml(plan, _name(name, log), Locations(path, tables, shlex.join(command)))
    _check(text, source.location)
    for leak in leaks(plan):
        print_status(f"warning: column '{leak.column}' is left out, leakage: {leak.reason}")
    for feature in plan.roles.all_features:
        if feature.unsure and "before the impression" in feature.unsure:
            print_status(f"warning: feature '{feature.column}' {feature.unsure}")
    with _new_files([*copied, out]) as drafts:
        if plan.copied:
            write_copy(source, plan.roles.conversions, drafts[copy_names["log"]])
        for side in plan.roles.sides:
            if side.copied:
                write_copy(side.source, side.conversions, drafts[copy_names[f"{side.owner}s"]])
        drafts[out].write_text(text, encoding="utf-8")
    return Written(out, copied, doubts(plan))


def _parts(log: Uri, users: Uri | None, items: Uri | None) -> tuple[Uri, Uri | None, Uri | None]:
    """Return the log and the tables in a folder that an adapter of ``ranker logs`` wrote; others unchanged."""
    if isinstance(log, Path) and (log / "log").is_dir():
        tables = [log / "users.parquet", log / "items.parquet"]
        found = [table if table.is_file() else None for table in tables]
        return log / "log", users or found[0], items or found[1]
    return log, users, items


def _reference(where: Uri, out: Path) -> str:
    """Return a location as the configuration names it: relative to its folder if it was given as a relative path."""
    if isinstance(where, str) or where.is_absolute():
        return str(where)
    return os.path.relpath(where, out.parent)


def _name(name: str | None, log: Uri) -> str:
    if name is not None:
        return name
    path = Path(log)
    folder = path.parent if path.name == "log" else path
    return model_name(folder.absolute().name.split(".")[0])


def _check(text: str, location: str) -> None:
    data = tomllib.loads(text)
    try:
        Config.model_validate(data)
    except ValidationError as error:
        raise LogError(f"{location}: {format_validation_error(error, data)}") from None


def _require_absent(files: list[Path]) -> None:
    for file in files:
        if file.exists() or file.is_symlink():
            raise OutputError(f"{file} exists and is never overwritten: remove it, or name another file with --out")


@contextmanager
def _new_files(files: list[Path]) -> Iterator[dict[Path, Path]]:
    """Yield drafts of new files, which appear together on success; on failure there is none of them.

    Raises:
        OutputError: a file exists or cannot be written.
    """
    parent, created = files[0].parent, list[Path]()
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(prefix=".ranker-init-", dir=parent))
        drafts = {file: folder / file.name for file in files}
        yield drafts
        _require_absent(files)
        for file, draft in drafts.items():
            draft.chmod(0o644)
            draft.rename(file)
            created.append(file)
    except BaseException as error:
        for file in created:
            file.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OutputError(f"{parent}: cannot be written ({os_error_text(error)})") from None
        raise
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
