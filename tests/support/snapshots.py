"""Compares texts with files of the repository that hold their expected state."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest

VARIABLE = "UPDATE_SNAPSHOTS"
"""Environment variable that makes tests write the files."""


def assert_matches_snapshot(text: str, file: Path) -> None:
    """Fail with a unified diff unless the file contains the text; write the file if ``UPDATE_SNAPSHOTS`` is set."""
    if os.environ.get(VARIABLE):
        file.write_text(text)
    expected = file.read_text() if file.exists() else ""
    diff = "\n".join(difflib.unified_diff(expected.splitlines(), text.splitlines(), str(file), "now", lineterm=""))
    if diff:
        test = os.environ["PYTEST_CURRENT_TEST"].partition("::")[0]
        pytest.fail(f"{diff}\nTo accept this, run: {VARIABLE}=1 .venv/bin/pytest {test}", pytrace=False)
