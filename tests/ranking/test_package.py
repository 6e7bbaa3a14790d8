"""Names of the package `ranking`."""

from __future__ import annotations

import pytest

import ranking


def test_all_public_names_can_be_imported() -> None:
    assert all(getattr(ranking, name).__name__ == name for name in ranking.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'ranking' has no attribute 'laod'"):
        _ = ranking.laod  # type: ignore[attr-defined]
