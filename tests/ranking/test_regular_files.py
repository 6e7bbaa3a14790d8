"""Only regular files are opened, and opening a pipe does not wait for its writer."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ranking import regular_files
from ranking.regular_files import open_regular, read_parquet, read_regular
from tests.support.open_files import open_files


def test_read_regular_returns_the_content(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "file") == read_regular(tmp_path / "link") == b"abc"
    assert read_regular(tmp_path / "file", max_bytes=3) == b"abc"


def test_read_regular_of_a_larger_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    with pytest.raises(OSError, match="larger than 2 bytes"):
        read_regular(tmp_path / "file", max_bytes=2)


def test_open_regular_rejects_pipes_devices_sockets_and_folders(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="a pipe or a device"):
            open_regular(path)
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match="No such device"):
            open_regular(tmp_path / "socket")


def test_open_regular_closes_rejected_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for _ in range(10):
        with pytest.raises(OSError, match="a pipe"):
            open_regular(tmp_path / "pipe")
    assert open_files(tmp_path) == []


def test_read_parquet_leaves_the_content_to_no_thread_of_arrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that released it while the interpreter ends would abort the process."""
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": range(1000)}), file)
    content = file.read_bytes()
    monkeypatch.setattr(regular_files, "read_regular", lambda file: content)
    references = sys.getrefcount(content)
    for _ in range(300):
        assert read_parquet(file).num_rows == 1000
        assert sys.getrefcount(content) == references
