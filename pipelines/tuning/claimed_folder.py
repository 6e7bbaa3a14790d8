"""A folder whose trainings all start from one configuration, which it holds as ``config.toml``."""

from __future__ import annotations

from pathlib import Path

from pipelines.config.config import Config, load_config
from pipelines.config.diff import diff_configs
from pipelines.runs.run import RunFolder
from ranking.artifacts.atomic_files import check_folder, write_errors
from ranking.errors import ConfigError, OutputError
from ranking.file_locks import FileLock
from ranking.schema.value_text import value_text


def claim_folder(folder: Path, config: Config) -> None:
    """Create a folder of a configuration, or check that an existing folder is one of the same configuration.

    Raises:
        ConfigError: the folder is one of another configuration; names the first setting that differs.
        OutputError: the folder has other content, such as a run, or cannot be written.
    """
    check_folder(folder)
    if RunFolder(folder).checkpoints.exists():
        raise OutputError(f"{folder} is a run folder: name another folder")
    file = folder / "config.toml"
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(folder):
            if not file.exists():
                if any(entry.name != "lock" for entry in folder.iterdir()):
                    raise OutputError(f"{folder} has other content, but no config.toml: name another folder")
                config.write(file)
            change = describe_change(load_config(file), config)
            if change is not None and all(training.parent == folder for training in folder.rglob("config.toml")):
                for name in ("journal", "database"):  # every earlier command failed before its first training
                    (folder / name).unlink(missing_ok=True)
                config.write(file)
                change = None
    if change is not None:
        raise ConfigError(f"{folder} has trainings of another configuration: {change}; name another folder")


def exclusive_lock(folder: Path) -> FileLock:
    """Wait for the lock of a folder of trainings."""
    return FileLock(folder / "lock", create=True)


def describe_change(old: Config, new: Config) -> str | None:
    """Return the first setting that differs between two configurations, in words; None if there is none."""
    difference = next(diff_configs(old, new), None)
    if difference is None:
        return None
    setting, before, now = difference
    texts = value_text(before), value_text(now)
    return f"{setting} has changed" if texts[0] == texts[1] else f"{setting} was {texts[0]}, now it is {texts[1]}"
