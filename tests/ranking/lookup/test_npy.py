"""Arrays in files: written in pieces, opened as maps that nobody can change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranking.lookup.npy import ArrayWriter, open_array

RECORD = np.dtype([("none", "<i8", (0,)), ("ids", "<i4", (3,)), ("missing", "?", (1,))])


@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=200), max_size=20))
@settings(deadline=None)
def test_pieces_come_out_as_one_array(tmp_path_factory: pytest.TempPathFactory, pieces: list[list[int]]) -> None:
    file = tmp_path_factory.mktemp("arrays") / "a.npy"
    with ArrayWriter(file, np.int32) as writer:
        for piece in pieces:
            writer.append(np.array(piece, np.int64))
    expected = [value for piece in pieces for value in piece]
    assert open_array(file, np.int32).tolist() == np.load(file).tolist() == expected


def test_records_keep_their_fields(tmp_path: Path) -> None:
    records = np.zeros(2, RECORD)
    records["ids"] = [[1, 2, 3], [4, 5, 6]]
    records["missing"] = [[True], [False]]
    with ArrayWriter(tmp_path / "a.npy", RECORD) as writer:
        writer.append(records[:1])
        writer.append(records[1:])
    assert open_array(tmp_path / "a.npy", RECORD).tobytes() == records.tobytes()


def test_what_is_open_cannot_be_changed(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    with pytest.raises(ValueError, match="read-only"):
        open_array(tmp_path / "a.npy", np.int64)[0] = 7


@pytest.mark.parametrize("held", [np.zeros(2, np.float64), np.zeros((2, 2), np.int64), np.array(7)])
def test_an_array_of_another_kind_is_refused_by_name(tmp_path: Path, held: Any) -> None:
    np.save(tmp_path / "a.npy", held)
    with pytest.raises(ValueError, match=r"a\.npy holds"):
        open_array(tmp_path / "a.npy", np.int64)


def test_objects_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match="Python objects"):
        open_array(tmp_path / "a.npy", np.dtype(object))
