"""Encoding of requests, compared with the encoding of the completed table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranking.encoding.batch import EncodedBatch
from ranking.encoding.columns import to_canonical, to_id_array
from ranking.encoding.id_rows import OOV
from ranking.encoding.request_batch import RequestBatch
from ranking.errors import InvalidInputError
from ranking.frozen.ranker import FrozenRanker
from ranking.schema import Owner
from service.engine.request import FeatureRequest, RawFeatures
from service.engine.request_encoder import RequestEncoder
from tests.support.encoded_batches import assert_equal_batches
from tests.support.hand_ranker import ITEMS, USERS
from tests.support.missing_features import by_candidate

WORDS = st.sampled_from(["drama", "news", "unheard of", "w1", ""])
TEXT = st.sampled_from(["C1", "C2", "home", "search", "elsewhere", ""])
NUMBERS = st.one_of(st.integers(-5, 90), st.floats(-0.5, 1e6, allow_nan=False))
IDS = st.integers(-2, ITEMS + 3)
COLUMNS: dict[Owner, dict[str, st.SearchStrategy[Any]]] = {
    "user": {
        "country": TEXT,
        "liked": st.lists(st.none() | IDS, max_size=4),
        "recent": st.lists(st.none() | IDS, max_size=4),
        "age": NUMBERS,
    },
    "context": {"tab": TEXT, "hour": NUMBERS},
    "item": {
        "genres": st.lists(st.none() | WORDS, max_size=3),
        "words": st.lists(WORDS, max_size=3),
        "price": st.floats(0, 1e9),
    },
}


def columns(owner: Owner, rows: int) -> st.SearchStrategy[dict[str, list[Any]]]:
    """Some columns of an owner, with nulls."""
    strategies = {
        name: st.lists(st.none() | values, min_size=rows, max_size=rows) for name, values in COLUMNS[owner].items()
    }
    return st.fixed_dictionaries({}, optional=strategies)


@st.composite
def requests(draw: st.DrawFn) -> dict[Owner, RawFeatures]:
    ids = draw(st.lists(IDS, max_size=6, unique=True))
    if draw(st.booleans()):
        ids = [str(i) for i in ids]  # an integer and its decimal text identify the same item
    user = draw(st.none() | st.integers(0, USERS + 2).map(lambda n: f"u{n}"))
    return {
        "user": RawFeatures([user], draw(columns("user", 1))),
        "context": RawFeatures([None], draw(columns("context", 1))),
        "item": RawFeatures(ids, draw(columns("item", len(ids)))),
    }


def to_table(request: dict[Owner, RawFeatures]) -> pa.Table:
    """The request as rows of a log."""
    ids, (user,) = request["item"].ids, request["user"].ids
    table = {"item_id": to_id_array(ids), "user_id": to_id_array([user] * len(ids))}
    for owner in ("user", "context"):
        table |= {name: pa.array(values * len(ids)) for name, values in request[owner].columns.items()}
    return pa.table(table | {name: pa.array(values) for name, values in request["item"].columns.items()})


def feature_request(owners: dict[Owner, RawFeatures]) -> FeatureRequest:
    return FeatureRequest(owners, [len(owners["item"])])


def item_request(item_features: dict[str, Any]) -> dict[Owner, RawFeatures]:
    """A request of two items and no user."""
    item = RawFeatures([1, 2], item_features)
    return {"user": RawFeatures([None], {}), "context": RawFeatures([None], {}), "item": item}


def missing_names(encoder: RequestEncoder, batch: RequestBatch) -> list[list[str]]:
    """Names of the missing features of each candidate of one request."""
    (missing,) = encoder.missing(batch, [len(batch)])
    return by_candidate(missing)


def encode(ranker: FrozenRanker, request: dict[Owner, RawFeatures]) -> EncodedBatch:
    encoder = RequestEncoder(ranker)
    return encoder.splitter.merge(encoder(feature_request(request)))


@pytest.mark.parametrize("tables", [True, False])
@given(request=requests())
def test_request_encoder_matches_completed_table(
    hand_ranker: FrozenRanker, tables: bool, request: dict[Owner, RawFeatures]
) -> None:
    ranker = hand_ranker if tables else replace(hand_ranker, tables={})
    expected = ranker.encoder.encode(ranker.complete(to_table(request)))
    batch = encode(ranker, request)
    assert_equal_batches(batch, expected)


@given(request=requests(), dictionaries=st.booleans())
def test_request_encoder_arrow_columns_match_lists(
    hand_ranker: FrozenRanker, request: dict[Owner, RawFeatures], dictionaries: bool
) -> None:
    encoder, item = RequestEncoder(hand_ranker), request["item"]
    arrays = {name: pa.array(values) for name, values in item.columns.items()}
    if dictionaries:
        arrays = {n: a if pa.types.is_nested(a.type) else a.dictionary_encode() for n, a in arrays.items()}
    readable = encoder.readable["item"]
    columns = {name: to_canonical(array, readable[name]) for name, array in arrays.items()}
    arrow = request | {"item": RawFeatures(to_id_array(item.ids), columns)}
    batch, expected = encoder(feature_request(arrow)), encoder(feature_request(request))
    assert_equal_batches(encoder.splitter.merge(batch), encoder.splitter.merge(expected))
    assert missing_names(encoder, batch) == missing_names(encoder, expected)


def as_arrays(features: RawFeatures) -> RawFeatures:
    """The same features, with columns of numbers as NumPy arrays."""
    columns = {}
    for name, values in features.columns.items():
        types = set(map(type, values))
        columns[name] = np.array(values, np.float64) if types and types <= {int, float} else values
    integers = set(map(type, features.ids)) == {int}
    return RawFeatures(np.array(features.ids, np.int64) if integers else features.ids, columns)


@given(request=requests())
def test_request_encoder_numpy_columns_match_lists(
    hand_ranker: FrozenRanker, request: dict[Owner, RawFeatures]
) -> None:
    encoder = RequestEncoder(hand_ranker)
    batch = encoder(feature_request(request | {"item": as_arrays(request["item"])}))
    expected = encoder(feature_request(request))
    assert_equal_batches(encoder.splitter.merge(batch), encoder.splitter.merge(expected))
    assert missing_names(encoder, batch) == missing_names(encoder, expected)


@given(request=requests())
def test_request_encoder_cross_of_item_and_shared_features_matches_table(
    hand_ranker: FrozenRanker, request: dict[Owner, RawFeatures]
) -> None:
    crossed = [
        f.model_copy(update={"of": ("tab", "item_id", "country")}) if f.kind == "cross" else f
        for f in hand_ranker.schema.features
    ]
    schema = hand_ranker.schema.model_copy(update={"features": tuple(crossed)})
    encoder = type(hand_ranker.encoder)(schema, hand_ranker.encoder.id_mappings, hand_ranker.encoder.scales)
    ranker = replace(hand_ranker, schema=schema, encoder=encoder)
    expected = ranker.encoder.encode(ranker.complete(to_table(request)))
    assert_equal_batches(encode(ranker, request), expected)


def test_request_encoder_missing_features_are_in_schema_order(hand_ranker: FrozenRanker) -> None:
    encoder = RequestEncoder(hand_ranker)
    request: dict[Owner, RawFeatures] = {
        "user": RawFeatures(["nobody"], {"age": [30]}),
        "context": RawFeatures([None], {"hour": [None]}),
        "item": RawFeatures([-1, -2], {"genres": [["news"], None], "words": [[], None]}),
    }
    batch = encoder(feature_request(request))
    first, second = missing_names(encoder, batch)
    assert first == ["user.id", "items.id", "country", "tab", "liked", "recent", "hour", "price"]
    assert second == ["user.id", "items.id", "country", "tab", "genres", "liked", "words", "recent", "hour", "price"]


@given(request=requests())
def test_request_encoder_missing_columns_are_the_nulls_of_the_table_and_the_unseen_ids(
    hand_ranker: FrozenRanker, request: dict[Owner, RawFeatures]
) -> None:
    encoder = RequestEncoder(hand_ranker)
    encoded = hand_ranker.encoder.encode(hand_ranker.complete(to_table(request)))
    columns = [feature.column for feature in hand_ranker.schema.inputs]
    singles = [feature.name for feature in hand_ranker.schema.categoricals]
    expected = []
    for row, ids in zip(encoded.missing, encoded.ids, strict=True):
        names = {column for column, missing in zip(columns, row, strict=True) if missing}
        names |= {name for name in ("user_id", "item_id") if ids[singles.index(name)] == OOV}
        ids_by_column = {"user_id": "user.id", "item_id": "items.id"}
        expected.append([ids_by_column.get(c, c) for c in dict.fromkeys(columns) if c in names])
    assert missing_names(encoder, encoder(feature_request(request))) == expected


def without_features(ranker: FrozenRanker, *names: str) -> FrozenRanker:
    """The encoder's part of a ranker that does not read these features."""
    kept = [feature.name for feature in ranker.schema.features if feature.name not in names]
    return replace(ranker, schema=ranker.schema.restricted(kept), encoder=ranker.encoder.restricted(kept), stored=None)


def test_request_encoder_without_id_features_reports_ids_that_are_in_no_table(hand_ranker: FrozenRanker) -> None:
    encoder = RequestEncoder(without_features(hand_ranker, "user_id", "item_id"))
    item = RawFeatures([1, -1], {}, {"price": [None, None]})
    request: dict[Owner, RawFeatures] = {
        "user": RawFeatures(["nobody"], {}),
        "context": RawFeatures([None], {}),
        "item": item,
    }
    batch = encoder(feature_request(request))
    assert [("user.id" in names, "items.id" in names) for names in missing_names(encoder, batch)] == [
        (True, False),
        (True, True),
    ]
    stored = request | {"item": replace(item, stored={"price": [None, 2.0]}), "user": RawFeatures([None], {})}
    batch = encoder(feature_request(stored))
    assert not any({"user.id", "items.id"}.intersection(names) for names in missing_names(encoder, batch))


def test_request_encoder_without_tables_and_id_features_knows_no_ids(hand_ranker: FrozenRanker) -> None:
    ranker = replace(without_features(hand_ranker, "user_id", "item_id"), tables={})
    encoder = RequestEncoder(ranker)
    batch = encoder(feature_request(item_request({})))
    assert (batch.unseen_users, batch.unseen_items) == (None, None)
    assert not any({"user.id", "items.id"}.intersection(names) for names in missing_names(encoder, batch))


def test_request_batch_slice_and_concat_keep_unseen_ids(hand_ranker: FrozenRanker) -> None:
    encoder = RequestEncoder(hand_ranker)
    first = encoder(feature_request(item_request({}) | {"item": RawFeatures([1, -1], {})}))
    second = encoder(feature_request(item_request({}) | {"user": RawFeatures(["nobody"], {})}))
    joined = RequestBatch.concat([first, second])
    assert joined.unseen_users is not None
    assert joined.unseen_items is not None
    assert joined.unseen_users.tolist() == [False, True]
    assert joined.unseen_items.tolist() == [False, True, False, False]
    sliced = joined.slice(1, 3).unseen_items
    assert sliced is not None
    assert sliced.tolist() == [True, False]


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        ("price", [1.0, float("nan")], "is NaN or infinite"),
        ("price", [1.0, float("inf")], "is NaN or infinite"),
        ("price", [None, -1], "is −1 or less, but its transform is log1p"),
        ("price", [None, 10**400], "is NaN or infinite"),
        ("price", pa.array([None, float("nan")]), "is NaN or infinite"),
        ("price", pa.array([1.0, -1.0]), "is −1 or less, but its transform is log1p"),
    ],
)
def test_request_encoder_invalid_number_names_row(
    hand_ranker: FrozenRanker, column: str, values: list[Any], reason: str
) -> None:
    request = item_request({column: values})
    with pytest.raises(InvalidInputError, match=reason) as caught:
        RequestEncoder(hand_ranker)(feature_request(request))
    assert (caught.value.field, caught.value.row) == (column, 1)


def test_request_encoder_result_does_not_alias_tables(hand_ranker: FrozenRanker) -> None:
    """Values of one request must not leak into the next one."""
    encoder = RequestEncoder(hand_ranker)
    ids_only: dict[Owner, RawFeatures] = {
        "user": RawFeatures(["u1"], {}),
        "context": RawFeatures([None], {}),
        "item": RawFeatures([1, 99], {}),
    }
    before = encoder.splitter.merge(encoder(feature_request(ids_only)))
    item = RawFeatures([1, 99], {"price": [3.0, 4.0], "genres": [["news"], ["drama"]]})
    encoder(feature_request({**ids_only, "user": RawFeatures(["u1"], {"age": [77], "country": ["C3"]}), "item": item}))
    assert_equal_batches(encoder.splitter.merge(encoder(feature_request(ids_only))), before)
    assert np.array_equal(before.ids, encoder.splitter.merge(encoder(feature_request(ids_only))).ids)
    assert np.isfinite(before.dense).all()


@pytest.mark.parametrize("values", [["3", "x"], pa.array(["3", "x"])])
def test_request_encoder_text_for_number_raises(hand_ranker: FrozenRanker, values: Any) -> None:
    """Validation accepts text if an id feature reads the column too."""
    request = item_request({"price": values})
    with pytest.raises(InvalidInputError, match="holds text, but 'price' is a number"):
        RequestEncoder(hand_ranker)(feature_request(request))


@given(parts=st.lists(requests(), min_size=2, max_size=4), arrays=st.booleans())
def test_request_encoder_concatenated_requests_match_separate_ones(
    hand_ranker: FrozenRanker, parts: list[dict[Owner, RawFeatures]], arrays: bool
) -> None:
    encoder = RequestEncoder(hand_ranker)
    for part in parts:  # keep only what gives all requests the same signature
        part["user"] = RawFeatures([str(id_) for id_ in part["user"].ids], {})
        part["context"] = RawFeatures([None], {"tab": part["context"].columns.get("tab", [None])})
        ids = [int(id_) for id_ in part["item"].ids]
        part["item"] = RawFeatures(np.array(ids, np.int64) if arrays else ids, {})
    separate = [encoder(feature_request(part)) for part in parts]
    concatenated = FeatureRequest.concat([feature_request(part) for part in parts])
    batch, expected = encoder(concatenated), RequestBatch.concat(separate)
    assert_equal_batches(encoder.splitter.merge(batch), encoder.splitter.merge(expected))
    names = [by_candidate(missing) for missing in encoder.missing(batch, concatenated.counts)]
    assert names == [missing_names(encoder, batch) for batch in separate]
