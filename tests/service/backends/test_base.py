"""The LRU cache of the backends."""

from __future__ import annotations

import pytest

from service.backends.base import LRUCache


def test_lru_cache_creates_once_and_evicts_least_recently_used() -> None:
    cache: LRUCache[str, str] = LRUCache(2)
    created: list[str] = []

    def get(key: str) -> str:
        def create() -> str:
            created.append(key)
            return key.upper()

        return cache.get(key, create)

    assert [get(key) for key in "abab"] == list("ABAB")
    assert created == ["a", "b"]
    assert get("a") == "A"
    assert get("c") == "C"  # evicts b
    assert get("a") == "A"
    assert created == ["a", "b", "c"]
    assert get("b") == "B"
    assert created == ["a", "b", "c", "b"]
    assert len(cache) == 2


def test_lru_cache_failed_creation_keeps_other_values() -> None:
    cache: LRUCache[str, int] = LRUCache(1)
    assert cache.get("a", lambda: 1) == 1
    with pytest.raises(ZeroDivisionError):
        cache.get("b", lambda: 1 // 0)
    assert cache.get("a", lambda: 2) == 1
