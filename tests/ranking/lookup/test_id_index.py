"""Ids → rows: every id is found in its row and nothing else is, whatever its key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranking.lookup import id_index
from ranking.lookup.id_index import NOT_FOUND, IdIndex, hash_ids, write_id_index

INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 20) | st.sampled_from([-(2**63), 2**63 - 1])
TEXT = st.text(max_size=3) | st.text("ab\0é😀", max_size=20) | st.integers(0, 30).map(lambda n: f"item-{n:030}")


def require_exact(ids: list[Any], queries: list[Any], kind: pa.DataType, folder: Path) -> None:
    """Each id stands in the one row that ``write_id_index`` names for it, and no query finds another's."""
    order = write_id_index(pa.array(ids, kind), folder)
    assert sorted(order) == list(range(len(ids)))
    row = {ids[position]: row for row, position in enumerate(order)}
    index = IdIndex.open(folder, kind)
    assert len(index) == len(ids)
    found = index.rows(pa.array(ids + queries, kind))
    values = [value for value in ids + queries if value is not None]
    assert index.rows_from_values(values).tolist() == index.rows(pa.array(values, kind)).tolist()
    assert found.dtype == np.int64
    assert found.tolist() == [row.get(value, NOT_FOUND) for value in ids + queries]


@given(st.lists(INTEGERS, unique=True, max_size=60), st.lists(st.none() | INTEGERS, max_size=30))
@settings(deadline=None)
def test_integers_are_found(tmp_path_factory: pytest.TempPathFactory, ids: list[int], queries: list[Any]) -> None:
    require_exact(ids, queries, pa.int64(), tmp_path_factory.mktemp("index"))


@given(st.lists(TEXT, unique=True, max_size=60), st.lists(st.none() | TEXT, max_size=30))
@settings(deadline=None)
def test_text_is_found(tmp_path_factory: pytest.TempPathFactory, ids: list[str], queries: list[Any]) -> None:
    require_exact(ids, queries, pa.string(), tmp_path_factory.mktemp("index"))


COLLIDING: dict[str, Callable[[bytes], int]] = {
    "all": lambda _: 7,
    "all, with the key that ends a search": lambda _: 2**64 - 1,
    "by length": len,
    "in the highest bits": lambda text: 2**64 - 1 - len(text),
}


@pytest.mark.parametrize("how", COLLIDING)
@given(ids=st.lists(TEXT, unique=True, max_size=25), queries=st.lists(TEXT, max_size=20))
@settings(deadline=None, max_examples=40)
def test_text_whose_keys_collide_is_told_apart(
    tmp_path_factory: pytest.TempPathFactory, how: str, ids: list[str], queries: list[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_index.xxhash, "xxh3_64_intdigest", COLLIDING[how])
        require_exact(ids, queries, pa.string(), tmp_path_factory.mktemp("index"))


def test_the_integer_whose_key_ends_a_search_is_known_only_if_it_is_there(tmp_path: Path) -> None:
    last = unmixed(2**64 - 1)
    assert hash_ids(pa.array([last])).tolist() == [2**64 - 1]
    for name, ids in (("with", [1, last, 2]), ("without", [1, 2])):
        (tmp_path / name).mkdir()
        require_exact(ids, [last], pa.int64(), tmp_path / name)


def unmixed(key: int) -> int:
    """The integer that has this key."""
    bits = 2**64 - 1
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        shifted = key
        while shifted := shifted >> shift:
            key ^= shifted
        key = key * pow(factor, -1, 2**64) & bits
    return key - 2**64 if key >= 2**63 else key


@pytest.mark.parametrize("step", [1, 2**20, 10_000_019])
def test_ids_in_any_step_spread_over_the_buckets(step: int) -> None:
    counts = np.bincount((hash_ids(pa.array(np.arange(65_536) * step)) >> np.uint64(48)).astype(np.int64))
    assert counts.max() <= 10


def test_ids_of_many_chunks_are_all_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_index, "CHUNK_SIZE", 7)
    require_exact([f"v{i}" * (i % 5) + str(i) for i in range(100)], ["v1", ""], pa.string(), tmp_path)


# These numbers are part of every published bundle: they may never change.


def test_keys_are_the_same_in_every_version() -> None:
    assert hash_ids(pa.array(["", "a", "v1", "čaj"])).tolist() == [
        3244421341483603138,
        16629034431890738719,
        7609560174697462029,
        18350938129614015173,
    ]
    assert hash_ids(pa.array([0, 1, -7, 2**63 - 1])).tolist() == [
        0,
        6238072747940578789,
        15824578273388328691,
        6514504133438201533,
    ]


def test_a_slice_of_an_array_is_looked_up_as_what_it_shows(tmp_path: Path) -> None:
    write_id_index(pa.array(["x", "a", "bc", "y"]).slice(1, 2), tmp_path)
    index = IdIndex.open(tmp_path, pa.string())
    found = index.rows(pa.array(["?", "bc", "x", "a", "bc"]).slice(1))
    assert found[0] == found[3] != found[2]
    assert (found >= 0).tolist() == [True, False, True, True]


# Files that do not fit together.


@pytest.mark.parametrize("name", ["starts", "ends"])
def test_files_of_another_index_are_refused(tmp_path: Path, name: str) -> None:
    for folder, count in (("one", 3), ("other", 30)):
        (tmp_path / folder).mkdir()
        write_id_index(pa.array([str(i) for i in range(count)]), tmp_path / folder)
    (tmp_path / "other" / f"{name}.npy").replace(tmp_path / "one" / f"{name}.npy")
    with pytest.raises(ValueError, match=f"{name}.npy"):
        IdIndex.open(tmp_path / "one", pa.string())
