"""The vocabulary check of ``make lint`` finds the phrases that the writing rules exclude."""

from __future__ import annotations

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


def test_vocabulary_check_reports_excluded_phrases_with_their_lines() -> None:
    for text in EXCLUDED:
        ((line, _, advice),) = vocabulary.matches(f"A first line.\n{text}\n")
        assert line == 2, text
        assert advice, text


def test_vocabulary_check_accepts_plain_english() -> None:
    assert not [match for text in ACCEPTED for match in vocabulary.matches(text)]
