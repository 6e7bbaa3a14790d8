"""Differences between two configurations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipelines.config.config import Config


def diff_configs(old: Config, new: Config) -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted name, old value and new value of each setting that differs."""
    return _diff(old.model_dump(mode="json"), new.model_dump(mode="json"), "")


def _diff(old: dict[str, Any], new: dict[str, Any], path: str) -> Iterator[tuple[str, Any, Any]]:
    for key in {**old, **new}:
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            yield from _diff(a, b, f"{path}{key}.")
        elif a != b:
            yield f"{path}{key}", a, b
