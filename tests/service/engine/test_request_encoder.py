"""Requests are encoded as the completed table would be: what is given, what is looked up, what is unknown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranking.encoding.batch import EncodedBatch
from ranking.encoding.columns import to_canonical, to_id_array
from ranking.encoding.request_batch import RequestBatch
from ranking.errors import InvalidInputError
from ranking.frozen.ranker import FrozenRanker
from ranking.schema import Owner
from service.engine.request import FeatureRequest, RawFeatures
from service.engine.request_encoder import RequestEncoder
from tests.support.hand_ranker import ITEMS, USERS
from tests.support.missing_features import by_candidate
from tests.support.encoded_batches import assert_equal_batches

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
    """Some columns of an owner, with gaps."""
    each = {name: st.lists(st.none() | values, min_size=rows, max_size=rows) for name, values in COLUMNS[owner].items()}
    return st.fixed_dictionaries({}, optional=each)


@st.composite
def requests(draw: st.DrawFn) -> dict[Owner, RawFeatures]:
    ids = draw(st.lists(IDS, max_size=6, unique=True))
    if draw(st.booleans()):
        ids = [str(i) for i in ids]  # an integer and its text are the same item
    user = draw(st.none() | st.integers(0, USERS + 2).map(lambda n: f"u{n}"))
    return {
        "user": RawFeatures([user], draw(columns("user", 1))),
        "context": RawFeatures(None, draw(columns("context", 1))),
        "item": RawFeatures(ids, draw(columns("item", len(ids)))),
    }


def table(request: dict[Owner, RawFeatures]) -> pa.Table:
    """The same as rows of a log."""
    ids, (user,) = request["item"].ids or [], request["user"].ids or [None]
    whole = {"item_id": to_id_array(ids), "user_id": to_id_array([user] * len(ids))}
    for owner in ("user", "context"):
        whole |= {name: pa.array(values * len(ids)) for name, values in request[owner].columns.items()}
    return pa.table(whole | {name: pa.array(values) for name, values in request["item"].columns.items()})


def asked(owners: dict[Owner, RawFeatures]) -> FeatureRequest:
    ids = owners["item"].ids
    return FeatureRequest(owners, [0 if ids is None else len(ids)])


def lacking(encoder: RequestEncoder, halves: RequestBatch) -> list[list[str]]:
    """Of one request."""
    (missing,) = encoder.missing(halves, [len(halves)])
    return by_candidate(missing)


def encoded(ranker: FrozenRanker, request: dict[Owner, RawFeatures]) -> EncodedBatch:
    encoder = RequestEncoder(ranker)
    return encoder.splitter.merge(encoder(asked(request)))


@pytest.mark.parametrize("tables", [True, False])
@settings(deadline=None, max_examples=150)
@given(request=requests())
def test_as_the_completed_table(hand_ranker: FrozenRanker, tables: bool, request: dict[Owner, RawFeatures]) -> None:
    ranker = hand_ranker if tables else replace(hand_ranker, tables={})
    expected = ranker.encoder.encode(ranker.complete(table(request)))
    found = encoded(ranker, request)
    assert_equal_batches(found, expected)


@settings(deadline=None, max_examples=150)
@given(request=requests(), dictionaries=st.booleans())
def test_arrow_columns_as_lists(
    hand_ranker: FrozenRanker, request: dict[Owner, RawFeatures], dictionaries: bool
) -> None:
    encoder, item = RequestEncoder(hand_ranker), request["item"]
    arrays = {name: pa.array(values) for name, values in item.columns.items()}
    if dictionaries:
        arrays = {n: a if pa.types.is_nested(a.type) else a.dictionary_encode() for n, a in arrays.items()}
    readable = encoder.readable["item"]
    columns = {name: to_canonical(array, readable[name]) for name, array in arrays.items()}
    arrow = request | {"item": RawFeatures(to_id_array(item.ids or []), columns)}
    found, expected = encoder(asked(arrow)), encoder(asked(request))
    assert_equal_batches(encoder.splitter.merge(found), encoder.splitter.merge(expected))
    assert lacking(encoder, found) == lacking(encoder, expected)


def as_arrays(given: RawFeatures) -> RawFeatures:
    """The same, what is numbers alone as arrays."""
    columns = {}
    for name, values in given.columns.items():
        kinds = set(map(type, values))
        columns[name] = np.array(values, np.float64) if kinds and kinds <= {int, float} else values
    whole = set(map(type, given.ids or [])) == {int}
    return RawFeatures(np.array(given.ids, np.int64) if whole else given.ids, columns)


@settings(deadline=None, max_examples=150)
@given(request=requests())
def test_arrays_as_lists(hand_ranker: FrozenRanker, request: dict[Owner, RawFeatures]) -> None:
    encoder = RequestEncoder(hand_ranker)
    found = encoder(asked(request | {"item": as_arrays(request["item"])}))
    expected = encoder(asked(request))
    assert_equal_batches(encoder.splitter.merge(found), encoder.splitter.merge(expected))
    assert lacking(encoder, found) == lacking(encoder, expected)


@settings(deadline=None, max_examples=50)
@given(request=requests())
def test_a_cross_of_items_with_what_is_shared(hand_ranker: FrozenRanker, request: dict[Owner, RawFeatures]) -> None:
    crossed = [
        f.model_copy(update={"of": ("tab", "item_id", "country")}) if f.kind == "cross" else f
        for f in hand_ranker.schema.features
    ]
    schema = hand_ranker.schema.model_copy(update={"features": tuple(crossed)})
    encoder = type(hand_ranker.encoder)(schema, hand_ranker.encoder.id_mappings, hand_ranker.encoder.scales)
    ranker = replace(hand_ranker, schema=schema, encoder=encoder)
    expected = ranker.encoder.encode(ranker.complete(table(request)))
    assert_equal_batches(encoded(ranker, request), expected)


def test_missing_names_what_is_unknown_in_order_of_declaration(hand_ranker: FrozenRanker) -> None:
    encoder = RequestEncoder(hand_ranker)
    request: dict[Owner, RawFeatures] = {
        "user": RawFeatures(["nobody"], {"age": [30]}),
        "context": RawFeatures(None, {"hour": [None]}),
        "item": RawFeatures([-1, -2], {"genres": [["news"], None], "words": [[], None]}),
    }
    halves = encoder(asked(request))
    names = [f.name for f in hand_ranker.schema.inputs]
    expected = hand_ranker.encoder.encode(hand_ranker.complete(table(request))).missing
    assert lacking(encoder, halves) == [[n for n, gone in zip(names, row, strict=True) if gone] for row in expected]
    assert lacking(encoder, halves)[0] == [
        "country",
        "tab",
        "liked",
        "recent",
        "day_part",
        "price",
        "hour",
    ]


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
def test_a_number_that_no_log_holds_names_its_row(
    hand_ranker: FrozenRanker, column: str, values: list[Any], reason: str
) -> None:
    request: dict[Owner, RawFeatures] = {
        "user": RawFeatures([None], {}),
        "context": RawFeatures(None, {}),
        "item": RawFeatures([1, 2], {column: values}),
    }
    with pytest.raises(InvalidInputError, match=reason) as caught:
        RequestEncoder(hand_ranker)(asked(request))
    assert (caught.value.field, caught.value.row) == (column, 1)


def test_what_is_encoded_is_no_view_of_the_tables(hand_ranker: FrozenRanker) -> None:
    """What a request gives must not stay for the next one."""
    encoder = RequestEncoder(hand_ranker)
    plain: dict[Owner, RawFeatures] = {
        "user": RawFeatures(["u1"], {}),
        "context": RawFeatures(None, {}),
        "item": RawFeatures([1, 99], {}),
    }
    before = encoder.splitter.merge(encoder(asked(plain)))
    item = RawFeatures([1, 99], {"price": [3.0, 4.0], "genres": [["news"], ["drama"]]})
    encoder(asked({**plain, "user": RawFeatures(["u1"], {"age": [77], "country": ["C3"]}), "item": item}))
    assert_equal_batches(encoder.splitter.merge(encoder(asked(plain))), before)
    assert np.array_equal(before.ids, encoder.splitter.merge(encoder(asked(plain))).ids)
    assert np.isfinite(before.dense).all()


@pytest.mark.parametrize("values", [["3", "x"], pa.array(["3", "x"])])
def test_text_in_a_column_that_a_number_is_read_from_too(hand_ranker: FrozenRanker, values: Any) -> None:
    """Such a column may be an id's as well, so that text passes for a start."""
    request: dict[Owner, RawFeatures] = {
        "user": RawFeatures([None], {}),
        "context": RawFeatures(None, {}),
        "item": RawFeatures([1, 2], {"price": values}),
    }
    with pytest.raises(InvalidInputError, match="holds text, but 'price' is a number"):
        RequestEncoder(hand_ranker)(asked(request))


@settings(deadline=None, max_examples=50)
@given(each=st.lists(requests(), min_size=2, max_size=4), arrays=st.booleans())
def test_requests_of_one_form_together_as_each_alone(
    hand_ranker: FrozenRanker, each: list[dict[Owner, RawFeatures]], arrays: bool
) -> None:
    encoder = RequestEncoder(hand_ranker)
    for said in each:  # what only some of them say, all leave out; ids of one type
        said["user"] = RawFeatures([str(id_) for id_ in said["user"].ids or []], {})
        said["context"] = RawFeatures(None, {"tab": said["context"].columns.get("tab", [None])})
        ids = [int(id_) for id_ in said["item"].ids or []]
        said["item"] = RawFeatures(np.array(ids, np.int64) if arrays else ids, {})
    alone = [encoder(asked(said)) for said in each]
    together = FeatureRequest.concat([asked(said) for said in each])
    found, expected = encoder(together), RequestBatch.concat(alone)
    assert_equal_batches(encoder.splitter.merge(found), encoder.splitter.merge(expected))
    names = [by_candidate(missing) for missing in encoder.missing(found, together.counts)]
    assert names == [lacking(encoder, halves) for halves in alone]
