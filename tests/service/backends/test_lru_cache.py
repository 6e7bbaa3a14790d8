"""What was used last is kept, and made but once."""

from __future__ import annotations

import pytest

from service.backends.lru_cache import LRUCache


def test_a_value_is_made_once_while_it_is_kept_and_goes_when_others_were_used_since() -> None:
    recent: LRUCache[str, str] = LRUCache(2)
    made: list[str] = []

    def get(key: str) -> str:
        def make() -> str:
            made.append(key)
            return key.upper()

        return recent.get(key, make)

    assert [get(key) for key in "abab"] == list("ABAB")
    assert made == ["a", "b"]
    assert get("a") == "A"
    assert get("c") == "C"  # b was not used for longest
    assert get("a") == "A"
    assert made == ["a", "b", "c"]
    assert get("b") == "B"
    assert made == ["a", "b", "c", "b"]


def test_what_cannot_be_made_leaves_the_others() -> None:
    recent: LRUCache[str, int] = LRUCache(1)
    assert recent.get("a", lambda: 1) == 1
    with pytest.raises(ZeroDivisionError):
        recent.get("b", lambda: 1 // 0)
    assert recent.get("a", lambda: 2) == 1
