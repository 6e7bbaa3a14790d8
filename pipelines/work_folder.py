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
        with self._errors():
            draft.write_bytes(pickle.dumps(value))
            draft.replace(self.path / name)

    def get(self, name: str) -> Any:
        """Read a value.

        Raises:
            OutputError: the folder cannot be read.
        """
        with self._errors():
            return pickle.loads((self.path / name).read_bytes())

    def take(self, name: str) -> Any:
        """Read a value and delete it.

        Raises:
            OutputError: as for ``get``.
        """
        value = self.get(name)
        with self._errors():
            (self.path / name).unlink()
        return value

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert errors of the filesystem."""
        try:
            yield
        except OSError as error:
            raise _error(self.path.parent, error) from None


@contextmanager
def open_work_folder(purpose: str) -> Iterator[WorkFolder]:
    """Create a work folder in the folder for temporary files, and delete it at the end.

    Raises:
        OutputError: the folder cannot be written.
    """
    with ExitStack() as stack:
        try:
            path = stack.enter_context(temporary_folder(purpose))
        except OSError as error:
            raise _error(Path(tempfile.gettempdir()), error) from None
        yield WorkFolder(path)


def _error(folder: Path, error: OSError) -> OutputError:
    reason = f"{folder}: cannot be written or read ({os_error_text(error)})"
    return OutputError(f"{reason}; free space, or set TMPDIR to a folder that all workers see")
