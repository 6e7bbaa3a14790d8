"""Detection of long text in JSON agrees with a search of the parsed document."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from service.http.columns import may_contain_long_text
from service.http.decode import find_long_text

TEXT = st.text('ab",:[]{}\\1ü', max_size=20)
DOCUMENTS = st.recursive(
    TEXT | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": ")])


def longest_text(value: Any) -> int:
    """Number of characters of the longest text in a document."""
    if isinstance(value, str):
        return len(value)
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return max(map(longest_text, inner), default=0)


@given(DOCUMENTS, SEPARATORS, st.integers(1, 12), st.booleans())
def test_long_text_is_always_detected(
    document: Any, separators: tuple[str, str], max_length: int, ensure_ascii: bool
) -> None:
    body = json.dumps({"of": document}, separators=separators, ensure_ascii=ensure_ascii).encode()
    too_long = longest_text({"of": document}) > max_length
    assert (find_long_text({"of": document}, max_length) is not None) == too_long
    if too_long:
        assert may_contain_long_text(body, max_length)
    elif b"\\" not in body and body.isascii():
        assert not may_contain_long_text(body, max_length)
