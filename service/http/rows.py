"""Candidates in rows, as JSON has them → columns, where there is nothing to complain of."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from ranking.schema import InputFeature
from service.engine.validation import Candidates, are_ids
from service.engine.values import to_columns

ID, FEATURES = "id", "features"


def split_rows(document: Any, readable: Mapping[str, InputFeature]) -> tuple[dict[str, Any], Candidates] | None:
    """A request without its items, of which nothing is checked, and its candidates.

    A model an item costs several times as much as reading its JSON, and more than the scoring.

    Args:
        document: the request.
        readable: columns that an item may have.

    Returns:
        None if candidates stand in columns, or if anything is not as it should be: for whoever says what is wrong.
    """
    items = document.get("items") if isinstance(document, dict) else None
    if not isinstance(items, list) or not set(map(type, items)) <= {dict}:
        return None
    try:
        ids = [item[ID] for item in items]
    except KeyError:
        return None
    features = [item[FEATURES] for item in items if FEATURES in item]
    if sum(map(len, items)) != len(ids) + len(features) or not set(map(type, features)) <= {dict}:
        return None
    kinds = set(map(type, ids))
    if not kinds <= {int, str} or not are_ids(ids, kinds):
        return None
    if len(features) < len(items):
        features = [item.get(FEATURES, {}) for item in items]
    if not readable.keys() >= set(chain.from_iterable(features)):
        return None
    rest = {name: value for name, value in document.items() if name != "items"}
    return rest, Candidates(ids, to_columns(features))
