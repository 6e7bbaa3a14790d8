"""Copies of files in memory: unaffected by the file, sealed, shared by processes, and freed."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ranking.lookup.npy import open_array
from service.models.shared_memory import SharedMemoryReader
from tests.support.open_files import open_files

ROOT = Path(__file__).parents[3]

WORKER = """
# Read a file through the shared memory reader, print the inode of the copy, and wait.
import sys
from contextlib import suppress
from pathlib import Path
from service.models.shared_memory import SharedMemoryReader

content = SharedMemoryReader(Path(sys.argv[1]))(Path(sys.argv[2]))
lines = [line.split() for line in open("/proc/self/maps") if "/memfd:ranker-" in line]
print(lines[0][4], content[:].hex(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(bytes(range(256)) * 100)
    return tmp_path / "file"


def copies_of(file: Path) -> list[Path]:
    """Return the paths in ``/proc`` of this process' open copies of a file; each map has its own descriptor."""
    return open_files(f"/memfd:ranker-{file.stat().st_dev:x}-{file.stat().st_ino:x}-")


@pytest.mark.parametrize("size", [0, 1, 5_000])
def test_copy_is_unaffected_by_truncation_and_overwriting(file: Path, size: int) -> None:
    expected = file.read_bytes()
    content = SharedMemoryReader(None)(file)
    os.truncate(file, size)
    assert content[:] == expected
    file.write_bytes(b"x" * len(expected))
    assert content[:] == expected


def test_copy_of_an_array_is_freed_with_the_array(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(1000))
    array = open_array(tmp_path / "a.npy", np.int64, SharedMemoryReader(None))
    os.truncate(tmp_path / "a.npy", 0)
    assert array.tolist() == list(range(1000))
    assert len(copies_of(tmp_path / "a.npy")) == 1
    del array
    assert (copies_of(tmp_path / "a.npy"), open_files(tmp_path)) == ([], [])


def test_copy_cannot_be_changed(file: Path) -> None:
    content = SharedMemoryReader(None)(file)
    (path,) = copies_of(file)
    descriptor = os.open(path, os.O_RDWR)
    try:
        for change in (lambda: os.write(descriptor, b"x"), lambda: os.ftruncate(descriptor, 1)):
            with pytest.raises(PermissionError):
                change()
    finally:
        os.close(descriptor)
    assert content[:4] == bytes(range(4))


def test_pipe_and_empty_file_are_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a pipe"):
        SharedMemoryReader(None)(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="empty"):
        SharedMemoryReader(None)(tmp_path / "empty")
    assert (copies_of(tmp_path / "empty"), open_files(tmp_path)) == ([], [])


def test_processes_share_one_copy_until_the_file_changes(file: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path), str(file)]
    first = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert first.stdout is not None
    try:
        inode, text = first.stdout.readline().split()
        shared = SharedMemoryReader(tmp_path)(file)
        assert [copy.stat().st_ino for copy in copies_of(file)] == [int(inode)]
        assert shared[:].hex() == text
        file.write_bytes(b"y" * 100)
        changed = SharedMemoryReader(tmp_path)(file)
        assert (shared[:].hex(), changed[:]) == (text, b"y" * 100)
        assert len({copy.stat().st_ino for copy in copies_of(file)}) == 2
    finally:
        first.communicate()
    assert shared[:].hex() == text  # the copy outlives the process that made it


def test_copy_that_is_not_sealed_is_not_shared(file: Path, tmp_path: Path) -> None:
    reader = SharedMemoryReader(tmp_path)
    content = reader(file)
    name = os.readlink(copies_of(file)[0]).removeprefix("/memfd:").removesuffix(" (deleted)")  # noqa: PTH115
    del content
    descriptor = os.memfd_create(name)
    try:
        os.write(descriptor, b"x" * file.stat().st_size)
        with mmap.mmap(descriptor, 0):
            assert reader(file)[:] == file.read_bytes()
    finally:
        os.close(descriptor)


def test_copy_needs_no_folder_for_its_lock(file: Path, tmp_path: Path) -> None:
    """The folder is that of the metrics, which may have been removed."""
    assert bytes(SharedMemoryReader(tmp_path / "removed")(file)) == file.read_bytes()
