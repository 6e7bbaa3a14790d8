"""Embedding rows of ids, hashed ids, crosses and numbers in buckets."""

from __future__ import annotations

import bisect
import mmap
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranking.encoding import vocabulary
from ranking.encoding.id_rows import MISSING, OOV
from ranking.encoding.vocabulary import (
    Bucketizer,
    HashBuckets,
    IdArray,
    Vocabulary,
    hash_column,
    hash_values,
    stable_hash,
)
from ranking.ids.npy import map_file


def cross_rows(buckets: HashBuckets, *columns: pa.Array) -> IdArray:
    return buckets.cross_rows([hash_column(column) for column in columns])


def large_vocabulary(ids: pa.Array) -> Vocabulary:
    """Return a vocabulary that has no dictionary."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary, "MAX_DICTIONARY", -1)
        return Vocabulary(ids)


def test_vocabulary_size_is_number_of_ids_plus_two() -> None:
    assert Vocabulary(pa.array(["a", "b"])).size == 4
    assert Vocabulary(pa.array([], pa.string())).size == 2


def test_empty_vocabulary_gives_oov_and_missing() -> None:
    assert Vocabulary(pa.array([], pa.string())).rows(pa.array(["a", None]), "brand").tolist() == [OOV, MISSING]


def test_text_vocabulary_casts_integers_to_text() -> None:
    assert Vocabulary(pa.array(["7", "8"])).rows(pa.array([8, 9]), "brand").tolist() == [3, 1]


IDS = st.lists(st.none() | st.integers(-3, 3), min_size=1, max_size=20)


def test_bucketizer_bucket_includes_its_boundary() -> None:
    result = Bucketizer(np.array([0.0, 10.0])).rows(pa.array([-5.0, 0.0, 9.9, 10.0, 1e300, None]), "age")
    assert result.tolist() == [1, 2, 2, 3, 3, MISSING]


@given(
    st.lists(st.floats(-10, 10), max_size=6, unique=True).map(sorted),
    st.lists(st.none() | st.floats(-12, 12), max_size=20),
)
def test_bucketizer_bucket_is_that_of_the_largest_boundary_not_above_the_number(
    boundaries: list[float], values: list[float | None]
) -> None:
    bucketizer = Bucketizer(np.array(boundaries, np.float64))
    result = bucketizer.rows(pa.array(values, pa.float64()), "age").tolist()
    assert result == [MISSING if v is None else 1 + bisect.bisect_right(boundaries, v) for v in values]
    assert all(row < bucketizer.size for row in result)


def test_bucketizer_rows_of_null_column_are_missing() -> None:
    assert Bucketizer(np.array([1.0])).rows(pa.nulls(2), "age").tolist() == [MISSING, MISSING]


INTEGERS = st.integers(-(2**63), 2**63 - 1)
NEAR = st.integers(-50, 50)


@given(
    st.lists(NEAR, unique=True) | st.lists(INTEGERS, unique=True) | st.lists(NEAR | INTEGERS, unique=True),
    st.lists(st.none() | NEAR | INTEGERS),
    st.integers(-(2**63), 2**63 - 101),
)
def test_integer_vocabulary_gives_the_same_rows_as_a_dictionary(
    known: list[int], values: list[int | None], start: int
) -> None:
    if start % 2:  # All ids are far from 0.
        known, values = (
            [start + i for i in range(len(known))],
            [start + i for i in range(-1, 3) if start + i >= -(2**63)],
        )
    vocabulary = Vocabulary(pa.array(known, pa.int64()))
    expected = [MISSING if i is None else known.index(i) + 2 if i in known else OOV for i in values + known]
    assert vocabulary.rows_from_values(values + known, "id").tolist() == expected
    assert vocabulary.rows(pa.array(values + known, pa.int64()), "id").tolist() == expected
    assert vocabulary.rows_from_values(np.array(known, np.int64), "id").tolist() == expected[len(values) :]


def test_rows_from_values_casts_between_text_and_integers() -> None:
    numbers, words = Vocabulary(pa.array([7, 8])), Vocabulary(pa.array(["7", "8"]))
    assert numbers.rows_from_values(["8", None, "9"], "id").tolist() == [3, MISSING, OOV]
    assert words.rows_from_values([None, 8, 9], "id").tolist() == [MISSING, 3, OOV]
    assert words.rows_from_values(np.array([8, 9]), "id").tolist() == [3, OOV]
    assert words.rows_from_values([None], "id").tolist() == [MISSING]
    assert words.rows_from_values([], "id").tolist() == []


@given(IDS, st.data())
def test_cross_rows_depend_only_on_the_values_of_the_row(first: list[int | None], data: st.DataObject) -> None:
    second = data.draw(st.lists(st.none() | st.sampled_from("ab"), min_size=len(first), max_size=len(first)))
    buckets = HashBuckets(50)
    result = cross_rows(buckets, pa.array(first, pa.int64()), pa.array(second, pa.string()))
    for row, pair in enumerate(zip(first, second, strict=True)):
        alone = cross_rows(buckets, pa.array([pair[0]], pa.int64()), pa.array([pair[1]], pa.string()))
        assert result[row] == alone[0]
        assert (result[row] == MISSING) == (None in pair)
        assert result[row] < buckets.size


def test_cross_rows_differ_for_different_and_swapped_pairs() -> None:
    pairs = [(a, b) for a in range(30) for b in range(30)]
    first, second = (pa.array(column) for column in zip(*pairs, strict=True))
    buckets = HashBuckets(10**9)
    assert len(set(cross_rows(buckets, first, second).tolist())) == len(pairs)
    assert (cross_rows(buckets, first, second) != cross_rows(buckets, second, first)).mean() > 0.9


def test_cross_rows_fill_buckets_evenly() -> None:
    pairs = [(a, b) for a in range(100) for b in range(100)]
    rows = cross_rows(HashBuckets(10), *(pa.array(column) for column in zip(*pairs, strict=True)))
    counts = np.bincount(rows, minlength=11)
    assert counts[MISSING] == 0
    assert counts[1:].min() > 850
    assert counts[1:].max() < 1150


# Hashed ids. Published bundles depend on these numbers: they must never change.


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", 8238016292129134938),
        ("a", 2340832890917691671),
        ("v1", 1028232052576552429),
        ("čaj", 5877600412746348440),
        (42, 3159871589620855869),
        (-7, 3625665032080988044),
    ],
)
def test_stable_hash_is_the_same_in_every_version(value: object, expected: int) -> None:
    assert stable_hash(value) == expected


def test_hash_bucket_rows_are_the_same_in_every_version() -> None:
    rows = HashBuckets(7).rows(pa.array(["", "a", "v1", "42", "-7", "čaj", "1", None]), "shop")
    assert rows.tolist() == [1, 5, 5, 5, 2, 1, 2, MISSING]


@given(st.integers(-(2**63), 2**63 - 1))
def test_hash_buckets_give_an_integer_and_its_text_the_same_row(value: int) -> None:
    buckets = HashBuckets(1000)
    assert buckets.rows(pa.array([value]), "shop") == buckets.rows(pa.array([str(value)]), "shop")


@given(st.text(), st.integers(1, 50))
def test_hash_bucket_rows_follow_the_missing_row(value: str, count: int) -> None:
    buckets = HashBuckets(count)
    assert 1 <= buckets.rows(pa.array([value]), "shop")[0] < buckets.size == count + 1
    assert 0 <= stable_hash(value) < 2**63


def test_hash_column_hashes_values_and_null_is_0() -> None:
    result = hash_column(pa.array(["a", None, "v1", "a"]))
    assert result.tolist() == [stable_hash("a"), 0, stable_hash("v1"), stable_hash("a")]
    assert hash_column(pa.nulls(2)).tolist() == [0, 0]


@given(st.lists(INTEGERS))
def test_hash_values_of_array_equals_hash_of_its_values(values: list[int]) -> None:
    array, buckets = np.array(values, np.int64), HashBuckets(1000)
    assert hash_values(array).tolist() == hash_values(values).tolist()
    assert buckets.rows_from_values(array, "id").tolist() == buckets.rows_from_values(values, "id").tolist()


def test_cross_rows_of_integers_equal_those_of_their_text() -> None:
    buckets = HashBuckets(1000)
    numbers, text = pa.array([1, 2]), pa.array(["1", "2"])
    assert cross_rows(buckets, numbers, text).tolist() == cross_rows(buckets, text, numbers).tolist()


TEXTS = st.text("ab\U0001f600", max_size=3)


@given(
    st.one_of(
        st.tuples(st.lists(INTEGERS | NEAR, unique=True), st.lists(st.none() | NEAR | INTEGERS), st.just(pa.int64())),
        st.tuples(st.lists(TEXTS, unique=True), st.lists(st.none() | TEXTS), st.just(pa.string())),
    )
)
def test_vocabulary_without_a_dictionary_gives_the_same_rows(
    example: tuple[list[int | str], list[int | str | None], pa.DataType],
) -> None:
    """A large vocabulary has no dictionary, and its arrays are written to files."""
    known, values, dtype = example
    small = Vocabulary(pa.array(known, dtype))
    built = large_vocabulary(pa.array(known, dtype))
    queries = [*values, *known]
    with tempfile.TemporaryDirectory() as folder:
        built.write(Path(folder) / "table.parquet")
        read = Vocabulary.open(Path(folder) / "table.parquet")
        assert read.ids().equals(built.ids())
        for large in (built, read):
            check_large_vocabulary(small, large, known, queries, dtype)


def check_large_vocabulary(
    small: Vocabulary, large: Vocabulary, known: list[Any], queries: list[Any], dtype: pa.DataType
) -> None:
    assert (large.size, large.id_type) == (small.size, dtype)
    expected = small.rows_from_values(queries, "id").tolist()
    assert large.rows_from_values(queries, "id").tolist() == expected
    assert large.rows_from_values(known, "id").tolist() == list(range(2, len(known) + 2)), "without None"
    assert [int(large.rows_from_values([value], "id")[0]) for value in queries] == expected
    assert large.rows(pa.array(queries, dtype), "id").tolist() == expected
    assert large.rows(pa.nulls(2), "id").tolist() == [MISSING, MISSING]
    if dtype == pa.int64():
        assert large.rows_from_values(np.array(known, np.int64), "id").tolist() == list(range(2, len(known) + 2))
        assert large.rows_from_values([str(value) for value in known], "id").tolist() == list(range(2, len(known) + 2))


LARGE = {
    "text": pa.array(["a", "b", "c"]),
    "integers far apart": pa.array([1, 10**12, 5]),
    "integers close together": pa.array([7, 9, 8]),
}


@pytest.mark.parametrize("ids", LARGE.values(), ids=LARGE.keys())
def test_vocabulary_written_again_gives_the_same_files(ids: pa.Array, tmp_path: Path) -> None:
    first, second = tmp_path / "first.parquet", tmp_path / "second.parquet"
    large_vocabulary(ids).write(first)
    Vocabulary.open(first).write(second)
    files = [{path.name: path.read_bytes() for path in file.with_suffix("").iterdir()} for file in (first, second)]
    assert files[0] == files[1]
    assert first.read_bytes() == second.read_bytes()


def test_vocabulary_with_a_dictionary_has_no_arrays_on_disk(tmp_path: Path) -> None:
    Vocabulary(pa.array(["a"])).write(tmp_path / "table.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["table.parquet"]


def test_vocabulary_of_an_earlier_version_without_arrays_builds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "table.parquet"
    pq.write_table(pa.table({"id": ["a", "b"]}), file)
    monkeypatch.setattr(vocabulary, "MAX_DICTIONARY", -1)
    assert Vocabulary.open(file).rows_from_values(["b", "x"], "id").tolist() == [3, OOV]


@pytest.mark.parametrize("ids", LARGE.values(), ids=LARGE.keys())
def test_vocabulary_open_reads_arrays_with_the_given_function_and_not_the_ids(ids: pa.Array, tmp_path: Path) -> None:
    """The service reads the arrays to memory of its own, which no other program can truncate."""
    file, read = tmp_path / "table.parquet", []

    def read_file(path: Path) -> mmap.mmap:
        read.append(path.relative_to(tmp_path).as_posix())
        return map_file(path)

    large_vocabulary(ids).write(file)
    opened = Vocabulary.open(file, read_file)
    file.unlink()
    assert sorted(read) == sorted(f"table/{path.name}" for path in (tmp_path / "table").iterdir())
    assert opened.rows(ids, "id").tolist() == [2, 3, 4]


@pytest.mark.parametrize(
    ("source", "target"), [("keys.npy", "rows.npy"), ("rows.npy", "keys.npy"), ("checks.npy", "starts.npy")]
)
def test_vocabulary_with_exchanged_arrays_is_rejected(source: str, target: str, tmp_path: Path) -> None:
    large_vocabulary(pa.array(["a", "b", "c"])).write(tmp_path / "table.parquet")
    shutil.copyfile(tmp_path / "table" / source, tmp_path / "table" / target)
    with pytest.raises(ValueError, match=target):
        Vocabulary.open(tmp_path / "table.parquet")


def test_vocabulary_with_the_arrays_of_other_ids_is_rejected(tmp_path: Path) -> None:
    large_vocabulary(pa.array(["a", "b"])).write(tmp_path / "table.parquet")
    pq.write_table(pa.table({"id": ["a", "b", "c"]}), tmp_path / "table.parquet")
    with pytest.raises(ValueError, match=r"keys\.npy holds 2 keys, not those of 3 ids"):
        Vocabulary.open(tmp_path / "table.parquet")


def test_vocabulary_with_the_dense_array_of_other_ids_is_rejected(tmp_path: Path) -> None:
    large_vocabulary(pa.array([1, 2])).write(tmp_path / "table.parquet")
    pq.write_table(pa.table({"id": [1, 2, 3]}), tmp_path / "table.parquet")
    with pytest.raises(ValueError, match=r"dense\.npy hold 1 and 3 rows, which is wrong for 3 ids of type int64"):
        Vocabulary.open(tmp_path / "table.parquet")
    pq.write_table(pa.table({"id": ["1", "2"]}), tmp_path / "table.parquet")
    with pytest.raises(ValueError, match=r"dense\.npy hold 1 and 3 rows, which is wrong for 2 ids of type string"):
        Vocabulary.open(tmp_path / "table.parquet")


@pytest.mark.parametrize("row", [-1, 0, 5])
@pytest.mark.parametrize(
    ("ids", "name"), [(LARGE["text"], "rows.npy"), (LARGE["integers close together"], "dense.npy")]
)
def test_vocabulary_with_rows_beyond_its_size_is_rejected(ids: pa.Array, name: str, row: int, tmp_path: Path) -> None:
    large_vocabulary(ids).write(tmp_path / "table.parquet")
    rows = np.load(tmp_path / "table" / name)
    rows[1] = row
    np.save(tmp_path / "table" / name, rows)
    with pytest.raises(ValueError, match=rf"{name} holds rows from .* which is wrong for 3 ids"):
        Vocabulary.open(tmp_path / "table.parquet")


def test_vocabulary_without_its_checks_names_them(tmp_path: Path) -> None:
    large_vocabulary(LARGE["text"]).write(tmp_path / "table.parquet")
    (tmp_path / "table" / "checks.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"checks\.npy"):
        Vocabulary.open(tmp_path / "table.parquet")
