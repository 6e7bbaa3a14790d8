"""What is to be served of a model: the forms of current.json, and what is said of wrong ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ranking.artifacts import release as releases
from ranking.artifacts.release import CURRENT, Canary, Release
from ranking.errors import BundleError


def test_its_simplest_form_names_a_version_only_so_that_older_readers_understand_it(tmp_path: Path) -> None:
    releases.write_release(Release(version=3), tmp_path)
    assert json.loads((tmp_path / CURRENT).read_text()) == {"version": 3}
    assert releases.read_release(tmp_path) == Release(version=3)


def test_all_of_it_is_written_and_read(tmp_path: Path) -> None:
    release = Release(version=3, pinned=True, canary=Canary(version=4, weight=0.1), shadow=5)
    releases.write_release(release, tmp_path)
    assert json.loads((tmp_path / CURRENT).read_text()) == {
        "version": 3,
        "pinned": True,
        "canary": {"version": 4, "weight": 0.1},
        "shadow": 5,
    }
    assert releases.read_release(tmp_path) == release


def test_versions_are_all_that_are_served_the_current_one_first() -> None:
    assert Release(version=3).versions == [3]
    assert Release(version=3, canary=Canary(version=4, weight=0.1), shadow=2).versions == [3, 4, 2]
    assert Release(version=3, canary=Canary(version=4, weight=0.1), shadow=4).versions == [3, 4]


def test_a_promoted_version_is_no_canary_or_shadow_any_longer() -> None:
    release = Release(version=3, pinned=True, canary=Canary(version=4, weight=0.1), shadow=5)
    assert release.promoted(4) == Release(version=4, pinned=True, shadow=5)
    assert release.promoted(5) == Release(version=5, pinned=True, canary=release.canary)
    assert release.promoted(6) == release.model_copy(update={"version": 6})


@pytest.mark.parametrize("content", [b"", b"{", b"3", b"[3]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_file_is_named_with_what_it_should_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / CURRENT).write_bytes(content)
    with pytest.raises(BundleError, match=r'current\.json is damaged: it should read \{"version": N\}'):
        releases.read_release(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{}", "version: missing"),
        ('{"version": "3"}', r"version: must be a whole number \(got '3'\)"),
        ('{"version": 3.0}', r"version: must be a whole number \(got 3.0\)"),
        ('{"version": null}', "version: must be a whole number"),
        ('{"version": true}', r"version: must be a whole number \(got true\)"),
        ('{"version": 0}', "version: must be at least 1"),
        ('{"version": 9223372036854775808}', "version: must be less than"),
        ('{"version": 3, "pined": true}', "pined: unknown key"),
        ('{"version": 3, "pinned": 1}', "pinned: must be true or false"),
        ('{"version": 3, "canary": 4}', "canary: must be a table of keys and values"),
        ('{"version": 3, "canary": {"version": 4}}', "canary.weight: missing"),
        ('{"version": 3, "canary": {"version": 4, "weight": 10}}', r"canary.weight: must be at most 1 \(got 10\)"),
        ('{"version": 3, "canary": {"version": 4, "weight": NaN}}', "canary.weight: must be a finite number"),
        ('{"version": 3, "canary": {"version": 3, "weight": 0.1}}', "version 3 cannot be both .* leave the canary out"),
        ('{"version": 3, "shadow": 3}', "version 3 cannot be both the current version and the shadow"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / CURRENT).write_text(content)
    with pytest.raises(BundleError, match=rf"current\.json: {said}"):
        releases.read_release(tmp_path)


def test_a_folder_in_its_place_is_told(tmp_path: Path) -> None:
    (tmp_path / CURRENT).mkdir()
    with pytest.raises(BundleError, match=r"current\.json cannot be read \(Is a directory\)"):
        releases.read_release(tmp_path)
