"""``split_rows`` agrees with the messages of the API, and ``json_size`` counts the elements of large bodies."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ranking.schema import CategoricalFeature, InputFeature
from service.engine.errors import InvalidRequestError
from service.engine.request import RawFeatures
from service.http import decode
from service.http.decode import ELEMENT_BYTES, item_columns, json_size, split_rows
from service.protocol.messages import RankOptions, RankRequest

NAMES = ("a", "b", "c")
ITEM_FEATURES: dict[str, InputFeature] = {
    name: CategoricalFeature(kind="categorical", name=name, column=name, owner="item", dim=2) for name in NAMES
}
VALUES = st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
IDS = st.integers(-3, 3) | st.text(max_size=2) | st.sampled_from([2**63, -(2**63), -(2**63) - 1, 1.0, True, None, [1]])
FEATURES = st.dictionaries(st.sampled_from(NAMES), VALUES) | st.dictionaries(st.sampled_from(["a", "x"]), VALUES)
ALL_FEATURES = st.fixed_dictionaries(dict.fromkeys(NAMES, VALUES))
ITEMS = st.fixed_dictionaries(
    {"id": IDS}, optional={"features": FEATURES | ALL_FEATURES | VALUES, "other": VALUES}
) | st.fixed_dictionaries({"features": FEATURES})
VALID_ITEMS = st.fixed_dictionaries({"id": st.integers() | st.text()}, optional={"features": ALL_FEATURES | FEATURES})
REQUESTS = st.fixed_dictionaries(
    {"items": st.lists(VALID_ITEMS) | st.lists(ITEMS) | st.lists(VALUES) | VALUES}, optional={"top_n": VALUES}
)


def parse_with_messages(document: Any) -> tuple[RankOptions, RawFeatures] | None:
    """Parse a request with a message per item; None if it is not valid."""
    try:
        message = RankRequest.model_validate(document)
        return message, item_columns(message, ITEM_FEATURES)
    except (ValidationError, InvalidRequestError):
        return None


@given(REQUESTS)
def test_split_rows_agrees_with_the_messages(document: dict[str, Any]) -> None:
    expected, split = parse_with_messages(document), split_rows(document, ITEM_FEATURES)
    if split is None:
        assert expected is None or not isinstance(document["items"], list)
        return
    rest, candidates = split
    assert "items" not in rest
    if expected is None:
        with pytest.raises(ValidationError):
            RankOptions.model_validate(rest)
        return
    options, items = expected
    assert candidates == items
    assert RankOptions.model_validate(rest).top_n == options.top_n


def test_split_rows_absent_feature_is_none() -> None:
    items = [{"id": 1, "features": {"a": 1, "b": [2]}}, {"id": "2"}, {"id": 3, "features": {"c": None}}]
    split = split_rows({"items": items, "tasks": ["click"]}, ITEM_FEATURES)
    assert split is not None
    rest, candidates = split
    assert rest == {"tasks": ["click"]}
    assert candidates.ids == [1, "2", 3]
    assert candidates.columns == {"a": [1, None, None], "b": [[2], None, None], "c": [None, None, None]}


@pytest.mark.parametrize("document", [None, [], 3, {}, {"items": {"id": [1]}}])
def test_split_rows_without_rows_returns_none(document: Any) -> None:
    assert split_rows(document, ITEM_FEATURES) is None


def test_split_rows_with_thousands_of_unknown_features_returns_none() -> None:
    items = [{"id": row, "features": {f"{row} {n}": 1 for n in range(40)}} for row in range(5000)]
    assert split_rows({"items": items}, ITEM_FEATURES) is None


def test_json_size_counts_elements_lists_and_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    assert json_size(b"1," * 100) == 200
    monkeypatch.setattr(decode, "LARGE_BYTES", 100)
    assert json_size(b"1," * 100) == 100 * ELEMENT_BYTES
    assert json_size(b"[" * 50 + b"]" * 50) == 50 * ELEMENT_BYTES
    assert json_size(b'{"":0},' * 100) == 200 * ELEMENT_BYTES
    assert json_size(b'{"text": "' + b"x" * 500 + b'"}') == 512
