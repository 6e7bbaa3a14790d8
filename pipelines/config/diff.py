"""Differences between two configurations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipelines.config.config import Config


def diff_configs(old: Config, new: Config) -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted name, old value and new value of each setting that differs.

    Entries of a list that have names, such as features, are compared by name if their order is the same:
    ``features.age.bins``.
    """
    return _diff(old.model_dump(mode="json"), new.model_dump(mode="json"), "")


def _diff(old: dict[str, Any], new: dict[str, Any], path: str) -> Iterator[tuple[str, Any, Any]]:
    for key in {**old, **new}:
        a, b = _by_name(old.get(key), new.get(key))
        if isinstance(a, dict) and isinstance(b, dict):
            yield from _diff(a, b, f"{path}{key}.")
        elif a != b:
            yield f"{path}{key}", a, b


def _by_name(old: Any, new: Any) -> tuple[Any, Any]:
    """Return two lists of named entries in the same order as dictionaries; other values unchanged."""
    if not (_is_named(old) and _is_named(new)):
        return old, new
    before, after = ({entry["name"]: entry for entry in value} for value in (old, new))
    if [name for name in before if name in after] != [name for name in after if name in before]:
        return old, new
    return before, after


def _is_named(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) and "name" in entry for entry in value)
