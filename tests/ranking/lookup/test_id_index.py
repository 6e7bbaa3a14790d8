"""Index from ids to rows, including ids with equal hash keys."""

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


def assert_index_is_exact(ids: list[Any], queries: list[Any], id_type: pa.DataType, folder: Path) -> None:
    """Assert that each id is result in the row that ``write_id_index`` returned, and no other query is result."""
    order = write_id_index(pa.array(ids, id_type), folder)
    assert sorted(order) == list(range(len(ids)))
    row = {ids[position]: row for row, position in enumerate(order)}
    index = IdIndex.open(folder, id_type)
    assert len(index) == len(ids)
    result = index.rows(pa.array(ids + queries, id_type))
    values = [value for value in ids + queries if value is not None]
    assert index.rows_from_values(values).tolist() == index.rows(pa.array(values, id_type)).tolist()
    assert result.dtype == np.int64
    assert result.tolist() == [row.get(value, NOT_FOUND) for value in ids + queries]


@given(st.lists(INTEGERS, unique=True, max_size=60), st.lists(st.none() | INTEGERS, max_size=30))
@settings(deadline=None)
def test_index_finds_integers(tmp_path_factory: pytest.TempPathFactory, ids: list[int], queries: list[Any]) -> None:
    assert_index_is_exact(ids, queries, pa.int64(), tmp_path_factory.mktemp("index"))


@given(st.lists(TEXT, unique=True, max_size=60), st.lists(st.none() | TEXT, max_size=30))
@settings(deadline=None)
def test_index_finds_text(tmp_path_factory: pytest.TempPathFactory, ids: list[str], queries: list[Any]) -> None:
    assert_index_is_exact(ids, queries, pa.string(), tmp_path_factory.mktemp("index"))


COLLISIONS: dict[str, Callable[[bytes], int]] = {
    "all keys equal": lambda _: 7,
    "all keys equal to the sentinel": lambda _: 2**64 - 1,
    "keys by length": len,
    "keys that differ in the lowest bits": lambda text: 2**64 - 1 - len(text),
}


@pytest.mark.parametrize("collision", COLLISIONS)
@given(ids=st.lists(TEXT, unique=True, max_size=25), queries=st.lists(TEXT, max_size=20))
@settings(deadline=None, max_examples=40)
def test_index_distinguishes_text_with_colliding_keys(
    tmp_path_factory: pytest.TempPathFactory, collision: str, ids: list[str], queries: list[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_index.xxhash, "xxh3_64_intdigest", COLLISIONS[collision])
        assert_index_is_exact(ids, queries, pa.string(), tmp_path_factory.mktemp("index"))


def test_index_finds_integer_with_the_sentinel_key_only_if_present(tmp_path: Path) -> None:
    sentinel_id = integer_with_key(2**64 - 1)
    assert hash_ids(pa.array([sentinel_id])).tolist() == [2**64 - 1]
    for name, ids in (("with", [1, sentinel_id, 2]), ("without", [1, 2])):
        (tmp_path / name).mkdir()
        assert_index_is_exact(ids, [sentinel_id], pa.int64(), tmp_path / name)


def integer_with_key(key: int) -> int:
    """Return the integer with this hash key."""
    bits = 2**64 - 1
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        shifted = key
        while shifted := shifted >> shift:
            key ^= shifted
        key = key * pow(factor, -1, 2**64) & bits
    return key - 2**64 if key >= 2**63 else key


@pytest.mark.parametrize("step", [1, 2**20, 10_000_019])
def test_hash_ids_spreads_regular_integers_over_the_buckets(step: int) -> None:
    counts = np.bincount((hash_ids(pa.array(np.arange(65_536) * step)) >> np.uint64(48)).astype(np.int64))
    assert counts.max() <= 10


def test_index_of_several_chunks_finds_all_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_index, "CHUNK_SIZE", 7)
    assert_index_is_exact([f"v{i}" * (i % 5) + str(i) for i in range(100)], ["v1", ""], pa.string(), tmp_path)


# Published bundles depend on these numbers: they must never change.


def test_hash_ids_is_the_same_in_every_version() -> None:
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


def test_index_of_a_slice_finds_only_its_ids(tmp_path: Path) -> None:
    write_id_index(pa.array(["x", "a", "bc", "y"]).slice(1, 2), tmp_path)
    index = IdIndex.open(tmp_path, pa.string())
    result = index.rows(pa.array(["?", "bc", "x", "a", "bc"]).slice(1))
    assert result[0] == result[3] != result[2]
    assert (result >= 0).tolist() == [True, False, True, True]


# Inconsistent files.


@pytest.mark.parametrize("name", ["starts", "ends"])
def test_open_files_of_another_index_is_rejected(tmp_path: Path, name: str) -> None:
    for folder, count in (("one", 3), ("other", 30)):
        (tmp_path / folder).mkdir()
        write_id_index(pa.array([str(i) for i in range(count)]), tmp_path / folder)
    (tmp_path / "other" / f"{name}.npy").replace(tmp_path / "one" / f"{name}.npy")
    with pytest.raises(ValueError, match=f"{name}.npy"):
        IdIndex.open(tmp_path / "one", pa.string())
