"""Notices operations on files below a folder in the current process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHANGES = {"os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate"}
"""Audit events that change files, besides opening a file for writing."""


def call_before_changes(folder: str | Path, function: Callable[[], object]) -> None:
    """Call a function before each change of a file below a folder, until this process ends."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in CHANGES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            path = Path(str(arguments[0]))  # relative if it is deleted with its folder or is an open file
            if path.is_relative_to(folder) or not path.is_absolute():
                function()

    sys.addaudithook(hook)
