"""The default model of a repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ranking.artifacts.default_model import read_default_model, record_first_model, write_default_model
from ranking.errors import BundleError


def add_model(repository: Path, name: str) -> None:
    (repository / name).mkdir(parents=True)
    (repository / name / "current.json").write_text('{"version": 1}')


def test_first_model_is_recorded_and_kept(tmp_path: Path) -> None:
    assert read_default_model(tmp_path) is None
    for name in ("feed", "shop"):
        record_first_model(tmp_path, name)
        add_model(tmp_path, name)
        assert read_default_model(tmp_path) == "feed"


def test_only_model_of_an_older_repository_is_recorded(tmp_path: Path) -> None:
    add_model(tmp_path, "feed")
    record_first_model(tmp_path, "shop")
    assert read_default_model(tmp_path) == "feed"


def test_older_repository_of_several_models_has_no_default(tmp_path: Path) -> None:
    add_model(tmp_path, "feed")
    add_model(tmp_path, "shop")
    record_first_model(tmp_path, "third")
    assert read_default_model(tmp_path) is None


def test_default_model_is_changed_to_an_existing_one_only(tmp_path: Path) -> None:
    add_model(tmp_path, "feed")
    add_model(tmp_path, "shop")
    write_default_model(tmp_path, "shop")
    assert read_default_model(tmp_path) == "shop"
    with pytest.raises(BundleError, match="has no model 'nope': it has feed, shop"):
        write_default_model(tmp_path, "nope")
    assert read_default_model(tmp_path) == "shop"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"default_model": 3}', b'{"default_model": "../x"}'])
def test_damaged_file_is_rejected_kept_by_publish_and_restored(tmp_path: Path, content: bytes) -> None:
    add_model(tmp_path, "feed")
    (tmp_path / "repository.json").write_bytes(content)
    record_first_model(tmp_path, "shop")
    with pytest.raises(BundleError, match=r"repository\.json is damaged.*--default' restores it"):
        read_default_model(tmp_path)
    write_default_model(tmp_path, "feed")
    assert read_default_model(tmp_path) == "feed"


def test_pipe_in_place_of_the_file_is_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "repository.json")
    with pytest.raises(BundleError, match="a pipe or a device"):
        read_default_model(tmp_path)
