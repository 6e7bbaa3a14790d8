"""Counters and histories in the encoding of requests, compared with the encoding of the completed table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranking.encoding.batch import EncodedBatch
from ranking.encoding.columns import to_id_array
from ranking.frozen.ranker import FrozenRanker
from ranking.schema import Owner
from service.engine.request import FeatureRequest, RawFeatures
from service.engine.request_encoder import RequestEncoder
from tests.support.counted_ranker import ITEMS, NOW, USERS, ZONE, make_counted_ranker
from tests.support.encoded_batches import assert_equal_batches

HOURS = st.integers(0, 200)
COLUMNS: dict[Owner, dict[str, st.SearchStrategy[Any]]] = {
    "user": {
        "country": st.sampled_from(["de", "fr", "unheard of"]),
        "user_id_count": st.floats(0, 100),
        "clicked": st.lists(st.integers(0, ITEMS), max_size=4),
    },
    "context": {"tab": st.sampled_from(["home", "search", "elsewhere"]), "tab_country_age": st.floats(0, 1e6)},
    "item": {
        "tags": st.lists(st.none() | st.sampled_from(["t0", "t1", "t2", "unheard of"]), max_size=4),
        "price": st.floats(0, 100),
        "user_tags_click_rate": st.floats(0, 1),
    },
}


@dataclass(frozen=True)
class Drawn:
    """A request and its time.

    Attributes:
        owners: features by owner.
        time: microseconds.
    """

    owners: dict[Owner, RawFeatures]
    time: int


def columns(owner: Owner, rows: int) -> st.SearchStrategy[dict[str, list[Any]]]:
    """Some columns of an owner, with nulls."""
    strategies = {
        name: st.lists(st.none() | values, min_size=rows, max_size=rows) for name, values in COLUMNS[owner].items()
    }
    return st.fixed_dictionaries({}, optional=strategies)


@st.composite
def requests(draw: st.DrawFn, prefixes: tuple[str, str] | None = None) -> Drawn:
    """Draw a request; ids are integers, their decimal text, or text with prefixes."""
    items: list[Any] = draw(st.lists(st.integers(-2, ITEMS + 3), max_size=6, unique=True))
    user: Any = draw(st.none() | st.integers(-2, USERS + 2))
    user_columns = draw(columns("user", 1))
    if prefixes is not None:
        items, user = [f"{prefixes[1]}{i}" for i in items], None if user is None else f"{prefixes[0]}{user}"
        for values in user_columns.get("clicked", []):
            if values is not None:
                values[:] = [f"{prefixes[1]}{i}" for i in values]
    elif draw(st.booleans()):
        items, user = [str(i) for i in items], None if user is None else str(user)
    owners: dict[Owner, RawFeatures] = {
        "user": RawFeatures([user], user_columns),
        "context": RawFeatures([None], draw(columns("context", 1))),
        "item": RawFeatures(items, draw(columns("item", len(items)))),
    }
    return Drawn(owners, NOW + draw(HOURS) * 3_600_000_000)


def to_table(request: Drawn) -> pa.Table:
    """The request as rows of a log."""
    ids, (user,) = request.owners["item"].ids, request.owners["user"].ids
    rows = len(ids)
    table = {"item_id": to_id_array(ids), "user_id": to_id_array([user] * rows)}
    table["time"] = pa.array([request.time] * rows, pa.timestamp("us", ZONE))
    for owner in ("user", "context"):
        table |= {name: pa.array(values * rows) for name, values in request.owners[owner].columns.items()}
    return pa.table(table | {name: pa.array(values) for name, values in request.owners["item"].columns.items()})


def encode(ranker: FrozenRanker, *drawn: Drawn) -> EncodedBatch:
    """Encode requests together."""
    encoder = RequestEncoder(ranker)
    parts = [FeatureRequest(d.owners, [len(d.owners["item"])], None, [d.time]) for d in drawn]
    return encoder.splitter.merge(encoder(FeatureRequest.concat(parts)))


@pytest.fixture(scope="module")
def rankers(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool, bool], FrozenRanker]:
    folder = tmp_path_factory.mktemp("states")
    made = {
        (text, tables): make_counted_ranker(folder / f"{text}-{tables}", text=text, tables=tables)
        for text in (False, True)
        for tables in (False, True)
    }
    return lambda text, tables: made[text, tables]


@given(request=requests(), tables=st.booleans())
def test_request_encoder_counters_of_integer_ids_match_table(
    rankers: Callable[[bool, bool], FrozenRanker], request: Drawn, *, tables: bool
) -> None:
    ranker = rankers(False, tables)
    assert_equal_batches(encode(ranker, request), ranker.encoder.encode(ranker.complete(to_table(request))))


@given(request=requests(prefixes=("u", "v")), tables=st.booleans())
def test_request_encoder_counters_of_text_ids_match_table(
    rankers: Callable[[bool, bool], FrozenRanker], request: Drawn, *, tables: bool
) -> None:
    ranker = rankers(True, tables)
    assert_equal_batches(encode(ranker, request), ranker.encoder.encode(ranker.complete(to_table(request))))


def test_request_encoder_requests_encoded_together_have_their_own_times(
    rankers: Callable[[bool, bool], FrozenRanker],
) -> None:
    ranker = rankers(True, True)
    drawn = [
        Drawn(
            {
                "user": RawFeatures([f"u{user}"], {}),
                "context": RawFeatures([None], {"tab": ["home"]}),
                "item": RawFeatures([f"v{i}" for i in range(user, user + count)], {}),
            },
            NOW + user * 3_600_000_000,
        )
        for user, count in ((1, 3), (2, 1), (30, 5))
    ]
    together = encode(ranker, *drawn)
    alone = EncodedBatch.concat([encode(ranker, one) for one in drawn])
    assert_equal_batches(together, alone)
    assert len(np.unique(together.dense, axis=0)) >= 4


def test_missing_features_exclude_counters_and_histories(rankers: Callable[[bool, bool], FrozenRanker]) -> None:
    ranker = rankers(True, True)
    encoder = RequestEncoder(ranker)
    owners: dict[Owner, RawFeatures] = {
        "user": RawFeatures(["new"], {}),
        "context": RawFeatures([None], {}),
        "item": RawFeatures(["new"], {}),
    }
    (missing,) = encoder.missing(encoder(FeatureRequest(owners, [1])), [1])
    assert sorted(missing.positions()) == ["country", "items.id", "price", "tab", "tags", "user.id"]
