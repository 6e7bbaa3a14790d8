"""Differences between two configurations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipelines.config.config import Config


def diff_configs(old: Config, new: Config) -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted name, old value and new value of each setting that differs.

    Entries of a list that have names, such as features, are compared by name: ``features.age.bins``.
    """
    return _diff(old.model_dump(mode="json"), new.model_dump(mode="json"), "")


def _diff(old: dict[str, Any], new: dict[str, Any], path: str) -> Iterator[tuple[str, Any, Any]]:
    for key in {**old, **new}:
        a, b = _by_name(old.get(key)), _by_name(new.get(key))
        if isinstance(a, dict) and isinstance(b, dict):
            yield from _diff(a, b, f"{path}{key}.")
        elif a != b:
            yield f"{path}{key}", a, b


def _by_name(value: Any) -> Any:
    """Return a list of entries with names as a dictionary; other values unchanged."""
    if isinstance(value, list) and value and all(isinstance(entry, dict) and "name" in entry for entry in value):
        return {entry["name"]: entry for entry in value}
    return value
