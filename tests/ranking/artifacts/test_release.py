"""Roles and serialization of releases."""

from __future__ import annotations

import pytest

from ranking.artifacts.release import Canary, Release, parse_release
from ranking.errors import BundleError


def test_release_json_without_options_has_only_the_version() -> None:
    assert Release(version=3).to_json() == {"version": 3}


def test_release_json_reads_back_equal() -> None:
    release = Release(version=3, pinned=True, canary=Canary(version=4, weight=0.1), shadow=5)
    document = {"version": 3, "pinned": True, "canary": {"version": 4, "weight": 0.1}, "shadow": 5}
    assert release.to_json() == document
    assert parse_release(document, "current.json") == release


def test_parse_release_error_begins_with_the_source() -> None:
    with pytest.raises(BundleError, match=r"^feed/current\.json: version: must be at least 1"):
        parse_release({"version": 0}, "feed/current.json")


def test_release_versions_are_unique_and_begin_with_the_current_one() -> None:
    assert Release(version=3).versions == [3]
    assert Release(version=3, canary=Canary(version=4, weight=0.1), shadow=2).versions == [3, 4, 2]
    assert Release(version=3, canary=Canary(version=4, weight=0.1), shadow=4).versions == [3, 4]


def test_promoted_version_is_no_longer_canary_or_shadow() -> None:
    release = Release(version=3, pinned=True, canary=Canary(version=4, weight=0.1), shadow=5)
    assert release.promoted(4) == Release(version=4, pinned=True, shadow=5)
    both = Release(version=3, canary=Canary(version=4, weight=0.1), shadow=4)  # earlier versions accepted it
    assert both.promoted(5) == Release(version=5, canary=both.canary)
    assert release.promoted(5) == Release(version=5, pinned=True, canary=release.canary)
    assert release.promoted(6) == release.model_copy(update={"version": 6})
