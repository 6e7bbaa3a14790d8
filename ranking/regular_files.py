"""Read files of bundles and repositories. Only regular files are opened: reading a pipe or a device may never end."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def open_regular(file: Path) -> io.BufferedReader:
    """Open a regular file for reading. Unlike ``open``, this does not wait for the writer of a pipe.

    Raises:
        OSError: the file cannot be opened, or is not a regular file.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(file))
    return os.fdopen(descriptor, "rb")


def read_regular(file: Path, max_bytes: int | None = None) -> bytes:
    """Return the content of a regular file.

    Args:
        file: the file.
        max_bytes: maximum size; None: unlimited.

    Raises:
        OSError: the file cannot be read, is not a regular file, or is larger.
    """
    with open_regular(file) as stream:
        if max_bytes is None:
            return stream.read()
        content = stream.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes:,} bytes", str(file))
    return content


def read_parquet(file: Path) -> pa.Table:
    """Return the table in a regular Parquet file.

    The calling thread reads it. A thread of Arrow that still held the content, which belongs to Python, while the
    interpreter ends would abort the process ("terminate called without an active exception").

    Raises:
        OSError: the file cannot be read or is not a regular file.
        pyarrow.ArrowInvalid: it is not a Parquet file.
    """
    return pq.ParquetFile(pa.BufferReader(read_regular(file))).read(use_threads=False)


def is_damage(error: Exception) -> bool:
    """Return whether Arrow failed because of the content of a file: its errors of the system have a number."""
    return not isinstance(error, OSError) or error.errno is None
