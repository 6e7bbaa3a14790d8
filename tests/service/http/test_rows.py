"""Candidates in rows as columns, held against what the API's own messages make of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ranking.schema import CategoricalFeature, InputFeature
from service.engine.errors import InvalidRequestError
from service.engine.validation import ParsedRequest
from service.http.decode import split_rows
from service.protocol.messages import RankOptions, RankRequest

NAMES = ("a", "b", "c")
READABLE: dict[str, InputFeature] = {
    name: CategoricalFeature(kind="categorical", name=name, column=name, owner="item", dim=2) for name in NAMES
}
VALUES = st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
IDS = st.integers(-3, 3) | st.text(max_size=2) | st.sampled_from([2**63, -(2**63), -(2**63) - 1, 1.0, True, None, [1]])
FEATURES = st.dictionaries(st.sampled_from(NAMES), VALUES) | st.dictionaries(st.sampled_from(["a", "x"]), VALUES)
WHOLE = st.fixed_dictionaries(dict.fromkeys(NAMES, VALUES))
ITEMS = st.fixed_dictionaries(
    {"id": IDS}, optional={"features": FEATURES | WHOLE | VALUES, "other": VALUES}
) | st.fixed_dictionaries({"features": FEATURES})
USUAL = st.fixed_dictionaries({"id": st.integers() | st.text()}, optional={"features": WHOLE | FEATURES})
REQUESTS = st.fixed_dictionaries(
    {"items": st.lists(USUAL) | st.lists(ITEMS) | st.lists(VALUES) | VALUES}, optional={"top_n": VALUES}
)


def carefully(document: Any) -> ParsedRequest | None:
    """By a model an item; None if it complains."""
    try:
        return ParsedRequest.from_message(RankRequest.model_validate(document), READABLE)
    except (ValidationError, InvalidRequestError):
        return None


@given(REQUESTS)
def test_nothing_else_is_found_than_with_care(document: dict[str, Any]) -> None:
    expected, found = carefully(document), split_rows(document, READABLE)
    if found is None:
        assert expected is None or not isinstance(document["items"], list)
        return
    rest, candidates = found
    assert "items" not in rest
    if expected is None:
        with pytest.raises(ValidationError):
            RankOptions.model_validate(rest)
        return
    assert candidates == expected.candidates
    assert RankOptions.model_validate(rest).top_n == expected.options.top_n


def test_what_a_row_leaves_out_is_none() -> None:
    items = [{"id": 1, "features": {"a": 1, "b": [2]}}, {"id": "2"}, {"id": 3, "features": {"c": None}}]
    found = split_rows({"items": items, "tasks": ["click"]}, READABLE)
    assert found is not None
    assert found[0] == {"tasks": ["click"]}
    assert found[1].ids == [1, "2", 3]
    assert found[1].features == {"a": [1, None, None], "b": [[2], None, None], "c": [None, None, None]}


@pytest.mark.parametrize("document", [None, [], 3, {}, {"items": {"id": [1]}}])
def test_what_has_no_rows_is_left_to_others(document: Any) -> None:
    assert split_rows(document, READABLE) is None


def test_thousands_of_names_are_refused_before_columns_are_made_of_them() -> None:
    items = [{"id": row, "features": {f"{row} {n}": 1 for n in range(40)}} for row in range(5000)]
    assert split_rows({"items": items}, READABLE) is None
