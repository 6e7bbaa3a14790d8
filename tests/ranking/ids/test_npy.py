"""Arrays in ``.npy`` files: incremental writes and read-only maps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranking.ids.npy import ArrayWriter, open_array

RECORD = np.dtype([("none", "<i8", (0,)), ("ids", "<i4", (3,)), ("missing", "?", (1,))])


@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=200), max_size=20))
def test_array_writer_appends_parts_to_one_array(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[int]]
) -> None:
    file = tmp_path_factory.mktemp("arrays") / "a.npy"
    with ArrayWriter(file, np.int32) as writer:
        for part in parts:
            writer.append(np.array(part, np.int64))
    expected = [value for part in parts for value in part]
    assert open_array(file, np.int32).tolist() == np.load(file).tolist() == expected


def test_array_writer_keeps_record_fields(tmp_path: Path) -> None:
    records = np.zeros(2, RECORD)
    records["ids"] = [[1, 2, 3], [4, 5, 6]]
    records["missing"] = [[True], [False]]
    with ArrayWriter(tmp_path / "a.npy", RECORD) as writer:
        writer.append(records[:1])
        writer.append(records[1:])
    assert open_array(tmp_path / "a.npy", RECORD).tobytes() == records.tobytes()


def test_open_array_is_read_only(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    with pytest.raises(ValueError, match="read-only"):
        open_array(tmp_path / "a.npy", np.int64)[0] = 7


@pytest.mark.parametrize("array", [np.zeros(2, np.float64), np.zeros((2, 2), np.int64), np.array(7)])
def test_open_array_of_another_type_is_rejected(tmp_path: Path, array: Any) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ValueError, match=r"a\.npy holds"):
        open_array(tmp_path / "a.npy", np.int64)


def test_open_array_with_a_negative_size_is_rejected(tmp_path: Path) -> None:
    header = {"descr": "<i8", "fortran_order": False, "shape": (-1,)}
    with (tmp_path / "a.npy").open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        stream.write(bytes(16))
    with pytest.raises(ValueError, match=r"a\.npy holds int64 \[-1\], not int64"):
        open_array(tmp_path / "a.npy", np.int64)


def test_open_array_of_python_objects_is_rejected(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match="Python objects"):
        open_array(tmp_path / "a.npy", np.dtype(object))
