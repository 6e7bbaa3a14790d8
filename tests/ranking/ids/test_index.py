"""Index from ids to rows, including ids with equal hash keys."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.text_lookup import write_text_index
from ranking.errors import InvalidInputError
from ranking.ids import hashes, index, text
from ranking.ids.hashes import hash_integers, hash_texts
from ranking.ids.index import NOT_FOUND, IdIndex, write_id_index

INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 20) | st.sampled_from([-(2**63), 2**63 - 1])
TEXT = st.one_of(
    st.text(max_size=3),
    st.text(max_size=300),
    st.text("ab\0é😀", max_size=20),
    st.integers(0, 30).map(lambda n: f"item-{n:030}"),
    st.integers(-20, 20).map(str),
)
"""Any Unicode text, empty text, text with common prefixes of different lengths, and numbers."""

WriteIndex = Callable[[pa.Array, Path], Any]
FORMATS: dict[str, WriteIndex] = {"hashes": write_id_index, "text of format 2": write_text_index}


def assert_index_is_exact(
    ids: list[Any], queries: list[Any], id_type: pa.DataType, folder: Path, write: WriteIndex = write_id_index
) -> None:
    """Assert that each id is found in the row that ``write`` returned, and that no other query is found."""
    order = write(pa.array(ids, id_type), folder)
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
def test_index_finds_integers(tmp_path_factory: pytest.TempPathFactory, ids: list[int], queries: list[Any]) -> None:
    assert_index_is_exact(ids, queries, pa.int64(), tmp_path_factory.mktemp("index"))


@pytest.mark.parametrize("name", FORMATS)
@given(ids=st.lists(TEXT, unique=True, max_size=60), queries=st.lists(st.none() | TEXT, max_size=30))
def test_index_finds_text(
    tmp_path_factory: pytest.TempPathFactory, name: str, ids: list[str], queries: list[Any]
) -> None:
    assert_index_is_exact(ids, queries, pa.string(), tmp_path_factory.mktemp("index"), FORMATS[name])


@given(st.text("ab0", min_size=1, max_size=40), st.integers(0, 40))
def test_index_distinguishes_a_text_from_its_prefixes(
    tmp_path_factory: pytest.TempPathFactory, text: str, absent: int
) -> None:
    prefixes = [text[:size] for size in range(len(text) + 1)]
    missing = prefixes.pop(min(absent, len(text)))
    assert_index_is_exact(prefixes, [missing, f"{text}\0"], pa.string(), tmp_path_factory.mktemp("index"))


COLLISIONS: dict[str, Callable[[bytes], int]] = {
    "all keys equal": lambda _: 7,
    "all keys equal to the sentinel": lambda _: 2**64 - 1,
    "keys by length": len,
    "keys that differ in the lowest bits": lambda text: 2**64 - 1 - len(text),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("collision", COLLISIONS)
@given(ids=st.lists(TEXT, unique=True, max_size=25), queries=st.lists(TEXT, max_size=20))
def test_index_distinguishes_text_with_colliding_keys(
    tmp_path_factory: pytest.TempPathFactory, collision: str, name: str, ids: list[str], queries: list[str]
) -> None:
    key_of, digest_of = COLLISIONS[collision], hashes.xxhash.xxh3_128_digest
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text.xxhash, "xxh3_64_intdigest", key_of)
        patch.setattr(
            hashes.xxhash, "xxh3_128_digest", lambda text: key_of(text).to_bytes(8, "big") + digest_of(text)[8:]
        )
        assert_index_is_exact(ids, queries, pa.string(), tmp_path_factory.mktemp("index"), FORMATS[name])


def test_write_ids_with_equal_hashes_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes.xxhash, "xxh3_128_digest", lambda text: bytes([7] * 15 + [len(text)]))
    with pytest.raises(InvalidInputError) as caught:
        write_id_index(pa.array(["a", "bcd", "ef", "ghi"]), tmp_path, "item_id")
    message = "'item_id', row 3: ids 'bcd' and 'ghi' have the same 128-bit hash: rename one of them"
    assert str(caught.value) == message
    assert not list(tmp_path.iterdir())


def test_index_files_of_text_do_not_contain_the_text(tmp_path: Path) -> None:
    ids = pa.array([f"customer-{number:027}" for number in range(1000)])
    sizes = {}
    for name, write in FORMATS.items():
        (tmp_path / name).mkdir()
        write(ids, tmp_path / name)
        sizes[name] = sum(file.stat().st_size for file in (tmp_path / name).iterdir())
    assert sizes["hashes"] < sizes["text of format 2"] / 2
    assert not [file for file in (tmp_path / "hashes").iterdir() if b"customer" in file.read_bytes()]


def test_index_finds_integer_with_the_sentinel_key_only_if_present(tmp_path: Path) -> None:
    sentinel_id = integer_with_key(2**64 - 1)
    assert hash_integers(np.array([sentinel_id])).tolist() == [2**64 - 1]
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
def test_hash_integers_spreads_regular_integers_over_the_buckets(step: int) -> None:
    counts = np.bincount((hash_integers(np.arange(65_536) * step) >> np.uint64(48)).astype(np.int64))
    assert counts.max() <= 10


def test_index_of_several_chunks_finds_all_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "CHUNK_SIZE", 7)
    assert_index_is_exact([f"v{i}" * (i % 5) + str(i) for i in range(100)], ["v1", ""], pa.string(), tmp_path)


@pytest.mark.parametrize("form", ["{}", "item-{:08}", "{:036}"])
def test_hash_texts_spreads_regular_text_over_the_buckets(form: str) -> None:
    for parts in hash_texts([form.format(number).encode() for number in range(65_536)]):
        assert np.bincount((parts >> np.uint64(48)).astype(np.int64)).max() <= 10


# Published bundles depend on these numbers: they must never change.


def test_hash_texts_is_the_same_in_every_version() -> None:
    keys, checks = hash_texts([text.encode() for text in ("", "a", "v1", "čaj", "v" * 300)])
    assert keys.tolist() == [
        11072670137173121240,
        12209170011921672244,
        7256340136796310801,
        4750030724727887753,
        12838009131989647513,
    ]
    assert checks.tolist() == [
        6918025063187695999,
        16629034431890738719,
        7609560174697462029,
        14194932440321908738,
        15854244926401341952,
    ]


def test_hash_integers_is_the_same_in_every_version() -> None:
    assert hash_integers(np.array([0, 1, -7, 2**63 - 1])).tolist() == [
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


def write_indexes(folder: Path, write: WriteIndex) -> Path:
    """Write the indexes of 3 and of 30 ids to ``one`` and ``other``, and return the first."""
    for name, count in (("one", 3), ("other", 30)):
        (folder / name).mkdir()
        write(pa.array([str(i) for i in range(count)]), folder / name)
    return folder / "one"


@pytest.mark.parametrize(
    ("name", "file"),
    [
        *(("hashes", "starts"), ("hashes", "checks"), ("hashes", "keys")),
        *(("text of format 2", "starts"), ("text of format 2", "ends"), ("text of format 2", "text")),
    ],
)
def test_open_files_of_another_index_is_rejected(tmp_path: Path, name: str, file: str) -> None:
    folder = write_indexes(tmp_path, FORMATS[name])
    (tmp_path / "other" / f"{file}.npy").replace(folder / f"{file}.npy")
    with pytest.raises(ValueError, match=r"(starts|checks|ends)\.npy"):
        IdIndex.open(folder, pa.string())


ALTERED: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "no keys": ("keys", lambda keys: keys[:0], "keys.npy does not end with the key 18446744073709551615"),
    "keys without the last": ("keys", lambda keys: keys[:-1], "keys.npy does not end with the key"),
    "start after the last key": (
        "starts",
        lambda starts: starts * 0 + 4,
        "starts.npy holds 4, which is not a position in",
    ),
    "checks in 32 bits": ("checks", lambda checks: checks.view(np.uint32), "checks.npy holds uint32"),
    "checks of fewer ids": ("checks", lambda checks: checks[1:], "checks.npy is of 2 ids, not 3"),
    "checks in two dimensions": ("checks", lambda checks: checks[:, None], "checks.npy holds uint64 [3, 1], not"),
}


@pytest.mark.parametrize("alteration", ALTERED)
def test_open_altered_file_is_rejected(tmp_path: Path, alteration: str) -> None:
    folder, (file, alter, message) = write_indexes(tmp_path, write_id_index), ALTERED[alteration]
    np.save(folder / f"{file}.npy", alter(np.load(folder / f"{file}.npy")))
    with pytest.raises(ValueError, match=re.escape(message)):
        IdIndex.open(folder, pa.string())


@pytest.mark.parametrize("ends", [[], [0, 1, 2, 4], [1, 1, 2, 3], [0, 3, 2, 3], [0, -1, 2, 3], [0, 1, 2, 2**40]])
def test_open_text_with_wrong_ends_is_rejected(tmp_path: Path, ends: list[int]) -> None:
    folder = write_indexes(tmp_path, write_text_index)
    np.save(folder / "ends.npy", np.array(ends, np.int64))
    with pytest.raises(ValueError, match=r"ends\.npy does not divide the 11 bytes of text\.npy"):
        IdIndex.open(folder, pa.string())
