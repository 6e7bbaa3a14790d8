"""Temporary folder in which the workers of an engine find their input, and leave their results in files.

A result in a file, unlike one that an engine returns, needs memory only while it is used.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from ranking.artifacts.atomic_files import os_error_text
from ranking.errors import OutputError
from ranking.temporary_folders import temporary_folder


@dataclass(frozen=True)
class WorkFolder:
    """Pickled values by name.

    Attributes:
        path: the folder, which all workers see.
    """

    path: Path

    def put(self, name: str, value: Any) -> None:
        """Write a value; an earlier attempt of the same task may still be running and write it, too.

        Raises:
            OutputError: the folder cannot be written.
        """
        draft = self.path / uuid4().hex
        with temporary_file_errors(self.path.parent):
            draft.write_bytes(pickle.dumps(value))
            draft.replace(self.path / name)

    def get(self, name: str) -> Any:
        """Read a value.

        Raises:
            OutputError: the folder cannot be read.
        """
        with temporary_file_errors(self.path.parent):
            return pickle.loads((self.path / name).read_bytes())

    def take(self, name: str) -> Any:
        """Read a value and delete it.

        Raises:
            OutputError: as for ``get``.
        """
        value = self.get(name)
        with temporary_file_errors(self.path.parent):
            (self.path / name).unlink()
        return value


@contextmanager
def open_work_folder(purpose: str) -> Iterator[WorkFolder]:
    """Create a work folder in the folder for temporary files, and delete it at the end.

    Raises:
        OutputError: the folder cannot be written.
    """
    with ExitStack() as stack:
        with temporary_file_errors():
            path = stack.enter_context(temporary_folder(purpose))
        yield WorkFolder(path)


@contextmanager
def temporary_file_errors(folder: Path | None = None) -> Iterator[None]:
    """Convert errors of the filesystem.

    Args:
        folder: the folder for temporary files; default: that of the system.

    Raises:
        OutputError: the folder cannot be written or read.
    """
    try:
        yield
    except OSError as error:
        # tempdir is None until a usable folder is found.
        name = folder or tempfile.tempdir or "the folder for temporary files"
        reason = f"{name}: cannot be written or read ({os_error_text(error)})"
        raise OutputError(f"{reason}; free space, or set TMPDIR to a folder that all workers see") from None
