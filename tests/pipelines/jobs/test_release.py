"""``ranker release``: changes of the served versions."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipelines.cli.main import main
from pipelines.jobs import release
from pipelines.jobs.publish import publish
from pipelines.jobs.release import change_release
from ranking.artifacts import checksums, repository
from ranking.artifacts.default_model import read_default_model
from ranking.artifacts.release import Canary, Release
from ranking.errors import BundleError


@pytest.fixture
def repo(tmp_path: Path, bundle: Path) -> Path:
    """Versions 1, 2 and 3 of model "feed", of which 3 is current."""
    for version in ("1", "2", "3"):
        shutil.copytree(bundle, tmp_path / "repository" / "feed" / version)
    (tmp_path / "repository" / "feed" / "current.json").write_text('{"version": 3}')
    return tmp_path / "repository"


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


def test_shadow_that_becomes_the_canary_is_removed_as_shadow(repo: Path) -> None:
    change_release(repo, "feed", {"shadow": 2})
    canary = {"version": 2, "weight": 0.1}
    assert change_release(repo, "feed", {"canary": canary}) == Release(version=3, canary=Canary.model_validate(canary))
    with pytest.raises(BundleError, match="version 2 cannot be both the canary and the shadow"):
        change_release(repo, "feed", {"shadow": 2})


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
        (
            "feed",
            {"canary": {"version": 1, "weight": 0.1}, "shadow": 1},
            "version 1 cannot be both the canary and the shadow: remove one of them",
        ),
        ("../feed", {"version": 2}, "name '../feed': use letters, digits"),
        ("feed/../feed", {}, "name 'feed/../feed': use letters, digits"),
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


@pytest.mark.parametrize("role", ["version", "canary", "shadow"])
@pytest.mark.parametrize("name", ["weights.safetensors", "golden.parquet", "SHA256SUMS", "manifest.json"])
def test_damaged_version_is_rejected_in_every_role(repo: Path, role: str, name: str) -> None:
    file = repo / "feed" / "2" / name
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(BundleError, match=rf"feed/2/({name}|SHA256SUMS) (was altered|is damaged)"):
        change_release(repo, "feed", {role: {"version": 2, "weight": 0.1} if role == "canary" else 2})
    assert current_release(repo) == Release(version=3)


def test_version_with_other_golden_scores_is_rejected(repo: Path) -> None:
    file = repo / "feed" / "2" / "golden.parquet"
    table = pq.read_table(file)
    scores = pa.Table.from_struct_array(table["scores"].combine_chunks())
    doubled = pa.StructArray.from_arrays(
        [pc.multiply(column, pa.scalar(2, pa.float32())).combine_chunks() for column in scores.columns],
        scores.column_names,
    )
    pq.write_table(table.set_column(1, "scores", doubled), file)
    checksums.write_checksums(file.parent)
    with pytest.raises(BundleError, match="feed/2: golden rows score differently on this machine"):
        change_release(repo, "feed", {"version": 2})
    assert current_release(repo) == Release(version=3)


def test_version_outside_the_repository_is_rejected(repo: Path, bundle: Path) -> None:
    shutil.rmtree(repo / "feed" / "2")
    (repo / "feed" / "2").symlink_to(bundle)
    with pytest.raises(BundleError, match="feed/2 is a link that leads out of the repository"):
        change_release(repo, "feed", {"version": 2})


def test_model_outside_the_repository_is_rejected_and_unchanged(repo: Path) -> None:
    outside = (repo / "feed").rename(repo.with_name("outside"))
    (repo / "feed").symlink_to(outside)
    before = sorted(outside.iterdir())
    for changes in ({}, {"pinned": True}, {"version": 2}):
        with pytest.raises(BundleError, match="is a link that leads out of the repository"):
            change_release(repo, "feed", changes)
    assert sorted(outside.iterdir()) == before


def test_damaged_canary_does_not_prevent_a_rollback(repo: Path) -> None:
    change_release(repo, "feed", {"canary": {"version": 2, "weight": 0.1}})
    (repo / "feed" / "2" / "manifest.json").write_text("{}")
    change_release(repo, "feed", {"version": 1})
    assert current_release(repo) == Release(version=1, canary=Canary(version=2, weight=0.1))


@pytest.mark.parametrize("name", ["current.json", "fallbacks.json"])
def test_pipe_in_place_of_a_release_file_is_replaced(repo: Path, name: str) -> None:
    (repo / "feed" / name).unlink(missing_ok=True)
    os.mkfifo(repo / "feed" / name)
    if name == "current.json":
        with pytest.raises(BundleError, match=r"current\.json cannot be read \(it is a pipe or a device, not a file\)"):
            change_release(repo, "feed", {})
    change_release(repo, "feed", {"version": 2})
    assert current_release(repo) == Release(version=2)


def test_release_records_earlier_versions_as_fallbacks(repo: Path) -> None:
    def fallbacks_after(version: int) -> list[int]:
        change_release(repo, "feed", {"version": version})
        return repository.read_fallbacks(repo, "feed")

    assert fallbacks_after(1) == []  # 3 was rolled back
    assert fallbacks_after(2) == [1]
    assert fallbacks_after(3) == [2, 1]
    assert fallbacks_after(2) == [1]
    assert fallbacks_after(3) == [2, 1]
    shutil.rmtree(repo / "feed" / "2")
    assert repository.read_fallbacks(repo, "feed") == [1]


def test_repository_that_hangs_is_reported(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(release, "RESPONSE_SECONDS", 0.05)
    monkeypatch.setattr(repository, "read_release", lambda *_: released.wait())
    with pytest.raises(BundleError, match=r"repository did not respond within 0\.05 s: check its filesystem"):
        change_release(repo, "feed", {"version": 2})
    released.set()


def test_release_command_changes_the_default_model(
    repo: Path, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(bundle, repo, "shop")
    assert read_default_model(repo) == "feed"
    assert main(["release", str(repo), "shop", "--default"]) == 0
    assert read_default_model(repo) == "shop"
    capsys.readouterr()
    assert main(["release", str(repo), "other", "--default"]) == 1
    assert "has no model 'other': it has feed, shop" in capsys.readouterr().err
    assert read_default_model(repo) == "shop"


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
