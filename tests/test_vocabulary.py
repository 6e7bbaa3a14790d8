"""The vocabulary check of ``make lint`` finds the phrases that the writing rules exclude."""

from __future__ import annotations

import pytest
import vocabulary

EXCLUDED = [
    "who" + "ever asks",
    "the request is " + "re" + "fused",
    "men" + "d it",
    "this is " + "no bundle",
    "one row a " + "request",
]
ACCEPTED = [
    "reject the request",
    "amend the record",
    "there is no bundle",
    "it is no longer loaded",
    "connection refused",
]


@pytest.mark.parametrize("text", EXCLUDED)
def test_vocabulary_check_reports_excluded_phrase_with_its_line(text: str) -> None:
    ((line, _, advice),) = vocabulary.matches(f"A first line.\n{text}\n")
    assert line == 2
    assert advice


@pytest.mark.parametrize("text", ACCEPTED)
def test_vocabulary_check_accepts_plain_english(text: str) -> None:
    assert vocabulary.matches(text) == []
