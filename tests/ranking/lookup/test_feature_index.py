"""Encoded features by id: a lookup equals completing and encoding the row."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import lookup
from ranking.encoding.batch import EncodedBatch, RaggedIds
from ranking.encoding.encoder import Encoder, Scale
from ranking.encoding.feature_table import FeatureTable, fill_features
from ranking.encoding.id_rows import MISSING
from ranking.encoding.vocabulary import Bucketizer, HashBuckets, Vocabulary, hash_column
from ranking.errors import InvalidInputError
from ranking.ids import hashes
from ranking.lookup import feature_index
from ranking.lookup.feature_index import FeatureIndex, write_feature_index
from ranking.schema import Schema
from tests.support.encoded_batches import assert_equal_batches

SCHEMA = Schema.model_validate(
    {
        "name": "shop",
        "features": [
            {"name": "age", "kind": "numeric", "owner": "user"},
            {"name": "words", "kind": "bag", "owner": "item", "hash_buckets": 5, "default": ["none"]},
            {"name": "item_id", "kind": "categorical", "owner": "item"},
            {"name": "hashed_id", "column": "item_id", "kind": "categorical", "owner": "item", "hash_buckets": 97},
            {"name": "tab", "kind": "categorical", "owner": "context"},
            {"name": "brand_tab", "kind": "cross", "of": ["brand", "tab"], "hash_buckets": 101},
            {"name": "brand", "kind": "categorical", "owner": "item"},
            {"name": "price", "kind": "numeric", "owner": "item", "transform": "log1p", "default": 3.0},
            {"name": "shop", "kind": "categorical", "owner": "item", "hash_buckets": 7, "default": "other"},
            {"name": "shop_brand", "kind": "cross", "of": ["shop", "brand"], "hash_buckets": 103},
            {"name": "likes", "kind": "numeric", "owner": "item"},
            {"name": "band", "column": "price", "kind": "buckets", "owner": "item", "boundaries": [1.0, 10.0]},
            {"name": "recent", "kind": "sequence", "owner": "item", "max_length": 2, "table": "item_id"},
            {"name": "country", "kind": "categorical", "owner": "user"},
        ],
        "tasks": [{"name": "click", "kind": "binary"}],
    }
)
ITEM_FEATURES = [feature.name for feature in SCHEMA.inputs if feature.owner == "item"]


def encoder_of(known: pa.Array) -> Encoder:
    """Return an encoder whose vocabulary holds these item ids."""
    id_mappings = {
        "words": HashBuckets(5),
        "item_id": Vocabulary(known),
        "hashed_id": HashBuckets(97),
        "tab": Vocabulary(pa.array(["home"])),
        "brand_tab": HashBuckets(101),
        "brand": Vocabulary(pa.array([3, 1])),
        "shop": HashBuckets(7),
        "shop_brand": HashBuckets(103),
        "band": Bucketizer(np.array([1.0, 10.0])),
        "country": Vocabulary(pa.array(["C1"])),
    }
    indicators = {"age": True, "price": False, "likes": True}
    return Encoder(SCHEMA, id_mappings, {name: Scale(1.0, 2.0, 0.5, flag) for name, flag in indicators.items()})


def select_features(inputs: EncodedBatch, names: list[str]) -> EncodedBatch:
    """Return the columns of these features."""
    single = [i for i, feature in enumerate(SCHEMA.categoricals) if feature.name in names]
    bags = tuple(bag for bag, feature in zip(inputs.bags, SCHEMA.bags, strict=True) if feature.name in names)
    dense = [i for i, name in enumerate(["age", "price", "likes", "age", "likes"]) if name in names]
    missing = [i for i, feature in enumerate(SCHEMA.inputs) if feature.name in names]
    return EncodedBatch(inputs.ids[:, single], bags, inputs.dense[:, dense], inputs.missing[:, missing])


INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 9)
TEXT = st.text(max_size=4) | st.integers(-3, 9).map(str)
COLUMNS = {
    "words": (pa.list_(pa.string()), st.lists(st.none() | st.sampled_from("abc"), max_size=4)),
    "brand": (pa.int64(), st.integers(0, 4)),
    "price": (pa.float64(), st.floats(0.0, 1e6)),
    "shop": (pa.string(), st.text(max_size=2)),
    "likes": (pa.int64(), st.integers(0, 9)),
}


@st.composite
def tables(draw: st.DrawFn, ids: st.SearchStrategy[Any]) -> tuple[pa.Table, list[Any]]:
    """Draw a table of items, without some of its columns, and ids to look up, some of them in the table."""
    known = draw(st.lists(ids, unique=True, min_size=1, max_size=12))
    id_type = pa.int64() if isinstance(known[0], int) else pa.string()
    columns = {"item_id": pa.array(known, id_type)}
    types = {**COLUMNS, "recent": (pa.list_(id_type), st.lists(st.sampled_from(known), max_size=4))}
    for name, (column_type, values) in types.items():
        if draw(st.integers(0, 5)):
            column = draw(st.lists(st.none() | values, min_size=len(known), max_size=len(known)))
            columns[name] = pa.array(column, column_type)
    return pa.table(columns), draw(st.lists(st.sampled_from(known) | ids, max_size=12))


def assert_lookup_equals_encoding(table: pa.Table, queries: list[Any]) -> None:
    known = table["item_id"].combine_chunks()
    features, encoder = FeatureTable(table, "item_id"), encoder_of(known.slice(0, 5))
    index = FeatureIndex.temporary(features, encoder, "item")
    rows = index.rows(queries)
    known_ids = known.to_pylist()
    assert [row >= 0 for row in rows] == [query in known_ids for query in queries]
    tabs = pa.array(["home", None, "search"]).take(pa.array(np.arange(len(queries)) % 3))
    ids = pa.array([query if query in known_ids else None for query in queries], known.type)
    whole = encoder.encode(fill_features(pa.table({"item_id": ids, "tab": tabs}), SCHEMA, {"item": features}))
    assert_equal_batches(index.take(rows), select_features(whole, ITEM_FEATURES))
    hashes = dict(zip(index.parts, index.part_hashes(rows)[0].T, strict=True)) | {"tab": hash_column(tabs)}
    for cross in SCHEMA.crosses:
        buckets = encoder.id_mappings[cross.name]
        assert isinstance(buckets, HashBuckets)
        expected = whole.ids[:, [feature.name for feature in SCHEMA.categoricals].index(cross.name)]
        assert buckets.cross_rows([hashes[part] for part in cross.of]).tolist() == expected.tolist()


@given(tables(INTEGERS))
def test_lookup_by_integers_equals_encoding(drawn: tuple[pa.Table, list[Any]]) -> None:
    assert_lookup_equals_encoding(*drawn)


@given(tables(TEXT))
def test_lookup_by_text_equals_encoding(drawn: tuple[pa.Table, list[Any]]) -> None:
    assert_lookup_equals_encoding(*drawn)


@given(tables(INTEGERS))
def test_index_does_not_depend_on_the_chunk_size(
    tmp_path_factory: pytest.TempPathFactory, drawn: tuple[pa.Table, list[Any]]
) -> None:
    table, encoder = FeatureTable(drawn[0], "item_id"), encoder_of(pa.array([1, 2]))
    folder = tmp_path_factory.mktemp("chunks")
    write_feature_index(table, encoder, "item", folder / "whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feature_index, "CHUNK_SIZE", 3)
        write_feature_index(table, encoder, "item", folder / "chunks")
    rows = np.arange(-1, len(table))
    one, other = (FeatureIndex.open(folder / name, encoder, "item").take(rows) for name in ("whole", "chunks"))
    assert_equal_batches(one, other)


# Types of ids.

ITEMS = pa.table({"item_id": [7, -2, 40], "brand": [3, None, 1], "words": [["a", "b"], [], None]})


def index_of(items: pa.Table) -> FeatureIndex:
    return FeatureIndex.temporary(FeatureTable(items, "item_id"), encoder_of(items["item_id"].combine_chunks()), "item")


def is_found(index: FeatureIndex, ids: Any) -> list[bool]:
    return (index.rows(ids) >= 0).tolist()


def test_index_finds_integers_by_text_and_text_by_integers() -> None:
    for items in (ITEMS, ITEMS.set_column(0, "item_id", ITEMS["item_id"].cast(pa.string()))):
        index = index_of(items)
        for ids in ([7, -2, 41], ["7", "-2", "41"], [7, "-2", "41"]):
            assert is_found(index, ids) == [True, True, False]


@pytest.mark.parametrize(
    "ids",
    [np.array([40, 8]), np.array([40, 8], np.int32), pa.array([40, 8]), pa.array([40, None]), [40, None], ["40", None]],
)
def test_index_accepts_ids_as_list_or_array(ids: Any) -> None:
    assert is_found(index_of(ITEMS), ids) == [True, False]


@pytest.mark.parametrize("ids", [["40", None], [40, None], ("40", "x"), pa.array(["40", None]), np.array(["40", "x"])])
def test_index_of_text_accepts_ids_as_list_or_array(ids: Any) -> None:
    assert is_found(index_of(ITEMS.set_column(0, "item_id", ITEMS["item_id"].cast(pa.string()))), ids) == [True, False]


@pytest.mark.parametrize("ids", [[], pa.array([], pa.string()), np.array([], np.int64)])
def test_index_of_no_ids_returns_no_rows(ids: Any) -> None:
    index = index_of(ITEMS)
    taken = index.take(index.rows(ids))
    assert len(taken) == 0
    assert [len(bag.values) for bag in taken.bags] == [0, 0]
    assert index.part_hashes(index.rows(ids))[0].shape == (0, 2)


@pytest.mark.parametrize("ids", [["7", "seven"], [7, 2**63]])
def test_text_that_is_not_an_integer_is_rejected_by_an_index_of_integers(ids: list[Any]) -> None:
    with pytest.raises(InvalidInputError, match="ids must be integers of 64 bits") as caught:
        index_of(ITEMS).rows(ids)
    assert caught.value.field == "item_id"


def test_integer_beyond_64_bits_is_looked_up_as_text() -> None:
    assert is_found(index_of(pa.table({"item_id": [str(2**63), "a"]})), [2**63, 5]) == [True, False]


def test_empty_index_finds_no_id() -> None:
    for kind in (pa.int64(), pa.string()):
        index = index_of(pa.table({"item_id": pa.array([], kind)}))
        assert len(index) == 0
        assert is_found(index, [1, 2, None]) == [False, False, False]
        assert index.take(index.rows([1])).missing.all()


def test_take_of_repeated_rows_repeats_their_features() -> None:
    index = index_of(ITEMS)
    unique, repeated = index.take(index.rows([40, 7])), index.take(index.rows([7, 40, 7, 7]))
    assert_equal_batches(repeated, unique.take(np.array([1, 0, 1, 1])))


# Rows.


def test_unknown_id_is_missing_and_takes_defaults() -> None:
    index = index_of(ITEMS)
    taken = index.take(index.rows([99]))
    assert taken.missing.all()
    single = [feature.name for feature in index.schema.categoricals]
    ids = dict(zip(single, taken.ids[0].tolist(), strict=True))
    assert ids["item_id"] == ids["hashed_id"] == ids["brand"] == MISSING
    assert ids["shop"] == HashBuckets(7).rows(pa.array(["other"]), "shop")[0]
    bags: dict[str, RaggedIds] = {f.name: bag for f, bag in zip(index.schema.bags, taken.bags, strict=True)}
    assert bags["recent"].values.tolist() == [MISSING]
    assert bags["words"].values.tolist() == HashBuckets(5).rows(pa.array(["none"]), "words").tolist()


def test_index_schema_and_parts_describe_its_columns() -> None:
    index = index_of(ITEMS)
    assert [feature.name for feature in index.schema.features] == ITEM_FEATURES
    assert index.parts == ["brand", "shop"]


def test_cross_hash_of_null_is_0_without_a_default() -> None:
    index = index_of(ITEMS)
    default = hash_column(pa.array(["other"]))[0]
    assert index.part_hashes(index.rows([-2, 99]))[0].tolist() == [[0, default], [0, default]]


@pytest.mark.parametrize(("price", "reason"), [(np.nan, "is NaN or infinite"), (-1.0, "is −1 or less")])
def test_invalid_number_is_rejected_with_its_row(price: float, reason: str) -> None:
    items = pa.table({"item_id": range(50), "price": [1.0] * 33 + [price] + [2.0] * 16})
    with pytest.raises(InvalidInputError, match=reason) as caught:
        index_of(items)
    assert (caught.value.field, caught.value.row) == ("price", 33)


def test_text_in_a_column_of_integer_ids_is_rejected() -> None:
    with pytest.raises(InvalidInputError, match="ids must be integers") as caught:
        index_of(pa.table({"item_id": [1], "brand": ["acme"]}))
    assert caught.value.field == "brand"


def test_ids_with_equal_hashes_are_rejected_with_their_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes.xxhash, "xxh3_128_digest", lambda text: bytes(15) + text[:1])
    with pytest.raises(InvalidInputError, match="ids 'ab' and 'ac' have the same 128-bit hash") as caught:
        index_of(pa.table({"item_id": ["ab", "x", "ac"]}))
    assert (caught.value.field, caught.value.row) == ("item_id", 2)


# Files.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_feature_index(FeatureTable(ITEMS, "item_id"), encoder_of(pa.array([7])), "item", tmp_path / "items")
    return tmp_path / "items"


@pytest.mark.parametrize("name", ["keys", "starts", "rows", "values"])
def test_open_folder_without_a_file_is_rejected(folder: Path, name: str) -> None:
    (folder / f"{name}.npy").unlink()
    with pytest.raises(OSError, match=name):
        FeatureIndex.open(folder, encoder_of(pa.array([7])), "item")


def test_open_rows_of_another_schema_or_length_is_rejected(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"rows\.npy holds"):
        FeatureIndex.open(folder, encoder_of(pa.array([7])), "user")
    np.save(folder / "rows.npy", np.load(folder / "rows.npy")[1:])
    with pytest.raises(ValueError, match=r"rows\.npy holds 3 rows, not 4"):
        FeatureIndex.open(folder, encoder_of(pa.array([7])), "item")


def test_lookups_in_parallel_threads_agree() -> None:
    index = index_of(pa.table({"item_id": [f"v{i}" for i in range(500)], "likes": list(range(500))}))
    failed_seeds = []

    def look_up(seed: int) -> None:
        for _ in range(50):
            order = np.random.default_rng(seed).permutation(500)
            taken = index.take(index.rows([f"v{i}" for i in order]))
            if taken.dense[:, 1].tolist() != ((order - 1.0) / 2.0).tolist():
                failed_seeds.append(seed)

    threads = [threading.Thread(target=look_up, args=[seed]) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed_seeds


def test_processes_share_a_mapped_index_but_not_a_copied_one(tmp_path: Path) -> None:
    schema = lookup.schema_of("integers")
    write_feature_index(
        lookup.table_of(schema, "integers", 400_000), lookup.encoder_of(schema), "item", tmp_path / "items"
    )
    size = lookup.size_of(tmp_path / "items") / 2**20
    _, mapped = lookup.measure_processes(tmp_path / "items", "mapped")
    _, copied = lookup.measure_processes(tmp_path / "items", "copied")
    assert mapped < 1.2 * size
    assert copied > 1.8 * size
