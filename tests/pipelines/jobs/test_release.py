"""``ranker release``: changes of the served versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.cli.main import main
from pipelines.jobs.release import change_release
from ranking.artifacts import repository
from ranking.artifacts.release import Canary, Release
from ranking.errors import BundleError


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """Versions 1, 2 and 3 of model "feed", of which 3 is current."""
    for version in ("1", "2", "3"):
        (tmp_path / "feed" / version).mkdir(parents=True)
    (tmp_path / "feed" / "current.json").write_text('{"version": 3}')
    return tmp_path


def current_release(repo: Path) -> Release:
    return repository.read_release(repo, "feed")


def test_change_release_rolls_back_and_pins(repo: Path) -> None:
    assert (
        change_release(repo, "feed", {"version": 2, "pinned": True})
        == Release(version=2, pinned=True)
        == current_release(repo)
    )
    assert change_release(repo, "feed", {"pinned": False}) == Release(version=2) == current_release(repo)


def test_canary_that_becomes_current_is_removed_as_canary(repo: Path) -> None:
    change_release(repo, "feed", {"version": 1, "canary": {"version": 3, "weight": 0.1}, "shadow": 2})
    assert current_release(repo) == Release(version=1, canary=Canary(version=3, weight=0.1), shadow=2)
    assert change_release(repo, "feed", {"version": 3}) == Release(version=3, shadow=2)
    assert change_release(repo, "feed", {"shadow": None}) == Release(version=3)


def test_change_release_without_changes_writes_nothing(repo: Path) -> None:
    before = (repo / "feed" / "current.json").stat()
    assert change_release(repo, "feed", {}) == Release(version=3)
    assert (repo / "feed" / "current.json").stat().st_ino == before.st_ino


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("shop", {}, "has no model 'shop': it has feed"),
        ("feed", {"version": 9}, "feed has no version 9: it has 1, 2, 3"),
        ("feed", {"shadow": 7}, "feed has no version 7: it has 1, 2, 3"),
        (
            "feed",
            {"canary": {"version": 3, "weight": 0.1}},
            "version 3 cannot be both the current version and the canary",
        ),
        ("feed", {"version": 2, "shadow": 2}, "version 2 cannot be both the current version and the shadow"),
    ],
)
def test_invalid_change_is_rejected_without_effect(
    repo: Path, name: str, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(BundleError, match=message):
        change_release(repo, name, changes)
    assert current_release(repo) == Release(version=3)


def test_damaged_current_json_is_rewritten_with_a_version(repo: Path) -> None:
    (repo / "feed" / "current.json").write_text("{")
    with pytest.raises(BundleError, match="--version N' restores it"):
        change_release(repo, "feed", {"pinned": True})
    assert change_release(repo, "feed", {"version": 2}) == Release(version=2) == current_release(repo)


def test_release_command_changes_and_prints_the_release(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["release", str(repo), "feed", "--version", "1", "--pin", "--canary", "2=0.25", "--shadow", "3"]) == 0
    expected = {"version": 1, "pinned": True, "canary": {"version": 2, "weight": 0.25}, "shadow": 3}
    assert json.loads(capsys.readouterr().out) == expected
    assert main(["release", str(repo), "feed", "--unpin", "--no-canary", "--no-shadow"]) == 0
    assert json.loads(capsys.readouterr().out) == {"version": 1}
    assert main(["release", str(repo), "feed"]) == 0
    assert json.loads(capsys.readouterr().out) == {"version": 1}
    assert main(["release", str(repo), "feed", "--version", "4"]) == 1
    assert capsys.readouterr().err.strip().endswith("feed has no version 4: it has 1, 2, 3")


@pytest.mark.parametrize("canary", ["2", "x=0.1", "2=1.5", "0=0.1", "=", "2="])
def test_malformed_canary_is_rejected(repo: Path, canary: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["release", str(repo), "feed", "--canary", canary])
    assert ended.value.code == 2
    assert "argument --canary" in capsys.readouterr().err
