"""Where two configurations differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipelines.config.config import Config


def diff_configs(before: Config, now: Config) -> Iterator[tuple[str, Any, Any]]:
    """Dotted name, value before and value now of each setting that differs."""
    return _of(before.model_dump(mode="json"), now.model_dump(mode="json"), "")


def _of(before: dict[str, Any], now: dict[str, Any], path: str) -> Iterator[tuple[str, Any, Any]]:
    for key in {**before, **now}:
        a, b = before.get(key), now.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            yield from _of(a, b, f"{path}{key}.")
        elif a != b:
            yield f"{path}{key}", a, b
